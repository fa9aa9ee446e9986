"""Symmetric games: their players are exchangeable, so that one bank of policies serves all of them.

A game is symmetric if seats can be exchanged without a difference: all players have the same observations, actions and
algorithm, and a player that takes another's seat and policy earns the same. Spaces and algorithms are always compared.
Payoffs and situations are compared where the game has exact tables; where it has none, such as in `pong`, the user
asserts the symmetry.
"""

from typing import Any

import jax
import numpy as np

from shoal.core.errors import OptionError
from shoal.envs.tabular import InformationSets, TabularGame
from shoal.populations.game import Game

_ROUNDING = 1e-6


def check_symmetric(game: Game) -> None:
    """Refuses a game whose players are not exchangeable, as far as that can be checked."""
    spec = game.setup.spec
    first, *others = game.players
    for other in others:
        compared = {
            "agents": (spec.groups[first].size, spec.groups[other].size),
            "actions": (spec.groups[first].action, spec.groups[other].action),
            "views": (_shapes(spec.observations[first]), _shapes(spec.observations[other])),
            "algorithms or networks": (game.algorithms[first], game.algorithms[other]),
        }
        for what, (one, two) in compared.items():
            if one != two:
                raise _make_error(game, f"{first} and {other} have different {what}: {one} and {two}")
    if game.tables is not None:
        try:
            exchanges(game.tables)
        except OptionError as error:
            raise _make_error(game, str(error)) from None


def exchanges(tables: TabularGame) -> list[np.ndarray]:
    """For each player, the order `[S]` that turns the first player's plans into plans of its own: `plan[order]`.

    Information sets are the same if their observations are. Refuses a game that is not symmetric.
    """
    first, names = tables.sets[0], tables.players
    orders = [_order(first, sets, f"{names[0]} and {name}") for name, sets in zip(names, tables.sets, strict=True)]
    alike = np.stack([order[tables.sequences[:, p]] for p, order in enumerate(orders)], axis=1)
    for other in range(1, len(names)):
        swapped = np.arange(len(names))
        swapped[[0, other]] = other, 0
        if not _same_entries(alike, tables.payoffs, alike[:, swapped], tables.payoffs[:, swapped]):
            raise OptionError(f"{names[0]} and {names[other]} earn different payoffs when they change places")
    return orders


def _order(first: InformationSets, own: InformationSets, who: str) -> np.ndarray:
    """For each sequence of a player's, the same one of the first player's."""
    places = {look: i for i, look in enumerate(_looks(first))}
    looks = _looks(own)
    if sorted(places) != sorted(looks):
        raise OptionError(f"{who} do not decide in the same situations")
    order = np.zeros(own.num_sequences, np.int64)
    for here, look in enumerate(looks):
        there, legal = places[look], own.legal[here]
        order[own.sequence[here, legal]] = first.sequence[there, legal]
    same = [order[own.parent[here]] == first.parent[places[look]] for here, look in enumerate(looks)]
    if not all(same):
        raise OptionError(f"{who} come to the same situations by different decisions")
    return order


def _looks(sets: InformationSets) -> list[bytes]:
    """The observations and legal actions that identify information sets."""
    rows = [*jax.tree.leaves(sets.views), sets.legal]
    return [b"".join(np.ascontiguousarray(row[i]).tobytes() for row in rows) for i in range(len(sets))]


def _same_entries(one: np.ndarray, payoffs: np.ndarray, other: np.ndarray, others: np.ndarray) -> bool:
    """Whether payoffs `[L, n]` at sequences `[L, n]` are the same up to the order of the entries."""
    a, b = np.lexsort(one.T), np.lexsort(other.T)
    return np.array_equal(one[a], other[b]) and np.allclose(payoffs[a], others[b], atol=_ROUNDING)


def _shapes(observation: Any) -> list[str]:
    """Observations as comparable text: names, shapes and types."""
    leaves = jax.tree_util.tree_leaves_with_path(observation)
    return [f"{jax.tree_util.keystr(path, simple=True)} {leaf.shape} {leaf.dtype}" for path, leaf in leaves]


def _make_error(game: Game, why: str) -> OptionError:
    return OptionError(
        f"psro: world {game.env!r} is not symmetric: {why}. Without --symmetric each player has its own bank"
    )
