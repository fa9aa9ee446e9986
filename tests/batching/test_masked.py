"""Work for some rows only gives what working on all rows and selecting would give."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.batching.masked import masked_map, worth_branching


def work(shared, rows):
    return {"a": rows["x"] * shared + 1.0, "b": rows["i"] + 10}


def plain(mask, shared, rows, default):
    new = work(shared, rows)
    return {
        "a": np.where(mask[:, None], new["a"], default["a"]),
        "b": np.where(mask, new["b"], default["b"]),
    }


def batch(seed, size, count):
    generator = np.random.default_rng(seed)
    mask = np.zeros(size, bool)
    mask[generator.permutation(size)[:count]] = True
    rows = {"x": generator.integers(-9, 9, (size, 3)).astype(np.float32), "i": np.arange(size, dtype=np.int32)}
    default = {"a": -rows["x"], "b": -rows["i"]}
    return mask, rows, default


@pytest.mark.parametrize("size", [1, 2, 5, 64, 100])
def test_every_tier(size):
    program = jax.jit(lambda *args: masked_map(work, *args))
    for count in sorted(
        {0, 1, 2, size // 32, size // 32 + 1, size // 4, size // 4 + 1, size - 1, size} & set(range(size + 1))
    ):
        mask, rows, default = batch(count, size, count)
        out = program(mask, jnp.float32(2.0), rows, default)
        jax.tree.map(np.testing.assert_array_equal, out, plain(mask, np.float32(2.0), rows, default))


@pytest.mark.parametrize("shared_mapped", [False, True])
def test_under_vmap(shared_mapped):
    masks, rows, defaults = jax.tree.map(lambda *leaves: np.stack(leaves), *(batch(i, 40, 11 * i) for i in range(4)))
    shared = np.arange(1.0, 5.0, dtype=np.float32) if shared_mapped else np.float32(3.0)
    program = jax.vmap(lambda *args: masked_map(work, *args), (0, 0 if shared_mapped else None, 0, 0))
    out = jax.jit(program)(masks, shared, rows, defaults)
    for i in range(4):
        one = jax.tree.map(lambda leaf, i=i: leaf[i], (masks, rows, defaults))
        expected = plain(one[0], shared[i] if shared_mapped else shared, one[1], one[2])
        jax.tree.map(lambda got, want, i=i: np.testing.assert_array_equal(got[i], want), out, expected)


def test_the_work_is_done_on_few_rows_only():
    """The compiled program has one branch a tier, and the mapped axis joins the rows instead of becoming a select."""
    mask, rows, default = batch(0, 64, 3)
    stacked = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), (mask, rows, default))
    program = jax.vmap(lambda mask, rows, default: masked_map(work, mask, jnp.float32(2.0), rows, default))
    jaxpr = str(jax.make_jaxpr(program)(*stacked))
    assert "cond[" in jaxpr
    assert "f32[4,3]" in jaxpr, "a tier of 128 / 32 rows"


def test_much_work_is_worth_a_branch_on_an_accelerator(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    rows = np.zeros((2000, 64), np.float32)

    def little(rows):
        return rows + 1.0

    def hashes(rows):
        draw = jax.vmap(lambda row: jax.random.normal(jax.random.key(row[0].astype(int)), (64,)))
        return draw(rows)

    def repeated(rows):
        return jax.lax.fori_loop(0, 3000, lambda _, x: x * 1.1, rows)

    assert not worth_branching(little, rows, rows)
    assert worth_branching(repeated, rows, rows)
    many = np.zeros((100_000, 64), np.float32)
    assert worth_branching(hashes, many, many)
