"""The picture of a matrix game: for two players their table, with the chosen cell lit; for more, a column for each."""

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.types import Circles, Labels, Polygons, Scene

_GREY, _LIT = 0, 7
_COLOURS = (1, 2, 3, 4, 5, 6)  # of the players
_MARGIN = 1.6


def picture(payoffs: np.ndarray, moves: tuple[str, ...], last: jax.Array) -> Scene:
    """payoffs: `[n, a1, ..., an]`. moves: names of the actions, if they have any. last: actions `[n]`, -1 for none."""
    sizes = payoffs.shape[1:]
    names = [[(moves[i] if len(moves) == size else str(i)) for i in range(size)] for size in sizes]
    return _table(payoffs, names, last) if len(sizes) == 2 else _columns(names, last)


def _table(payoffs: np.ndarray, names: list[list[str]], last: jax.Array) -> Scene:
    """Rows are the actions of player 0, columns those of player 1; a cell shows what they get."""
    rows, columns = payoffs.shape[1:]
    cells = [(column, rows - 1 - row) for row in range(rows) for column in range(columns)]
    texts = [f"{payoffs[0, r, c]:g}, {payoffs[1, r, c]:g}" for r in range(rows) for c in range(columns)]
    chosen = (jnp.arange(rows)[:, None] == last[0]) & (jnp.arange(columns) == last[1])
    heads = [(-0.9, rows - 0.5 - row) for row in range(rows)] + [
        (column + 0.5, rows + 0.5) for column in range(columns)
    ]
    square = [(0.04, 0.04), (0.96, 0.04), (0.96, 0.96), (0.04, 0.96)]
    position = [(x + 0.5, y + 0.5) for x, y in cells] + heads
    return Scene(
        bounds=(-_MARGIN, -0.3, columns + 0.3, rows + 1.0),
        polygons=Polygons(
            points=jnp.array([[(x + dx, y + dy) for dx, dy in square] for x, y in cells], jnp.float32),
            colour=jnp.where(chosen.ravel(), _LIT, _GREY).astype(jnp.int32),
            visible=jnp.ones(len(cells), bool),
        ),
        circles=_dots([(x, y - 0.25) for x, y in heads], [rows, columns], last),
        labels=Labels(
            position=jnp.array(position, jnp.float32),
            visible=jnp.ones(len(position), bool),
            text=(*texts, *names[0], *names[1]),
        ),
    )


def _columns(names: list[list[str]], last: jax.Array) -> Scene:
    sizes = [len(own) for own in names]
    places = [(1.5 * player, max(sizes) - 1.0 - i) for player, size in enumerate(sizes) for i in range(size)]
    return Scene(
        bounds=(-1.0, -0.8, 1.5 * len(sizes) - 0.5, max(sizes) - 0.2),
        circles=_dots(places, sizes, last, radius=0.2, always=True),
        labels=Labels(
            position=jnp.array([(x, y - 0.4) for x, y in places], jnp.float32),
            visible=jnp.ones(len(places), bool),
            text=tuple(name for own in names for name in own),
        ),
    )


def _dots(
    places: list[tuple[float, float]], sizes: list[int], last: jax.Array, radius: float = 0.1, always: bool = False
) -> Circles:
    """A dot for every action of every player; chosen ones have the player's colour, others are grey or not there."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    chosen = last[owner] == jnp.array(np.concatenate([np.arange(size) for size in sizes]))
    colour = jnp.array([_COLOURS[player % len(_COLOURS)] for player in owner], jnp.int32)
    return Circles(
        position=jnp.array(places, jnp.float32),
        radius=jnp.full(len(places), radius),
        colour=jnp.where(chosen, colour, _GREY).astype(jnp.int32),
        visible=chosen | always,
    )
