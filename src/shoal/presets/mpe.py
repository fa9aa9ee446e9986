"""Default experiments of the particle worlds."""

from shoal.algorithms import PPO
from shoal.execution.experiment import Experiment, Learner
from shoal.presets._registry import preset

_PPO = PPO(learning_rate=1e-3, gamma=0.95, gae_lambda=0.95, anneal=True, normalise_values=True)


def _experiment(world: str, algorithm: PPO, groups: tuple[str, ...], total_env_steps: int) -> Experiment:
    """One learner and one policy for each group."""
    return Experiment(
        env=world,
        learners={group: Learner(algorithm, {group: (group,)}) for group in groups},
        num_envs=256,
        num_steps=25,
        total_env_steps=total_env_steps,
    )


@preset("mpe/simple", "one agent learns to go to one landmark: PPO, a few seconds")
def simple() -> Experiment:
    return _experiment("mpe/simple", _PPO, ("agent",), total_env_steps=500_000)


@preset("mpe/simple_adversary", "two agents cover a goal that an adversary must not guess: PPO, one policy a side")
def simple_adversary() -> Experiment:
    return _experiment("mpe/simple_adversary", _PPO, ("adversary", "agent"), total_env_steps=3_000_000)


@preset("mpe/simple_crypto", "Alice and Bob learn to hide a bit from Eve: PPO, one policy each")
def simple_crypto() -> Experiment:
    return _experiment("mpe/simple_crypto", _PPO, ("eve", "bob", "alice"), total_env_steps=3_000_000)


@preset("mpe/simple_push", "an agent reaches its goal past an adversary: PPO, one policy a side")
def simple_push() -> Experiment:
    return _experiment("mpe/simple_push", _PPO, ("adversary", "agent"), total_env_steps=3_000_000)


@preset("mpe/simple_reference", "two agents learn to tell each other where to go: PPO, one policy for both")
def simple_reference() -> Experiment:
    return _experiment("mpe/simple_reference", _PPO, ("agent",), total_env_steps=8_000_000)


@preset("mpe/simple_speaker_listener", "one agent learns to speak and one to listen: PPO, one policy each")
def simple_speaker_listener() -> Experiment:
    return _experiment("mpe/simple_speaker_listener", _PPO, ("speaker", "listener"), total_env_steps=4_000_000)


@preset("mpe/simple_world_comm", "a pack with a leader hunts two agents who feed and hide: PPO, one policy a role")
def simple_world_comm() -> Experiment:
    roles = ("leadadversary", "adversary", "agent")
    return _experiment("mpe/simple_world_comm", _PPO, roles, total_env_steps=4_000_000)


@preset("mpe/simple_spread", "three agents learn to cover three landmarks: PPO, one policy for all, about a minute")
def simple_spread() -> Experiment:
    algorithm = PPO(
        learning_rate=3e-3,
        gamma=0.95,
        gae_lambda=0.95,
        entropy_coef=0.005,
        anneal=True,
        normalise_values=True,
    )
    return Experiment(
        env="mpe/simple_spread",
        learners={"agent": Learner(algorithm, {"agent": ("agent",)})},
        num_envs=256,
        num_steps=25,
        total_env_steps=2_000_000,
    )


@preset("mpe/simple_tag", "three adversaries hunt one faster agent: PPO, one policy a side")
def simple_tag() -> Experiment:
    algorithm = PPO(learning_rate=7e-4, gamma=0.95, gae_lambda=0.9, anneal=True, normalise_values=True)
    return Experiment(
        env="mpe/simple_tag",
        learners={
            "adversary": Learner(algorithm, {"adversary": ("adversary",)}),
            "agent": Learner(algorithm, {"agent": ("agent",)}),
        },
        num_envs=256,
        num_steps=25,
        total_env_steps=4_000_000,
    )


@preset("demo", "a first look: three hunters learn to corner one runner, in a few minutes on two cores")
def demo() -> Experiment:
    algorithm = PPO(learning_rate=1e-3, gamma=0.95, gae_lambda=0.9, anneal=True, normalise_values=True)
    return Experiment(
        env="mpe/simple_tag",
        env_options={"max_steps": 50},
        learners={
            "adversary": Learner(algorithm, {"adversary": ("adversary",)}),
            "agent": Learner(algorithm, {"agent": ("agent",)}),
        },
        num_envs=128,
        num_steps=50,
        total_env_steps=3_000_000,
    )
