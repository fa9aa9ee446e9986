"""Failing copies: they are restarted and counted, and only those that keep failing are excluded."""

import numpy as np

LIMIT = 10.0
"""Failures, beyond the forgiven ones, after which a copy is excluded."""


class Health:
    """Counts failures (NaN) per copy and decides which copies are excluded for good.

    forgiven: the part of a failure that each turn without one makes up for. With 0.05, a copy that fails in less than
    one turn in twenty is kept for ever; one that fails every time is excluded after ten turns.
    """

    def __init__(self, count: int, forgiven: float, limit: float = LIMIT):
        self.forgiven, self.limit = forgiven, limit
        self.resets = 0  # failures so far, after each of which a copy was restarted
        self.out = np.zeros(count, bool)
        self._level = np.zeros(count)

    def turn(self, sound: np.ndarray) -> None:
        """Records a turn of all copies, in which these `[E]` did not fail."""
        if sound.all() and not self._level.any():
            return
        self._level = np.maximum(self._level - self.forgiven * sound, 0.0)
        self.fell(~sound & ~self.out)

    def fell(self, which: np.ndarray) -> None:
        """Records failures of these copies `[E]`."""
        self.resets += int(which.sum())
        self._level = self._level + which
        self.out |= self._level >= self.limit

    def level(self, i: int) -> float:
        """Failures of a copy that have not been made up for."""
        return float(self._level[i])
