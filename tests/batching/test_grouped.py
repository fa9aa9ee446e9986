"""Each copy must meet its own policy, however the copies are distributed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.batching.grouped import BLOCK, WASTED, apply_all, apply_grouped_by_policy, apply_in_blocks, lay_out_blocks


def linear(policy, rows):
    return {"out": rows["x"] @ policy["w"], "id": jnp.broadcast_to(policy["id"], rows["x"].shape[:1])}


def bank(policies):
    return {"w": jax.random.normal(jax.random.key(1), (policies, 3, 2)), "id": jnp.arange(policies)}


@pytest.mark.parametrize("index", ["random", "one", "last", "skewed", "each"])
@pytest.mark.parametrize(("copies", "policies"), [(40, 5), (7, 12), (64, 2), (33, 1)])
@pytest.mark.parametrize("apply", [apply_grouped_by_policy, apply_in_blocks, apply_all])
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
    ("backend", "copies", "sorted"), [("gpu", WASTED // 8, False), ("gpu", WASTED // 8 + 1, True), ("cpu", 16, True)]
)
def test_a_gpu_does_not_sort_small_batches(monkeypatch, backend, copies, sorted):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    rows = {"x": jax.ShapeDtypeStruct((copies, 3), jnp.float32)}
    index = jax.ShapeDtypeStruct((copies,), jnp.int32)
    traced = jax.make_jaxpr(lambda *args: apply_grouped_by_policy(linear, *args))(bank(8), index, rows)
    assert ("sort[" in str(traced)) == sorted
