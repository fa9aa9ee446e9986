"""Looking at pytrees of results: on the host, leaf by leaf, by name."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.keys import is_key
from shoal.core.types import PyTree
from shoal.testing.report import Findings


def on_host(tree: PyTree) -> PyTree:
    """Every leaf as a numpy array of the type it has in a compiled program; PRNG keys as their raw data."""

    def raw(leaf: Any) -> Any:
        if is_key(leaf):
            return jax.random.key_data(leaf)
        return leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf)

    return jax.tree.map(np.asarray, jax.device_get(jax.tree.map(raw, tree)))


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
    lefts, rights = named_leaves(left, name), named_leaves(right, name)
    if [leaf_name for leaf_name, _ in lefts] != [leaf_name for leaf_name, _ in rights]:
        return f"{name} has {len(lefts)} leaves in one and {len(rights)}, or others, in the other"
    for (leaf_name, a), (_, b) in zip(lefts, rights, strict=True):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"{leaf_name} is {show(a)} in one and {show(b)} in the other"
        at = first_true(differs(a, b, tolerance))
        if at is not None:
            place = f" at {list(at)}" if at else ""
            return f"{leaf_name}{place} is {a[at]} in one and {b[at]} in the other"
    return None


def first_true(mask: Any) -> tuple[int, ...] | None:
    """The index of the first true entry, or None."""
    found = np.argwhere(mask)
    return tuple(int(i) for i in found[0]) if len(found) else None


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


def check_finite(findings: Findings, where: str, name: str, leaf: np.ndarray, when: str, *axes: str) -> None:
    """`axes` names the leading axes of the leaf, the copies first."""
    if not jnp.issubdtype(leaf.dtype, np.inexact):
        return
    at = first_true(~np.isfinite(leaf.astype(np.float64)))
    if at is not None:
        place = ", ".join(f"{axis} {i}" for axis, i in zip(axes, at, strict=False))
        what = f"{name} is {leaf[at]} {when} ({place})"
        fix = "Look for a division by zero, a root or logarithm of a number below 0, or growth without bound"
        findings.add("not finite", where, what, fix)
