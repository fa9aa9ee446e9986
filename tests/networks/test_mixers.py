"""Mixers: by hand for tiny weights, and never falling in any agent's value."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.networks import mixers
from shoal.networks.mixers import MonotonicMixer, init_mixer

mix = jax.jit(mixers.mix, static_argnums=0)


def fresh(num_agents, state, hyper=64):
    return jax.jit(lambda key: init_mixer("monotonic", key, num_agents, state, hyper))(jax.random.key(0))


def test_sum_by_hand():
    assert init_mixer("sum", jax.random.key(0), 3, jnp.zeros(2)) == ()
    assert init_mixer("none", jax.random.key(0), 3, jnp.zeros(2)) == ()
    assert float(mix("sum", (), jnp.array([1.5, -2.0, 4.0]), None)) == 3.5


def dense(kernel, bias):
    return {"kernel": jnp.array(kernel, jnp.float32), "bias": jnp.array(bias, jnp.float32)}


def tiny(first=(2.0, -3.0), second=-0.5):
    """Two agents, a state of one number, one unit everywhere: |w2| elu(|w1| q + b1) + v, all of them made from it."""
    return {
        "params": {
            "hidden": dense([[1.0]], [0.0]),
            "Dense_0": dense([[first[0], first[1]]], [0.0, 0.0]),
            "Dense_1": dense([[0.25]], [0.5]),
            "second": dense([[second]], [0.0]),
            "base": dense([[4.0]], [1.0]),
            "Dense_2": dense([[0.5]], [0.0]),
        }
    }


@pytest.mark.parametrize("values", [(1.0, 2.0), (-1.0, -2.0)])
def test_monotonic_by_hand(values):
    mixer, state = MonotonicMixer(embed=1, hyper=1), jnp.array([2.0])
    got = float(jax.jit(mixer.apply)(tiny(), jnp.array(values), state))
    # State 2: first weights |4|, |-6|, bias 0.25 * 2 + 0.5 = 1, second |-1|, base 4 * (0.5 * 2) + 1 = 5.
    inside = 4 * values[0] + 6 * values[1] + 1
    expected = 1 * (inside if inside > 0 else np.exp(inside) - 1) + 5
    assert got == pytest.approx(expected, rel=1e-6)


def test_gradient_by_hand():
    """|w2| |w1| where the elu is straight, that times its slope exp(x) where it bends; signs do not count."""
    mixer, state = MonotonicMixer(embed=1, hyper=1), jnp.array([2.0])
    slope = jax.jit(jax.grad(lambda values: mixer.apply(tiny(), values, state)))
    np.testing.assert_allclose(slope(jnp.array([1.0, 2.0])), [4.0, 6.0], rtol=1e-6)
    bent = np.exp(-4 * 0.5 - 6 * 0.1 + 1)
    np.testing.assert_allclose(slope(jnp.array([-0.5, -0.1])), [4 * bent, 6 * bent], rtol=1e-5)


@pytest.mark.slow
def test_no_gradient_is_ever_negative():
    """Weights, states and values drawn at random; unlike the values, the state may push both ways."""
    weights = fresh(3, jnp.zeros(5), hyper=8)

    def slopes(key):
        for_weights, for_state, for_values = jax.random.split(key, 3)
        noisy = jax.tree.map(lambda leaf: leaf + jax.random.normal(for_weights, leaf.shape), weights)
        state, values = jax.random.normal(for_state, (5,)), 3 * jax.random.normal(for_values, (3,))
        return jax.grad(lambda values, state: mix("monotonic", noisy, values, state), (0, 1))(values, state)

    by_value, by_state = jax.jit(jax.vmap(slopes))(jax.random.split(jax.random.key(1), 200))
    assert float(by_value.min()) >= 0.0
    assert float(by_value.max()) > 1.0
    assert float(by_state.min()) < -1.0


def test_a_fresh_mixer_is_nearly_the_mean():
    weights = fresh(4, {"a": jnp.zeros(3), "b": jnp.zeros((2, 2), bool)})
    state = {"a": jnp.array([0.1, -0.2, 0.3]), "b": jnp.eye(2, dtype=bool)}
    values = jnp.array([1.0, 2.0, 3.0, 6.0])
    assert float(mix("monotonic", weights, values, state)) == pytest.approx(3.0, abs=1.0)
    slope = jax.jit(jax.grad(lambda values: mix("monotonic", weights, values, state)))(values)
    np.testing.assert_allclose(slope, 0.25, atol=0.15)


def test_the_state_matters_and_its_width_is_kept():
    weights = fresh(2, jnp.zeros(3), hyper=5)
    assert weights["params"]["hidden"]["kernel"].shape == (3, 5)
    values = jnp.array([1.0, -1.0])
    one, other = (float(mix("monotonic", weights, values, jnp.full(3, x))) for x in (1.0, -2.0))
    assert abs(one - other) > 1e-3
