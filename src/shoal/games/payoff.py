"""The payoff table: sampled returns of line-ups of policies, with standard errors, and which are still to be played.

Each player is an axis. Only entries that are missing, or not known well enough, are ever played again. In a symmetric
game all players share one bank, and a line-up stands for all its permutations: it is played once.
"""

import dataclasses
import itertools

import numpy as np

from shoal.core.errors import require


@dataclasses.dataclass(frozen=True)
class PayoffTable:
    """Sums over episodes: count `[m0, m1, ...]`, total and squares `[players, m0, m1, ...]`. Immutable."""

    count: np.ndarray
    total: np.ndarray
    squares: np.ndarray
    symmetric: bool = False

    @staticmethod
    def empty(players: int, symmetric: bool = False) -> "PayoffTable":
        """A table without any policy."""
        shape = (0,) * players
        return PayoffTable(np.zeros(shape), np.zeros((players, *shape)), np.zeros((players, *shape)), symmetric)

    @property
    def players(self) -> int:
        return self.count.ndim

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.count.shape

    @property
    def mean(self) -> np.ndarray:
        """Payoffs `[players, m0, m1, ...]`; not a number where nothing was played yet."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.total / self.count

    @property
    def standard_error(self) -> np.ndarray:
        """Of the payoffs; infinite where fewer than two episodes were played."""
        with np.errstate(invalid="ignore", divide="ignore"):
            variance = np.maximum(self.squares / self.count - self.mean**2, 0.0) * self.count / (self.count - 1)
            error = np.sqrt(variance / self.count)
        return np.where(self.count > 1, error, np.inf)

    def grow(self, sizes: tuple[int, ...]) -> "PayoffTable":
        """The table with room for more policies; all results are kept."""
        require(len(sizes) == self.players, "PayoffTable", "sizes", sizes, f"{self.players} numbers, one per player")
        grow = [(0, new - old) for new, old in zip(sizes, self.sizes, strict=True)]
        require(min(pad for _, pad in grow) >= 0, "PayoffTable", "sizes", sizes, f"at least {self.sizes}")
        wide = [(0, 0), *grow]
        return dataclasses.replace(
            self, count=np.pad(self.count, grow), total=np.pad(self.total, wide), squares=np.pad(self.squares, wide)
        )

    def forget_policy(self, player: int, index: int) -> "PayoffTable":
        """The table without the results of one policy of a player, which has changed."""
        place = (*(slice(None) for _ in range(player)), index)
        count, total, squares = self.count.copy(), self.total.copy(), self.squares.copy()
        count[place] = 0.0
        total[(slice(None), *place)] = 0.0
        squares[(slice(None), *place)] = 0.0
        return dataclasses.replace(self, count=count, total=total, squares=squares)

    def missing_lineups(self, episodes: int, error: float | None = None) -> np.ndarray:
        """Line-ups `[M, players]` with fewer episodes than that, or with a larger standard error of any player's."""
        lacking = self.count < episodes
        if error is not None:
            lacking |= self.standard_error.max(axis=0) > error
        found = np.argwhere(lacking)
        return found[(np.diff(found, axis=1) >= 0).all(axis=1)] if self.symmetric else found

    def add_results(
        self, lineups: np.ndarray, total: np.ndarray, squares: np.ndarray, episodes: float
    ) -> "PayoffTable":
        """The table with the sums `[M, players]` over `episodes` more episodes of each line-up `[M, players]`."""
        count, sums, powers = self.count.copy(), self.total.copy(), self.squares.copy()
        seen: list[tuple[int, ...]] = []
        orders = list(itertools.permutations(range(self.players))) if self.symmetric else [tuple(range(self.players))]
        for lineup, gained, power in zip(lineups, total, squares, strict=True):
            seen = []
            for order in orders:  # player p plays the policy that player order[p] played, and earns what that one did
                place = tuple(int(lineup[other]) for other in order)
                if place in seen:
                    continue
                seen.append(place)
                count[place] += episodes
                sums[(slice(None), *place)] += gained[list(order)]
                powers[(slice(None), *place)] += power[list(order)]
        return dataclasses.replace(self, count=count, total=sums, squares=powers)
