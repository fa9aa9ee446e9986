"""Gymnasium environments as worlds: step by step what they are by themselves, and errors that name them."""

import numpy as np
import pytest

import shoal
from shoal.core.errors import OptionError, UnknownNameError, WorldError
from shoal.core.host import HostEnvProxy, check_observations
from shoal.core.spaces import Box, Discrete, MultiDiscrete

gymnasium = pytest.importorskip("gymnasium", reason="Gymnasium is not installed: pip install gymnasium")

from gymnasium import spaces  # noqa: E402

from shoal.bridges.incoming.gymnasium import make  # noqa: E402

SEED = 7


def copy_seeds(count: int) -> list[int]:
    return [int(seed) for seed in np.random.SeedSequence(SEED).generate_state(count)]


class Kit(gymnasium.Env):
    """Every kind of space, nested. Observations are drawn; rewards tell which action arrived."""

    observation_space = spaces.Dict(
        {
            "camera": spaces.Dict(
                {"image": spaces.Box(0, 255, (4, 4, 3), np.uint8), "zoom": spaces.Discrete(3, start=-1)}
            ),
            "pair": spaces.Tuple((spaces.MultiBinary(2), spaces.MultiDiscrete([2, 3]))),
            "speed": spaces.Box(-1.0, 1.0, (2,), np.float64),
        }
    )
    action_space = spaces.Dict({"gear": spaces.Discrete(3, start=1), "lamps": spaces.MultiBinary(2)})

    def __init__(self, fault: str = "", length: int = 5):
        self.fault, self.length, self.t = fault, length, 0

    def draw(self):
        value = {
            "camera": {
                "image": self.np_random.integers(0, 256, (4, 4, 3), np.uint8),
                "zoom": int(self.np_random.integers(-1, 2)),
            },
            "pair": (self.np_random.integers(0, 2, 2, np.int8), self.np_random.integers([2, 3])),
            "speed": self.np_random.uniform(-1, 1, 2),
        }
        if self.t < 3:
            return value
        if self.fault == "outside":
            value["speed"][1] = 4.0
        if self.fault == "nan":
            value["speed"][0] = np.nan
        if self.fault == "zoom":
            value["camera"]["zoom"] = 2
        if self.fault == "shape":
            value["speed"] = np.zeros(3)
        if self.fault == "part":
            del value["camera"]["image"]
        if self.fault == "space":
            self.observation_space = spaces.Dict({**Kit.observation_space.spaces, "speed": spaces.Box(-2, 2, (2,))})
        if self.fault == "exit":
            raise SystemExit(3)
        if self.fault == "raise":
            raise RuntimeError("the battery is empty")
        return value

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.draw(), {}

    def step(self, action):
        self.t += 1
        reward = np.nan if self.fault == "reward" and self.t == 3 else 10.0 * action["gear"] + action["lamps"] @ [1, 2]
        return self.draw(), reward, False, self.t == self.length, {}


class Choosy(gymnasium.Env):
    """Two of three actions are legal, as an info says."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 1, {"action_mask": np.array([0, 1, 1], np.int8)}

    def step(self, action):
        return 0, 1.0, True, False, {"action_mask": np.zeros(3, np.int8)}


class Typed(gymnasium.Env):
    """Spaces handed in."""

    def __init__(self, seen=spaces.Discrete(2), done=spaces.Discrete(2)):
        self.observation_space, self.action_space, self.told = seen, done, None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        Typed.told = action
        return self.observation_space.sample(), 0.0, False, False, {}


for name, entry in {"ToyKit-v0": Kit, "ToyChoosy-v0": Choosy, "ToyTyped-v0": Typed}.items():
    if name not in gymnasium.registry:
        gymnasium.register(name, entry_point=entry)


def world(name: str, **options) -> HostEnvProxy:
    env = make(name, **options)
    assert isinstance(env, HostEnvProxy)
    return env


@pytest.mark.parametrize("mode", [None, "sync"])
def test_cart_pole_is_the_original_step_by_step(mode):
    proxy = world("CartPole-v1", max_episode_steps=16, vectorisation_mode=mode)
    assert proxy.groups["agent"].action == Discrete(2)
    assert proxy.players == {"agent": (("agent", 0),)}
    batch, actions = proxy.open(3), np.random.default_rng(0).integers(2, size=(90, 3, 1))
    originals = [gymnasium.make("CartPole-v1", max_episode_steps=16) for _ in range(3)]
    seen = batch.reset(SEED)
    check_observations(proxy, seen)
    for i, (env, seed) in enumerate(zip(originals, copy_seeds(3), strict=True)):
        np.testing.assert_array_equal(seen["agent"].view[i, 0], env.reset(seed=seed)[0])
    ends = np.zeros(2, int)
    for action in actions:
        told = batch.step({"agent": action})
        check_observations(proxy, told.observation)
        for i, env in enumerate(originals):
            view, reward, terminated, truncated, _ = env.step(int(action[i, 0]))
            np.testing.assert_array_equal(told.final["agent"].view[i, 0], view)
            assert told.outcome.reward["agent"][i, 0] == reward
            assert (told.outcome.terminated[i], told.outcome.truncated[i]) == (terminated, truncated)
            view = env.reset()[0] if terminated or truncated else view
            np.testing.assert_array_equal(told.observation["agent"].view[i, 0], view)
            ends += [terminated, truncated]
    assert (ends > 0).all()  # both kinds of ends were seen
    batch.close()


def test_a_vector_environment_of_its_own_is_told_of_a_step_late():
    proxy = world("CartPole-v1", max_episode_steps=12, vectorisation_mode="vector_entry_point")
    assert proxy.leaving
    batch, original = (
        proxy.open(4),
        gymnasium.make_vec("CartPole-v1", 4, vectorization_mode="vector_entry_point", max_episode_steps=12),
    )
    actions = np.random.default_rng(0).integers(2, size=(50, 4))
    seen, (view, _) = batch.reset(SEED), original.reset(seed=copy_seeds(4)[0])
    before, ended = view, np.zeros((2, 4), bool)
    cut = 0
    for action in actions:
        told = batch.step({"agent": action[:, None]})
        check_observations(proxy, told.observation)
        view, reward, terminated, truncated, _ = original.step(action)
        over = ended.any(0)
        np.testing.assert_array_equal(told.observation["agent"].view[:, 0], view)
        np.testing.assert_array_equal(told.final["agent"].view[:, 0], np.where(over[:, None], before, view))
        np.testing.assert_array_equal(told.outcome.reward["agent"][:, 0], reward)
        np.testing.assert_array_equal([told.outcome.terminated, told.outcome.truncated], ended)
        # In between nobody acts, and who terminated is gone.
        np.testing.assert_array_equal(told.observation["agent"].active[:, 0], ~(terminated | truncated))
        np.testing.assert_array_equal(told.observation["agent"].present[:, 0], ~terminated)
        np.testing.assert_array_equal(told.final["agent"].present[:, 0][over], ~ended[0][over])
        assert (told.outcome.reward["agent"][over] == 0).all()
        before, ended = view, np.array([terminated, truncated])
        cut += truncated.sum()
    assert cut
    assert seen["agent"].active.all()
    batch.close()


def test_a_vector_environment_without_resets_of_its_own_is_reset_by_mask():
    kwargs = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}
    masked = world("CartPole-v1", vectorisation_mode="sync", vector_kwargs=kwargs).open(3)
    plain = world("CartPole-v1").open(3)
    masked.reset(SEED), plain.reset(SEED)
    for action in np.random.default_rng(0).integers(2, size=(50, 3, 1)):
        ours, theirs = masked.step({"agent": action}), plain.step({"agent": action})
        np.testing.assert_array_equal(ours.observation["agent"].view, theirs.observation["agent"].view)
        np.testing.assert_array_equal(ours.final["agent"].view, theirs.final["agent"].view)


def test_processes_give_the_same():
    apart, plain = world("CartPole-v1", vectorisation_mode="async").open(2), world("CartPole-v1").open(2)
    np.testing.assert_array_equal(apart.reset(SEED)["agent"].view, plain.reset(SEED)["agent"].view)
    for action in np.random.default_rng(0).integers(2, size=(50, 2, 1)):
        ours, theirs = apart.step({"agent": action}), plain.step({"agent": action})
        np.testing.assert_array_equal(ours.observation["agent"].view, theirs.observation["agent"].view)
        np.testing.assert_array_equal(ours.final["agent"].view, theirs.final["agent"].view)
        np.testing.assert_array_equal(ours.outcome.terminated, theirs.outcome.terminated)
    apart.close()


@pytest.mark.parametrize("mode", [None, "sync"])
def test_nested_spaces_keep_their_values(mode):
    proxy = world("ToyKit-v0", vectorisation_mode=mode)
    group = proxy.groups["agent"]
    assert group.action == MultiDiscrete((3, 2, 2))
    assert {name: (box.shape, box.dtype) for name, box in group.observation.items()} == {
        "camera/image": ((4, 4, 3), "uint8"),
        "camera/zoom": ((3,), "float32"),
        "pair/0": ((2,), "float32"),
        "pair/1": ((5,), "float32"),
        "speed": ((2,), "float32"),
    }
    batch, original = proxy.open(2), Kit()
    seen = batch.reset(SEED)
    value, _ = original.reset(seed=copy_seeds(2)[1])
    for t in range(12):
        view = seen["agent"].view
        np.testing.assert_array_equal(view["camera/image"][1, 0], value["camera"]["image"])
        np.testing.assert_array_equal(view["camera/zoom"][1, 0], np.eye(3)[value["camera"]["zoom"] + 1])
        np.testing.assert_array_equal(view["pair/0"][1, 0], value["pair"][0])
        hot = np.concatenate([np.eye(2)[value["pair"][1][0]], np.eye(3)[value["pair"][1][1]]])
        np.testing.assert_array_equal(view["pair/1"][1, 0], hot)
        np.testing.assert_array_equal(view["speed"][1, 0], value["speed"].astype(np.float32))
        told = batch.step({"agent": np.array([[[0, 0, 0]], [[2, 1, 1]]])})
        check_observations(proxy, told.observation)
        value, reward, _, truncated, _ = original.step({"gear": 3, "lamps": np.array([1, 1])})
        # The gears begin at 1: 10 for the first; 30 + 1 + 2 for the last with both lamps on.
        np.testing.assert_array_equal(told.outcome.reward["agent"], [[10.0], [33.0]])
        assert reward == 33.0
        np.testing.assert_array_equal(told.final["agent"].view["speed"][1, 0], value["speed"].astype(np.float32))
        assert told.outcome.truncated[1] == truncated == (t in (4, 9))
        seen, value = told.observation, original.reset()[0] if truncated else value


def test_masks_say_what_is_legal():
    for mode in (None, "sync"):
        proxy = world("ToyChoosy-v0", vectorisation_mode=mode)
        assert proxy.masked
        batch = proxy.open(2)
        np.testing.assert_array_equal(batch.reset(0)["agent"].legal, [[[False, True, True]]] * 2)
        told = batch.step({"agent": np.ones((2, 1), int)})
        check_observations(proxy, told.observation)
        np.testing.assert_array_equal(told.observation["agent"].legal, [[[False, True, True]]] * 2)
        assert told.final["agent"].legal.any(-1).all()  # every row has a true entry, at the end too
        np.testing.assert_array_equal(told.final["agent"].view[:, 0], [[1, 0]] * 2)


ACTIONS = [
    (spaces.Discrete(4, start=2), Discrete(4), 3, 5),
    (spaces.MultiDiscrete([2, 5], start=[0, 1]), MultiDiscrete((2, 5)), [1, 4], [1, 5]),
    (spaces.MultiDiscrete([[2, 5], [3, 2]]), MultiDiscrete((2, 5, 3, 2)), [1, 4, 2, 0], [[1, 4], [2, 0]]),
    (spaces.MultiBinary(3), MultiDiscrete((2, 2, 2)), [1, 0, 1], [1, 0, 1]),
    (spaces.Box(-2.0, 2.0, (2,)), Box((2,), -2.0, 2.0), [0.5, -2.0], [0.5, -2.0]),
    # -1 to 1 stands for each element's own bounds: the middle of 0 to 10 is 5, the top of -1 to 3 is 3.
    (spaces.Box(np.float32([0, -1]), np.float32([10, 3])), Box((2,), -1.0, 1.0), [0.0, 1.0], [5.0, 3.0]),
    (spaces.Box(-np.inf, np.inf, (2,)), Box((2,)), [7.0, -9.0], [7.0, -9.0]),
    (spaces.Box(0.0, np.inf, (2,)), Box((2,)), [7.0, -9.0], [7.0, 0.0]),  # an open side: cut off at the other
    (spaces.Box(-1, 2, (2,), np.int64), MultiDiscrete((4, 4)), [0, 3], [-1, 2]),
]


@pytest.mark.parametrize(("space", "ours", "action", "theirs"), ACTIONS)
def test_actions_become_theirs(space, ours, action, theirs):
    proxy = world("ToyTyped-v0", done=space)
    assert proxy.groups["agent"].action == ours
    batch = proxy.open(1)
    batch.reset(0)
    batch.step({"agent": np.array([[action]])})
    np.testing.assert_allclose(Typed.told, theirs)
    assert space.contains(Typed.told)


def test_tuples_of_boxes_become_one_box():
    space = spaces.Tuple((spaces.Box(0.0, 4.0, ()), spaces.Box(-1.0, 1.0, (1, 2))))
    proxy = world("ToyTyped-v0", done=space)
    assert proxy.groups["agent"].action == Box((3,), -1.0, 1.0)
    batch = proxy.open(1)
    batch.reset(0)
    batch.step({"agent": np.array([[[0.5, -1.0, 0.25]]])})
    np.testing.assert_allclose(Typed.told[0], 3.0)
    np.testing.assert_allclose(Typed.told[1], [[-1.0, 0.25]])


FAULTS = {
    "outside": r"observation\['speed'\] is 4 at \[1\]( in copy 0)?, outside of its space: -1 to 1",
    "nan": r"observation\['speed'\] is NaN at \[0\]",
    "zoom": r"observation\['camera'\]\['zoom'\] is \[?2.*\]?, but the choices are -1 to 1",
    "shape": r"observation\['speed'\] has the shape \(3,\), but its space \(2,\)",
    "part": r"observation\['camera'\] has no part 'image', which its space has",
    "space": r"the observation space was Dict.* now: spaces must not change",
    "raise": r"step raised RuntimeError: the battery is empty",
    "reward": r"the reward is NaN",
    "exit": r"step raised SystemExit: 3",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_reported_with_name_episode_and_step(fault):
    batch = world("ToyKit-v0", fault=fault).open(1)
    batch.reset(0)
    act = {"agent": np.zeros((1, 1, 3), int)}
    batch.step(act), batch.step(act)
    with pytest.raises(WorldError, match=f"^gymnasium:ToyKit-v0, episode 1, step 3: {FAULTS[fault]}"):
        batch.step(act)


def test_faults_of_the_second_episode_and_without_checks():
    batch = world("ToyKit-v0", fault="outside", check=False).open(1)
    batch.reset(0)
    for _ in range(7):
        batch.step({"agent": np.zeros((1, 1, 3), int)})
    batch.envs[0].check = True  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(WorldError, match="gymnasium:ToyKit-v0, episode 2, step 3: "):
        batch.step({"agent": np.zeros((1, 1, 3), int)})


def test_a_fault_in_a_vector_environment_names_the_copy():
    batch = world("ToyKit-v0", fault="nan", vectorisation_mode="sync").open(2)
    batch.reset(0)
    act = {"agent": np.zeros((2, 1, 3), int)}
    batch.step(act), batch.step(act)
    with pytest.raises(
        WorldError, match=r"ToyKit-v0, 2 copies, step 3: observation\['speed'\] is NaN at \[0\] in copy 0"
    ):
        batch.step(act)


@pytest.mark.parametrize(
    ("name", "options", "kind", "text"),
    [
        ("CartPol-v1", {}, UnknownNameError, "gymnasium:CartPol-v1: .*CartPole"),
        ("no_such_package.envs:Thing-v0", {}, UnknownNameError, "there is no module 'no_such_package'"),
        ("no_such_package:Thing-v0", {}, UnknownNameError, "PYTHONPATH=. is set; or name its file, --import FILE, and"),
        ("CartPole-v1", {"vector_kwargs": {}}, OptionError, "give vectorisation_mode too, sync or async"),
        ("CartPole-v1", {"wheels": 3}, OptionError, "gymnasium:CartPole-v1: making it with the options .*wheels"),
        ("CartPole-v1", {"vectorisation_mode": "fast"}, OptionError, "vectorisation_mode must be one of sync, async"),
        ("Pendulum-v1", {"vectorisation_mode": "vector_entry_point"}, OptionError, "gymnasium:Pendulum-v1: "),
        ("CartPole-v1", {"vectorisation_mode": "sync", "vector_kwargs": 5}, OptionError, "vector_kwargs must be an"),
        ("CartPole-v1", {"num_envs": 3}, OptionError, "num_envs is not an option here: give --num-envs"),
        ("CartPole-v1", {"vectorization_mode": "async"}, OptionError, "give vectorisation_mode, one of sync"),
        ("CartPole-v1", {"vectorisation_mode": "sync", "wrappers": [1]}, OptionError, "wrappers is not an option here"),
        ("CartPole-v1", {"disable_env_checker": False}, OptionError, "give check, true or false"),
        ("CartPole-v1", {"id": "Pendulum-v1"}, OptionError, "name the environment after `gymnasium:`"),
        ("CartPole-v1", {"check": "maybe"}, OptionError, "check must be true or false, got 'maybe'"),
        (
            "ToyTyped-v0",
            {"seen": spaces.Dict({"camera": spaces.Dict({"label": spaces.Text(8)})})},
            OptionError,
            r"gymnasium:ToyTyped-v0: observation space \['camera'\]\['label'\] is Text\(.*; supported: Box, Discrete",
        ),
        ("ToyTyped-v0", {"seen": spaces.Sequence(spaces.Discrete(2))}, OptionError, "observation space is Sequence"),
        ("ToyTyped-v0", {"seen": spaces.Discrete(10**9)}, OptionError, "more than 65536 choices"),
        ("ToyTyped-v0", {"seen": spaces.Dict()}, OptionError, "observation space is empty"),
        ("ToyTyped-v0", {"seen": spaces.Dict({"a/b": spaces.Discrete(2), "a": spaces.Dict(b=spaces.Discrete(2))})},
         OptionError, "both be called 'a/b'"),
        ("ToyTyped-v0", {"done": spaces.Tuple((spaces.Discrete(2), spaces.Text(3)))}, OptionError,
         r"action space \[1\] is Text"),
        ("ToyTyped-v0", {"done": spaces.Dict(a=spaces.Box(0, 1), b=spaces.Discrete(2))}, OptionError,
         r"\['a'\] has numbers and action space\['b'\] choices"),
    ],
)  # fmt: skip
def test_bad_names_options_and_spaces(name, options, kind, text):
    with pytest.raises(kind, match=text):
        make(name, **options)


@pytest.mark.parametrize("option", ["id", "name"])
def test_an_option_does_not_change_what_is_made(option):
    with pytest.raises(OptionError, match=f"^gymnasium:CartPole-v1: {option} is not an option"):
        shoal.make("gymnasium:CartPole-v1", **{option: "Pendulum-v1"})


@pytest.mark.parametrize("mode", [None, "sync"])
def test_actions_that_do_not_fit_are_not_the_environments_fault(mode):
    proxy = world("CartPole-v1", vectorisation_mode=mode)
    batch = proxy.open(2)
    with pytest.raises(WorldError, match="gymnasium:CartPole-v1: no episode has begun"):
        batch.step({"agent": np.zeros((2, 1), int)})
    batch.reset(0)
    wrong = {
        "outside its space Discrete.* got 5": np.full((2, 1), 5),
        "must be whole numbers of shape .*got float": np.zeros((2, 1)),
        r"got int64 of shape \(2,\)": np.zeros(2, int),
        "got object": None,
    }
    for said, action in wrong.items():
        with pytest.raises(OptionError, match=f"^gymnasium:CartPole-v1: .*group 'agent' .*{said}"):
            batch.step({"agent": action})
    with pytest.raises(OptionError, match=r"of \['agent'\], got \[\]"):
        batch.step({})
    with pytest.raises(OptionError, match="seed must be a whole number"):
        batch.reset(-1)
    batch.close()
    with pytest.raises(WorldError, match="it is closed"):
        batch.step({"agent": np.zeros((2, 1), int)})
    with pytest.raises(OptionError, match="must be a whole number of at least 1, got 0"):
        proxy.open(0)


def test_numbers_outside_their_bounds_and_nan_are_refused():
    batch = world("Pendulum-v1").open(1)
    batch.reset(0)
    batch.step({"agent": np.full((1, 1, 1), 2.0, np.float32)})
    for wrong in (2.5, np.nan):
        with pytest.raises(OptionError, match="group 'agent' is outside its space Box"):
            batch.step({"agent": np.full((1, 1, 1), wrong, np.float32)})


def test_a_shape_that_changes_in_a_vector_environment_is_named():
    batch = world("ToyKit-v0", fault="shape", vectorisation_mode="sync").open(2)
    batch.reset(0)
    act = {"agent": np.zeros((2, 1, 3), int)}
    batch.step(act), batch.step(act)
    with pytest.raises(WorldError, match=r"step 3: copy 0: observation\['speed'\] has the shape \(3,\), but its space"):
        batch.step(act)


def test_a_process_that_dies_is_named():
    batch = world("CartPole-v1", vectorisation_mode="async").open(1)
    batch.reset(0)
    batch.env.processes[0].kill()
    batch.env.processes[0].join()
    with pytest.raises(WorldError, match="CartPole-v1, 1 copy, step 1: a worker process died"):
        batch.step({"agent": np.zeros((1, 1), int)})
    batch.close()
