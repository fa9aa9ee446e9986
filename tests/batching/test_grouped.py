"""Each copy must meet its own policy, however the copies are distributed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.batching.grouped import BLOCK, apply_grouped_by_policy, lay_out_blocks


def linear(policy, rows):
    return {"out": rows["x"] @ policy["w"], "id": jnp.broadcast_to(policy["id"], rows["x"].shape[:1])}


def bank(policies):
    return {"w": jax.random.normal(jax.random.key(1), (policies, 3, 2)), "id": jnp.arange(policies)}


@pytest.mark.parametrize("index", ["random", "one", "last", "skewed", "each"])
@pytest.mark.parametrize(("copies", "policies"), [(40, 5), (7, 12), (64, 2), (33, 1)])
def test_every_copy_meets_its_policy(index, copies, policies):
    draws = {
        "random": jax.random.randint(jax.random.key(0), (copies,), 0, policies),
        "one": jnp.zeros(copies, jnp.int32),
        "last": jnp.full(copies, policies - 1),
        "skewed": jnp.where(jnp.arange(copies) == 3, policies - 1, 0),
        "each": jnp.arange(copies) % policies,
    }
    chosen = draws[index]
    x = jax.random.normal(jax.random.key(2), (copies, 3))
    got = jax.jit(lambda *args: apply_grouped_by_policy(linear, *args))(bank(policies), chosen, {"x": x})
    wanted = jnp.einsum("ei,eij->ej", x, bank(policies)["w"][chosen])
    np.testing.assert_array_equal(got["id"], chosen)
    np.testing.assert_allclose(got["out"], wanted, rtol=1e-5, atol=1e-6)


def test_never_more_work_than_a_block_for_each_policy():
    where = lay_out_blocks(jax.random.randint(jax.random.key(0), (2048,), 0, 40), 40)
    assert len(where.row) <= 2048 + 40 * BLOCK
