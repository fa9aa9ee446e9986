"""Looking at pytrees of results: on the host, leaf by leaf, by name."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.types import PyTree


def on_host(tree: PyTree) -> PyTree:
    """Every leaf as a numpy array; PRNG keys as their raw data."""
    raw = jax.tree.map(lambda leaf: jax.random.key_data(leaf) if is_key(leaf) else leaf, tree)
    return jax.tree.map(np.asarray, jax.device_get(raw))


def is_key(leaf: Any) -> bool:
    """Whether a leaf is an array of typed PRNG keys."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def row(tree: PyTree, index: int) -> PyTree:
    """One copy out of a batch, as jax arrays. Goes through the host: slicing there compiles nothing."""
    return jax.tree.map(
        lambda leaf: leaf[index] if is_key(leaf) else jnp.asarray(np.asarray(jax.device_get(leaf))[index]), tree
    )


def named_leaves(tree: PyTree, name: str = "") -> list[tuple[str, Any]]:
    """Leaves with names as they are written in code: `state.position`, `view['speed']`."""
    return [(name + jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]


def show(leaf: Any) -> str:
    """`float32[3, 2]`."""
    return f"{leaf.dtype}{list(leaf.shape)}"


def difference(left: PyTree, right: PyTree, name: str, tolerance: float | None = None) -> str | None:
    """Words for the first leaf in which two trees on the host differ, or None.

    Without a tolerance every bit counts; with one, floats may differ by `tolerance` times the leaf's size, at least 1.
    """
    for (leaf_name, a), (_, b) in zip(named_leaves(left, name), named_leaves(right, name), strict=True):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{leaf_name} is {show(a)} in one and {show(b)} in the other"
        bad = differs(a, b, tolerance)
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            place = f" at {list(at)}" if at else ""
            return f"{leaf_name}{place} is {a[at]} in one and {b[at]} in the other"
    return None


def differs(a: np.ndarray, b: np.ndarray, tolerance: float | None) -> np.ndarray:
    """Where two arrays differ; NaN equals NaN."""
    if not jnp.issubdtype(a.dtype, np.inexact):
        return a != b
    a, b = a.astype(np.float64), b.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if tolerance is None:
        return ~same
    size = max(1.0, float(np.max(np.abs(b[np.isfinite(b)]), initial=0.0)))
    with np.errstate(invalid="ignore"):
        return ~(same | (np.abs(a - b) <= tolerance * size))
