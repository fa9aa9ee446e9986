"""PettingZoo environments as worlds: step by step what they are alone, agents that come and go, turns, errors."""

import importlib
import warnings

import numpy as np
import pytest

from shoal.core.errors import OptionError, UnknownNameError, WorldError
from shoal.core.host import HostEnvProxy, check_observations
from shoal.core.spaces import Discrete

pytest.importorskip("pettingzoo", reason="PettingZoo is not installed: pip install pettingzoo")

from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from shoal.bridges.incoming.pettingzoo import make

SEED = 5
SEED_OF_COPY = int(np.random.SeedSequence(SEED).generate_state(1)[0])


def world(name: str, **options) -> HostEnvProxy:
    env = make(name, **options)
    assert isinstance(env, HostEnvProxy)
    return env


class Camp(ParallelEnv):
    """`scout_0` leaves after step 2, `scout_2` comes at step 3, all is over at step 5: one cut short, others not.

    Everybody sees the step, and is paid ten times the step plus the action.
    """

    metadata = {"name": "camp"}
    possible_agents = ["scout_0", "scout_1", "scout_2", "cook_0"]

    def __init__(self, fault: str = ""):
        self.fault, self.agents = fault, []

    def observation_space(self, agent):
        changed = self.fault == "space" and self.agents and self.t == 3 and agent == "scout_1"
        return spaces.Box(0.0, 9.0 if changed else 8.0, (2 if agent == "cook_0" else 1,))

    def action_space(self, agent):
        return spaces.Discrete(4)

    def see(self, agents):
        return {agent: np.full(self.observation_space(agent).shape, self.t, np.float32) for agent in agents}

    def reset(self, seed=None, options=None):
        self.t, self.agents = 0, ["scout_0", "scout_1", "cook_0"]
        return self.see(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions):
        self.t += 1
        assert set(actions) == set(self.agents)
        acted = list(self.agents)
        rewards = {agent: 10.0 * self.t + action for agent, action in actions.items()}
        terminated = {agent: self.t == 5 and agent != "scout_1" for agent in acted}
        truncated = {agent: self.t == 5 and agent == "scout_1" for agent in acted}
        if self.t == 2:
            terminated["scout_0"] = True
        self.agents = [agent for agent in acted if not (terminated[agent] or truncated[agent])]
        if self.t == 3:
            self.agents.append("scout_2")
            terminated["scout_2"], truncated["scout_2"], rewards["scout_2"] = False, False, 0.0
        seen = self.see({*acted, *self.agents})
        if self.t == 3:
            self.spoil(seen, rewards)
            terminated |= {"__all__": False} if self.fault == "all" else {}
            if self.fault == "flagless":
                del truncated["cook_0"]
        return seen, rewards, terminated, truncated, {agent: {} for agent in acted}

    def spoil(self, seen, rewards):
        match self.fault:
            case "revive":
                self.agents.append("scout_0")
            case "pay":
                rewards["scout_0"] = 2.5
            case "vanish":
                self.agents.remove("cook_0")
            case "stranger":
                self.agents.append("bear_0")
            case "silent":
                del seen["cook_0"]
            case "outside":
                seen["cook_0"][1] = -3.0
            case "nan":
                seen["scout_1"][0] = np.nan
            case "reward":
                rewards["scout_1"] = np.inf
            case "raise":
                raise KeyError("tent")


class Auction(AECEnv):
    """Three bid in turn. A bid is lost by the others; who bids 0 is out; the last one wins 3. Step 9 cuts it short."""

    metadata = {"name": "auction"}
    possible_agents = ["bidder_0", "bidder_1", "bidder_2"]

    def __init__(self, fault: str = ""):
        super().__init__()
        self.fault = fault

    def observation_space(self, agent):
        return spaces.Dict(observation=spaces.Discrete(20), action_mask=spaces.Box(0, 1, (3,), np.int8))

    def action_space(self, agent):
        return spaces.Discrete(3)

    def observe(self, agent):
        mask = np.ones(3, np.int8) if agent == self.agent_selection else np.zeros(3, np.int8)
        return {"observation": self.t, "action_mask": mask}

    def reset(self, seed=None, options=None):
        self.t, self.agents = 0, list(self.possible_agents)
        zeros = dict.fromkeys(self.agents, 0.0)
        self.rewards, self._cumulative_rewards = dict(zeros), dict(zeros)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection = self.agents[0]

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            return None if self.fault == "sticky" else self._was_dead_step(action)
        self.t += 1
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        alive = [other for other in self.agents if not self.terminations[other]]
        following = alive[(alive.index(agent) + 1) % len(alive)]
        for other in alive:
            self.rewards[other] = -float(action) if other != agent else 0.0
        if action == 0:
            self.terminations[agent] = True
            alive.remove(agent)
        if len(alive) == 1:
            self.rewards[alive[0]] += 3.0
            self.terminations[alive[0]] = True
        if self.t == 9:
            self.truncations = dict.fromkeys(self.agents, True)
        self.agent_selection = following
        self._accumulate_rewards()
        self._deads_step_first()
        return None


def camp(**options):
    return Camp(**options)


def auction(**options):
    return Auction(**options)


def nothing():
    return object()


def lonely():
    env = Camp()
    env.possible_agents = []
    return env


class Mute(Camp):
    def observation_space(self, agent):
        return spaces.Dict(badge=spaces.Text(3))


def mute():
    return Mute()


CAMP, AUCTION = f"{__name__}:camp", f"{__name__}:auction"


def no_acts(proxy, copies: int = 1) -> dict[str, np.ndarray]:
    return {name: np.zeros((copies, group.size), int) for name, group in proxy.groups.items()}


@pytest.mark.parametrize(
    ("name", "groups"), [("simple_spread_v3", {"agent": 3}), ("simple_tag_v3", {"adversary": 3, "agent": 1})]
)
def test_particle_worlds_are_the_original_step_by_step(name, groups):
    pytest.importorskip("mpe2", reason="mpe2 is not installed: pip install mpe2")
    proxy = world(f"mpe2.{name}", max_cycles=12)
    assert {group: spec.size for group, spec in proxy.groups.items()} == groups
    assert {player: len(seats) for player, seats in proxy.players.items()} == groups
    batch = proxy.open(1)
    original = importlib.import_module(f"mpe2.{name}").parallel_env(max_cycles=12)
    seen, (theirs, _) = batch.reset(SEED), original.reset(seed=SEED_OF_COPY)
    seats = [(f"{group}_{i}", group, i) for group, size in groups.items() for i in range(size)]
    draws = np.random.default_rng(0)
    for t in range(30):
        check_observations(proxy, seen)
        for agent, group, i in seats:
            np.testing.assert_array_equal(seen[group].view[0, i], theirs[agent])
            assert seen[group].present[0, i]
            assert seen[group].active[0, i]
        acts = {group: draws.integers(5, size=(1, size)) for group, size in groups.items()}
        told = batch.step(acts)
        theirs, rewards, _, truncated, _ = original.step({agent: acts[group][0, i] for agent, group, i in seats})
        for agent, group, i in seats:
            np.testing.assert_array_equal(told.final[group].view[0, i], theirs[agent])
            assert told.final[group].present[0, i]  # cut short: its value counts
            assert told.outcome.reward[group][0, i] == np.float32(rewards[agent])
        over = all(truncated.values())
        assert told.outcome.truncated[0] == over == (t % 12 == 11)
        assert not told.outcome.terminated[0]
        seen, theirs = told.observation, original.reset()[0] if over else theirs


def test_agents_come_and_go():
    proxy = world(CAMP)
    assert proxy.leaving
    assert {name: group.size for name, group in proxy.groups.items()} == {"scout": 3, "cook": 1}
    batch = proxy.open(1)
    seen = batch.reset(0)
    present = {1: [1, 1, 0], 2: [0, 1, 0], 3: [0, 1, 1], 4: [0, 1, 1]}
    np.testing.assert_array_equal(seen["scout"].present, [[True, True, False]])
    for t in range(1, 6):
        told = batch.step({"scout": np.array([[1, 2, 3]]), "cook": np.array([[0]])})
        check_observations(proxy, told.observation)
        # Who acts is paid 10 t plus the action: scout_0 until step 2, scout_2 from step 4 on.
        wanted = [10 * t + 1 if t <= 2 else 0, 10 * t + 2, 10 * t + 3 if t >= 4 else 0]
        np.testing.assert_array_equal(told.outcome.reward["scout"], [wanted])
        np.testing.assert_array_equal(told.outcome.reward["cook"], [[10 * t]])
        if t < 5:
            np.testing.assert_array_equal(told.observation["scout"].present, [present[t]])
            np.testing.assert_array_equal(told.observation["scout"].active, [present[t]])
            np.testing.assert_array_equal(told.observation["cook"].view, [[[t, t]]])
            assert not told.outcome.terminated[0]
            assert not told.outcome.truncated[0]
    # The last step cut scout_1 short and terminated the others: only its value is to be bootstrapped.
    assert told.outcome.truncated[0]
    assert not told.outcome.terminated[0]
    np.testing.assert_array_equal(told.final["scout"].present, [[False, True, False]])
    np.testing.assert_array_equal(told.final["cook"].present, [[False]])
    np.testing.assert_array_equal(told.final["scout"].view[0, 1], [5.0])
    np.testing.assert_array_equal(told.observation["scout"].present, [[True, True, False]])


@pytest.mark.parametrize("game", ["connect_four", "tictactoe"])
def test_turns_are_the_original_step_by_step(game):
    pytest.importorskip("pygame", reason="PettingZoo's board games draw with pygame: pip install pygame")
    proxy = world(f"pettingzoo.classic.{game}_v3")
    names = {"connect_four": ("player_0", "player_1"), "tictactoe": ("player_1", "player_2")}[game]
    assert proxy.players == {name: (("player", i),) for i, name in enumerate(names)}
    assert proxy.groups["player"].movers == 1
    assert proxy.masked
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        original = importlib.import_module(f"pettingzoo.classic.{game}_v3").env()
    batch, draws, ends = proxy.open(1), np.random.default_rng(3), set()
    seen = batch.reset(SEED)
    for _ in range(6):
        original.reset()
        due = dict.fromkeys(names, 0.0)
        for agent in original.agent_iter():
            value, reward, terminated, truncated, _ = original.last()
            i = names.index(agent)
            # What `last` gives at an agent's turn is what it was paid since its last one.
            assert due[agent] == reward
            due[agent] = 0.0
            if terminated or truncated:
                original.step(None)
                continue
            np.testing.assert_array_equal(seen["player"].view[0, i], value["observation"])
            np.testing.assert_array_equal(seen["player"].legal[0, i], value["action_mask"].astype(bool))
            np.testing.assert_array_equal(seen["player"].active[0], [agent == name for name in names])
            np.testing.assert_array_equal(seen["player"].view[0, 1 - i], original.observe(names[1 - i])["observation"])
            assert seen["player"].legal[0].any(-1).all()
            assert seen["player"].present[0].all()
            action = draws.choice(np.flatnonzero(value["action_mask"]))
            acts = np.full((1, 2), -1)  # who waits has no say
            acts[0, i] = action
            told = batch.step({"player": acts})
            check_observations(proxy, told.observation)
            original.step(action)
            for j, name in enumerate(names):
                due[name] += told.outcome.reward["player"][0, j]
            over = all(original.terminations.values())
            assert told.outcome.terminated[0] == over
            if over:
                ends.add(tuple(told.outcome.reward["player"][0]))
                final = original.observe(agent)["observation"]
                np.testing.assert_array_equal(told.final["player"].view[0, i], final)
            seen = told.observation
    assert {(1.0, -1.0), (-1.0, 1.0)} <= ends


def test_a_bidder_who_is_out_leaves_and_the_others_go_on():
    proxy = world(AUCTION)
    batch = proxy.open(1)
    seen = batch.reset(0)
    # Who is to bid, what, who is paid what by it, and who is there after it.
    story = [
        (0, 2, [0, -2, -2], [1, 1, 1]),
        (1, 1, [-1, 0, -1], [1, 1, 1]),
        (2, 0, [0, 0, 0], [1, 1, 0]),
        (0, 1, [0, -1, 0], [1, 1, 0]),
        (1, 0, [3, 0, 0], None),
    ]
    for t, (bidder, bid, paid, there) in enumerate(story):
        np.testing.assert_array_equal(seen["bidder"].active[0], np.arange(3) == bidder)
        np.testing.assert_array_equal(seen["bidder"].view[0, bidder], np.eye(20)[t])
        told = batch.step({"bidder": np.array([[bid] * 3])})
        np.testing.assert_array_equal(told.outcome.reward["bidder"][0], paid)
        if there:
            np.testing.assert_array_equal(told.observation["bidder"].present[0], there)
        seen = told.observation
    assert told.outcome.terminated[0]
    assert not told.outcome.truncated[0]
    assert not told.final["bidder"].present.any()
    assert seen["bidder"].present.all()


def test_turns_that_are_cut_short_keep_all_that_are_there():
    batch = world(AUCTION).open(1)
    batch.reset(0)
    for t in range(9):
        told = batch.step({"bidder": np.array([[0 if t == 2 else 1] * 3])})
    assert told.outcome.truncated[0]
    assert not told.outcome.terminated[0]
    np.testing.assert_array_equal(told.final["bidder"].present[0], [True, True, False])
    np.testing.assert_array_equal(told.final["bidder"].view[0, 0], np.eye(20)[9])


def test_players_can_be_groups_or_agents():
    assert world(AUCTION, players="group").players == {"bidder": tuple(("bidder", i) for i in range(3))}
    assert list(world(CAMP, players="agent").players) == ["scout_0", "scout_1", "scout_2", "cook_0"]


def test_a_name_of_the_registry():
    pytest.importorskip("pygame", reason="PettingZoo's board games draw with pygame: pip install pygame")
    proxy = world("classic/rps-v2")
    assert proxy.groups["player"].action == Discrete(3)
    assert proxy.groups["player"].movers is None  # the parallel form is taken where there is one


def test_knights_and_archers_die_one_by_one():
    pytest.importorskip("pygame", reason="knights_archers_zombies needs pygame: pip install pygame")
    proxy = world("pettingzoo.butterfly.knights_archers_zombies_v11", max_cycles=400)
    assert {name: group.size for name, group in proxy.groups.items()} == {"archer": 2, "knight": 2}
    batch, alive = proxy.open(1), set()
    batch.reset(SEED)
    for _ in range(400):
        told = batch.step(no_acts(proxy))
        if told.outcome.terminated[0] or told.outcome.truncated[0]:
            break
        alive.add(sum(int(seen.present.sum()) for seen in told.observation.values()))
    assert told.outcome.terminated[0] or told.outcome.truncated[0]
    assert len(alive) > 1  # fewer and fewer
    batch.close()


def test_two_player_pong():
    pytest.importorskip("multi_agent_ale_py", reason="Atari for two: pip install multi-agent-ale-py ale-py")
    pytest.importorskip("ale_py", reason="it has the ROMs: pip install ale-py")
    proxy = world("pettingzoo.atari.pong_v3")
    assert proxy.groups["first"].observation.dtype == "uint8"
    batch, points = proxy.open(1), np.zeros(2)
    batch.reset(0)
    for _ in range(150):
        told = batch.step({"first": np.array([[1]]), "second": np.array([[1]])})
        points += [told.outcome.reward["first"][0, 0], told.outcome.reward["second"][0, 0]]
    assert points.sum() == 0
    assert points.any()
    batch.close()


FAULTS = {
    "space": "agent 'scout_1': the observation space was .* now: spaces must not change",
    "revive": "agent 'scout_0' was done at step 2, but acts again",
    "pay": r"agent 'scout_0' was done at step 2, but is still paid \(2.5\)",
    "vanish": "agent 'cook_0' is no longer among the agents, but neither terminated nor truncated",
    "all": "terminations has '__all__', which is no agent: set the flag of every agent instead",
    "flagless": "truncations has no flag of agent 'cook_0', who acted: every agent needs one in every step",
    "stranger": "agent 'bear_0' appears, but possible_agents has only",
    "silent": "agent 'cook_0' is alive, but has no observation",
    "outside": r"agent 'cook_0': observation is -3 at \[1\], outside of its space: 0 to 8",
    "nan": r"agent 'scout_1': observation is NaN at \[0\]",
    "reward": "the reward of agent 'scout_1' is inf",
    "raise": "step raised KeyError: 'tent'",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_reported_with_name_episode_and_step(fault):
    proxy = world(CAMP, fault=fault)
    batch = proxy.open(1)
    batch.reset(0)
    batch.step(no_acts(proxy)), batch.step(no_acts(proxy))
    with pytest.raises(WorldError, match=f"^pettingzoo:{CAMP}, episode 1, step 3: {FAULTS[fault]}"):
        batch.step(no_acts(proxy))


def test_who_was_done_is_not_paid_without_checks():
    proxy = world(CAMP, fault="pay", check=False)
    batch = proxy.open(1)
    batch.reset(0)
    for _ in range(3):
        told = batch.step(no_acts(proxy))
    assert told.outcome.reward["scout"][0, 0] == 0


def test_a_done_agent_that_keeps_its_turn():
    proxy = world(AUCTION, fault="sticky")
    batch = proxy.open(1)
    batch.reset(0)
    with pytest.raises(WorldError, match="episode 1, step 1: agent 'bidder_0' is done, but is still to act"):
        batch.step(no_acts(proxy))


@pytest.mark.parametrize(
    ("name", "options", "kind", "text"),
    [
        ("mpe2.simple_spred_v3", {}, UnknownNameError, "Did you mean 'mpe2.simple_spread_v3'"),
        (
            "no_such_package.thing",
            {},
            UnknownNameError,
            "no module 'no_such_package'. A module in the current folder is found if PYTHONPATH=. is set.$",
        ),
        ("classic/conect_four-v3", {}, UnknownNameError, "Did you mean 'classic/connect_four-v3'"),
        ("mpe2.simple_spread", {}, OptionError, "no function parallel_env or env. Did you mean"),
        (f"{__name__}:zzz", {}, OptionError, r"has no function zzz\.$"),
        ("mpe2.simple_spread_v3", {"M": 3}, OptionError, "making it with the options {'M': 3} raised TypeError"),
        (CAMP, {"players": "team"}, OptionError, "players must be group or agent, got 'team'"),
        (CAMP, {"check": 1}, OptionError, "check must be true or false"),
        (f"{__name__}:nothing", {}, OptionError, "object is neither a ParallelEnv nor an AECEnv"),
        (f"{__name__}:lonely", {}, OptionError, "possible_agents are empty"),
        (f"{__name__}:mute", {}, OptionError, r"agent 'scout_0': observation space \['badge'\] is Text"),
    ],
)
def test_bad_names_options_and_spaces(name, options, kind, text):
    with pytest.raises(kind, match=text):
        make(name, **options)


@pytest.mark.parametrize(
    ("group", "action", "said"),
    [
        ("scout", None, "group 'scout' must be"),
        ("scout", "float", "group 'scout' must be whole numbers"),
        ("scout", "wide", "group 'scout' must be .* got int64 of shape"),
        ("scout", "outside", "an action of group 'scout' is outside its space .* got 99"),
    ],
)
def test_actions_that_do_not_fit_are_not_the_environments_fault(group, action, said):
    proxy = world(CAMP)
    batch = proxy.open(2)
    good = {name: np.repeat(acts, 2, 0) for name, acts in no_acts(proxy).items()}
    with pytest.raises(WorldError, match=r"pettingzoo:.*: no episode has begun: call reset before step"):
        batch.step(good)
    batch.reset(0)
    shaped = good[group]
    wrong = {"float": shaped + 0.5, "wide": shaped[..., None], "outside": shaped.astype(int) + 99}
    with pytest.raises(OptionError, match=f"^pettingzoo:[^,]*: .*{said}"):
        batch.step(good | {group: wrong.get(action)})
    with pytest.raises(OptionError, match=r"a step needs actions by group, of \['cook', 'scout'\], got \['scout'\]"):
        batch.step({"scout": good["scout"]})
    with pytest.raises(OptionError, match="got NoneType"):
        batch.step(None)
    batch.step(good)
    batch.close()
    batch.close()
    with pytest.raises(WorldError, match=r"pettingzoo:.*: it is closed"):
        batch.step(good)
    for count in (0, -1, 1.5, True):
        with pytest.raises(OptionError, match="number of environments to open must be"):
            proxy.open(count)
