"""Replay on the device: a ring of the last steps of all copies, from which windows of consecutive steps are drawn.

The layout is that of experience, time first: leaves `[L, E, ...]`, row `t` containing one step of all `E` copies. A
sample is a window of `W` rows of one copy; W = 1 makes it a flat replay of single steps, larger windows give n-step
returns and sequences for recurrent networks. Rows are consecutive in time, and no window extends from the newest row
into the oldest, so a step is never paired with one that did not follow it. Where an episode ends inside a window, the
stored flags mark it, and the functions in `ops.returns` stop there.

Prioritised (Schaul et al. 2016): row t of copy e is drawn with a probability in proportion to `priority[t, e]`. There
is no tree. The priorities of a row are summed, the row is found in the running total of these sums, and the copy in the
running total of its row: two passes over contiguous memory, and no structure to update when priorities change.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from shoal.core.types import PyTree


class Replay(struct.PyTreeNode):
    """store: leaves `[L, E, ...]`. written: rows ever written. priority: `[L, E]`, None for uniform sampling.

    A priority of 0 means that no window may start there: the row was never written, or is too new.
    """

    store: PyTree
    written: jax.Array
    priority: jax.Array | None = None

    @property
    def length(self) -> int:
        return jax.tree.leaves(self.store)[0].shape[0]

    @property
    def num_envs(self) -> int:
        return jax.tree.leaves(self.store)[0].shape[1]


class ReplaySample(struct.PyTreeNode):
    """The first row and the copy of each window, `[B]`; and its probability relative to a uniform draw."""

    row: jax.Array
    env: jax.Array
    odds: jax.Array


def is_replay(leaf: Any) -> bool:
    """Whether it is a whole replay, for `is_leaf`."""
    return isinstance(leaf, Replay)


def init(example: PyTree, length: int, num_envs: int, prioritised: bool = False) -> Replay:
    """An empty replay. example: one step of one copy, a pytree of anything with a shape and a dtype."""
    store = jax.tree.map(lambda leaf: jnp.zeros((length, num_envs, *leaf.shape), leaf.dtype), example)
    return Replay(store, jnp.int32(0), jnp.zeros((length, num_envs)) if prioritised else None)


def num_bytes(example: PyTree, length: int, num_envs: int) -> int:
    """Bytes of a replay's store."""
    row = sum(math.prod(leaf.shape) * jnp.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(example))
    return row * length * num_envs


def add(replay: Replay, rows: PyTree, window: int) -> Replay:
    """The replay with the steps `rows`, leaves `[T, E, ...]`, in place of its oldest ones. `window`: rows of a sample.

    Every call must add the same number of rows, if it divides the length of the replay.

    Steps from which a window has just become possible get the highest current priority.
    """
    count, length = jax.tree.leaves(rows)[0].shape[0], replay.length
    start = replay.written % length
    if length % count == 0:  # then the rows never wrap around: one block is copied
        write = functools.partial(lax.dynamic_update_slice_in_dim, start_index=start, axis=0)
        store = jax.tree.map(write, replay.store, rows)
    else:
        place = (start + jnp.arange(count)) % length
        store = jax.tree.map(lambda old, new: old.at[place].set(new), replay.store, rows)
    written = replay.written + count
    if replay.priority is None:
        return Replay(store, written)
    highest = jnp.max(replay.priority)
    highest = jnp.where(highest > 0.0, highest, 1.0)
    steps = replay.written - (window - 1) + jnp.arange(count + window - 1)  # counted from the first row ever written
    ready = (steps >= 0) & (steps <= written - window)
    priority = replay.priority.at[steps % length].set(jnp.where(ready, highest, 0.0)[:, None])
    return Replay(store, written, priority)


def can_sample(replay: Replay, window: int, least: jax.Array | int = 1) -> jax.Array:
    """Whether at least `least` rows (and one window) have been written."""
    return replay.written >= jnp.maximum(window, least)


def sample(replay: Replay, key: jax.Array, count: int, window: int) -> ReplaySample:
    """Draws the beginnings of `count` windows with replacement. There must be one (`can_sample`)."""
    if replay.priority is None:
        return _sample_uniform(replay, key, count, window)
    rows = jnp.sum(replay.priority, axis=1)
    ends = jnp.cumsum(rows)
    total = ends[-1]
    draw = jax.random.uniform(key, (count,))
    target = (jnp.arange(count) + draw) / count * total  # one from each of `count` equal shares of the total
    row = jnp.minimum(jnp.searchsorted(ends, target, side="right"), replay.length - 1)
    within = jnp.cumsum(replay.priority[row], axis=1)
    rest = jnp.clip(target - (ends[row] - rows[row]), 0.0, within[:, -1])
    env = jnp.sum(within <= rest[:, None], axis=1)
    # Rounding may select an entry of priority 0: take the last of its row with a priority, else the highest of all.
    env = jnp.minimum(env, replay.num_envs - 1 - jnp.argmax(replay.priority[row][:, ::-1] > 0.0, axis=1))
    best = jnp.argmax(replay.priority)
    lost = replay.priority[row, env] <= 0.0
    row, env = jnp.where(lost, best // replay.num_envs, row), jnp.where(lost, best % replay.num_envs, env)
    possible = jnp.sum((replay.priority > 0.0).astype(jnp.float32))
    return ReplaySample(row, env, replay.priority[row, env] / total * possible)


def _sample_uniform(replay: Replay, key: jax.Array, count: int, window: int) -> ReplaySample:
    # Two integers per draw; drawing one number for both would run out of bits in a large replay.
    for_row, for_env = jax.random.split(key)
    kept = jnp.minimum(replay.written, replay.length)
    oldest = replay.written - kept
    after = jax.random.randint(for_row, (count,), 0, jnp.maximum(kept - window + 1, 1))
    env = jax.random.randint(for_env, (count,), 0, replay.num_envs)
    return ReplaySample((oldest + after) % replay.length, env, jnp.ones(count))


def take(replay: Replay, drawn: ReplaySample, window: int) -> PyTree:
    """The windows that begin there: leaves `[W, B, ...]`."""
    rows = (drawn.row + jnp.arange(window)[:, None]) % replay.length
    return jax.tree.map(lambda leaf: leaf[rows, drawn.env], replay.store)


def reprioritise(replay: Replay, drawn: ReplaySample, priority: jax.Array) -> Replay:
    """The replay with new priorities `[B]`, greater than 0, for windows that were drawn."""
    assert replay.priority is not None
    return replay.replace(priority=replay.priority.at[drawn.row, drawn.env].set(priority))


def importance(odds: jax.Array, exponent: jax.Array | float) -> jax.Array:
    """Weights `[B]` that correct the bias of prioritised sampling, the largest is 1. odds: as in `ReplaySample`."""
    weight = jnp.power(jnp.maximum(odds, 1e-9), -exponent)
    return weight / jnp.max(weight)


def priorities(error: jax.Array, exponent: jax.Array | float) -> jax.Array:
    """Priorities `[B]` of windows with absolute errors `[W, B]`: mostly their largest (Kapturowski et al. 2019)."""
    return jnp.power(0.9 * jnp.max(error, axis=0) + 0.1 * jnp.mean(error, axis=0) + 1e-6, exponent)
