"""Different policies for the copies of a batch, without a copy of the weights for each.

A bank of policies is one pytree with a leading axis; every copy of a world names the policy that plays in it. Gathering
weights for each copy moves megabytes needlessly, and running every policy on every copy wastes work. So copies are
sorted by their policy, each policy's share is filled up to whole blocks, and a block takes one policy's weights: a
batched matrix product, at most `policies - 1` blocks larger than for a single policy.

Sorting takes a dozen small kernels, which on a GPU last longer than a small batch does. There, up to `WASTED` rows,
every policy runs on every copy after all, and each copy's own answer is kept. And with no fewer policies than copies,
where blocks have hardly two copies each, every copy is given its policy's weights: less is moved, and nothing is
sorted. `benchmarks/opponents_speed.py` measures all three.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shoal.core import trees
from shoal.core.types import PyTree

BLOCK = 16
"""Copies per block."""
WASTED = 2**19
"""Copies times policies that a GPU rather computes than sorts."""


class BlockLayout(NamedTuple):
    """The layout of copies in blocks. slot: of each copy, `[E]`. row: the copy in each slot, `[slots]`; any in unused
    ones. owner: the policy of each block, `[slots / BLOCK]`.
    """

    slot: jax.Array
    row: jax.Array
    owner: jax.Array


def lay_out_blocks(index: jax.Array, policies: int) -> BlockLayout:
    """Lays out copies that are played by the policies `index` `[E]` in blocks."""
    copies = index.shape[0]
    blocks = -(-copies // BLOCK) + min(policies, copies) - 1
    counts = jnp.zeros(policies, jnp.int32).at[index].add(1)
    ends = jnp.cumsum(-(-counts // BLOCK))  # in blocks
    order = jnp.argsort(index, stable=True)
    place = jnp.arange(copies) - (jnp.cumsum(counts) - counts)[index[order]]  # among the copies of the same policy
    filled = (ends - -(-counts // BLOCK))[index[order]] * BLOCK + place
    slot = jnp.zeros(copies, jnp.int32).at[order].set(filled)
    row = jnp.zeros(blocks * BLOCK, jnp.int32).at[filled].set(order.astype(jnp.int32))
    owner = jnp.searchsorted(ends, jnp.arange(blocks), side="right")
    return BlockLayout(slot, row, jnp.minimum(owner, policies - 1))


def apply_grouped_by_policy(
    function: Callable[[PyTree, PyTree], Any],
    bank: PyTree,
    index: jax.Array,
    rows: PyTree,
) -> Any:
    """`function(policy, rows)` with the policy `index` `[E]` of the bank `[K, ...]` for every row `[E, ...]`.

    The function is given one policy and some rows at a time, and must treat all rows the same way. A bank of one is
    shared.
    """
    policies = jax.tree.leaves(bank)[0].shape[0]
    if policies == 1:
        return function(trees.row(bank), rows)
    if jax.default_backend() == "gpu":
        if policies * len(index) <= WASTED:
            return apply_all(function, bank, index, rows)
        if policies >= len(index):
            return apply_gathered(function, bank, index, rows)
    return apply_in_blocks(function, bank, index, rows)


def apply_all(function: Callable[[PyTree, PyTree], Any], bank: PyTree, index: jax.Array, rows: PyTree) -> Any:
    """`apply_grouped_by_policy` by every policy on every row; the answers of others than a row's own are dropped."""
    out = jax.vmap(function, in_axes=(0, None))(bank, rows)
    return jax.tree.map(lambda leaf: leaf[index, jnp.arange(len(index))], out)


def apply_gathered(function: Callable[[PyTree, PyTree], Any], bank: PyTree, index: jax.Array, rows: PyTree) -> Any:
    """`apply_grouped_by_policy` with a copy of its policy's weights for each row."""
    weights = jax.tree.map(lambda leaf: leaf[index], bank)
    out = jax.vmap(function)(weights, jax.tree.map(lambda leaf: leaf[:, None], rows))
    return jax.tree.map(lambda leaf: leaf[:, 0], out)


def apply_in_blocks(function: Callable[[PyTree, PyTree], Any], bank: PyTree, index: jax.Array, rows: PyTree) -> Any:
    """`apply_grouped_by_policy` by one policy on `BLOCK` rows at a time."""
    policies = jax.tree.leaves(bank)[0].shape[0]
    where = lay_out_blocks(index, policies)
    weights = jax.tree.map(lambda leaf: leaf[where.owner], bank)
    blocks = jax.tree.map(lambda leaf: leaf[where.row].reshape(-1, BLOCK, *leaf.shape[1:]), rows)
    out = jax.vmap(function)(weights, blocks)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[where.slot], out)
