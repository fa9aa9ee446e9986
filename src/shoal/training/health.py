"""Copies that fail: they are restarted and counted, and only those that keep failing are left out."""

import numpy as np

LIMIT = 10.0
"""Failures beyond those that are forgiven after which a copy is left out."""


class Health:
    """Counts failures (NaN) of some copies, and decides which are left out for good.

    forgiven: how much of one failure every turn without one makes up for. With 0.05, whoever fails in less than one
    turn of twenty may go on for ever; whoever fails every time is left out after ten turns.
    """

    def __init__(self, count: int, forgiven: float, limit: float = LIMIT):
        self.forgiven, self.limit = forgiven, limit
        self.resets = 0  # failures so far, after each of which a copy was restarted
        self.out = np.zeros(count, bool)
        self._level = np.zeros(count)

    def turn(self, sound: np.ndarray) -> None:
        """All copies had a turn, in which these `[E]` did not fail."""
        if sound.all() and not self._level.any():
            return
        self._level = np.maximum(self._level - self.forgiven * sound, 0.0)
        self.fell(~sound & ~self.out)

    def fell(self, which: np.ndarray) -> None:
        """These copies `[E]` failed."""
        self.resets += int(which.sum())
        self._level = self._level + which
        self.out |= self._level >= self.limit

    def level(self, i: int) -> float:
        """Failures of a copy that are not made up for."""
        return float(self._level[i])
