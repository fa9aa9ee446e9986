"""Sums, means and the like over the devices of a mesh, one after the other on all of them.

Where cores are devices, XLA pairs what devices send each other by the order in which each device comes to it. What does
not depend on each other it may begin in any order; an order of its own it does not keep in programs that it reads from
its cache, nor after a loop that goes on in another thread. One device's metrics would then be added to another's
gradients: the process ends, or the result is wrong. So on CPUs everything here is made to depend on what was sent
before it, which is what `after` is for; a test looks at the compiled programs of all algorithms.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from jax import lax

from shoal.core.types import PyTree

_NEVER: contextvars.ContextVar[jax.Array | None] = contextvars.ContextVar("never", default=None)
"""False, which the compiler does not know: it must wait for what this was computed from."""


def sum_over_devices(tree: PyTree, axis: str | None) -> PyTree:
    """The sum over the devices of a mesh axis; the tree itself if there is none."""
    return _over(lax.psum, tree, axis)


def mean_over_devices(tree: PyTree, axis: str | None) -> PyTree:
    """The mean over the devices of a mesh axis; the tree itself if there is none."""
    return _over(lax.pmean, tree, axis)


def largest_over_devices(tree: PyTree, axis: str | None) -> PyTree:
    """The largest of all devices of a mesh axis; the tree itself if there is none."""
    return _over(lax.pmax, tree, axis)


def join_over_devices(array: jax.Array, axis: str | None) -> jax.Array:
    """The rows of all devices of a mesh axis, in their order; the array itself if there is none."""
    return _over(lambda x, axis: lax.all_gather(x, axis, tiled=True), array, axis)


def _over(collect: Callable[[PyTree, str], PyTree], tree: PyTree, axis: str | None) -> PyTree:
    """Leaves of one type travel together; types one after the other."""
    if axis is None:
        return tree
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, tree))
    found, never = list(leaves), _NEVER.get()
    for dtype in dict.fromkeys(x.dtype for x in leaves):
        own = [i for i, x in enumerate(leaves) if x.dtype == dtype]
        sent = [leaves[i] if never is None else jnp.where(never, jnp.zeros_like(leaves[i]), leaves[i]) for i in own]
        received = collect(sent, axis)
        for i, x in zip(own, received, strict=True):
            found[i] = x
        never = _never_after(received) if _is_cpu() else None
    return jax.tree.unflatten(structure, found)


@contextlib.contextmanager
def after(tree: PyTree, axis: str | None) -> Iterator[None]:
    """What is collected inside comes after `tree` was computed, by a dependence that no compiler removes.

    tree: numbers that depend on all that was collected before.
    """
    if axis is None or not _is_cpu():
        yield
        return
    earlier, never = _NEVER.get(), _never_after(tree)
    token = _NEVER.set(never if earlier is None else never | earlier)
    try:
        yield
    finally:
        _NEVER.reset(token)


def _never_after(tree: PyTree) -> jax.Array:
    """False, once the numbers of a tree are known: nothing differs from itself and does not."""
    numbers = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.number) and x.size]
    total = sum((x.reshape(-1)[0].astype(jnp.float32) for x in numbers), jnp.float32(0))
    return jnp.not_equal(total, total) & jnp.equal(total, total)


def _is_cpu() -> bool:
    return jax.default_backend() == "cpu"
