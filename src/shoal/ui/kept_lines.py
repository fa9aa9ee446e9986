"""Lines of metrics of runs that someone looks at, each read once: when a run goes on, only what was added is read."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.training.catalogue import Catalogue
from shoal.training.catalogue.lines import Line

MOST_RUNS = 8
MOST_LINES = 200_000
"""Of one run; what a run writes beyond these is not shown on its special screens."""
MOST_VALUES = 6_000_000
"""Of one run, whose lines have a value for each of its trainings: of more, the last lines are kept."""
MOST_SIZE = 1e300
LONG = 4
"""Values from which on a list is kept as an array, which takes a quarter of the memory."""


class KeptLines:
    """Lines by run, of which only the columns that `wanted` accepts are kept.

    wide: lines have a value for each of many trainings; lists of numbers are kept as arrays, None as not a number.
    """

    def __init__(self, catalogue: Catalogue, wanted: Callable[[str], bool], wide: bool = False):
        self._catalogue = catalogue
        self._wanted = wanted
        self._wide = wide
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[int, list[Line]]] = OrderedDict()

    def lines(self, name: str) -> list[Line]:
        """All lines of a run so far."""
        with self._lock:
            offset, found = self._kept.pop(name, (0, []))
            while len(found) < MOST_LINES:
                lines, after = self._catalogue.lines_after(name, offset)
                if after < offset:  # written anew by a run that goes on
                    found = []
                found = self._within(found + [self._short(line) for line in lines])
                offset = after
                if not lines:
                    break
            self._kept[name] = offset, found
            while len(self._kept) > MOST_RUNS:
                self._kept.popitem(last=False)
            return found[:MOST_LINES]

    def _short(self, line: Line) -> Line:
        kept = {key: line[key] for key in line if self._wanted(key)}
        return {key: _packed(value) for key, value in kept.items()} if self._wide else kept

    def _within(self, lines: list[Line]) -> list[Line]:
        """The lines, or the last ones of so many that they would fill the memory."""
        if not self._wide or not lines:
            return lines
        width = sum(len(value) for value in lines[-1].values() if isinstance(value, list | np.ndarray))
        return lines[-max(1, MOST_VALUES // max(1, width)) :]


def _packed(value: Any) -> Any:
    """A long list of numbers as an array; anything else as it is."""
    if not isinstance(value, list) or len(value) < LONG:
        return value
    if not all(each is None or (type(each) in (int, float) and abs(each) <= MOST_SIZE) for each in value):
        return value
    return np.array([np.nan if each is None else each for each in value], np.float64)
