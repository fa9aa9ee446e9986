import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.errors import OptionError
from shoal.ops.neighbours import k_nearest

nearest = jax.jit(k_nearest, static_argnums=2)


def brute_force(position, alive, k):
    n = len(position)
    index, valid = np.zeros((n, k), np.int32), np.zeros((n, k), bool)
    for i in range(n):
        others = [j for j in range(n) if j != i and alive[j]]
        others.sort(key=lambda j: (float(np.sum((position[i] - position[j]) ** 2)), j))
        for slot, j in enumerate(others[:k]):
            index[i, slot], valid[i, slot] = j, True
    return index, valid


def test_by_hand():
    # On a line at 0, 1, 3, 7, 8; the agent at 3 is dead.
    position = jnp.array([[0.0, 0], [1, 0], [3, 0], [7, 0], [8, 0]])
    index, valid = nearest(position, jnp.array([True, True, False, True, True]), 2)
    np.testing.assert_array_equal(index, [[1, 3], [0, 3], [1, 0], [4, 1], [3, 1]])
    assert valid.all()


def test_equal_distances_go_to_the_lower_index():
    position = jnp.array([[1.0, 0], [0, 0], [-1, 0], [0, 1], [0, -1], [0, 0]])
    index, _ = nearest(position, jnp.ones(6, bool), 5)
    np.testing.assert_array_equal(index[1], [5, 0, 2, 3, 4])


@pytest.mark.parametrize("k", [1, 3, 4, 7])
def test_short_rows_are_marked(k):
    position = jnp.arange(8.0).reshape(4, 2)
    for alive in ([True] * 4, [False, True, True, False], [False] * 4):
        index, valid = nearest(position, jnp.array(alive), k)
        expected_index, expected_valid = brute_force(np.array(position), alive, k)
        assert index.shape == valid.shape == (4, k)
        assert index.dtype == jnp.int32
        np.testing.assert_array_equal(index, expected_index)
        np.testing.assert_array_equal(valid, expected_valid)


def test_one_agent_has_no_neighbours():
    index, valid = nearest(jnp.zeros((1, 2)), jnp.ones(1, bool), 3)
    assert not valid.any()
    np.testing.assert_array_equal(index, [[0, 0, 0]])


@pytest.mark.parametrize("cells", [6, 1000])  # 6: a small grid, full of equal distances
def test_many_worlds_against_brute_force(cells):
    random = np.random.default_rng(0)
    position = random.integers(0, cells, (5, 30, 2)).astype(np.float32)
    alive = random.random((5, 30)) < 0.7
    index, valid = jax.jit(jax.vmap(lambda p, a: k_nearest(p, a, 10)))(position, alive)
    for world in range(5):
        expected_index, expected_valid = brute_force(position[world], alive[world], 10)
        np.testing.assert_array_equal(index[world], expected_index)
        np.testing.assert_array_equal(valid[world], expected_valid)


def test_far_apart_living_agents_still_count():
    # The squared distance overflows float32; the dead agent 0 must not be taken in its stead.
    position = jnp.array([[0.0, 0], [1e30, 0], [-1e30, 0]])
    index, valid = nearest(position, jnp.array([False, True, True]), 1)
    np.testing.assert_array_equal(index[1:, 0], [2, 1])
    assert valid.all()


def test_k_must_be_positive():
    with pytest.raises(OptionError, match="k must be greater than 0, got 0"):
        k_nearest(jnp.zeros((3, 2)), jnp.ones(3, bool), 0)
