"""The NaN guard: a latch on the device that records where NaN or infinity first appeared, until the host reads it.

Whole batches are checked with one pass over memory; the exact position is searched only if something was found.
"""

import functools
from collections.abc import Sized
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax

from shoal.core.errors import NonFiniteError
from shoal.core.types import Observation, PyTree
from shoal.ops.replay import is_replay

KINDS = ("", "observation", "reward", "loss", "weights", "metrics")


class Latch(struct.PyTreeNode):
    """First fault found by each device, `[devices]`; kind 0 means none. `group` and `agent` count within the world."""

    kind: jax.Array
    update: jax.Array
    step: jax.Array
    copy: jax.Array
    group: jax.Array
    agent: jax.Array


def clear(devices: int) -> Latch:
    """A latch without faults."""
    return Latch(*(jnp.zeros(devices, jnp.int32) for _ in range(6)))


def check(
    latch: Latch,
    update: jax.Array,
    steps: Any,
    clock: jax.Array,
    last: dict[str, Observation],
    learners: PyTree,
    metrics: dict[str, jax.Array],
    share: int,
    axis: str | None,
) -> Latch:
    """The latch after one update; keeps the first fault.

    clock: of the first step. last: the observation after the last one. metrics: the learners'. share: the number of
    copies on this device.
    """
    first_copy = lax.axis_index(axis) * share if axis else 0
    measured, names = list(steps.metrics.values()), sorted(steps.reward)

    def following(name: str) -> list[jax.Array]:
        return _floats(jax.tree.map(lambda leaf: leaf[None], _seen(last[name], lead=1)))

    def search(_: None) -> Latch:
        # Later checks overwrite earlier ones, so the cause is checked last: a bad view makes everything after it bad.
        found = _find_global_fault(update, measured, learners, metrics)
        for number, name in reversed(list(enumerate(names))):
            look = functools.partial(_find_fault, number=number, update=update, clock=clock, first_copy=first_copy)
            found = look(found, 2, [steps.reward[name]])
            # The value of a final view is not finite if the view is not; the views themselves are not kept.
            found = look(found, 1, [steps.final_value[name]], after=1)
            found = look(found, 1, following(name), after=steps.first.shape[0])
            found = look(found, 1, _floats(_seen(steps.observation[name])))
        return found

    everything = [*measured, *metrics.values(), *_floats(learners)]
    for name in names:
        everything += [steps.reward[name], steps.final_value[name], *following(name)]
        everything += _floats(_seen(steps.observation[name]))
    found = lax.cond(_all_finite(everything), lambda _: clear(1), search, None)
    return jax.tree.map(lambda old, new: jnp.where(latch.kind > 0, old, new), latch, found)


def check_learners(latch: Latch, update: jax.Array, learners: PyTree, metrics: dict[str, jax.Array]) -> Latch:
    """The latch after gradient steps on experience that was checked when it was collected."""
    found = _find_global_fault(update, [], learners, metrics)
    return jax.tree.map(lambda old, new: jnp.where(latch.kind > 0, old, new), latch, found)


def report(latch: Latch, world: str, groups: list[str]) -> NonFiniteError | None:
    """The error to raise, if the latch has tripped. `latch` is on the host; any leading axes are flattened."""
    flat = [np.asarray(leaf).reshape(-1) for leaf in jax.tree.leaves(latch)]
    faults = [fault for fault in zip(*(column.tolist() for column in flat), strict=True) if fault[0]]
    if not faults:
        return None
    kind, update, step, copy, group, agent = min(faults, key=lambda fault: (fault[1], fault[0], fault[2]))
    where = f"update {update + 1} of world {world!r}"
    if len(flat[0]) > 1 and latch.kind.ndim > 1:
        where += f" (training {int(np.argmax(latch.kind.any(-1)))} of those side by side)"
    if KINDS[kind] in ("observation", "reward"):
        name = sorted(groups)[group]
        place = f"agent {name}[{agent}] in copy {copy} at step {step} of the run"
        what = f"the {KINDS[kind]} of {place} is NaN or infinite, in {where}"
        advice = "Check the world's `step` and `observe` with shoal.testing.check_env."
    elif KINDS[kind] == "metrics":
        what = f"the metrics that `step` returns became NaN or infinite in {where}"
        advice = "Check the world's `Outcome.metrics`."
    else:
        what = f"the {KINDS[kind]} became NaN or infinite in {where}"
        advice = "Try a smaller learning rate or max_grad_norm."
    return NonFiniteError(f"{what}. {advice}")


def _at(kind: int, update: jax.Array, step: Any = 0, copy: Any = 0, group: int = 0, agent: Any = 0) -> Latch:
    values = (kind, update, step, copy, group, agent)
    return Latch(*(jnp.asarray(value, jnp.int32).reshape(1) for value in values))


def _find_global_fault(update: jax.Array, measured: list, learners: PyTree, metrics: dict[str, jax.Array]) -> Latch:
    """Faults of an update as a whole: in the environment's metrics, the weights or the losses."""
    found = clear(1)
    for code, leaves in ((5, measured), (4, _floats(learners)), (3, list(metrics.values()))):
        bad = ~_all_finite(leaves)
        found = jax.tree.map(lambda old, new, bad=bad: jnp.where(bad, new, old), found, _at(code, update))
    return found


def _seen(observation: Observation, lead: int = 2) -> PyTree:
    """View and global state; the latter gets an axis of agents after the `lead` first axes, like the former."""
    return observation.view, jax.tree.map(lambda leaf: jnp.expand_dims(leaf, lead), observation.state)


def _find_fault(
    found: Latch,
    code: int,
    leaves: list,
    *,
    number: int,
    update: jax.Array,
    clock: jax.Array,
    first_copy: Any,
    after: int = 0,
) -> Latch:
    """The latch, set if a leaf `[T, E, n, ...]` is not finite. after: offset of the reported step."""
    if not leaves:
        return found

    flags = [(~jnp.isfinite(leaf)).reshape(*leaf.shape[:3], -1).any(-1) for leaf in leaves]
    bad = functools.reduce(jnp.logical_or, flags)  # the global state has an agent axis of size 1
    time, copy, agent = jnp.unravel_index(jnp.argmax(bad), bad.shape)
    there = _at(code, update, clock - 1 + time + after, first_copy + copy, number, agent)
    return jax.tree.map(lambda old, new: jnp.where(bad.any(), new, old), found, there)


def _floats(tree: PyTree) -> list[jax.Array]:
    """The floats of a tree without replays, which are large and whose content was checked on insertion."""
    leaves = [leaf for leaf in jax.tree.leaves(tree, is_leaf=is_replay) if not is_replay(leaf)]
    return [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]


SMALL = 1 << 16
"""Elements of an array that is checked together with others: on an accelerator every check is a kernel of its own."""


def _all_finite(leaves: list[jax.Array]) -> jax.Array:
    small = [leaf.ravel().astype(jnp.float32) for leaf in leaves if leaf.size <= SMALL]
    parts = [*(leaf for leaf in leaves if leaf.size > SMALL), *([jnp.concatenate(small)] if small else [])]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(part)) for part in parts])) if parts else jnp.bool_(True)


def first_faults(latch: Latch) -> Latch:
    """For trainings side by side, `[M, devices]`: the first fault of each on any device, `[M, 1]`, on the host.

    One fault per training suffices to know that it has failed, whatever the number of devices later.
    """
    host = jax.device_get(latch)
    order = np.where(host.kind > 0, host.update, np.iinfo(np.int32).max)
    first = np.argmin(order, axis=1)[:, None]
    return jax.tree.map(lambda leaf: np.take_along_axis(leaf, first, axis=1), host)


def as_stored(shapes: Latch) -> Latch:
    """The shapes of `first_faults` of a latch of these shapes."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((leaf.shape[0], 1), leaf.dtype), shapes)


def spread(stored: Latch, devices: int) -> Latch:
    """The inverse of `first_faults`: the faults are assigned to the first device."""
    return jax.tree.map(lambda leaf: np.pad(leaf, ((0, 0), (0, devices - 1))), stored)


def is_sound(stored: Latch, groups: Sized) -> bool:
    """Whether faults read from a file have valid kinds and groups."""
    ranges = ((stored.kind, len(KINDS)), (stored.group, len(groups)))
    return all(bool(np.all((np.asarray(leaf) >= 0) & (np.asarray(leaf) < most))) for leaf, most in ranges)
