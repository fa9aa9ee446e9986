import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.errors import OptionError
from shoal.ops import kernels, neighbours
from shoal.ops.kernels import trust
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


def test_many_agents_against_brute_force():
    """Beyond 200 agents another plain form is used."""
    random = np.random.default_rng(1)
    position = random.integers(0, 40, (1, 230, 2)).astype(np.float32)
    alive = random.random((1, 230)) < 0.7
    index, valid = jax.jit(jax.vmap(lambda p, a: k_nearest(p, a, 6)))(position, alive)
    expected_index, expected_valid = brute_force(position[0], alive[0], 6)
    np.testing.assert_array_equal(index[0], expected_index)
    np.testing.assert_array_equal(valid[0], expected_valid)


def test_any_number_of_mapped_axes():
    random = np.random.default_rng(2)
    position = random.random((2, 3, 8, 2)).astype(np.float32)
    alive = random.random((3, 8)) < 0.7  # not mapped by the outer one
    both = jax.vmap(jax.vmap(lambda p, a: k_nearest(p, a, 3)), in_axes=(0, None))
    index, valid = jax.jit(both)(position, alive)
    for outer in range(2):
        for inner in range(3):
            one_index, one_valid = nearest(position[outer, inner], alive[inner], 3)
            np.testing.assert_array_equal(index[outer, inner], one_index)
            np.testing.assert_array_equal(valid[outer, inner], one_valid)


def test_gradients_flow_past_the_choice():
    position = jnp.array([[0.0, 0], [1, 0], [3, 0]])

    def to_nearest(position):
        index, _ = k_nearest(position, jnp.ones(3, bool), 1)
        return jnp.sum((position[index[:, 0]] - position) ** 2)

    # Pairs (0, 1), (1, 0), (2, 1): the derivatives of 1, 1 and 4 by the three places.
    np.testing.assert_allclose(jax.grad(to_nearest)(position)[:, 0], [-4.0, 0.0, 4.0], atol=1e-6)


@pytest.mark.parametrize(("position", "alive"), [((4, 3), (4,)), ((4, 2), (5,)), ((2,), (2,))])
def test_shapes_are_checked(position, alive):
    with pytest.raises(OptionError, match="k_nearest"):
        k_nearest(jnp.zeros(position), jnp.ones(alive, bool), 2)


@pytest.mark.parametrize(
    ("worlds", "n", "k", "kernel", "grid"),
    [
        (7, 40, 3, "brute_4", (7, 1)),
        (7, 110, 10, "brute_10", (7, 1)),
        (2, 1000, 10, "cells_10", (2, 1)),
        (2, 1000, 50, "cells_32", (2, 1)),
        (3, 10_000, 8, "brute_8", (3, 40)),
    ],
)
def test_on_cuda_it_is_a_kernel(worlds, n, k, kernel, grid):
    """What is handed to XLA there; that the kernel is right takes a GPU: benchmarks/neighbours.py."""
    position = jax.ShapeDtypeStruct((worlds, n, 2), jnp.float32)
    alive = jax.ShapeDtypeStruct((worlds, n), bool)
    traced = jax.jit(jax.vmap(lambda p, a: k_nearest(p, a, k))).trace(position, alive)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("__gpu$xla.gpu.ptx") == 1
    assert f'name = "shoal_nearest_{kernel}"' in text
    assert f"grid_x = {grid[0]} : i32, grid_y = {grid[1]} : i32" in text
    assert "top_k" not in text
    assert "__gpu$xla.gpu.ptx" not in traced.lower(lowering_platforms=("cpu",)).as_text()


@pytest.mark.parametrize("form", ["brute", "cells"])
@pytest.mark.parametrize("slots", kernels.SLOTS)
def test_the_kernels_are_built_from_the_source_that_is_here(form, slots):
    """If this fails, run `python -m shoal.ops.kernels.build` where CUDA's compiler is."""
    text = kernels.ptx(f"shoal_nearest_{form}_{slots}")
    assert text.startswith(f"// built from {kernels.fingerprint('neighbours')}\n")
    assert f".visible .entry shoal_nearest_{form}_{slots}(" in text


@pytest.mark.parametrize(("n", "k", "name"), [(110, 10, "brute, 10 slots"), (1000, 5, "cells, 6 slots")])
def test_the_kernel_that_is_to_be_used_is_tried(monkeypatch, n, k, name):
    """If it is not trusted, the plain form is used even where there is a GPU."""
    tried = []
    monkeypatch.setattr(trust, "find_problem", lambda trial: tried.append(trial.name) or "it disagrees")
    shapes = jax.ShapeDtypeStruct((2, n, 2), jnp.float32), jax.ShapeDtypeStruct((2, n), bool)
    neighbours._batched.cache_clear()
    traced = jax.jit(jax.vmap(lambda p, a: k_nearest(p, a, k))).trace(*shapes)
    assert set(tried) == {name}
    assert "__gpu$xla.gpu.ptx" not in traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("form", ["brute", "cells"])
def test_a_trial_sees_a_wrong_kernel(monkeypatch, form):
    trial, plain = neighbours.make_trial(form, 6), neighbours.plain_k_nearest
    assert trial.measure() == 0.0
    calls = []

    def wrong(position, alive, k):
        calls.append(k)
        index = plain(position, alive, k)
        return index if len(calls) > 1 else index.at[7, 0].add(1)

    monkeypatch.setattr(neighbours, "plain_k_nearest", wrong)
    assert 0.0 < trial.measure() < 0.01


def test_a_trial_runs_the_kernel_it_names(monkeypatch):
    asked = []
    monkeypatch.setattr(neighbours, "_kernel", lambda position, alive, k: asked.append((position.shape[1], k)))
    for form in ("brute", "cells"):
        for slots in kernels.SLOTS:
            asked.clear()
            with pytest.raises((TypeError, ValueError)):  # the stand-in has no result
                neighbours.make_trial(form, slots).measure()
            assert neighbours._kernel_of(*asked[0]) == (form, slots)
