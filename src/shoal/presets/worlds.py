"""Default experiments of the worlds that come with Shoal: a row each, and why where a number is not the usual one.

Cards and Pong are learnt by self-play, where returns sum to 0 whatever is learnt. In the card games a strong entropy
bonus keeps self-play near equilibrium, where a weak one goes in circles; the exact tables of `shoal.envs.tabular` say
how near. In Pong the rallies (`world/hits`) grow longer; with `--sharing group` each side learns a policy of its own,
and `shoal eval RUN --opponent right=random` lets the left one play against chance. Likewise in matrix games whose only
equilibrium is mixed there is no return to be gained: what is learnt is not to be exploitable. In a dilemma, learning
lowers the return: each does what is better for itself.
"""

from dataclasses import replace
from typing import Any

from shoal.algorithms import PPO
from shoal.networks.torsos import Network
from shoal.presets._registry import preset
from shoal.presets.sharing import SHARED
from shoal.training.experiment import Experiment, Learner

RELU = Network(hidden=(64, 64), activation="relu")
_PLAIN = PPO(learning_rate=1e-3, anneal=True)
_PPO = replace(_PLAIN, normalise_values=True)


def one_policy_per_group(*groups: str, algorithm: Any = _PPO) -> dict[str, Learner]:
    """A learner for each group."""
    return {group: Learner(algorithm, {group: (group,)}) for group in groups}


def _add(name: str, what: str, learners: dict[str, Learner], sizes: tuple[int, int], total: int, **more: Any) -> None:
    """sizes: copies, and steps between updates. total: environment steps. more: further fields of the experiment."""
    fields: dict[str, Any] = {"env": name, "learners": learners, "total_env_steps": total} | more
    preset(name, what)(lambda: Experiment(num_envs=sizes[0], num_steps=sizes[1], **fields))


def _add_battle() -> None:
    # Convolutions cost more. With the full price of an attack both sides soon learn not to attack at all, before they
    # learn to hit.
    network = replace(RELU, filters=(), share_torso=True)
    sides = one_policy_per_group(
        "red", "blue", algorithm=replace(_PPO, gamma=0.98, epochs=2, entropy_coef=0.01, network=network)
    )
    field = {"num_agents": 16, "map_size": 18, "view_radius": 4, "max_steps": 100, "attack_cost": 0.02}
    what = "sixteen against sixteen on a small field: PPO, one policy per side, two minutes on two cores"
    _add("battle/open", what, sides, (32, 50), 300_000, env_options=field)


def _add_cards() -> None:
    player = one_policy_per_group("player", algorithm=replace(_PPO, gamma=1.0, entropy_coef=0.2))
    what = "poker by self-play: PPO, one policy for both seats"
    _add("cards/kuhn", f"Kuhn {what}, seconds", player, (512, 16), 1_000_000)
    _add("cards/leduc", f"Leduc {what}, about a minute", player, (512, 16), 4_000_000)


def _add_control() -> None:
    def add(world: str, what: str, sizes: tuple[int, int], total: int, **options: Any) -> None:
        agent = one_policy_per_group("agent", algorithm=replace(_PPO, **options))
        _add(f"control/{world}", what, agent, sizes, total)

    add("cartpole", "keep a pole upright: PPO, half a minute", (64, 64), 1_000_000, learning_rate=2e-3)
    add("acrobot", "swing two links above a line: PPO, half a minute", (64, 128), 1_000_000)
    what = "swing a pendulum up and hold it: PPO with continuous actions"
    add("pendulum", what, (64, 100), 1_500_000, gamma=0.95, entropy_coef=0.0, epochs=8)
    what = "rock a car out of a valley"
    rare: dict[str, Any] = {"gae_lambda": 0.98, "normalise_views": True}
    many = "PPO with normalised views and many copies"
    add("mountain_car", f"{what}: {many}", (256, 64), 4_000_000, learning_rate=2e-3, **rare)
    saving = f"{what}, saving fuel: PPO with normalised views"
    add("mountain_car_continuous", saving, (256, 128), 4_000_000, gamma=0.995, **rare)


def _add_matrix() -> None:
    small = replace(_PPO, learning_rate=3e-3, network=Network(hidden=(16,)))

    def add(game: str, what: str, num_steps: int = 4, total: int = 200_000, seed: int = 0, **options: Any) -> None:
        players = {"players": Learner(replace(small, **options))}  # a policy each, however many there are
        _add(f"matrix/{game}", what, players, (256, num_steps), total, seed=seed)

    add("game", "a game given by its payoffs, one policy per player: PPO, seconds")
    for game in ("rock_paper_scissors", "matching_pennies"):
        add(game, "two players learn to mix: PPO with much entropy, seconds", entropy_coef=0.5)
    add("prisoners_dilemma", "two players learn to defect: PPO, seconds")
    what = "the dilemma with memory of the last round: PPO, one policy per player"
    add("iterated_prisoners_dilemma", what, num_steps=32, total=1_000_000, gamma=0.96)
    # Random play is the third equilibrium, an unstable one: of the seeds 0 to 7, five lead to the stag, three away.
    add("stag_hunt", "two players learn to hunt the stag together, with some seeds the hare: PPO, seconds", seed=3)


def _add_mpe() -> None:
    near = replace(_PPO, gamma=0.95)

    def add(world: str, what: str, total: int, **algorithms: PPO) -> None:
        learners = {group: Learner(algorithm, {group: (group,)}) for group, algorithm in algorithms.items()}
        _add(f"mpe/{world}", what, learners, (256, 25), total)

    add("simple", "one agent learns to go to one landmark: PPO, a few seconds", 500_000, agent=near)
    what = "two agents cover a goal that an adversary must guess: PPO, one policy per side"
    add("simple_adversary", what, 2_000_000, adversary=near, agent=near)
    what = "an agent reaches its goal past an adversary: PPO, one policy per side"
    add("simple_push", what, 2_000_000, adversary=near, agent=near)
    what = "a pack with a leader hunts two agents who feed and hide: PPO, one policy a role"
    add("simple_world_comm", what, 2_000_000, leadadversary=near, adversary=near, agent=near)
    what = "three agents learn to cover three landmarks: PPO, one policy for all, about a minute"
    add("simple_spread", what, 2_000_000, agent=replace(near, learning_rate=3e-3, entropy_coef=0.005))

    # A word has its effect in the next step and none later, so the horizon is short. Alice learns slowly: while Eve is
    # quick to read a plain code, only one that takes the key to read pays off. It does not always come to that: from
    # some seeds Alice and Bob end with a code that Eve reads as well.
    reader = replace(near, learning_rate=3e-3, gamma=0.5, gae_lambda=0.5)
    alice = replace(reader, learning_rate=3e-4, entropy_coef=0.02)
    what = "Alice and Bob learn to hide a bit from Eve: PPO, one policy each"
    add("simple_crypto", what, 1_000_000, eve=reader, bob=reader, alice=alice)

    listener = replace(near, learning_rate=2e-3, gae_lambda=0.9, entropy_coef=0.02, critic="global")
    what = "two agents learn to tell each other where to go: PPO, one policy for both, global critic"
    add("simple_reference", what, 5_000_000, agent=listener)
    # With hardly an entropy bonus the speaker soon says something definite, be it arbitrary, which can be learnt.
    speaker = replace(listener, learning_rate=3e-3, entropy_coef=0.002)
    what = "one agent learns to speak, one to listen: PPO, one policy each, global critic"
    add("simple_speaker_listener", what, 2_000_000, speaker=speaker, listener=listener)

    hunter = replace(near, gae_lambda=0.9)
    slow = replace(hunter, learning_rate=7e-4)
    add(
        "simple_tag",
        "three adversaries hunt one faster agent: PPO, one policy per side",
        4_000_000,
        adversary=slow,
        agent=slow,
    )
    what = "a first look: three hunters learn to corner one runner, in a few minutes on two cores"
    longer: dict[str, Any] = {"env": "mpe/simple_tag", "env_options": {"max_steps": 50}}
    _add("demo", what, one_policy_per_group("adversary", "agent", algorithm=hunter), (128, 50), 3_000_000, **longer)


def _add_pong() -> None:
    def both(algorithm: PPO) -> dict[str, Learner]:
        return {SHARED: Learner(algorithm, {SHARED: ("left", "right")})}

    what = "two paddles, one ball: PPO against itself, one policy for both sides"
    _add("pong", what, both(_PLAIN), (256, 64), 3_000_000)
    eyes = both(replace(_PLAIN, network=replace(RELU, filters=(16,), share_torso=True)))
    what = "Pong from 12 x 12 pixels: PPO against itself, with a convolutional network"
    _add("pong/image", what, eyes, (256, 64), 1_500_000, env="pong", env_options={"view": "image"})


def _add_swarm() -> None:
    def add(world: str, what: str, *groups: str, total: int = 640_000) -> None:
        _add(
            f"swarm/{world}", what, one_policy_per_group(*groups, algorithm=replace(_PPO, gamma=0.97)), (64, 50), total
        )

    what = "eight agents that see their three nearest learn to meet: PPO, one policy for all"
    add("rendezvous", what, "agent", total=320_000)
    add("coverage", "eight agents learn to keep an area under watch: PPO, one policy for all", "agent")
    add("pursuit", "five pursuers hunt two faster evaders: PPO, one policy per team", "pursuer", "evader")
    add("formation", "eight agents learn to hold a travelling ring past obstacles: PPO, one policy for all", "agent")
    add("delivery", "eight agents learn to carry parcels between stations: PPO, one policy for all", "agent")


def _add_tag() -> None:
    """Smaller and quicker than the published set-ups (see `reference`)."""
    far = replace(_PPO, gamma=0.98)
    sides = one_policy_per_group("tagger", "runner", algorithm=far)
    _add("tag/grid", "taggers surround a runner on a grid: PPO, one policy per side", sides, (256, 100), 10_000_000)
    wide = replace(far, learning_rate=5e-4, network=Network(hidden=(128, 128), activation="relu"))
    sides = one_policy_per_group("tagger", "runner", algorithm=wide)
    what = "ten taggers chase a hundred runners on a plane: PPO, one policy per side"
    _add("tag/continuous", what, sides, (64, 50), 1_000_000)


_add_battle()
_add_cards()
_add_control()
_add_matrix()
_add_mpe()
_add_pong()
_add_swarm()
_add_tag()
