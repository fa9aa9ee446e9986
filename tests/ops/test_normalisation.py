from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.spaces import Box
from shoal.ops import normalisation as norm

update = jax.jit(norm.update, static_argnames="axis")


def test_identity_before_any_data():
    stats = norm.init((2,))
    x = jnp.array([3.0, -1.5])
    np.testing.assert_array_equal(norm.normalise(stats, x, 10.0), x)
    np.testing.assert_array_equal(norm.denormalise(stats, x), x)


def test_two_batches_by_hand():
    # 1, 3 then 8: mean 4, squared deviations 9 + 1 + 16 = 26, variance 26/3.
    stats = update(update(norm.init(), jnp.array([1.0, 3.0])), jnp.array([8.0]))
    assert stats.count == 3
    assert stats.mean == pytest.approx(4, abs=1e-6)
    assert stats.m2 == pytest.approx(26, abs=1e-5)
    assert norm.normalise(stats, jnp.float32(10), None) == pytest.approx(6 / (26 / 3) ** 0.5, abs=1e-6)


def test_weights_by_hand():
    # 1 and 3 weigh 1 and 3: mean 10/4, squared deviations 2.25 + 3 * 0.25 = 3. Weight 0 is not read.
    stats = update(norm.init(), jnp.array([1.0, 3.0, jnp.nan]), jnp.array([1.0, 3.0, 0.0]))
    assert stats.count == 4
    assert stats.mean == pytest.approx(2.5, abs=1e-6)
    assert stats.m2 == pytest.approx(3, abs=1e-6)


def test_nothing_seen_changes_nothing():
    empty = update(norm.init((2,)), jnp.ones((3, 2)), jnp.zeros(3, bool))
    np.testing.assert_array_equal(norm.normalise(empty, jnp.array([4.0, 5.0])), [4, 5])
    stats = update(norm.init((2,)), jnp.array([[1.0, 2.0], [3.0, 8.0]]))
    again = update(stats, jnp.full((3, 2), 1e9), jnp.zeros(3, bool))
    jax.tree.map(np.testing.assert_array_equal, again, stats)


def test_any_leading_axes_in_any_order_of_batches():
    data = np.random.default_rng(0).normal(100, 3, (4, 5, 6, 2)).astype(np.float32)
    weights = np.random.default_rng(1).random((4, 5, 6)).astype(np.float32)
    stats = norm.init((2,))
    for part, weight in zip(data, weights, strict=True):
        stats = update(stats, part, weight)
    flat, flat_weights = data.reshape(-1, 2).astype(np.float64), weights.ravel().astype(np.float64)
    mean = np.average(flat, axis=0, weights=flat_weights)
    std = np.sqrt(np.average((flat - mean) ** 2, axis=0, weights=flat_weights))
    np.testing.assert_allclose(stats.mean, mean, rtol=1e-6)
    np.testing.assert_allclose(stats.std, std, rtol=1e-4)


def test_weights_broadcast_over_leading_axes():
    data = np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32)
    weights = np.array([1, 0, 0, 1], np.float32)[:, None]
    stats = update(norm.init((2,)), data, weights)
    assert stats.count == 6
    np.testing.assert_allclose(stats.mean, data[[0, 3]].mean((0, 1)), rtol=1e-5)


def test_decay_by_hand():
    # Decay 1/2. After batches {2, 4} and {8}: weights 1/2, 1/2, 1, so mean (1 + 2 + 8)/2 = 5.5 and squared
    # deviations (3.5^2 + 1.5^2)/2 + 2.5^2 = 13.5.
    first = update(norm.init(), jnp.array([2.0, 4.0]), decay=0.5)
    assert first.mean == pytest.approx(3, abs=1e-6)  # unbiased from the start
    stats = update(first, jnp.array([8.0]), decay=0.5)
    assert stats.count == pytest.approx(2, abs=1e-6)
    assert stats.mean == pytest.approx(5.5, abs=1e-6)
    assert stats.m2 == pytest.approx(13.5, abs=1e-5)


def test_decay_forgets():
    batches = jnp.concatenate([jnp.full((50, 4), -10.0), jnp.tile(jnp.array([4.0, 6.0, 4.0, 6.0]), (50, 1))])

    def step(stats, batch):
        return norm.update(stats, batch, decay=0.5), None

    stats, _ = jax.lax.scan(step, norm.init(), batches)
    assert stats.mean == pytest.approx(5, abs=1e-4)
    assert stats.std == pytest.approx(1, abs=1e-4)
    assert stats.count == pytest.approx(8, abs=1e-4)


def test_normalise_clips_and_denormalise_undoes():
    stats = update(norm.init(), jnp.array([0.0, 4.0]))  # mean 2, standard deviation 2
    np.testing.assert_allclose(norm.normalise(stats, jnp.array([6.0, -100.0, 100.0]), 5.0), [2, -5, 5], atol=1e-6)
    np.testing.assert_allclose(norm.denormalise(stats, jnp.array([2.0, -5.0])), [6, -8], atol=1e-6)


def test_constant_data_stays_small():
    stats = update(norm.init(), jnp.full(1000, 0.1))
    assert abs(float(norm.normalise(stats, jnp.float32(0.1)))) < 1e-2


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_the_same_for_any_split(devices):
    # vmap with an axis name stands for the mesh: the collective is the same.
    data = np.random.default_rng(0).normal(3, 2, (40, 2)).astype(np.float32)
    weights = np.random.default_rng(1).integers(0, 2, 40).astype(np.float32)
    start = update(norm.init((2,)), jnp.ones((5, 2)))
    whole = update(start, data, weights, decay=0.9)
    split = jax.vmap(partial(update, start, axis="devices", decay=0.9), axis_name="devices")(
        data.reshape(devices, -1, 2), weights.reshape(devices, -1)
    )
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(split), strict=True):
        for device in range(devices):
            np.testing.assert_allclose(b[device], a, rtol=1e-6)


def test_trees_leaf_by_leaf():
    stats = norm.init_tree({"map": Box((2, 2)), "speed": Box(())})
    batch = {"map": jnp.arange(12).reshape(3, 2, 2), "speed": jnp.array([1.0, 2.0, 6.0])}
    stats = norm.update_tree(stats, batch, jnp.array([1.0, 1.0, 0.0]))
    np.testing.assert_allclose(stats["map"].mean, [[2, 3], [4, 5]])  # of rows 0 and 1
    assert stats["speed"].mean == pytest.approx(1.5)
    out = norm.normalise_tree(stats, batch, clip=1.5)
    np.testing.assert_allclose(out["speed"], [-1, 1, 1.5], atol=1e-6)
    np.testing.assert_allclose(out["map"][0], -np.ones((2, 2)), atol=1e-6)
