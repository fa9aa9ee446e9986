"""Where a learner's time goes, without compilation."""

import time
from collections import defaultdict


class Clock:
    """Measures updates. The first one compiles, here and in the actors, and is counted as long as the second.

    before: seconds of the run until this learner began. spent: seconds by activity, since the first update.
    made: how many updates were made since then.
    """

    def __init__(self, before: float = 0.0):
        self.before, self.spent, self.made = before, defaultdict[str, float](float), -1
        self.compile_seconds, self._began = 0.0, time.perf_counter()
        self._first = self._began

    def spend(self, what: str, since: float, until: float | None = None) -> None:
        """Adds the time from `since` (of `time.perf_counter`) to now, or to `until`, to an activity."""
        self.spent[what] += (time.perf_counter() if until is None else until) - since

    def count_update(self) -> None:
        """Counts an update."""
        self.made += 1
        now = time.perf_counter()
        if self.made == 0:
            self.compile_seconds, self._first = now - self._began, now
            self.spent.clear()
        elif self.made == 1:
            self.compile_seconds = max(0.0, self.compile_seconds - (now - self._first))

    @property
    def seconds(self) -> float:
        """Of the run so far, compiling apart; nothing is added before the first update is made."""
        if self.made < 0:
            return self.before
        return self.before + time.perf_counter() - self._began - self.compile_seconds

    @property
    def figures(self) -> dict[str, float | dict[str, float]]:
        """For the status of a run."""
        spent = {name: round(seconds, 3) for name, seconds in self.spent.items()}
        return {"seconds": self.seconds, "compile_s": self.compile_seconds, "spent": spent, "made": max(self.made, 0)}
