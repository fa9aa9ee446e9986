"""Shoal's worlds as dm_env environments: they pass dm_env's own tests, and say what the world says."""

import jax
import numpy as np
import pytest

import shoal
from shoal.batching.vectorise import Vectorised
from shoal.core.errors import OptionError, UnknownNameError

pytest.importorskip("dm_env", reason="dm_env is not installed: pip install dm_env")
pytest.importorskip("absl.testing.absltest", reason="absl is not installed: pip install absl-py")

from absl.testing import absltest
from dm_env import test_utils

from shoal.bridges.outgoing.dm_env import make_env
from tests.worlds.fair import Fair


class TestCartpole(test_utils.EnvironmentTestMixin, absltest.TestCase):
    def make_object_under_test(self):
        return make_env("control/cartpole", max_steps=15)


class TestPendulum(test_utils.EnvironmentTestMixin, absltest.TestCase):
    def make_object_under_test(self):
        return make_env("control/pendulum", max_steps=15)


class TestTag(test_utils.EnvironmentTestMixin, absltest.TestCase):
    """Two groups, several choices an action, agents that leave."""

    def make_object_under_test(self):
        return make_env("tag/continuous", num_taggers=3, num_runners=4, num_neighbours=2, max_steps=15)


class TestLeduc(test_utils.EnvironmentTestMixin, absltest.TestCase):
    """Masks of legal actions."""

    def make_object_under_test(self):
        return make_env("cards/leduc")


class TestFair(test_utils.EnvironmentTestMixin, absltest.TestCase):
    """Masks over several choices, of two kinds of agents that leave."""

    def make_object_under_test(self):
        return make_env(Fair())


def test_it_says_what_the_world_says():
    env, worlds = make_env("mpe/simple_spread", seed=5, max_steps=3), Vectorised(make_spread(), 1)
    step = jax.jit(worlds.step)
    state = jax.jit(worlds.reset)(jax.random.key(5))
    timestep = env.reset()
    for actions in np.array([[1, 2, 3], [4, 0, 1], [2, 2, 2]]):
        np.testing.assert_allclose(timestep.observation["agent"], state.observation["agent"].view[0], rtol=1e-6)
        state, outcome, _ = step(state, {"agent": actions[None]})
        timestep = env.step({"agent": actions})
        np.testing.assert_allclose(timestep.reward["agent"], outcome.reward["agent"][0], rtol=1e-5)
        np.testing.assert_array_equal(timestep.discount["agent"], [1, 1, 1])
    assert timestep.last()  # cut short, so that the discount is still 1
    timestep = env.step({"agent": actions})
    assert timestep.first()
    np.testing.assert_allclose(timestep.observation["agent"], state.observation["agent"].view[0], rtol=1e-6)


def make_spread():
    return shoal.make("mpe/simple_spread", max_steps=3)


def test_the_discount_of_an_end_is_zero():
    env = make_env("control/cartpole", seed=0)
    timestep = env.reset()
    while not timestep.last():
        timestep = env.step(1)
    assert timestep.discount == 0
    assert timestep.reward == 1


def test_bad_input():
    with pytest.raises(UnknownNameError, match="control/cartpole"):
        make_env("control/cartpol")
    env = make_env("control/cartpole", seed=0)
    env.reset()
    with pytest.raises(OptionError, match=r"control/cartpole: an action of the agent is outside .*got 2"):
        env.step(2)
    team = make_env("mpe/simple_spread")
    team.reset()
    with pytest.raises(OptionError, match="dict with the keys"):
        team.step([0, 1, 2])
    with pytest.raises(OptionError, match=r"group agent must be whole numbers of shape \(3,\)"):
        team.step({"agent": [0, 1]})
    with pytest.raises(OptionError, match=r"control/cartpole: seed must be .* got 4294967296"):
        make_env("control/cartpole", seed=2**32)
