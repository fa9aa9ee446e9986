"""Recurrent action values from a replay: stored memories, burn-in, and where episodes begin and are cut short."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import Discrete, Group, Observation
from shoal.algorithms import DQN
from shoal.algorithms import replay as stored
from shoal.algorithms.dqn import Transition, q_values
from shoal.core.algorithm import LearnerSpec
from shoal.core.spaces import Box
from shoal.networks.q_network import QNetwork, init_q_network
from shoal.networks.sequences import unroll
from shoal.networks.torsos import Network, initial_carry
from tests.algorithms.playing import played
from tests.algorithms.replaying import fresh_replayer
from tests.algorithms.tables import learnt
from tests.worlds.last_card import LastCard

LENGTH, COPIES, BURN_IN, SEQUENCE = 20, 4, 6, 3
START = 8
"""The window's first row; the episode began at row 0."""


def network_of(recurrent):
    return Network(hidden=(8,), recurrent=recurrent, recurrent_size=8)


def shaken(weights, size, seed):
    numbers = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: leaf + size * numbers.normal(size=leaf.shape).astype(np.float32), weights)


class Past:
    """An episode of random views, the memories that old weights had in it, and the weights of today."""

    def __init__(self, recurrent):
        self.network = QNetwork(network_of(recurrent), Discrete(3))
        fresh = jax.jit(lambda key: init_q_network(self.network, key, jnp.zeros(2)))(jax.random.key(0))
        self.old, self.now = shaken(fresh, 0.1, 1), shaken(fresh, 0.3, 2)
        self.view = jax.random.normal(jax.random.key(3), (LENGTH, COPIES, 1, 2))
        self.first = jnp.zeros((LENGTH, COPIES), bool).at[0].set(True)
        zero = jax.tree.map(lambda leaf: jnp.zeros((COPIES, 1, *leaf.shape)), initial_carry(self.network.config))
        self.values, self.right = self.unroll(self.now, zero)
        _, self.stale = self.unroll(self.old, zero)

    def unroll(self, weights, memory):
        return jax.jit(functools.partial(unroll, self.network))(weights, Observation(self.view), self.first, memory)

    def along(self, start, rows, memories, burn_in):
        """Values of some rows after the burn-in, and of what followed them, from the memory before the first."""
        read = jax.jit(lambda weights, windows: values_along(self.network, weights, windows, burn_in))
        return read(self.now, batch_of(self, start, rows, memories))


def values_along(network, weights, windows, burn_in):
    rows, after = stored.split_windows(windows, burn_in)
    steps = Transition(rows.observation["a"], rows.action["a"], rows.reward["a"], after.observation["a"])
    return q_values(network, weights, windows, "a", steps, burn_in)


@functools.cache
def past(recurrent):
    return Past(recurrent)


@pytest.mark.parametrize(
    "recurrent", ["gru", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lstm", "min_gru"))]
)
def test_burn_in_brings_a_stale_memory_back(recurrent):
    """Values after it are much nearer to those of the whole episode than values from the memory stored there."""
    one = past(recurrent)
    rows = BURN_IN + SEQUENCE + 1
    truth = one.values[START + BURN_IN : START + rows]
    burnt, ahead = one.along(START, rows, one.stale, BURN_IN)
    stored_there, _ = one.along(START + BURN_IN, SEQUENCE + 1, one.stale, 0)
    np.testing.assert_array_equal(burnt.shape, stored_there.shape)
    gap, without = (float(jnp.abs(got - truth[:-1]).mean()) for got in (burnt, stored_there))
    assert without > 0.01
    assert gap < 0.2 * without
    assert float(jnp.abs(ahead - truth[1:]).mean()) < 0.2 * without
    # With the right memory both are right.
    for start, burn_in in ((START, BURN_IN), (START + BURN_IN, 0)):
        exact, _ = one.along(start, burn_in + SEQUENCE + 1, one.right, burn_in)
        np.testing.assert_allclose(exact, truth[:-1], atol=1e-5)


def test_burn_in_reads_views_and_gives_no_gradient():
    one = past("gru")
    rows = BURN_IN + SEQUENCE + 1
    whole = batch_of(one, START, rows, one.stale)
    views = whole.observation["a"].view

    def total(view, weights):
        windows = whole.replace(observation={"a": Observation(view)})
        return jnp.sum(values_along(one.network, weights, windows, BURN_IN).now ** 2)

    slope = jax.jit(jax.grad(total))(views, one.now)
    assert not slope[:BURN_IN].any()
    assert (jnp.abs(slope[BURN_IN:-1]).sum((1, 2, 3)) > 0).all()
    other = views.at[BURN_IN - 1].add(1.0)
    assert abs(float(total(other, one.now) - total(views, one.now))) > 1e-3


BOTH = {"network": network_of("gru"), "buffer_size": 100, "gamma": 0.5, "double": True}


def batch_of(one, start, rows, memories, **flags):
    """The window as the replay has it."""
    part = slice(start, start + rows)
    views = Observation(one.view[part])
    zeros = jnp.zeros((rows, COPIES), bool)
    held = jax.tree.map(lambda leaf: leaf[start - 1 : start - 1 + rows], memories)
    return stored.Steps(
        observation={"a": views},
        final_observation={"a": Observation(-views.view)},
        action={"a": jnp.ones((rows, COPIES, 1), jnp.int32)},
        reward={"a": jnp.arange(rows, dtype=jnp.float32)[:, None, None] * jnp.ones((1, COPIES, 1))},
        memory={"a": held},
        state=None,
        final_state=None,
        **{"first": zeros, "terminated": zeros, "truncated": zeros} | flags,
    )


def state_of(algorithm, one):
    seen = {"a": Observation(jax.ShapeDtypeStruct((1, 2), jnp.float32))}
    spec = LearnerSpec({"a": Group(1, Discrete(3), Box((2,)))}, None, 1, seen, 1, 1)
    state = algorithm.init(jax.random.key(0), spec)
    params = {"a": state.params["a"].replace(weights=one.now)}
    return state.replace(params=params, target=state.target | {"agents": {"a": shaken(one.now, 0.1, 5)}})


def gradients(algorithm, state, batch):
    grads, (_, error) = learnt(algorithm, state, batch, jnp.ones(COPIES))
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(grads)]), np.asarray(error)


@pytest.mark.slow
def test_a_learner_with_burn_in_forgives_stale_memories():
    """Its gradient is near that with the right memories; that of a learner without is not."""
    one = past("gru")
    gaps = {}
    for burn_in, start in ((BURN_IN, START), (0, START + BURN_IN)):
        algorithm = DQN(burn_in=burn_in, sequence=SEQUENCE, **BOTH)
        state = state_of(algorithm, one)
        both = [batch_of(one, start, algorithm.window, memories) for memories in (one.stale, one.right)]
        (stale, error), (right, _) = (gradients(algorithm, state, batch) for batch in both)
        assert error.shape == (SEQUENCE, COPIES)
        gaps[burn_in] = np.linalg.norm(stale - right) / np.linalg.norm(right)
    assert gaps[0] > 0.05
    assert gaps[BURN_IN] < 0.2 * gaps[0]


def test_an_episode_that_begins_in_the_burn_in_needs_no_memory():
    one, algorithm = past("gru"), DQN(burn_in=BURN_IN, sequence=SEQUENCE, **BOTH)
    state = state_of(algorithm, one)
    zeros = jnp.zeros((algorithm.window, COPIES), bool)
    results = [
        gradients(algorithm, state, batch_of(one, START, algorithm.window, memories, first=zeros.at[2].set(True)))[0]
        for memories in (one.stale, one.right)
    ]
    np.testing.assert_array_equal(*results)


def test_final_views_are_valued_with_the_memory_that_led_to_them():
    """Row 1 is cut short: its target is the slow value of the final view, after the memory of rows 0 and 1."""
    one, algorithm = past("gru"), DQN(sequence=SEQUENCE, **BOTH | {"double": False})
    state = state_of(algorithm, one)
    slow = state.target["agents"]["a"]
    zeros = jnp.zeros((algorithm.window, COPIES), bool)
    flags = {"truncated": zeros.at[1].set(True), "first": zeros.at[2].set(True)}
    batch = batch_of(one, START, algorithm.window, one.right, **flags)
    _, error = gradients(algorithm, state, batch)
    step = jax.jit(one.network.apply)
    for copy in range(COPIES):
        memory = one.right[START - 1, copy, 0]
        online, slowly = memory, memory
        for t in range(2):
            values, online = step(one.now, one.view[START + t, copy, 0], online)
            _, slowly = step(slow, one.view[START + t, copy, 0], slowly)
        final, _ = step(slow, -one.view[START + 1, copy, 0], slowly)
        expected = abs(float(values[1]) - (1 + 0.5 * float(final.max())))
        assert error[1, copy] == pytest.approx(expected, abs=1e-4)


def test_stored_memories_are_those_of_the_whole_episode():
    """Played with these weights, every row's memory is what unrolling from the start gives; fresh where one begins."""
    algorithm = DQN(network=network_of("gru"), buffer_size=1_000)
    state = fresh_replayer(algorithm, LastCard(), num_envs=4, num_steps=12)
    whole = played(algorithm, LastCard(), state.params, 12, 4)
    track, policy = whole.trajectories["player"], state.params["player"]
    unrolled = jax.jit(lambda weights: unroll(policy.network, weights, track.observation, whole.first, track.memory))
    _, after = unrolled(policy.weights)
    before = np.concatenate([track.memory[None], after[:-1]])
    before[np.asarray(whole.first)] = 0.0
    np.testing.assert_allclose(track.memories, before, atol=1e-6)
    assert whole.first[1:].any()
    assert np.abs(before[1:]).max() > 0.01
