"""Pictures of swarms: the arena with its obstacles, the agents, and what a world adds."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.types import Circles, Lines, Polygons, Scene
from shoal.envs.swarm import _dynamics as dynamics
from shoal.envs.swarm._swarm import Swarm, SwarmState

GREY, BLUE, ORANGE, GREEN, RED, PURPLE, TEAL, YELLOW = range(8)
_MANY = 64  # agents beyond which links are not drawn


class Marks(NamedTuple):
    """Circles of one radius that a world adds below its agents."""

    position: jax.Array  # [k, 2]
    radius: float
    colour: jax.Array | int  # [k], or one for all
    visible: jax.Array | None = None  # [k]


@functools.partial(jax.jit, static_argnames=("world", "links"))
def draw(
    world: Swarm,
    swarm: SwarmState,
    colour: jax.Array | int,
    visible: jax.Array | None = None,
    marks: tuple[Marks, ...] = (),
    polygons: Polygons | None = None,
    links: bool = True,
) -> Scene:
    """The scene; `colour` of the agents is one or `[n]`, `links` joins those who see each other."""
    n = world.size
    visible = jnp.ones(n, bool) if visible is None else visible
    obstacles = () if swarm.obstacle is None else (Marks(swarm.obstacle, world.obstacle_radius, GREY),)
    agents = Marks(swarm.body.position[:, :2], world.radius, colour, visible)
    layers = (*obstacles, *marks, agents)
    circles = Circles(
        position=jnp.concatenate([mark.position for mark in layers]),
        radius=jnp.concatenate([jnp.full(_count(mark), mark.radius) for mark in layers]),
        colour=jnp.concatenate([jnp.broadcast_to(jnp.int32(mark.colour), (_count(mark),)) for mark in layers]),
        visible=jnp.concatenate([_visible(mark) for mark in layers]),
        heading=jnp.concatenate([*(jnp.full(_count(mark), jnp.nan) for mark in layers[:-1]), _angle(swarm.body)]),
        names=("",) * sum(_count(mark) for mark in layers[:-1]) + _names(world),
    )
    margin = 0.03 * world.length
    bounds = (-margin, -margin, world.length + margin, world.length + margin)
    lines = _walls(world)
    if links and n <= _MANY:
        lines = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), lines, _links(world, swarm, visible))
    return Scene(bounds=bounds, polygons=polygons, lines=lines, circles=circles)


def _names(world: Swarm) -> tuple[str, ...]:
    return tuple(f"{team}_{i}" for team, size in world.teams.items() for i in range(size))


def _angle(body: dynamics.Body) -> jax.Array:
    """Where agents head, in radians; a point mass at rest has no heading."""
    if isinstance(body, dynamics.Quadrotor):
        direction = dynamics.yaw(body.attitude)
        return jnp.arctan2(direction[:, 1], direction[:, 0])
    moving = dynamics.norm(body.velocity) > 0.05
    return jnp.where(moving, jnp.arctan2(body.velocity[:, 1], body.velocity[:, 0]), jnp.nan)


def _walls(world: Swarm) -> Lines:
    corners = world.length * jnp.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    return Lines(corners, jnp.roll(corners, -1, axis=0), jnp.zeros(4, jnp.int32), jnp.ones(4, bool))


def _links(world: Swarm, swarm: SwarmState, visible: jax.Array) -> Lines:
    """A line from each agent to each neighbour within range."""
    met, place = world.meet(swarm), swarm.body.position[:, :2]
    near = met.valid & (dynamics.norm(met.offset) <= world.sensing_range) & visible[:, None]
    start = jnp.broadcast_to(place[:, None], met.offset[..., :2].shape)
    end = start + jnp.where(near[..., None], met.offset[..., :2], 0.0)
    count = near.size
    return Lines(start.reshape(count, 2), end.reshape(count, 2), jnp.zeros(count, jnp.int32), near.ravel())


def _count(mark: Marks) -> int:
    return mark.position.shape[0]


def _visible(mark: Marks) -> jax.Array:
    return jnp.ones(_count(mark), bool) if mark.visible is None else mark.visible
