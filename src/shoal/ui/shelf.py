"""The runs as all visitors see them: read at most every few seconds, however many tabs are open."""

import threading
import time
from typing import Any

from shoal.training.catalogue import Catalogue
from shoal.ui.kinds import plain_entry

LEAST_SECONDS = 1.5
"""Between two looks at the disk."""
MOST_SHARE = 0.05
"""Of the time, spent on looking: with thousands of runs, a look takes longer and is taken less often."""


class Shelf:
    """Entries of a catalogue as plain data, and what changed since a visitor last asked."""

    def __init__(self, catalogue: Catalogue):
        self._catalogue = catalogue
        self._lock = threading.Lock()
        self._rows: dict[str, dict[str, Any]] = {}
        self._changed: dict[str, int] = {}
        self._due = 0.0
        self.version = 0

    def rows(self, fresh: bool = False) -> dict[str, dict[str, Any]]:
        """Entries by name. fresh: look now, for a visitor who has just changed something."""
        with self._lock:
            now = time.monotonic()
            if fresh or now >= self._due:
                self._look()
                cost = time.monotonic() - now
                self._due = time.monotonic() + max(LEAST_SECONDS, cost / MOST_SHARE)
            return self._rows

    def changes(self, since: int) -> tuple[int, list[dict[str, Any]], list[str]]:
        """The version now, entries that changed after `since`, and names that are gone."""
        rows = self.rows()
        changed = [name for name, version in list(self._changed.items()) if version > since]
        return self.version, [rows[name] for name in changed if name in rows], [n for n in changed if n not in rows]

    def _look(self) -> None:
        rows = {entry.name: plain_entry(entry) for entry in self._catalogue.entries()}
        different = [name for name in rows.keys() | self._rows.keys() if rows.get(name) != self._rows.get(name)]
        if different:
            self.version += 1
            self._changed |= dict.fromkeys(different, self.version)
        self._rows = rows
