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

from shoal.core.types import PyTree

UNROLL = 16
STEP_SECONDS = 0.1
CONTACT_FORCE = 100.0
CONTACT_MARGIN = 0.001


class Gliding(NamedTuple):
    """Parameters of worlds in which nothing collides."""

    acceleration: float | jax.Array = 5.0
    """Force of a move."""
    damping: float | jax.Array = 0.25
    """Share of the velocity that is lost in a step."""


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


def move(position: jax.Array, velocity: jax.Array) -> jax.Array:
    """Where the discs are a step later: the old velocity moves them, not the new one."""
    return position + velocity * STEP_SECONDS


def accelerate(velocity: jax.Array, force: jax.Array, damping: float | jax.Array) -> jax.Array:
    """The velocity a step later."""
    return velocity * (1.0 - damping) + force * STEP_SECONDS


def glide(position: jax.Array, velocity: jax.Array, steer: jax.Array, params: Gliding) -> tuple[jax.Array, jax.Array]:
    """Position and velocity a step later, of agents that pass through everything."""
    return move(position, velocity), accelerate(velocity, steer * params.acceleration, params.damping)


def limit_speed(velocity: jax.Array, max_speed: jax.Array) -> jax.Array:
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


def contact(these: Discs, obstacles: Discs) -> jax.Array:
    """The forces `[n, 2]` from contact with each other and with obstacles."""
    x, y = sum_over_others(repulsion, these, mirror=-1.0)
    from_obstacles_x, from_obstacles_y = sum_over(repulsion, these, obstacles)
    return jnp.stack([x + from_obstacles_x, y + from_obstacles_y], axis=-1)


def by_role(pair: tuple[float | jax.Array, float | jax.Array], adversaries: int, agents: int) -> jax.Array:
    """One value for adversaries and one for agents, as an array `[n]` over both."""
    of_adversaries, of_agents = (jnp.asarray(value, jnp.float32) for value in pair)
    return jnp.where(jnp.arange(adversaries + agents) < adversaries, of_adversaries, of_agents)


def touching(this: Discs, other: Discs) -> jax.Array:
    """1 where two discs overlap, else 0."""
    reach = this.radius + other.radius
    return (squared_distance(this, other) < reach * reach).astype(jnp.float32)


def squared_distance(this: Discs, other: Discs) -> jax.Array:
    dx, dy = this.x - other.x, this.y - other.y
    return dx * dx + dy * dy


def squared_length(vector: jax.Array) -> jax.Array:
    """Of vectors `[..., 2]`, written out: a sum over the last axis would end a fusion."""
    return vector[..., 0] ** 2 + vector[..., 1] ** 2


def length(vector: jax.Array) -> jax.Array:
    return jnp.sqrt(squared_length(vector))


def pick(rows: jax.Array, index: jax.Array) -> jax.Array:
    """`rows[index]` of few rows `[k, ...]`, without a gather; `index` may be an array, its axes come first."""
    result = jnp.broadcast_to(rows[0], index.shape + rows.shape[1:])
    lead = index.reshape(index.shape + (1,) * (rows.ndim - 1))
    for i, row in enumerate(rows[1:], start=1):
        result = jnp.where(lead == i, row, result)
    return result


def places_and_choices(
    key: jax.Array, places: int, choices: tuple[int, ...]
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Places `[places, 2]` drawn evenly from the square [-1, 1]², and for each of `choices` one of that many."""
    drawn = jax.random.uniform(key, (2 * places + len(choices),))
    chosen = [
        jnp.minimum((number * size).astype(jnp.int32), size - 1)
        for number, size in zip(drawn[2 * places :], choices, strict=True)
    ]
    return 2.0 * drawn[: 2 * places].reshape(places, 2) - 1.0, tuple(chosen)


def border_penalty(x: jax.Array) -> jax.Array:
    """What an agent pays for the coordinate `x` (without sign) in worlds that want it to stay in the square."""
    near = 10.0 * jnp.maximum(x - 0.9, 0.0)
    return jnp.where(x < 1.0, near, jnp.minimum(jnp.exp(2.0 * x - 2.0), 10.0))


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
        term = pair(these, _roll(these, -shift))
        result = jax.tree.map(jnp.add, result, term)
        if 2 * shift != n:  # half-way round an even ring, both ends of a pair are already in `term`
            mirrored = jax.tree.map(lambda leaf: mirror * leaf, term)
            result = jax.tree.map(jnp.add, result, _roll(mirrored, shift))
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


def either(flags: jax.Array) -> jax.Array:
    """Whether any flag along the first axis holds."""
    return functools.reduce(jnp.logical_or, flags) if 0 < flags.shape[0] <= UNROLL else jnp.any(flags, axis=0)


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


def _roll(tree: PyTree, shift: int) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.roll(leaf, shift), tree)
