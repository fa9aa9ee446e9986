"""Agents in each other's way: discs (in space: balls) of one radius that push each other apart and bounce.

After everybody has moved, the contacts of a step are solved together: pushes that undo overlaps, and hits that undo
approach, both along the normals of the pairs, none negative, walls included. That is a quadratic programme, to which
`ROUNDS` rounds of accelerated projected gradient are made (Mazhar et al. 2015), each pair's step being a little longer
than that of mass splitting (Tonge et al. 2012), 1 / (c_i / m_i + c_j / m_j) for agents with c contacts. A pair alone is
solved exactly. Away from walls, the momentum and the centre of gravity are kept. Pushes change no velocity. With P the
change of velocities that stops all approach, v + (1 + `bounce`) P is what a collision leaves; P is shortened, if need
be, to where it takes the most energy, so no collision adds any. Obstacles, then walls, have the last word, so they
always hold exactly.

Rounds are few, so agents are a little soft: of 8 that push into a corner with full force, pairs overlap by 3 % of a
diameter on average, by 11 % at worst; 12 that a strong wind blows against a wall by up to 30 %; 30 that push into a
corner by a quarter on average, three quarters at worst.

Nobody passes through anybody: an agent moves by at most its radius in a step, and a pair whose centres have met or gone
past each other is moved apart along the line between its centres at the start of the step (for centres that coincided
then, along a direction that follows from the agents' numbers).

Among up to `FEW` agents all pairs are looked at; among more, those who have each other on their lists of the nearest
(at least `CONTACTS`, as many as can touch a disc at once).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from shoal.envs.swarm._arena import Encounters
from shoal.envs.swarm._dynamics import Float, dot, norm, squared_norm

ROUNDS = 8
CONTACTS = 6
FEW = 16
HAIR = 1e-3
"""Metres: agents so near to each other, or to an obstacle, touch."""
HASTE = 2.0  # contacts beyond an agent's first count for so much less: fewer rounds are needed, and it is still stable
_TURN = 2.4  # radians; any number that is no simple fraction of a full turn


Hold = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
"""Takes positions and velocities `[n, d]`, and returns them with none beyond a wall or on its way there."""


class Pairs(NamedTuple):
    """Whom each agent may touch in a step; others come first, so that sums over them vectorise over the agents."""

    who: jax.Array | None  # [k, n]; None: everybody in their order, k = n
    possible: jax.Array  # [k, n] bool, symmetric
    away: list[jax.Array]  # d of [k, n]: unit vectors from the other to oneself, at the start of the step


def pairs(met: Encounters, who: jax.Array | None, possible: jax.Array) -> Pairs:
    """The pairs of a step, from where agents are at its start; arguments are `[n, k]`."""
    n, k, d = met.offset.shape
    who = None if who is None else who.T
    own, other = jnp.arange(n)[None], jnp.arange(k)[:, None] if who is None else who
    angle = _TURN * (own + other).astype(jnp.float32)
    sign = jnp.where(own < other, -1.0, 1.0)
    any_way = [sign * jnp.cos(angle), sign * jnp.sin(angle), jnp.zeros_like(angle)]
    distance = norm(met.offset).T
    away = [-met.offset[..., i].T / jnp.maximum(distance, 1e-6) for i in range(d)]
    return Pairs(who, possible.T, [jnp.where(distance > 1e-6, away[i], any_way[i]) for i in range(d)])


def separate(
    position: jax.Array, velocity: jax.Array, pairs: Pairs, mass: Float, bounce: Float, radius: float, hold: Hold
) -> tuple[jax.Array, jax.Array]:
    """Positions and velocities `[n, d]` after contact. mass: one number, or `[n]`."""
    d = position.shape[-1]
    normal, apart = _normals(position, pairs)
    near = pairs.possible & (apart < 2.2 * radius)
    touching = near & (apart < 2.0 * radius + HAIR)
    light, step = _weights(near, pairs.who, mass)
    strike = jnp.where(touching, step, 0.0)
    overlap = 2.0 * radius - apart

    def improve(number: jax.Array, sofar: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        push, hit, last_push, last_hit = sofar
        ahead = number / (number + 3.0)
        try_push, try_hit = push + ahead * (push - last_push), hit + ahead * (hit - last_hit)
        place, motion = _push(position, velocity, try_push, try_hit, normal, light, hold)
        between = _between(jnp.concatenate([place - position, motion], axis=-1), pairs.who)
        new_push = jnp.maximum(try_push + step * (overlap - _inner(between[:d], normal)), 0.0)
        new_hit = jnp.maximum(try_hit - strike * _inner(between[d:], normal), 0.0)
        return new_push, new_hit, push, hit

    push, hit, _, _ = lax.fori_loop(0, ROUNDS, improve, (jnp.zeros_like(apart),) * 4)
    place, motion = _push(position, velocity, push, hit, normal, light, hold)
    change = motion - velocity
    return hold(place, velocity + _best_share(velocity, change, light) * (1.0 + bounce) * change)


def _normals(position: jax.Array, pairs: Pairs) -> tuple[list[jax.Array], jax.Array]:
    """Unit vectors from the other to oneself, and distances, below 0 for pairs whose centres went past each other."""
    gap = _between(position, pairs.who)
    along, length = _inner(gap, pairs.away), jnp.sqrt(_inner(gap, gap))
    ahead = along > 0.0
    scale = 1.0 / jnp.maximum(length, 1e-9)
    normal = [jnp.where(ahead, one * scale, away) for one, away in zip(gap, pairs.away, strict=True)]
    return normal, jnp.where(ahead, length, along)


def _push(position, velocity, push, hit, normal, light, hold: Hold) -> tuple[jax.Array, jax.Array]:
    """Positions and velocities with the contacts' pushes and hits, within the walls."""
    moved, turned = (jnp.stack([_total(amount * one) for one in normal], axis=-1) for amount in (push, hit))
    weight = light[:, None] if light.ndim else light
    return hold(position + weight * moved, velocity + weight * turned)


def _best_share(velocity: jax.Array, change: jax.Array, light: jax.Array) -> jax.Array:
    """The share of a change of velocities, up to 1, at which energy is least; even twice as much adds none."""
    taken = -jnp.sum(dot(change, velocity) / light)
    return jnp.clip(taken / jnp.maximum(jnp.sum(squared_norm(change) / light), 1e-9), 0.0, 1.0)


def in_touch(met: Encounters, radius: float) -> jax.Array:
    """Which others touch an agent, bool `[n, k]`."""
    return met.valid & (squared_norm(met.offset) < (2.0 * radius + HAIR) ** 2)


def _weights(near: jax.Array, who: jax.Array | None, mass: Float) -> tuple[jax.Array, jax.Array]:
    """1 / m, one number or `[n]`; and the step of each pair, 0 for those not near."""
    count = jnp.maximum(_total(near.astype(jnp.float32)), 1.0)
    light = 1.0 / jnp.asarray(mass, jnp.float32)
    give = (1.0 + (count - 1.0) / HASTE) * light
    theirs = give[:, None] if who is None else give[who]
    return light, jnp.where(near, 1.0 / (give + theirs), 0.0)


def _between(value: jax.Array, who: jax.Array | None) -> list[jax.Array]:
    """One's own `value` `[n, v]` minus that of each other, v of `[k, n]`."""
    columns = range(value.shape[-1])
    if who is None:
        return [value[None, :, i] - value[:, None, i] for i in columns]
    theirs = value[who]
    return [value[None, :, i] - theirs[..., i] for i in columns]


def _inner(one: list[jax.Array], other: list[jax.Array]) -> jax.Array:
    terms = [a * b for a, b in zip(one, other, strict=True)]
    return sum(terms[1:], terms[0])


def _total(value: jax.Array) -> jax.Array:
    """The sum over the others, `[n]`."""
    return jnp.sum(value, axis=0)
