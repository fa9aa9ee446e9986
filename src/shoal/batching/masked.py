"""Computes only some rows of a batch.

`lax.cond` under `vmap` runs both branches for every row. When few rows need the work (the copies whose episode
just ended, say), it is cheaper to gather them, work on the small batch, and scatter the results back.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from shoal.core import trees
from shoal.core.types import PyTree


def masked_map(
    work: Callable[[PyTree, PyTree], PyTree], mask: jax.Array, shared: PyTree, rows: PyTree, default: PyTree
) -> PyTree:
    """`work(shared, rows)` in the rows `[E, ...]` where `mask` holds, `default` in the others.

    The work is done on 0, E/32, E/4 or E rows, the smallest of these tiers that is large enough. Under `vmap` the
    mapped axis joins the rows, as long as `shared` is not mapped; if it is, every row is worked on and selected from.
    On an accelerator, where a branch costs a round trip to the host, cheap work is done for every row as well.
    `work` maps a batch of rows to a batch of results and may close over static values only.
    """

    @custom_vmap
    def tiered(mask, shared, rows, default):
        return _map_in_tiers(work, mask, shared, rows, default)

    @tiered.def_vmap
    def _mapped(size, mapped, mask, shared, rows, default):
        mask_in, shared_in, rows_in, default_in = mapped

        def batched(flags, tree):
            lead = lambda flag, leaf: leaf if flag else jnp.broadcast_to(leaf[None], (size, *leaf.shape))  # noqa: E731
            return jax.tree.map(lead, flags, tree)

        mask, rows, default = batched(mask_in, mask), batched(rows_in, rows), batched(default_in, default)
        if any(jax.tree.leaves(shared_in)):
            axes = jax.tree.map(lambda flag: 0 if flag else None, shared_in)
            out = jax.vmap(lambda *args: _map_all(work, *args), (0, axes, 0, 0))(mask, shared, rows, default)
        else:
            flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (mask, rows, default))
            out = masked_map(work, flat[0], shared, flat[1], flat[2])
            out = jax.tree.map(lambda leaf: leaf.reshape(size, -1, *leaf.shape[1:]), out)
        return out, jax.tree.map(lambda _: True, out)

    return tiered(mask, shared, rows, default)


def _map_in_tiers(work, mask, shared, rows, default):
    if not worth_branching(lambda rows: work(shared, rows), rows, default):
        return _map_all(work, mask, shared, rows, default)
    total = mask.shape[0]
    sizes = sorted({-(-total // 32), -(-total // 4)} - {total})
    count = jnp.sum(mask, dtype=jnp.int32)
    tier = (count > 0).astype(jnp.int32) + sum((count > size).astype(jnp.int32) for size in sizes)
    branches = [
        lambda *args: args[3],
        *(lambda *args, size=size: _map_gathered(work, size, *args) for size in sizes),
        lambda *args: _map_all(work, *args),
    ]
    return lax.switch(tier, branches, mask, shared, rows, default)


def _map_gathered(work, size, mask, shared, rows, default):
    total = mask.shape[0]
    # As jnp.nonzero, which adds up how many come before; here each place is written once, which a GPU does at once.
    place = jnp.where(mask, jnp.cumsum(mask, dtype=jnp.int32) - 1, size)
    rows_in_order = jnp.arange(total, dtype=jnp.int32)
    index = jnp.full(size, total, jnp.int32).at[place].set(rows_in_order, mode="drop", unique_indices=True)
    picked = jax.tree.map(lambda leaf: leaf.at[index].get(mode="clip"), rows)
    results = work(shared, picked)
    return jax.tree.map(lambda old, new: old.at[index].set(new, mode="drop"), default, results)


def _map_all(work, mask, shared, rows, default):
    return trees.where(mask, work(shared, rows), default)


BRANCH_SECONDS = 12e-6
"""Seconds of a branch inside a loop on a GPU: the host must read the condition (measured on an H200)."""
ELEMENTS_PER_SECOND = 2.5e12
"""Elementary operations per second in fused kernels, to the same end."""
BYTES_PER_SECOND = 4e12


def worth_branching(work: Callable[[PyTree], PyTree], rows: PyTree, default: PyTree) -> bool:
    """Whether working on few rows saves time: on a CPU always, on an accelerator only if the work is expensive.

    There, working on all rows is compared with branching and copying the results out of a branch.
    """
    if jax.default_backend() == "cpu":
        return True
    elements = _elements(jax.make_jaxpr(work)(rows).jaxpr)
    copied = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(default))
    return elements / ELEMENTS_PER_SECOND > BRANCH_SECONDS + 2 * copied / BYTES_PER_SECOND


def _elements(jaxpr) -> int:
    """The number of elements that all operations of a program write, including inner programs."""
    total = 0
    for equation in jaxpr.eqns:
        inner = inner_programs(equation)
        repeats = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        costs = [_elements(program) for program in inner]
        total += repeats * (min(costs) if equation.params.get("branches_platforms") else sum(costs))
        if not inner:
            total += _weight(equation) * sum(getattr(var.aval, "size", 0) for var in equation.outvars)
    return total


def inner_programs(equation) -> list[Any]:
    """The programs that an operation is made of: of a loop, a branch, a function."""
    parts = jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program)
    return [getattr(part, "jaxpr", part) for part in parts if _is_program(part)]


def _weight(equation) -> int:
    """The cost of an element: a hash of 20 rounds, a custom kernel, the contraction length of a product, the weights
    of an MLP, or 1.
    """
    name = equation.primitive.name
    if name.startswith(("random_", "threefry")):
        return 16
    if name == "ffi_call":
        return 100
    if name == "mlp":
        weights = sum(var.aval.size for var in equation.invars[len(equation.params["towers"]) :])
        return max(1, weights // (6 * equation.outvars[0].aval.shape[-1]))
    if name == "dot_general":
        ((contracted, _), _) = equation.params["dimension_numbers"]
        return max(1, math.prod(equation.invars[0].aval.shape[axis] for axis in contracted) // 6)
    return 1


def _is_program(value) -> bool:
    return hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns")
