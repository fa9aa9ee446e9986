"""Shapes that the control worlds' pictures are made of."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from shoal.core.types import Circles, Lines, Polygons

GREY, BLUE, ORANGE, GREEN, RED, PURPLE, TEAL, YELLOW = range(8)


def point(x: jax.Array | float, y: jax.Array | float) -> jax.Array:
    """A point `[2]`."""
    return jnp.stack([jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)])


def box(centre: jax.Array, half_width: float, half_height: float, angle: jax.Array | float = 0.0) -> jax.Array:
    """The corners `[4, 2]` of a rectangle turned by `angle` about its centre, anticlockwise."""
    corners = jnp.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]]) * jnp.array([half_width, half_height])
    return centre + rotate(corners, angle)


def bar(start: jax.Array, end: jax.Array, half_width: float) -> jax.Array:
    """The corners `[4, 2]` of a bar from `start` to `end`."""
    along = end - start
    across = point(-along[1], along[0]) * half_width / jnp.maximum(jnp.sqrt(jnp.sum(along**2)), 1e-6)
    return jnp.stack([start - across, end - across, end + across, start + across])


def rotate(points: jax.Array, angle: jax.Array | float) -> jax.Array:
    """Points `[k, 2]` turned about the origin, anticlockwise."""
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    x, y = points[:, 0], points[:, 1]
    return jnp.stack([cos * x - sin * y, sin * x + cos * y], axis=-1)


def polygons(*shapes: tuple[jax.Array, int]) -> Polygons:
    """Pairs of corners and colour; where a shape has fewer corners than another, its last one is repeated."""
    most = max(corners.shape[0] for corners, _ in shapes)
    padded = [jnp.pad(corners, ((0, most - corners.shape[0]), (0, 0)), mode="edge") for corners, _ in shapes]
    return Polygons(jnp.stack(padded), _colours([colour for _, colour in shapes]), jnp.ones(len(shapes), bool))


def lines(*shapes: tuple[jax.Array, jax.Array, int]) -> Lines:
    """Triples of start, end and colour."""
    start, end, colour = zip(*shapes, strict=True)
    return Lines(jnp.stack(start), jnp.stack(end), _colours(colour), jnp.ones(len(shapes), bool))


def circles(*shapes: tuple[jax.Array, float, int, str]) -> Circles:
    """Centre, radius, colour and name of each; a name that is not empty can be followed in a replay."""
    centre, radius, colour, names = zip(*shapes, strict=True)
    visible = jnp.ones(len(shapes), bool)
    return Circles(jnp.stack(centre), jnp.array(radius, jnp.float32), _colours(colour), visible, names=tuple(names))


def _colours(numbers: Sequence[int]) -> jax.Array:
    return jnp.array(numbers, jnp.int32)
