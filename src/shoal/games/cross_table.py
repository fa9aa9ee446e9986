"""The cross-play table: what everybody earns with or against everybody else, on every side, with standard errors.

In the line-up `(s, i, j)` contender `i` plays side `s`, and `j` all other sides. Line-ups are compared in the same
episodes (see `populations.crossplay`), so the standard error of any figure is that of its values in the episodes: means
over sides and opponents are taken within an episode first. All functions are pure, in float64 on the host.
"""

import dataclasses
import functools
from typing import Literal

import numpy as np

from shoal.core.errors import require
from shoal.games.ratings import cross_play, elo, elo_interval

Relation = Literal["zero-sum", "opposed", "team", "general"]
"""What sides are to each other: one wins what the other loses; they compete for returns that do not add up to 0; they
share one return; or neither."""
PRIOR = 1.0
"""Drawn games of everybody against the mean, which keep the Elo of those finite who won or lost all games."""
ROUNDING = 1e-4
"""Returns that add up to less than this share of the greatest count as adding up to 0."""


def cross_lineups(contenders: int, sides: int) -> tuple[np.ndarray, np.ndarray]:
    """Line-ups `[M, sides]` to be played, each once, and which of them `(s, i, j)` is, `[sides, n, n]`."""
    found: dict[tuple[int, ...], int] = {}
    place = np.zeros((sides, contenders, contenders), np.int64)
    for s, i, j in np.ndindex(sides, contenders, contenders):
        lineup = tuple(i if side == s else j for side in range(sides))
        place[s, i, j] = found.setdefault(lineup, len(found))
    return np.array(list(found), np.int64).reshape(-1, sides), place


def find_relation(returns: np.ndarray, kind: str, one_team: bool) -> Relation:
    """What sides are to each other, by returns `[..., sides]` and what the world says of itself.

    kind: cooperative, competitive or mixed. one_team: whether the sides are parts of one player's seats.
    """
    if kind == "cooperative" or one_team:
        return "team"
    if is_zero_sum(returns):
        return "zero-sum"
    return "opposed" if kind == "competitive" and returns.shape[-1] == 2 else "general"


def is_zero_sum(returns: np.ndarray) -> bool:
    """Whether the returns `[..., sides]` of every episode add up to 0."""
    return bool(np.abs(returns.sum(axis=-1)).max() <= ROUNDING * max(1.0, float(np.abs(returns).max())))


@dataclasses.dataclass(frozen=True, eq=False)
class CrossTable:
    """Returns `[M, E, sides]` of the line-ups of `cross_lineups`, and what follows from them."""

    returns: np.ndarray
    place: np.ndarray
    relation: Relation

    def __post_init__(self):
        sides, size, _ = self.place.shape
        fits = self.returns.ndim == 3 and self.returns.shape[2] == sides
        require(fits, "CrossTable", "returns' shape", self.returns.shape, f"[line-ups, episodes, {sides}]")
        require(size >= 2, "CrossTable", "the number of contenders", size, "at least 2")

    @property
    def size(self) -> int:
        return self.place.shape[1]

    @property
    def episodes(self) -> int:
        return self.returns.shape[1]

    def earned(self, s: int, i: int, j: int) -> np.ndarray:
        """What `i` earns on side `s` with `j` on all others, `[E]`; in a team, what the team does."""
        played = self.returns[self.place[s, i, j]]
        return played.sum(axis=-1) if self.relation == "team" else played[:, s]

    def both_ways(self, i: int, j: int) -> np.ndarray:
        """What `i` earns with or against `j`, the mean over all sides it can play, `[E]`."""
        return np.mean([self.earned(s, i, j) for s in range(len(self.place))], axis=0)

    @functools.cached_property
    def by_side(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard errors `[sides, n, n]` of what `i` (row) earns on a side, `j` (column) on the others."""
        return _figures(
            [[[self.earned(s, i, j) for j in self._all] for i in self._all] for s in range(len(self.place))]
        )

    @functools.cached_property
    def matrix(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard errors `[n, n]` over all sides. Antisymmetric if the game is zero-sum for two sides."""
        return _figures([[self.both_ways(i, j) for j in self._all] for i in self._all])

    @functools.cached_property
    def with_others(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard errors `[n]` of what each one earns over all the others."""
        return _figures([np.mean([self.both_ways(i, j) for j in self._all if j != i], axis=0) for i in self._all])

    @functools.cached_property
    def shares(self) -> np.ndarray | None:
        """How much of each game `i` won against `j`, `[E, n, n]`: 1, a draw 0.5, lost 0; the mean over both sides.

        A game is won by the larger return. Where returns do not add up to 0, so that sides may earn unlike amounts,
        both sides together are one game: it is won by the larger sum of the two returns. None if sides do not compete,
        or are more than two.
        """
        if self.relation not in ("zero-sum", "opposed") or len(self.place) != 2:
            return None
        found = np.full((self.episodes, self.size, self.size), 0.5)
        for i, j in np.ndindex(self.size, self.size):
            if i == j:
                continue
            ahead = [self.earned(s, i, j) - self.returns[self.place[s, i, j]][:, 1 - s] for s in range(2)]
            games = [ahead[0] + ahead[1]] if self.relation == "opposed" else ahead
            found[:, i, j] = np.mean([_share_won(game) for game in games], axis=0)
        return found

    @functools.cached_property
    def win_rate(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Means and standard errors `[n, n]` of `shares`."""
        if self.shares is None:
            return None
        return np.mean(self.shares, axis=0), _error(self.shares)

    def ratings(self, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Elo ratings `[n]`, and the ends of their 95 % bootstrap intervals; None where there is nothing to win."""
        if self.shares is None:
            return None
        return self._elo, *elo_interval(self.shares, PRIOR, seed)

    @functools.cached_property
    def _elo(self) -> np.ndarray:
        assert self.shares is not None
        return elo(self.shares.sum(axis=0), prior=PRIOR)

    @property
    def cross_play(self) -> dict[str, float] | None:
        """Of teams: self-play, cross-play and the gap between them, with standard errors; None for others."""
        if self.relation != "team":
            return None
        alone = np.mean([self.both_ways(i, i) for i in self._all], axis=0)
        mixed = np.mean([self.both_ways(i, j) for i in self._all for j in self._all if i != j], axis=0)
        found = cross_play(self.matrix[0])
        errors = [float(_error(values)) for values in (alone, mixed, alone - mixed)]
        means = [found.self_play, found.cross_play, found.gap]
        names = ("self_play", "cross_play", "gap")
        return dict(zip(names, means, strict=True)) | dict(
            zip([f"{name}_error" for name in names], errors, strict=True)
        )

    @property
    def order(self) -> list[int]:
        """Contenders from the best to the worst: by Elo where there is one, else by what they earn with the others."""
        found = self._elo if self.shares is not None else self.with_others[0]
        return sorted(self._all, key=lambda i: (-found[i], i))

    @property
    def _all(self) -> range:
        return range(self.size)


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """The mean over episodes `[E]`, and its standard error."""
    return float(np.mean(values)), float(_error(values))


def _figures(values: list) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard errors over the last axis, that of episodes."""
    table = np.array(values, np.float64)
    return table.mean(axis=-1), _error(np.moveaxis(table, -1, 0))


def _error(values: np.ndarray) -> np.ndarray:
    """Standard errors of the means over the first axis; infinite for a single episode."""
    count = len(values)
    if count < 2:
        return np.full(values.shape[1:], np.inf)
    return np.std(values, axis=0, ddof=1) / np.sqrt(count)


def _share_won(ahead: np.ndarray) -> np.ndarray:
    limit = 1e-6 * max(1.0, float(np.abs(ahead).max()))  # rounding does not win a game
    return np.where(np.abs(ahead) <= limit, 0.5, (ahead > 0).astype(np.float64))
