"""What swarm agents perceive of each other: the k nearest, within a range, within a field of view, with errors.

Neighbours are found once per step, by true distance in the plane, and kept in the state; views and contacts are made
from them. A world with several teams finds the k nearest of each team.

A neighbour is *seen* when it is within `sensing_range` and no more than half the field of view off one's heading. It is
*heard* when it is within range, wherever it is. The heading of a quadrotor is where its nose points; that of a point
mass is the direction in which it last moved.

Sensor noise is the error of an agent's own position and velocity fix, drawn each step and kept in the state. An
agent computes everything in its view from its own fix and, for its neighbours, from the fixes that they broadcast.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.envs.swarm._arena import Encounters
from shoal.envs.swarm._dynamics import Body, Float, PointMass, dot, norm, squared_norm, yaw
from shoal.ops.neighbours import k_nearest

_SLOW = 0.05  # m/s: a point mass that is slower keeps its heading


class Near(NamedTuple):
    """The k nearest others of each team, side by side: first those of the first team, nearest first."""

    who: jax.Array  # [n, teams * k] int32
    valid: jax.Array  # [n, teams * k] bool


def find_near(position: jax.Array, in_game: jax.Array | None, teams: tuple[int, ...], k: int) -> Near:
    """Each agent's k nearest others of each team, by distance in the plane. `teams` are the sizes, in order."""
    n = position.shape[0]
    alive = jnp.ones(n, bool) if in_game is None else in_game
    number, first, found = jnp.arange(n), 0, []
    for size in teams:
        member = alive if len(teams) == 1 else alive & (number >= first) & (number < first + size)
        found.append(k_nearest(position[:, :2], member, k))
        first += size
    if len(found) == 1:
        return Near(*found[0])
    return Near(*(jnp.concatenate(part, axis=1) for part in zip(*found, strict=True)))


def meet(body: Body, near: Near) -> Encounters:
    """Where each agent's neighbours are and how they move, seen from it."""
    motion = jnp.concatenate([body.position, body.velocity], axis=-1)
    relative = motion[near.who] - motion[:, None]
    d = body.position.shape[-1]
    return Encounters(relative[..., :d], relative[..., d:], near.valid)


def meet_all(body: Body) -> Encounters:
    """Where all others are and how they move, seen from each agent: `[n, n]`, of which oneself is not valid."""
    apart = ~jnp.eye(body.position.shape[0], dtype=bool)
    offset, closing = (value[None] - value[:, None] for value in (body.position, body.velocity))
    return Encounters(offset, closing, apart)


def nearest_of(near: Near, teams: int, k: int) -> Near:
    """The first `k` of each team."""
    wide = near.who.shape[1] // teams
    if wide == k:
        return near
    return Near(*(jnp.concatenate([part[:, i * wide : i * wide + k] for i in range(teams)], axis=1) for part in near))


def mutual(met: Encounters, near: Near, team: tuple[int, ...]) -> jax.Array:
    """Which neighbours have an agent on their own list, bool `[n, teams * k]`.

    An agent is on another's list if it is no farther than the last entry of that list that is its own team's.
    """
    k = near.who.shape[1] // len(team)
    distance = squared_norm(met.offset[..., :2])
    last = jnp.where(near.valid, distance, jnp.inf)[:, k - 1 :: k]  # [n, teams]
    theirs = last[near.who]  # [n, teams * k, teams]
    bound, first = theirs[..., 0], team[0]
    for number in range(1, len(team)):
        mine = (jnp.arange(distance.shape[0]) >= first)[:, None]
        bound = jnp.where(mine, theirs[..., number], bound)
        first += team[number]
    return near.valid & (distance <= bound)


def heading_of(body: Body, kept: jax.Array | None) -> jax.Array | None:
    """Unit vectors `[n, 2]`; `kept` is a point mass's heading so far, None if it is not wanted."""
    if not isinstance(body, PointMass):
        return yaw(body.attitude)
    if kept is None:
        return None
    speed = norm(body.velocity)[:, None]
    return jnp.where(speed > _SLOW, body.velocity / jnp.maximum(speed, _SLOW), kept)


def within(met: Encounters, reach: Float) -> jax.Array:
    """Which neighbours are within range, bool `[n, k]`; `reach` is one number or `[n]`."""
    reach = jnp.asarray(reach)
    reach = reach[:, None] if reach.ndim else reach
    return met.valid & (squared_norm(met.offset) <= reach * reach)


def in_view(met: Encounters, heading: jax.Array | None, half_angle_cosine: float) -> jax.Array:
    """Which neighbours are within the field of view, bool `[n, k]`."""
    if heading is None:
        return jnp.ones_like(met.valid)
    flat = met.offset[..., :2]
    return dot(flat, heading[:, None]) >= half_angle_cosine * norm(flat)
