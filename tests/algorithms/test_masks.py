"""Whoever acts keeps to what is legal: at its best, exploring, while a replay is filled, and at random."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import Discrete, Group, MultiDiscrete, Observation
from shoal.algorithms import DDPG, DQN, PPO, SAC
from shoal.batching.policies import Uniform
from shoal.core.algorithm import LearnerSpec
from shoal.core.spaces import Box, num_logits
from shoal.networks.torsos import Network
from tests.algorithms.replaying import warmed

BARE = Network(hidden=())
REPLAY = {"network": BARE, "buffer_size": 100}
SPACES = {
    Discrete(4): ([False, True, False, True], {(1,), (3,)}),
    MultiDiscrete((3, 2)): ([False, True, True, False, True], {(1, 1), (2, 1)}),
}
DRAWS = 64


def policy(algorithm, space):
    """A policy that finds all actions alike, or would, if all were legal."""
    shape = jax.ShapeDtypeStruct
    seen = Observation(shape((1, 1), jnp.float32), legal=shape((1, num_logits(space)), bool))
    spec = LearnerSpec({"a": Group(1, space, Box((1,)))}, None, 10, {"a": seen}, 1, 1)
    state = jax.jit(lambda key: algorithm.init(key, spec))(jax.random.key(0))
    one = state.params["a"]
    return state.replace(params={"a": one.replace(weights=jax.tree.map(jnp.zeros_like, one.weights))})


@functools.partial(jax.jit, static_argnums=(0, 3))
def acted(algorithm, params, legal, explore):
    seen = Observation(jnp.ones(1), legal=legal)
    keys = jax.random.split(jax.random.key(1), DRAWS)
    return jax.vmap(lambda key: algorithm.act(params, seen, (), key, explore).action)(keys)


def found(algorithm, params, space, explore):
    legal, _ = SPACES[space]
    return {tuple(np.atleast_1d(one).tolist()) for one in acted(algorithm, params, jnp.array(legal), explore)}


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("algorithm", [SAC(**REPLAY), DDPG(**REPLAY)], ids=lambda one: one.name)
def test_replaying_actors_keep_to_what_is_legal(algorithm, space):
    state, legal = policy(algorithm, space), SPACES[space][1]
    assert not bool(state.params["a"].warm)
    assert found(algorithm, state.params["a"], space, True) == legal  # the replay is being filled
    warm = warmed(state).params["a"]
    assert found(algorithm, warm, space, True) == legal  # samples of the policy
    if algorithm.name == "ddpg":
        assert found(algorithm, warm.replace(noise=jnp.float32(1.0)), space, True) == legal  # any action, as noise
    best = found(algorithm, warm, space, False)
    assert len(best) == 1
    assert best <= legal


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("algorithm", [PPO(network=BARE), DQN(**REPLAY)], ids=lambda one: one.name)
def test_other_actors_keep_to_what_is_legal(algorithm, space):
    params, legal = policy(algorithm, space).params["a"], SPACES[space][1]
    assert found(algorithm, params, space, True) == legal
    best = found(algorithm, params, space, False)
    assert len(best) == 1
    assert best <= legal


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_random_play_keeps_to_what_is_legal(space):
    assert found(Uniform(space), (), space, True) == SPACES[space][1]


@pytest.mark.parametrize("algorithm", [SAC(**REPLAY), DDPG(**REPLAY)], ids=lambda one: one.name)
def test_anything_is_tried_while_the_replay_is_filled(algorithm):
    """Of a box from -1 to 1 a policy that is set on 0.9 takes all of it, and once warm only what it is set on."""
    space = Box((1,), -1.0, 1.0)
    seen = Observation(jax.ShapeDtypeStruct((1, 1), jnp.float32))
    spec = LearnerSpec({"a": Group(1, space, Box((1,)))}, None, 10, {"a": seen}, 1, 1)
    state = jax.jit(lambda key: algorithm.init(key, spec))(jax.random.key(0))
    one = state.params["a"]
    lean = jnp.arctanh(0.9) if algorithm.name == "ddpg" else jnp.array([jnp.arctanh(0.9), -4.0])  # mean, log std
    actor = jax.tree.map(lambda leaf: jnp.zeros_like(leaf) + (lean if leaf.ndim == 1 else 0.0), one.weights["actor"])
    state = state.replace(params={"a": one.replace(weights=one.weights | {"actor": actor})})
    tried, set_on = (np.asarray(acted(algorithm, params.params["a"], None, True)) for params in (state, warmed(state)))
    assert tried.min() < -0.7
    assert set_on.min() > 0.4
