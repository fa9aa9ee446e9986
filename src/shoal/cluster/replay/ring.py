"""The last steps of one actor, as rows `[L, E, ...]` of numpy arrays, and the rows where windows may begin.

The same replay as `ops.replay`, on the host and fed by actors. Rows come with stamps: numbers that are
consecutive as long as the steps are. A maker that restarted, or steps that were lost on the way, leave a gap, and no
window reaches over one, nor over the newest row into the oldest. A stamp also tells whether a row has been
overwritten since it was sampled. Shape letters: `L` rows of a ring, `E` copies of its maker, `W` rows of a window.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Table:
    """What is kept of one learner's steps: rows of each maker, rows of a window, whether windows have priorities."""

    rows: int
    window: int
    prioritised: bool = False


class Ring:
    """The steps of one maker in one table. possible: whether a window begins there `[L]`. priority: `[L, E]`."""

    def __init__(self, table: Table):
        self.table = table
        self.store: list[np.ndarray] = []
        self.stamp = np.full(table.rows, -1, np.int64)
        self.version = np.zeros(table.rows, np.int64)
        self.possible = np.zeros(table.rows, bool)
        self.priority = np.zeros((table.rows, 0), np.float32)
        self.next = 0

    @property
    def copies(self) -> int:
        return self.store[0].shape[1] if self.store else 0

    @property
    def newest(self) -> int:
        """The stamp of the newest row."""
        return int(self.stamp.max())

    def add(self, leaves: Sequence[np.ndarray], stamp: int, version: int, priority: np.ndarray | None = None) -> None:
        """Writes rows `[T, E, ...]` over the oldest ones. stamp: of the first; version: of the weights that acted.

        priority: `[T, E]`, of the windows that end at these rows, and so have just become possible; None: the highest
        that there is.
        """
        rows, span, count = self.table.rows, self.table.window - 1, len(leaves[0])
        if not self.store:
            self.store = [np.zeros((rows, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
            self.priority = np.zeros((rows, self.copies), np.float32)
        place = (self.next + np.arange(count)) % rows
        for old, new in zip(self.store, leaves, strict=True):
            old[place] = new
        self.stamp[place] = stamp + np.arange(count)
        self.version[place] = version
        starts = (self.next - span + np.arange(count + span)) % rows  # of all windows that have one of these rows
        length = self.stamp[(starts + span) % rows] - self.stamp[starts]
        ready = (self.stamp[starts] >= 0) & (length == span)
        highest = self.priority.max(initial=0.0) or 1.0
        self.possible[starts] = ready
        self.next = int((self.next + count) % rows)
        if self.table.prioritised:
            given = np.full((count, self.copies), highest) if priority is None else priority
            given = np.where(np.isfinite(given) & (given > 0), given, highest)
            whole = np.concatenate([given, np.zeros((span, self.copies))])
            self.priority[starts] = np.where(ready[:, None], whole, 0.0)

    def masses(self) -> np.ndarray:
        """What each row weighs in a draw `[L]`: its priorities, or its copies if all are alike."""
        if self.table.prioritised:
            return self.priority.sum(axis=1, dtype=np.float64)
        return self.possible * float(self.copies)

    def copies_at(self, row: np.ndarray, rest: np.ndarray) -> np.ndarray:
        """Which copies `[B]` are meant by `rest` `[B]`, a place in the running total of each row."""
        if not self.table.prioritised:
            return np.minimum(rest.astype(np.int64), self.copies - 1)
        within = np.cumsum(self.priority[row], axis=1, dtype=np.float64)
        copy = np.sum(within <= rest[:, None], axis=1)
        last = self.copies - 1 - np.argmax(self.priority[row][:, ::-1] > 0.0, axis=1)  # rounding may lead beyond
        return np.minimum(copy, last)

    def windows(self, row: np.ndarray, copy: np.ndarray) -> list[np.ndarray]:
        """The windows that begin there: leaves `[W, B, ...]`."""
        rows = (row + np.arange(self.table.window)[:, None]) % self.table.rows
        return [leaf[rows, copy] for leaf in self.store]

    def weight(self, row: np.ndarray, copy: np.ndarray) -> np.ndarray:
        """The unnormalised probability of each place, `[B]`."""
        return self.priority[row, copy].astype(np.float64) if self.table.prioritised else np.ones(len(row))

    def reprioritise(self, row: np.ndarray, copy: np.ndarray, stamp: np.ndarray, priority: np.ndarray) -> int:
        """Sets priorities `[B]`, except of rows overwritten since they were sampled; returns how many were set."""
        still = (self.stamp[row] == stamp) & self.possible[row] & np.isfinite(priority) & (priority > 0)
        self.priority[row[still], copy[still]] = priority[still]
        return int(still.sum())

    def pack(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """A copy of its state: arrays by name, and plain data."""
        arrays = {name: getattr(self, name).copy() for name in ("stamp", "version", "possible", "priority")}
        arrays |= {f"leaf-{number:03d}": leaf.copy() for number, leaf in enumerate(self.store)}
        return arrays, {"table": dataclasses.asdict(self.table), "next": self.next}

    @staticmethod
    def unpack(arrays: dict[str, np.ndarray], meta: dict[str, Any]) -> "Ring":
        """The inverse of `pack`. Raises `ValueError` where it does not fit."""
        ring = Ring(Table(**meta["table"]))
        store = [np.array(arrays[name]) for name in sorted(arrays) if name.startswith("leaf-")]
        copies = store[0].shape[1] if store and store[0].ndim > 1 else 0
        rows = ring.table.rows
        fits = all(leaf.shape[:2] == (rows, copies) for leaf in store) and meta["next"] < rows
        for name in ("stamp", "version", "possible", "priority"):
            own, found = getattr(ring, name), arrays.get(name, np.zeros(0))
            fits &= found.dtype == own.dtype and found.shape == ((rows, copies) if own.ndim > 1 else (rows,))
            setattr(ring, name, np.array(found))
        if not fits:
            raise ValueError("its arrays do not fit each other")
        ring.store, ring.next = store, meta["next"]
        return ring


def places(masses: Sequence[np.ndarray], draws: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which ring and which row each of `draws` `[B]`, numbers from 0 to 1, means; and the rest within that row.

    One is drawn from each of B equal shares of the total.
    """
    flat = np.concatenate(masses)
    ends = np.cumsum(flat)
    target = (np.arange(len(draws)) + draws) / len(draws) * ends[-1]
    place = np.minimum(np.searchsorted(ends, target, side="right"), len(flat) - 1)
    place = np.where(flat[place] > 0.0, place, np.argmax(flat))
    rest = np.clip(target - (ends[place] - flat[place]), 0.0, flat[place])
    firsts = np.cumsum([0] + [len(mass) for mass in masses])
    ring = np.searchsorted(firsts, place, side="right") - 1
    return ring, place - firsts[ring], rest
