"""Running mean and variance, for normalising views and values.

A `RunningStats` is merged with batch after batch (Chan et al. 1979), weighted, across devices, with or without decay
of the past. Views that are dicts have one `RunningStats` per leaf: see the functions `*_tree`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct

from shoal.core.types import PyTree
from shoal.ops.devices import sum_over_devices

_SMALLEST_VARIANCE = 1e-8


@struct.dataclass
class RunningStats:
    """Statistics of the data so far. count: total weight, a scalar. mean, m2: mean and squared deviations, weighted."""

    count: jax.Array
    mean: jax.Array
    m2: jax.Array

    @property
    def std(self) -> jax.Array:
        """Standard deviation; 1 before any data, and bounded below: rounding errors of a constant are not amplified."""
        variance = self.m2 / jnp.where(self.count > 0, self.count, 1.0)
        return jnp.where(self.count > 0, jnp.sqrt(jnp.maximum(variance, _SMALLEST_VARIANCE)), 1.0)


def init(shape: tuple[int, ...] = ()) -> RunningStats:
    """Statistics without data: normalisation is the identity."""
    return RunningStats(jnp.zeros((), jnp.float32), jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32))


def update(
    stats: RunningStats,
    batch: jax.Array,
    weights: jax.Array | None = None,
    axis: str | None = None,
    decay: jax.Array | float | None = None,
) -> RunningStats:
    """The statistics after one more batch.

    batch: `[..., *shape]` with any leading axes. weights: broadcast against those leading axes; entries of weight 0 are
    not read. axis: name of the mesh axis over which the batch is split; the result is that of the whole batch. decay,
    in (0, 1): factor on the weight of earlier data per update. Each update counts by its own weights, so the statistics
    are unbiased from the first batch on.
    """
    leading = batch.shape[: batch.ndim - stats.mean.ndim]
    weights = jnp.ones((), jnp.float32) if weights is None else jnp.asarray(weights, jnp.float32)
    weights = jnp.broadcast_to(weights, leading).reshape(-1, *[1] * stats.mean.ndim)
    batch = jnp.where(weights > 0, batch.reshape(-1, *stats.mean.shape).astype(jnp.float32), 0.0)
    fade = 1.0 if decay is None else decay
    return _merge(RunningStats(fade * stats.count, stats.mean, fade * stats.m2), _summary(batch, weights, axis))


def normalise(stats: RunningStats | None, x: jax.Array, clip: jax.Array | float | None = None) -> jax.Array:
    """`x`, `[..., *shape]`, in units of standard deviations from the mean, kept within [-clip, clip].

    stats: None for no normalisation: returns `x` unchanged.
    """
    if stats is None:
        return x
    scaled = (x - stats.mean) / stats.std
    return scaled if clip is None else jnp.clip(scaled, -clip, clip)


def denormalise(stats: RunningStats | None, x: jax.Array) -> jax.Array:
    """Inverts `normalise` (clipped values stay clipped)."""
    return x if stats is None else x * stats.std + stats.mean


def scale_and_shift(old: RunningStats, new: RunningStats) -> tuple[jax.Array, jax.Array]:
    """Factor and summand that convert numbers normalised by the `old` statistics to the `new` ones.

    Without old statistics they are 1 and 0.
    """
    known = old.count > 0
    return jnp.where(known, old.std / new.std, 1.0), jnp.where(known, (old.mean - new.mean) / new.std, 0.0)


def init_tree(spec: PyTree) -> PyTree:
    """One `RunningStats` per leaf of `spec`, a pytree of anything that has a shape."""
    return jax.tree.map(lambda leaf: init(leaf.shape), spec)


def update_tree(
    stats: PyTree,
    batch: PyTree,
    weights: jax.Array | None = None,
    axis: str | None = None,
    decay: jax.Array | float | None = None,
) -> PyTree:
    """`update`, leaf by leaf; the leaves share their leading axes and the weights."""
    return _map(lambda one, leaf: update(one, leaf, weights, axis, decay), stats, batch)


def normalise_tree(stats: PyTree, x: PyTree, clip: jax.Array | float | None = None) -> PyTree:
    """`normalise`, leaf by leaf; `stats` may be None as there."""
    return x if stats is None else _map(lambda one, leaf: normalise(one, leaf, clip), stats, x)


def _map(function: Callable[[RunningStats, jax.Array], PyTree], stats: PyTree, tree: PyTree) -> PyTree:
    return jax.tree.map(function, stats, tree, is_leaf=lambda node: isinstance(node, RunningStats))


def _summary(batch: jax.Array, weights: jax.Array, axis: str | None) -> RunningStats:
    """Statistics of one batch, `[rows, *shape]`, in two passes: deviations from a known mean do not cancel."""
    count, total = sum_over_devices((jnp.sum(weights), jnp.sum(weights * batch, axis=0)), axis)
    mean = total / jnp.where(count > 0, count, 1.0)
    return RunningStats(count, mean, sum_over_devices(jnp.sum(weights * (batch - mean) ** 2, axis=0), axis))


def _merge(a: RunningStats, b: RunningStats) -> RunningStats:
    count = a.count + b.count
    share = b.count / jnp.where(count > 0, count, 1.0)
    apart = b.mean - a.mean
    return RunningStats(count, a.mean + share * apart, a.m2 + b.m2 + a.count * share * apart**2)
