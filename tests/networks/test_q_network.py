"""Action values: heads, dueling, parts of an action, and what is legal."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import Discrete, MultiDiscrete
from shoal.networks.q_network import QNetwork, best_action, init_q_network, mean_value, value_of
from shoal.networks.torsos import Network

SMALL = Network(hidden=(8,))
PARTS = MultiDiscrete((2, 3))
VALUES = jnp.array([1.0, 4.0, -2.0, 0.5, 7.0])  # 1 4 | -2 0.5 7


def fresh(module, size):
    return jax.jit(lambda key: init_q_network(module, key, jnp.zeros(size)))(jax.random.key(0))


def shaken(weights, seed=1):
    numbers = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: leaf + numbers.normal(size=leaf.shape).astype(np.float32), weights)


def by_hand(action, features, dueling):
    """The network's head on features that are the view itself: tanh of an identity."""
    module = QNetwork(Network(hidden=(2,)), action, dueling)
    weights = jax.tree.map(jnp.zeros_like, fresh(module, 2))
    weights["params"]["torso"]["layers_0"]["kernel"] = jnp.eye(2)
    return module, weights, jnp.arctanh(jnp.array(features))


def test_values_by_hand():
    module, weights, view = by_hand(Discrete(3), [0.5, -0.25], False)
    weights["params"]["head"] = {"kernel": jnp.array([[2.0, 4.0, 0.0], [0.0, 4.0, 8.0]]), "bias": jnp.arange(3.0)}
    values, memory = jax.jit(module.apply)(weights, view, ())
    np.testing.assert_allclose(values, [1.0, 2.0, 0.0], atol=1e-6)
    assert memory == ()


def test_dueling_by_hand():
    """Base 3, advantages 1, 2 and 0, less their mean: 3, 4, 2."""
    module, weights, view = by_hand(Discrete(3), [0.5, -0.25], True)
    weights["params"]["head"] = {"kernel": jnp.array([[2.0, 4.0, 0.0], [0.0, 4.0, 8.0]]), "bias": jnp.arange(3.0)}
    weights["params"]["base"] = {"kernel": jnp.array([[4.0], [-4.0]]), "bias": jnp.zeros(1)}
    np.testing.assert_allclose(jax.jit(module.apply)(weights, view, ())[0], [3.0, 4.0, 2.0], atol=1e-6)


@pytest.mark.parametrize("space", [Discrete(4), PARTS])
def test_advantages_have_no_mean(space):
    """In each part of an action, the mean of the values is what the view is worth."""
    module = QNetwork(SMALL, space, dueling=True)
    weights = shaken(fresh(module, 3))
    view = jax.random.normal(jax.random.key(2), (3,))
    values, _ = jax.jit(module.apply)(weights, view, ())
    features = jnp.tanh(
        view @ weights["params"]["torso"]["layers_0"]["kernel"] + weights["params"]["torso"]["layers_0"]["bias"]
    )
    base = features @ weights["params"]["base"]["kernel"] + weights["params"]["base"]["bias"]
    parts = [values] if isinstance(space, Discrete) else [values[:2], values[2:]]
    for part in parts:
        assert float(part.mean()) == pytest.approx(float(base[0]), abs=1e-5)
        assert float(part.std()) > 0.05


def test_best_action_respects_what_is_legal():
    values = jnp.array([1.0, 9.0, 3.0, -5.0])
    assert int(best_action(Discrete(4), values, None)) == 1
    assert int(best_action(Discrete(4), values, jnp.array([True, False, True, True]))) == 2
    assert int(best_action(Discrete(4), values, jnp.array([False, False, False, True]))) == 3
    low = jnp.array([-1e6, -2e6, 0.0, 0.0])  # values far below 0 are still better than illegal ones
    assert int(best_action(Discrete(4), low, jnp.array([True, True, False, False]))) == 0
    assert best_action(Discrete(4), values, None).dtype == jnp.int32


def test_the_best_of_every_part():
    np.testing.assert_array_equal(best_action(PARTS, VALUES, None), [1, 2])
    legal = jnp.array([True, False, True, True, False])
    np.testing.assert_array_equal(best_action(PARTS, VALUES, legal), [0, 1])


def test_the_value_of_an_action_is_the_mean_over_its_parts():
    assert float(value_of(Discrete(5), VALUES, jnp.int32(2))) == -2.0
    assert float(value_of(PARTS, VALUES, jnp.array([1, 2]))) == (4 + 7) / 2
    assert float(value_of(PARTS, VALUES, jnp.array([0, 1]))) == (1 + 0.5) / 2
    slope = jax.grad(lambda values: value_of(PARTS, values, jnp.array([1, 0])))(VALUES)
    np.testing.assert_array_equal(slope, [0, 0.5, 0.5, 0, 0])


def test_the_best_action_has_the_highest_value():
    every = [jnp.array([a, b]) for a in range(2) for b in range(3)]
    best = value_of(PARTS, VALUES, best_action(PARTS, VALUES, None))
    assert float(best) == max(float(value_of(PARTS, VALUES, action)) for action in every)


def test_mean_value_by_hand():
    assert float(mean_value(Discrete(5), VALUES, None)) == pytest.approx(10.5 / 5)
    legal = jnp.array([True, False, False, True, True])
    assert float(mean_value(Discrete(5), VALUES, legal)) == pytest.approx(8.5 / 3)
    assert float(mean_value(PARTS, VALUES, None)) == pytest.approx((2.5 + 5.5 / 3) / 2)
    assert float(mean_value(PARTS, VALUES, legal)) == pytest.approx((1 + 3.75) / 2)


@pytest.mark.parametrize("recurrent", ["gru", "lstm", "min_gru"])
def test_unroll_is_step_after_step(recurrent):
    """Memory is reset where an episode begins, and stands still where the agent may not act."""
    config = Network(hidden=(8,), recurrent=recurrent, recurrent_size=4, layer_norm=True)
    module = QNetwork(config, Discrete(3), dueling=True)
    weights = shaken(fresh(module, 2))
    views = jax.random.normal(jax.random.key(1), (6, 2))
    first, active = np.array([0, 0, 0, 1, 0, 0], bool), np.array([1, 0, 1, 1, 0, 1], bool)
    memory = jax.tree.map(lambda leaf: leaf + 0.5, module.initial_memory())
    step, unroll = jax.jit(module.apply), jax.jit(functools.partial(module.apply, method="unroll"))
    values, memories = unroll(weights, views, memory, first, active)
    for t in range(6):
        memory = module.initial_memory() if first[t] else memory
        expected, after = step(weights, views[t], memory)
        memory = after if active[t] else memory
        np.testing.assert_allclose(values[t], expected, atol=1e-5)
        kept = jax.tree.map(lambda leaf, t=t: leaf[t], memories)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), kept, memory)
