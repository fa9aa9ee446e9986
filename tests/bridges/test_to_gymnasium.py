"""Shoal's worlds as Gymnasium environments: they pass its own checker, and say what the world says."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.batching.vectorise import Vectorised
from shoal.core.errors import OptionError, UnknownNameError

pytest.importorskip("gymnasium", reason="Gymnasium is not installed: pip install gymnasium")

import gymnasium
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from shoal.bridges.outgoing._single import ResetNeeded
from shoal.bridges.outgoing.gymnasium import make_env, make_vec
from tests.worlds.fair import Fair

# Of the worlds: views have no bounds, Pendulum's torque goes to 2, and they are not registered with Gymnasium.
EXPECTED = ("infinity", "symmetric and normalized", "alternative render modes")


@dataclasses.dataclass(frozen=True)
class Count(shoal.Env):
    """Counts up by the action, 0 to 2, of which those below the count are legal; ends at 4, cut short after 3 steps."""

    @property
    def groups(self):
        return {"agent": shoal.Group(1, shoal.Discrete(3))}

    def reset(self, key, params):
        return jnp.array([1, 0], jnp.int32)

    def step(self, key, state, actions, params):
        state = state + jnp.array([actions["agent"][0], 1])
        reward = actions["agent"].astype(jnp.float32)
        return state, shoal.Outcome({"agent": reward}, state[0] >= 4, state[1] >= 3, {"count": state[0] * 1.0})

    def observe(self, state, params):
        view = {"count": state[None, :1].astype(jnp.uint8), "odd": (state[None, :1] % 2) == 1}
        return {"agent": shoal.Observation(view, legal=(jnp.arange(3) <= state[0])[None])}


@pytest.mark.parametrize("world", ["control/cartpole", "control/pendulum", "mpe/simple", Count()], ids=str)
def test_their_own_checker(world):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        check_env(make_env(world))
    assert [str(one.message) for one in said if not any(words in str(one.message) for words in EXPECTED)] == []


def test_their_render_check():
    pytest.importorskip("PIL", reason="Pillow is not installed: pip install 'shoal-rl[video]'")
    gymnasium.register("shoal/CartPole-v0", entry_point=lambda **options: make_env("control/cartpole", **options))
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            env = gymnasium.make("shoal/CartPole-v0", render_mode="rgb_array").unwrapped
            check_env(env)
    finally:
        del gymnasium.registry["shoal/CartPole-v0"]
    assert [str(one.message) for one in said if not any(words in str(one.message) for words in EXPECTED[:2])] == []
    envs = make_vec("control/cartpole", 2, render_mode="rgb_array")
    envs.reset(seed=3)
    env.reset(seed=3)
    first, second = envs.render()
    np.testing.assert_array_equal(first, env.render())  # copy 0 is what one copy is
    assert first.dtype == np.uint8
    assert first.shape == second.shape
    assert make_vec("control/cartpole", 2).render() is None
    with pytest.raises(OptionError, match="make_vec: render_mode must be"):
        make_vec("control/cartpole", 2, render_mode="human")
    blind = make_env(Count(), render_mode="rgb_array")
    blind.reset(seed=0)
    with pytest.raises(OptionError, match="the scene is empty: the world must define"):
        blind.render()


def test_one_copy_by_hand():
    env = make_env(Count())
    seen, info = env.reset(seed=0)
    assert (seen["count"].tolist(), seen["odd"].tolist(), info["action_mask"].tolist()) == ([1], [1], [1, 1, 0])
    seen, reward, terminated, truncated, info = env.step(1)
    assert (seen["count"].tolist(), reward, terminated, truncated, info["count"]) == ([2], 1.0, False, False, 2.0)
    assert env.observation_space.contains(seen)
    assert env.step(2)[1:4] == (2.0, True, False)
    with pytest.raises(ResetNeeded, match="is over"):
        env.step(0)


def test_masks_over_several_choices_are_what_sample_takes():
    """One copy and many: an array of tuples, as Gymnasium's own vector environments put them together."""
    env, envs = make_env(Fair(buyers=1, sellers=0)), make_vec(Fair(buyers=1, sellers=0), 2)
    theirs = SyncVectorEnv([lambda: make_env(Fair(buyers=1, sellers=0))] * 2)
    mask = env.reset(seed=0)[1]["action_mask"]
    masks = envs.reset(seed=0)[1]["action_mask"]
    assert masks.shape == theirs.reset(seed=0)[1]["action_mask"].shape == (2,)
    info = env.step(env.action_space.sample(mask))[4]
    infos = envs.step(np.stack([envs.single_action_space.sample(mask) for mask in masks]))[4]
    again = env.action_space.sample(info["action_mask"])
    assert [len(part) for part in info["action_mask"]] == [2, 3]
    assert {part.dtype for part in info["action_mask"]} == {np.dtype(np.int8)}
    assert env.step(again)[4]["broken"] == 0
    acts = np.stack([envs.single_action_space.sample(mask) for mask in infos["action_mask"]])
    assert envs.step(acts)[4]["broken"].tolist() == [0, 0]


def test_many_copies_say_what_the_world_says():
    options = {"max_steps": 12}
    world = shoal.make("control/cartpole", **options)
    envs, env, worlds = make_vec("control/cartpole", 3, **options), make_env(world), Vectorised(world, 3)
    step, state = jax.jit(worlds.step), jax.jit(worlds.reset)(jax.random.key(2))
    seen, _ = envs.reset(seed=2)
    alone, _ = env.reset(seed=2)
    ends = 0
    for t in range(30):
        np.testing.assert_allclose(seen, state.observation["agent"].view[:, 0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(seen[0], alone, rtol=1e-5, atol=1e-6)
        actions = np.array([1, t % 2, 0])
        state, outcome, _ = step(state, {"agent": actions[:, None]})
        seen, rewards, terminated, truncated, infos = envs.step(actions)
        np.testing.assert_array_equal(rewards, outcome.reward["agent"][:, 0])
        np.testing.assert_array_equal(terminated, outcome.terminated)
        np.testing.assert_array_equal(truncated, outcome.truncated)
        alone, _, *over, _ = env.step(1)
        if any(over):
            np.testing.assert_allclose(infos["final_obs"][0], alone, rtol=1e-5, atol=1e-6)
            alone, _ = env.reset()
            ends += 1
    assert ends >= 2


def test_the_same_step_begins_anew():
    envs = make_vec(Count(), 2)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    seen, infos = envs.reset(seed=0)
    assert infos["action_mask"].tolist() == [[1, 1, 0], [1, 1, 0]]
    envs.step([1, 0])
    seen, rewards, terminated, truncated, infos = envs.step([2, 0])
    assert seen["count"].tolist() == [[1], [1]]
    assert (rewards.tolist(), terminated.tolist(), truncated.tolist()) == ([2, 0], [True, False], [False, False])
    assert infos["final_obs"][0]["count"].tolist() == [4]
    assert infos["final_obs"][1] is None
    assert infos["_final_obs"].tolist() == [True, False]
    assert infos["final_info"]["episode"]["r"].tolist() == [3, 0]
    assert infos["final_info"]["episode"]["l"].tolist() == [2, 0]
    seen["count"][:] = 0  # may be written to


def test_the_next_step_begins_anew():
    envs = RecordEpisodeStatistics(make_vec(Count(), 2, autoreset_mode=AutoresetMode.NEXT_STEP))
    envs.reset(seed=0)
    envs.step([1, 0])
    seen, _, terminated, _, infos = envs.step([2, 1])
    assert (seen["count"].tolist(), terminated.tolist()) == ([[4], [2]], [True, False])
    assert (infos["episode"]["r"][0], infos["episode"]["l"][0]) == (3, 2)
    seen, rewards, terminated, truncated, _ = envs.step([2, 1])
    assert (seen["count"].tolist(), rewards.tolist()) == ([[1], [3]], [0, 1])
    assert (terminated.tolist(), truncated.tolist()) == ([False, False], [False, True])
    seen, rewards, *_ = envs.step([1, 1])
    assert (seen["count"].tolist(), rewards.tolist()) == ([[2], [1]], [1, 0])


def test_bad_input():
    with pytest.raises(UnknownNameError, match="control/cartpole"):
        make_env("control/cartpol")
    with pytest.raises(OptionError, match=r"has 3 agents \(3 agent\).*parallel_env"):
        make_env("mpe/simple_spread")
    with pytest.raises(OptionError, match="parallel_env"):
        make_vec("pong", 4)
    with pytest.raises(OptionError, match="num_envs must be greater than 0"):
        make_vec("control/cartpole", 0)
    with pytest.raises(OptionError, match="autoreset_mode"):
        make_vec(Count(), 2, autoreset_mode=AutoresetMode.DISABLED)
    env = make_env(Count())
    with pytest.raises(ResetNeeded, match="has not begun"):
        env.step(0)
    env.reset(seed=0)
    with pytest.raises(OptionError, match=r"outside its space Discrete\(n=3\): got -1"):
        env.step(-1)
    envs = make_vec(Count(), 2)
    with pytest.raises(ResetNeeded, match="reset"):
        envs.step([0, 0])
    envs.reset(seed=0)
    with pytest.raises(OptionError, match=r"whole numbers of shape \(2,\)"):
        envs.step([0, 0, 0])
    with pytest.raises(OptionError, match="outside its space"):
        envs.step([0, 3])
    with pytest.raises(
        OptionError, match=r"seed must be .*, one for all: each copy has a chain of keys.* got \[1, 2\]"
    ):
        envs.reset(seed=[1, 2])
    for seed in (-1, 2**32):
        with pytest.raises(OptionError, match="seed must be None or a whole number"):
            envs.reset(seed=seed)
        with pytest.raises(OptionError, match="seed must be None or a whole number"):
            make_env("control/cartpole").reset(seed=seed)
