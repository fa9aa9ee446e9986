"""dm_env environments as worlds: step by step what they are by themselves, and errors that name them."""

import numpy as np
import pytest

from shoal.core.errors import OptionError, UnknownNameError, WorldError
from shoal.core.host import HostEnvProxy, check_observations
from shoal.core.spaces import Box, Discrete, MultiDiscrete

dm_env = pytest.importorskip("dm_env", reason="dm_env is not installed: pip install dm_env")

from dm_env import specs  # noqa: E402

from shoal.bridges.incoming.dm_env import make  # noqa: E402

SEED = 3


class Walk(dm_env.Environment):
    """A walk on a line: over the edge it terminates, after `length` steps it is cut short."""

    def __init__(self, seed: int = 0, length: int = 6, fault: str = ""):
        self.draws, self.length, self.fault = np.random.default_rng(seed), length, fault

    def observation_spec(self):
        high = 9.0 if self.fault == "spec" and getattr(self, "t", 0) == 2 else 8.0
        place = specs.BoundedArray((1,), np.float64, -high, high)
        return {"place": place, "inner": (specs.DiscreteArray(3), specs.Array((2,), np.int32))}

    def action_spec(self):
        return specs.DiscreteArray(3)

    def see(self):
        return {"place": np.array([self.at]), "inner": (self.t % 3, np.array([self.t, 7], np.int32))}

    def reset(self):
        self.t, self.at = 0, self.draws.uniform(-1.0, 1.0)
        return dm_env.restart(self.see())

    def step(self, action):
        self.t, self.at = self.t + 1, self.at + action - 1
        if self.fault and self.t == 2:
            match self.fault:
                case "raise":
                    raise RuntimeError("the line broke")
                case "discount":
                    return dm_env.transition(0.0, self.see(), 0.5)
                case "reward":
                    return dm_env.transition(np.nan, self.see())
                case "outside":
                    self.at = 99.0
                case "first":
                    return dm_env.restart(self.see())
        if abs(self.at) > 3 and not self.fault:
            return dm_env.termination(float(action), self.see())
        done = self.t == self.length
        return dm_env.truncation(float(action), self.see()) if done else dm_env.transition(float(action), self.see())


class Typed(Walk):
    told = None

    def __init__(self, seen=None, done=None):
        super().__init__()
        self.seen, self.done = seen, done

    def observation_spec(self):
        return self.seen or super().observation_spec()

    def action_spec(self):
        return self.done or super().action_spec()

    def step(self, action):
        Typed.told = action
        return dm_env.transition(0.0, self.see())


WALK, TYPED = f"{__name__}:Walk", f"{__name__}:Typed"


def unlike():
    return object()


def world(name: str, **options) -> HostEnvProxy:
    env = make(name, **options)
    assert isinstance(env, HostEnvProxy)
    return env


def test_steps_are_those_of_the_original():
    proxy = world(WALK)
    assert proxy.groups["agent"].action == Discrete(3)
    shapes = {name: box.shape for name, box in proxy.groups["agent"].observation.items()}
    assert shapes == {"place": (1,), "inner/0": (3,), "inner/1": (2,)}
    batch, original = proxy.open(1), Walk(seed=int(np.random.SeedSequence(SEED).generate_state(1)[0]))
    seen, theirs = batch.reset(SEED), original.reset()
    ends = set()
    for action in np.random.default_rng(0).integers(1, 3, size=40):
        check_observations(proxy, seen)
        view = seen["agent"].view
        np.testing.assert_array_equal(view["place"][0, 0], theirs.observation["place"].astype(np.float32))
        np.testing.assert_array_equal(view["inner/0"][0, 0], np.eye(3)[theirs.observation["inner"][0]])
        np.testing.assert_array_equal(view["inner/1"][0, 0], theirs.observation["inner"][1])
        told, theirs = batch.step({"agent": np.array([[action]])}), original.step(action)
        final = theirs.observation["place"].astype(np.float32)
        np.testing.assert_array_equal(told.final["agent"].view["place"][0, 0], final)
        assert told.outcome.reward["agent"][0, 0] == theirs.reward
        assert told.outcome.terminated[0] == (theirs.last() and theirs.discount == 0)
        assert told.outcome.truncated[0] == (theirs.last() and theirs.discount == 1)
        ends.add((bool(told.outcome.terminated[0]), bool(told.outcome.truncated[0])))
        seen, theirs = told.observation, original.reset() if theirs.last() else theirs
    assert ends == {(False, False), (True, False), (False, True)}
    batch.close()


@pytest.mark.parametrize(
    ("spec", "ours", "action", "theirs"),
    [
        (specs.BoundedArray((2,), np.float32, [0, -1], [10, 3]), Box((2,), -1.0, 1.0), [0.0, 1.0], [5.0, 3.0]),
        (specs.BoundedArray((2,), np.int32, 1, 4), MultiDiscrete((4, 4)), [0, 3], [1, 4]),
        (specs.Array((2,), np.float32), Box((2,)), [3.0, -4.0], [3.0, -4.0]),
    ],
)
def test_actions_become_theirs(spec, ours, action, theirs):
    proxy = world(TYPED, done=spec)
    assert proxy.groups["agent"].action == ours
    batch = proxy.open(1)
    batch.reset(0)
    batch.step({"agent": np.array([[action]])})
    np.testing.assert_allclose(spec.validate(Typed.told), theirs)


FAULTS = {
    "raise": "step raised RuntimeError: the line broke",
    "discount": "the discount of a step within the episode is 0.5",
    "reward": "the reward is NaN",
    "outside": r"observation\['place'\] is 99 at \[0\], outside of its space: -8 to 8",
    "spec": "the observation spec was .* specs must not change",
    "first": "a step of the type FIRST came out of `step`",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_reported_with_name_episode_and_step(fault):
    batch = world(WALK, fault=fault).open(1)
    batch.reset(0)
    batch.step({"agent": np.ones((1, 1), int)})
    with pytest.raises(WorldError, match=f"^dm_env:{WALK}, episode 1, step 2: {FAULTS[fault]}"):
        batch.step({"agent": np.ones((1, 1), int)})


@pytest.mark.parametrize(
    ("name", "options", "kind", "text"),
    [
        ("catch", {}, OptionError, "the name must be module:function"),
        ("no_such_package:catch", {}, UnknownNameError, "there is no module 'no_such_package'"),
        (f"{__name__}:Run", {}, OptionError, "has no function 'Run'"),
        (f"{__name__}:unlike", {}, OptionError, "made object, which is not a dm_env.Environment"),
        (WALK, {"speed": 2}, OptionError, "making it with the options .*speed"),
        (TYPED, {"seen": {"a": [specs.StringArray(())]}}, OptionError, r"observation spec \['a'\]\[0\] is StringArray"),
        (TYPED, {"done": specs.Array((1,), np.int32)}, OptionError, "whole numbers can be chosen"),
    ],
)
def test_bad_names_options_and_specs(name, options, kind, text):
    with pytest.raises(kind, match=text):
        make(name, **options)


def test_actions_that_do_not_fit_are_not_the_environments_fault():
    proxy = world(WALK)
    batch = proxy.open(1)
    batch.reset(0)
    for wrong in (np.full((1, 1), 3), np.ones((1, 1)), np.ones(1, int), None):
        with pytest.raises(OptionError, match=r"^dm_env:.*Walk: .*group 'agent'"):
            batch.step({"agent": wrong})
    with pytest.raises(OptionError, match="got NoneType"):
        batch.step(None)
    batch.close()
    with pytest.raises(WorldError, match="it is closed"):
        batch.reset(0)
    with pytest.raises(OptionError, match="at least 1, got 0"):
        proxy.open(0)
