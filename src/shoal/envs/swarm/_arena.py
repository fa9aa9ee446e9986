"""What stands in the way: the walls of a square arena, and round obstacles.

**Walls and obstacles.** Agents are discs (in space: balls) of one radius; obstacles are discs (columns). A step's way
from start to end is checked as a whole, so nothing is passed through however fast an agent is: it stops where it first
touches an obstacle and slides on along the tangent with what is left of the step. The velocity into the surface is
lost but for a share `bounce` of it, which is thrown back. Obstacles are placed so that an agent fits between any two of
them, and between each and the walls.

How agents get in each other's way is told in `_contact`.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.envs.swarm._dynamics import Float

HEIGHT = 4.0
"""Of the arena, for quadrotors, in metres."""
_GAP = 0.02  # between the places where obstacles may stand


class Encounters(NamedTuple):
    """What each agent's nearest others are to it; `valid` is False where there are fewer than k."""

    offset: jax.Array  # [n, k, d] their position minus one's own
    closing: jax.Array  # [n, k, d] their velocity minus one's own
    valid: jax.Array  # [n, k]


def room_for_obstacles(side: float, count: int, radius: float, agent_radius: float) -> bool:
    """Whether that many obstacles fit with room for agents around each."""
    return count == 0 or _cell(side, count, agent_radius) >= 2 * (radius + agent_radius + _GAP)


def place_obstacles(key: jax.Array, side: float, count: int, radius: float, agent_radius: float) -> jax.Array:
    """Centres `[count, 2]`, each at random within a cell of its own."""
    cells = math.ceil(math.sqrt(count))
    where, jitter = jax.random.split(key)
    cell = _ranks(jax.random.uniform(where, (cells * cells,)), count)
    corner = jnp.stack([cell % cells, cell // cells], axis=-1) * _cell(side, count, agent_radius) + agent_radius
    margin = radius + agent_radius + _GAP
    free = _cell(side, count, agent_radius) - 2 * margin
    return corner + margin + free * jax.random.uniform(jitter, (count, 2))


def _ranks(values: jax.Array, count: int) -> jax.Array:
    """How many of `values` come before each of the first `count`, equals in their order: different whole numbers.

    Ranks of random values are a random permutation; for so few, comparing all is cheaper than sorting.
    """
    own, number = values[:count, None], jnp.arange(values.shape[0])
    before = (values < own) | ((values == own) & (number < number[:count, None]))
    return jnp.sum(before, axis=1, dtype=jnp.int32)


def clear(position: jax.Array, obstacle: jax.Array | None, reach: float) -> jax.Array:
    """Positions `[n, d]`, those within `reach` of an obstacle's centre moved straight out of it."""
    if obstacle is None:
        return position
    x, y = position[:, 0], position[:, 1]
    for centre in obstacle:
        away_x, away_y = x - centre[0], y - centre[1]
        distance = jnp.sqrt(away_x * away_x + away_y * away_y)
        inside = distance < reach
        grow = reach / jnp.maximum(distance, 1e-6)
        x = jnp.where(inside, centre[0] + away_x * grow, x)
        y = jnp.where(inside, centre[1] + away_y * grow, y)
    return _with_plane(position, x, y)


def sweep(
    start: jax.Array, end: jax.Array, velocity: jax.Array, obstacle: jax.Array | None, reach: float, bounce: Float
) -> tuple[jax.Array, jax.Array]:
    """Positions and velocities `[n, d]` after moving from `start` towards `end`, past obstacles in the way.

    `reach` is the radius of an obstacle plus that of an agent.
    """
    if obstacle is None:
        return end, velocity
    way_x, way_y = end[:, 0] - start[:, 0], end[:, 1] - start[:, 1]
    time, centre_x, centre_y = _first_touch(start, way_x, way_y, obstacle, reach)
    hit = time < 1.0
    x, y = start[:, 0] + time * way_x, start[:, 1] + time * way_y
    normal_x, normal_y = (x - centre_x) / reach, (y - centre_y) / reach
    into = jnp.where(hit, (1.0 - time) * (way_x * normal_x + way_y * normal_y), 0.0)
    x, y = x + (1.0 - time) * way_x - into * normal_x, y + (1.0 - time) * way_y - into * normal_y
    speed = jnp.minimum(velocity[:, 0] * normal_x + velocity[:, 1] * normal_y, 0.0)
    lost = jnp.where(hit, (1.0 + bounce) * speed, 0.0)
    new = _with_plane(velocity, velocity[:, 0] - lost * normal_x, velocity[:, 1] - lost * normal_y)
    return clear(_with_plane(end, x, y), obstacle, reach), new


def _first_touch(
    start: jax.Array, way_x: jax.Array, way_y: jax.Array, obstacle: jax.Array, reach: float
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """When, as a share of the way, an agent first touches an obstacle (1: never), and the centre of that one."""
    first = jnp.ones_like(way_x)
    centre_x, centre_y = jnp.zeros_like(way_x), jnp.zeros_like(way_y)
    length = way_x * way_x + way_y * way_y
    for centre in obstacle:  # few, so written out
        from_x, from_y = start[:, 0] - centre[0], start[:, 1] - centre[1]
        towards = -(from_x * way_x + from_y * way_y)
        outside = from_x * from_x + from_y * from_y - reach * reach
        root = towards * towards - length * outside
        time = outside / jnp.maximum(towards + jnp.sqrt(jnp.maximum(root, 0.0)), 1e-12)
        time = jnp.maximum(time, 0.0)
        nearer = (towards > 0.0) & (root > 0.0) & (time < first)
        first = jnp.where(nearer, time, first)
        centre_x, centre_y = jnp.where(nearer, centre[0], centre_x), jnp.where(nearer, centre[1], centre_y)
    return first, centre_x, centre_y


def enclose(
    position: jax.Array, velocity: jax.Array, side: float, radius: float, bounce: Float
) -> tuple[jax.Array, jax.Array]:
    """Positions `[n, d]` kept within the walls (in space: above the floor and below the ceiling), and velocities."""
    upper = jnp.array([side, side, HEIGHT][: position.shape[-1]]) - radius
    inside = jnp.clip(position, radius, upper)
    outwards = ((position <= radius) & (velocity < 0.0)) | ((position >= upper) & (velocity > 0.0))
    return inside, jnp.where(outwards, -bounce * velocity, velocity)


def _with_plane(vector: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
    """`vector` `[n, d]` with its first two components replaced."""
    return jnp.concatenate([jnp.stack([x, y], axis=-1), vector[:, 2:]], axis=-1)


def _cell(side: float, count: int, agent_radius: float) -> float:
    return (side - 2 * agent_radius) / math.ceil(math.sqrt(count))
