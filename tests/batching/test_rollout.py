"""The rollout, watched by an algorithm that counts: final views, memory of those who wait, keys."""

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from shoal import Discrete, Env, Group, Observation, Outcome
from shoal.batching.policies import Policies
from shoal.batching.rollout import make_experience, rollout
from shoal.batching.vectorise import Vectorised
from shoal.core.algorithm import ActOutput, Algorithm, Traits
from shoal.core.env import describe
from shoal.populations.opponents import OpponentBank, Opponents

LENGTH, STEPS, COPIES = 3, 8, 6


@dataclasses.dataclass(frozen=True)
class Counter(Algorithm):
    """Remembers how often it acted in this episode and records that and its key; values a view at `params` times it."""

    name: ClassVar[str] = "counter"
    replays: bool = False

    @property
    def traits(self):
        return Traits(records_final_observations=self.replays)

    def init(self, key, spec) -> Any:
        raise NotImplementedError

    def initial_memory(self, params):
        return jnp.int32(0)

    def act(self, params, observation, memory, key, explore):
        return ActOutput(jnp.int32(0), memory + 1, {"bits": jax.random.bits(key), "held": memory})

    def value(self, params, observation, memory):
        return params * observation.view[0] + 1000.0 * memory

    def update(self, state, experience, key, axis=None) -> Any:
        raise NotImplementedError


@struct.dataclass
class State:
    time: jax.Array
    cut: jax.Array  # whether the episode will be cut short, or end by itself


@dataclasses.dataclass(frozen=True)
class Turns(Env):
    """Two agents take turns, then both wait; two others always act until one of them leaves.

    The view is 10 times the seat and the time. Episodes last `LENGTH` steps. About half of them are cut short.
    """

    movers: int | None = None
    kind: ClassVar[str] = "cooperative"

    @property
    def groups(self):
        return {"turns": Group(2, Discrete(2), movers=self.movers), "both": Group(2, Discrete(2))}

    def reset(self, key, params):
        return State(jnp.int32(0), jax.random.bernoulli(key))

    def step(self, key, state, actions, params):
        over = state.time + 1 >= LENGTH
        paid = {"turns": jnp.ones(2), "both": jnp.ones(2)}
        return state.replace(time=state.time + 1), Outcome(paid, over & ~state.cut, over & state.cut)

    def observe(self, state, params):
        view = (10.0 * jnp.arange(1, 3) + state.time)[:, None]
        turn = (jnp.arange(2) == state.time % 2) & (state.time < 2)
        stays = jnp.array([True, False]) | (state.time < LENGTH)  # the second has left in the final view
        return {
            "turns": Observation(view, active=turn, present=jnp.ones(2, bool)),
            "both": Observation(view, active=stays, present=stays),
        }


@functools.cache
def played(movers, replays=False):
    """Experience of `STEPS` steps, and the episodes that ended in each."""
    env = Turns(movers)
    algorithms = dict.fromkeys(env.groups, Counter(replays))
    actor = Policies(algorithms, describe(env).groups)
    vectorised = Vectorised(env, COPIES)
    params = {"turns": jnp.float32(2.0), "both": jnp.float32(3.0)}

    @jax.jit
    def play(key):
        worlds, memory = vectorised.reset(key), actor.initial_memory(params, COPIES)
        after, last, steps = rollout(vectorised, actor, params, worlds, memory, STEPS)
        return make_experience(steps, memory, after.observation, last), steps.episodes

    return jax.tree.map(np.asarray, play(jax.random.key(3)))


def own_decisions(whole, active):
    """How often each agent has acted in its episode before each step, `[T + 1, E, n]`, counted one by one."""
    counts = [np.zeros(active.shape[1:], int)]
    for t in range(STEPS):
        start = np.where(whole.first[t][:, None], 0, counts[-1])
        counts[-1] = start
        counts.append(start + active[t])
    return np.stack(counts)


@pytest.mark.parametrize("movers", [None, 1])
def test_final_views_of_episodes_that_were_cut_short_are_valued(movers):
    """With the memory after the last step. What ended by itself, and agents who have left, are worth 0."""
    whole, _ = played(movers)
    cut = whole.truncated & ~whole.terminated
    assert cut.any()
    assert whole.terminated.any()
    final = 10.0 * np.arange(1, 3) + LENGTH
    turns, both = whole.trajectories["turns"].final_value, whole.trajectories["both"].final_value
    acted = np.array([1, 1])  # of three steps both had one turn
    np.testing.assert_allclose(turns[cut], np.broadcast_to(2.0 * final + 1000 * acted, turns[cut].shape))
    np.testing.assert_allclose(both[cut], np.broadcast_to([3.0 * final[0] + 3000, 0.0], both[cut].shape))
    assert not turns[~cut].any()
    assert not both[~cut].any()


@pytest.mark.parametrize("movers", [None, 1])
def test_the_memory_of_those_who_wait_stands_still(movers):
    whole, _ = played(movers)
    for name, track in whole.trajectories.items():
        active = track.observation.active
        counts = own_decisions(whole, active)
        np.testing.assert_array_equal(track.extras["held"][active], counts[:-1][active], err_msg=name)
        np.testing.assert_array_equal(track.last_memory, counts[-1], err_msg=name)


def test_an_episode_is_counted_once_where_it_ends():
    whole, episodes = played(None)
    ended = (whole.truncated | whole.terminated).sum(axis=1)
    assert ended.max() > 0
    np.testing.assert_array_equal(episodes.count, ended)
    np.testing.assert_array_equal(episodes.length, LENGTH * ended)
    np.testing.assert_array_equal(episodes.returns["turns"], 2 * LENGTH * ended)


def test_learners_with_a_replay_are_given_memories_and_final_views():
    whole, _ = played(None, True)
    cut = whole.truncated & ~whole.terminated
    for name, track in whole.trajectories.items():
        counts = own_decisions(whole, track.observation.active)
        np.testing.assert_array_equal(track.memories, counts[:-1], err_msg=name)
        final = np.broadcast_to(10.0 * np.arange(1, 3) + LENGTH, track.reward.shape)
        np.testing.assert_allclose(track.final_observation.view[cut][..., 0], final[cut])
        assert not track.final_observation.view[~cut].any()
    assert not whole.trajectories["both"].final_observation.present[cut][:, 1].any()


@pytest.mark.parametrize("movers", [None, 1])
def test_everybody_draws_with_a_key_of_its_own(movers):
    """Agents, groups, copies and steps: no two draws are alike."""
    whole, _ = played(movers)
    bits = [track.extras["bits"][track.observation.active] for track in whole.trajectories.values()]
    drawn = np.concatenate(bits)
    assert len(np.unique(drawn)) == len(drawn)


def test_opponents_memory_stands_still_while_they_wait():
    env = Turns()
    opponents = Opponents(Counter(), capacity=2)
    actor = Policies(dict.fromkeys(env.groups, opponents), describe(env).groups)
    vectorised = Vectorised(env, COPIES)
    params = {name: OpponentBank(jnp.array([1.0, 2.0]), jnp.array([0.5, 0.5])) for name in env.groups}

    @jax.jit
    def play(key):
        worlds, memory = vectorised.reset(key), actor.initial_memory(params, COPIES)
        _, last, steps = rollout(vectorised, actor, params, worlds, memory, LENGTH - 1)
        return last, steps.observation

    last, seen = jax.tree.map(np.asarray, play(jax.random.key(3)))
    for name in env.groups:
        np.testing.assert_array_equal(last[name].carry, seen[name].active.sum(axis=0))
