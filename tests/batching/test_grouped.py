"""Each copy must meet its own policy, however the copies are distributed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.batching import grouped
from shoal.batching.grouped import (
    BLOCK,
    WASTED,
    apply_all,
    apply_gathered,
    apply_grouped_by_policy,
    apply_in_blocks,
    lay_out_blocks,
)


def linear(policy, rows):
    return {"out": rows["x"] @ policy["w"], "id": jnp.broadcast_to(policy["id"], rows["x"].shape[:1])}


def bank(policies):
    return {"w": jax.random.normal(jax.random.key(1), (policies, 3, 2)), "id": jnp.arange(policies)}


@pytest.mark.parametrize("index", ["random", "one", "last", "skewed", "each"])
@pytest.mark.parametrize(("copies", "policies"), [(40, 5), (7, 12), (64, 2), (33, 1)])
@pytest.mark.parametrize("apply", [apply_grouped_by_policy, apply_in_blocks, apply_all, apply_gathered])
def test_every_copy_meets_its_policy(apply, index, copies, policies):
    draws = {
        "random": jax.random.randint(jax.random.key(0), (copies,), 0, policies),
        "one": jnp.zeros(copies, jnp.int32),
        "last": jnp.full(copies, policies - 1),
        "skewed": jnp.where(jnp.arange(copies) == 3, policies - 1, 0),
        "each": jnp.arange(copies) % policies,
    }
    chosen = draws[index]
    x = jax.random.normal(jax.random.key(2), (copies, 3))
    got = jax.jit(lambda *args: apply(linear, *args))(bank(policies), chosen, {"x": x})
    wanted = jnp.einsum("ei,eij->ej", x, bank(policies)["w"][chosen])
    np.testing.assert_array_equal(got["id"], chosen)
    np.testing.assert_allclose(got["out"], wanted, rtol=1e-5, atol=1e-6)


def test_never_more_work_than_a_block_for_each_policy():
    where = lay_out_blocks(jax.random.randint(jax.random.key(0), (2048,), 0, 40), 40)
    assert len(where.row) <= 2048 + 40 * BLOCK


@pytest.mark.parametrize(
    ("backend", "copies", "policies", "way"),
    [
        ("gpu", WASTED // 8, 8, "apply_all"),
        ("gpu", WASTED // 8 + 1, 8, "apply_in_blocks"),
        ("gpu", 32_768, 64, "apply_in_blocks"),
        ("gpu", 4096, 10_000, "apply_gathered"),
        ("gpu", 4096, 4096, "apply_gathered"),
        ("gpu", 4096, 4095, "apply_in_blocks"),
        ("cpu", 16, 8, "apply_in_blocks"),
        ("cpu", 4096, 10_000, "apply_in_blocks"),
    ],
)
def test_the_way_that_is_fastest_is_taken(monkeypatch, backend, copies, policies, way):
    """By `benchmarks/results/opponents_h200.json`."""
    taken = []
    for name in ("apply_all", "apply_gathered", "apply_in_blocks"):
        monkeypatch.setattr(grouped, name, lambda *args, name=name: taken.append(name))
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    apply_grouped_by_policy(linear, {"w": jnp.zeros((policies, 3, 2))}, jnp.zeros(copies, jnp.int32), {})
    assert taken == [way]
