"""The physics that the particle worlds share: discs that are steered, slowed down and pushed apart.

One step of 0.1 s is `position += velocity * 0.1`, then `velocity = 0.75 * velocity + force * 0.1` (masses are 1).
Two discs that overlap push each other apart with a force of 100 times a softened overlap,
`0.001 * log(1 + exp(overlap / 0.001))`, along the line between their centres.

All sums over pairs of discs go through `sum_over_others` and `sum_over`. Up to `UNROLL` discs they are written out
as elementwise arithmetic on arrays of n values, each pair worked out once: XLA fuses that into one or two loops,
while a reduction over an [n, n] array ends a fusion (in simple_spread, with its 3 agents, that costs a factor of 1.7
on a CPU). Beyond that the [n, n] array is as fast and compiles sooner.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.spaces import Box, Discrete
from shoal.core.types import PyTree

UNROLL = 16
STEP_SECONDS = 0.1
CONTACT_FORCE = 100.0
CONTACT_MARGIN = 0.001
NUM_MOVES = 5
"""Stay, left, right, down, up."""


class Discs(NamedTuple):
    """Discs in the plane, each field `[n]` (or scalars, for one)."""

    x: jax.Array
    y: jax.Array
    radius: jax.Array


Pair = Callable[[Discs, Discs], PyTree]


def discs(position: jax.Array, radius: jax.Array | float) -> Discs:
    """Discs at `position` `[n, 2]`, of one radius or of `[n]` radii."""
    x, y = position[:, 0], position[:, 1]
    return Discs(x, y, jnp.broadcast_to(jnp.asarray(radius, x.dtype), x.shape))


def action_space(continuous: bool) -> Discrete | Box:
    """One of the five moves, or how hard to pull in each direction, from 0 to 1 (the first number has no effect)."""
    return Box((NUM_MOVES,), low=0.0, high=1.0) if continuous else Discrete(NUM_MOVES)


def steering(action: jax.Array, continuous: bool) -> jax.Array:
    """The direction `[n, 2]` that actions ask for, each coordinate in [-1, 1].

    Continuous actions are clipped to [0, 1]; a discrete one that is not a move is taken as staying.
    """
    if continuous:
        pull = jnp.clip(action, 0.0, 1.0)
        return pull[:, 2::2] - pull[:, 1::2]
    return jnp.stack([_sign(action == 2, action == 1), _sign(action == 4, action == 3)], axis=-1)


def moved(position: jax.Array, velocity: jax.Array) -> jax.Array:
    """Where the discs are a step later: the old velocity moves them, not the new one."""
    return position + velocity * STEP_SECONDS


def accelerated(velocity: jax.Array, force: jax.Array, damping: float | jax.Array) -> jax.Array:
    """The velocity a step later."""
    return velocity * (1.0 - damping) + force * STEP_SECONDS


def limited(velocity: jax.Array, max_speed: jax.Array) -> jax.Array:
    """The velocity `[n, 2]`, shortened to `max_speed` `[n]` where it is longer."""
    speed = jnp.sqrt(velocity[:, 0] ** 2 + velocity[:, 1] ** 2)
    return velocity * jnp.minimum(max_speed / jnp.maximum(speed, 1e-9), 1.0)[:, None]


def repulsion(this: Discs, other: Discs) -> tuple[jax.Array, jax.Array]:
    """The force on `this` from its contact with `other`. Discs on the very same spot do not push each other."""
    dx, dy = this.x - other.x, this.y - other.y
    distance = jnp.sqrt(jnp.maximum(dx * dx + dy * dy, 1e-12))
    overlap = (this.radius + other.radius - distance) / CONTACT_MARGIN
    softened = jnp.maximum(overlap, 0.0) + jnp.log(1.0 + jnp.exp(-jnp.abs(overlap)))
    # The division comes last: XLA then keeps the push instead of working it out anew for x and y (1.5 times as fast).
    push = (CONTACT_FORCE * CONTACT_MARGIN) * softened / distance
    return push * dx, push * dy


def touching(this: Discs, other: Discs) -> jax.Array:
    """1 where two discs overlap, else 0."""
    reach = this.radius + other.radius
    return (squared_distance(this, other) < reach * reach).astype(jnp.float32)


def squared_distance(this: Discs, other: Discs) -> jax.Array:
    dx, dy = this.x - other.x, this.y - other.y
    return dx * dx + dy * dy


def sum_over_others(pair: Pair, these: Discs, mirror: float) -> PyTree:
    """For each disc i, the sum over every other disc j of `pair(i, j)`.

    `mirror` says what `pair(j, i)` is: `mirror * pair(i, j)`, so 1 for a count and -1 for a force. Discs are paired
    around a ring: i with the one `shift` places further on, for shifts up to half-way round.
    """
    n = these.x.shape[0]
    if n > UNROLL:
        own = jnp.eye(n, dtype=bool)
        return jax.tree.map(lambda term: jnp.sum(jnp.where(own, 0.0, term), axis=1), all_pairs(pair, these, these))
    result = jax.tree.map(jnp.zeros_like, pair(these, these))
    for shift in range(1, n // 2 + 1):
        term = pair(these, _rolled(these, -shift))
        result = jax.tree.map(jnp.add, result, term)
        if 2 * shift != n:  # half-way round an even ring, both ends of a pair are already in `term`
            mirrored = jax.tree.map(lambda leaf: mirror * leaf, term)
            result = jax.tree.map(jnp.add, result, _rolled(mirrored, shift))
    return result


def sum_over(pair: Pair, these: Discs, others: Discs) -> PyTree:
    """For each disc i of `these`, the sum over every disc j of `others` of `pair(i, j)`."""
    if others.x.shape[0] > UNROLL:
        return jax.tree.map(lambda term: jnp.sum(term, axis=1), all_pairs(pair, these, others))
    result = jax.tree.map(jnp.zeros_like, pair(these, these))
    for other in zip(*others, strict=True):
        result = jax.tree.map(jnp.add, result, pair(these, Discs(*other)))
    return result


def all_pairs(pair: Pair, these: Discs, others: Discs) -> PyTree:
    """`pair(i, j)` for every i of `these` and j of `others`, `[n, m]`."""
    rows = jax.tree.map(lambda field: field[:, None], these)
    columns = jax.tree.map(lambda field: field[None, :], others)
    return pair(rows, columns)


def total(values: jax.Array) -> jax.Array:
    """The sum over the first axis."""
    return jnp.sum(values, axis=0) if values.shape[0] > UNROLL else functools.reduce(jnp.add, values)


def least(values: jax.Array) -> jax.Array:
    """The minimum over the first axis."""
    return jnp.min(values, axis=0) if values.shape[0] > UNROLL else functools.reduce(jnp.minimum, values)


def without_own(rows: jax.Array) -> jax.Array:
    """For each i the rows of all others, `[n, n - 1, ...]`: 0 .. n - 1 without i, in that order."""
    n = rows.shape[0]
    before_own = jnp.arange(n - 1)[None, :] < jnp.arange(n)[:, None]
    return jnp.where(before_own[:, :, None], rows[None, :-1], rows[None, 1:])


def relative_to_others(position: jax.Array) -> jax.Array:
    """Where each disc sees the others, `[n, n - 1, 2]`."""
    return without_own(position) - position[:, None]


def side_by_side(parts: list[jax.Array]) -> jax.Array:
    """Parts `[n, ...]` as one flat row an agent."""
    return jnp.concatenate([part.reshape(part.shape[0], math.prod(part.shape[1:])) for part in parts], axis=-1)


def _rolled(tree: PyTree, shift: int) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.roll(leaf, shift), tree)


def _sign(plus: jax.Array, minus: jax.Array) -> jax.Array:
    return plus.astype(jnp.float32) - minus.astype(jnp.float32)
