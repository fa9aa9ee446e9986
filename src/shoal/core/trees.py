"""Small operations on all leaves of a pytree."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shoal.core.types import PyTree


def where(mask: jax.Array | np.ndarray, new: PyTree, old: PyTree) -> PyTree:
    """`new` where the mask is true, else `old`. The mask has the leading axes of every leaf; one without them stays."""

    def select(new: Any, old: Any) -> jax.Array:
        if jnp.ndim(old) < mask.ndim:
            return old
        return jnp.where(mask.reshape(mask.shape + (1,) * (jnp.ndim(old) - mask.ndim)), new, old)

    return jax.tree.map(select, new, old)


def zeros(shapes: PyTree) -> PyTree:
    """Arrays of zeros of the shapes and types of a tree's leaves."""
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)


def row(tree: PyTree, index: int = 0) -> PyTree:
    """One entry of the leading axis."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


def compute_once(tree: PyTree) -> PyTree:
    """The same values, which an accelerator computes once and keeps, for all that is made of them.

    There XLA joins cheap operations to whatever reads them: a state that a view, a record and the next step are made of
    would be worked out anew for every number of each. A CPU gains nothing.
    """
    if jax.default_backend() == "cpu":
        return tree
    return lax.optimization_barrier(tree)


def map_in_turn(function: Callable[[PyTree], PyTree], rows: PyTree) -> PyTree:
    """`function` of every row, one after the other: for what draws initial weights.

    Under `vmap`, the batched QR decompositions of an orthogonal initialisation can deadlock on a CPU.
    """
    return lax.map(function, rows)


def stack(trees: Sequence[PyTree]) -> PyTree:
    """Trees of one structure as one tree with a leading axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def polyak_update(target: PyTree, weights: PyTree, share: jax.Array | float) -> PyTree:
    """Slow copies of weights, moved a `share` of the way to them."""
    return jax.tree.map(lambda slow, fast: slow + share * (fast - slow), target, weights)
