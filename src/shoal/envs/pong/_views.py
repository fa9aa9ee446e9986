"""Pong's court, drawn: as a small image for the players, as a scene for people."""

import jax
import jax.numpy as jnp

from shoal.core.types import Circles, Labels, Lines, Polygons, Scene

SIDE = 12
"""Pixels of the image, both ways."""
RADIUS = 0.03
PADDLE_X = 0.9
"""How far from the centre the ball's centre is when it meets a paddle."""
CEILING = 1.0 - RADIUS
"""How far from the centre the ball's centre can be, vertically."""

Point = tuple[jax.Array, jax.Array]


def image(ball: Point, before: Point, own: jax.Array, other: jax.Array, paddle_length: jax.Array | float) -> jax.Array:
    """Bytes `[12, 12, 3]`: the ball, the ball one step before, and the paddles, own on the left.

    Each plane but for the other's paddle is the product of a column and a row of brightnesses; without a scatter.
    """
    pixel = jnp.arange(SIDE, dtype=jnp.float32)
    half = 0.5 * paddle_length / _height_of(1)
    rows = [_share(pixel - _row(ball[1])), _share(pixel - _row(before[1])), _cover(pixel - _row(own), half)]
    columns = [_share(pixel - _column(ball[0])), _share(pixel - _column(before[0])), pixel == 0]
    row, column = (jnp.stack([part.astype(jnp.float32) for part in parts], axis=-1) for parts in (rows, columns))
    others = (pixel == SIDE - 1)[:, None] & (jnp.arange(3) == 2)
    facing = _cover(pixel - _row(other), half)
    bright = jnp.where(others[None], facing[:, None, None], row[:, None] * column[None])
    return (255.0 * bright + 0.5).astype(jnp.uint8)


def _height_of(rows: int) -> float:
    return rows * 2.0 * CEILING / (SIDE - 1)


def _row(y: jax.Array) -> jax.Array:
    """From 0 at the ceiling to 11 at the floor."""
    return (CEILING - y) / _height_of(1)


def _column(x: jax.Array) -> jax.Array:
    """From 0 at the left end of the court to 11 at the right one."""
    return (x + 1.0) * ((SIDE - 1) / 2.0)


def _share(distance: jax.Array) -> jax.Array:
    """Brightness of a pixel that far from a point: the two nearest ones share it."""
    return jnp.maximum(1.0 - jnp.abs(distance), 0.0)


def _cover(distance: jax.Array, half: jax.Array | float) -> jax.Array:
    """How much of a pixel that far from a paddle's middle the paddle covers, for paddles longer than a pixel."""
    return jnp.clip(half - jnp.abs(distance) + 0.5, 0.0, 1.0)


def picture(ball: Point, paddle: Point, paddle_length: jax.Array | float, score: Point, points: int) -> Scene:
    """The court, the paddles, the ball and the score."""
    corners = jnp.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
    dashes = jnp.linspace(-0.92, 0.92, 9)
    start = jnp.concatenate([corners, jnp.stack([jnp.zeros(9), dashes - 0.05], axis=-1)])
    end = jnp.concatenate([jnp.roll(corners, -1, axis=0), jnp.stack([jnp.zeros(9), dashes + 0.05], axis=-1)])
    numbers = jnp.arange(points + 1)
    places = jnp.repeat(jnp.array([[-0.3, 0.82], [0.3, 0.82]]), points + 1, axis=0)
    return Scene(
        bounds=(-1.1, -1.1, 1.1, 1.1),
        polygons=Polygons(
            jnp.stack([_paddle(side, y, paddle_length) for side, y in zip((-1.0, 1.0), paddle, strict=True)]),
            jnp.array([1, 2]),
            jnp.ones(2, bool),
        ),
        lines=Lines(start, end, jnp.zeros(13, jnp.int32), jnp.ones(13, bool)),
        circles=Circles(jnp.stack(ball)[None], jnp.full(1, RADIUS), jnp.array([3]), jnp.ones(1, bool), names=("ball",)),
        labels=Labels(
            places,
            jnp.concatenate([numbers == score[0], numbers == score[1]]),
            text=tuple(str(n) for n in range(points + 1)) * 2,
        ),
    )


def _paddle(side: float, y: jax.Array, length: jax.Array | float) -> jax.Array:
    """Corners `[4, 2]`; the face is a ball's radius behind where the ball's centre turns."""
    across = side * jnp.array([PADDLE_X + RADIUS, PADDLE_X + RADIUS + 0.04])
    x = jnp.stack([across[0], across[1], across[1], across[0]])
    return jnp.stack([x, y + length * jnp.array([-0.5, -0.5, 0.5, 0.5])], axis=-1)
