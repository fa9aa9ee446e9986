"""The write-ahead journal of a run: `journal.jsonl`, one JSON object per line, on disk before it counts.

Lines are appended; many writers in one process share one flush to disk (group commit). A line that a crash has cut
short, and what follows it, is dropped when the journal is opened again.
"""

import json
import os
import threading
from pathlib import Path
from typing import Any

from shoal.core.errors import RunError
from shoal.core.files import open_descriptor, read_lines, write_atomically

NAME = "journal.jsonl"


class Journal:
    """Opened by one process at a time. entries: what was there when it was opened, and what has been written since."""

    def __init__(self, folder: str | Path):
        self.path = Path(folder) / NAME
        self.entries = read(self.path)
        self._lock, self._sync = threading.Lock(), threading.Lock()
        self._written = self._safe = 0
        try:
            text = "".join(json.dumps(entry) + "\n" for entry in self.entries)
            if self.path.exists() and self.path.stat().st_size != len(text):  # its end was cut short or damaged
                write_atomically(self.path, text)
            self._file = open_descriptor(self.path, "ab")
        except OSError as error:
            raise self._error(error) from error

    def write(self, entry: dict[str, Any], wait: bool = True) -> None:
        """Appends an entry; with `wait`, returns when it is on disk."""
        with self._lock:
            self.entries.append(entry)
            try:
                os.write(self._file, (json.dumps(entry) + "\n").encode())
            except OSError as error:
                raise self._error(error) from error
            self._written += 1
            number = self._written
        if wait:
            self.flush(number)

    def flush(self, number: int | None = None) -> None:
        """Waits until everything up to an entry is on disk; the first caller flushes for all that wait."""
        number = self._written if number is None else number
        with self._sync:
            if self._safe >= number:
                return
            upto = self._written
            try:
                os.fsync(self._file)
            except OSError as error:
                raise self._error(error) from error
            self._safe = upto

    def close(self) -> None:
        """Closes the journal; later writes fail."""
        if getattr(self, "_file", -1) >= 0:
            os.close(self._file)
            self._file = -1

    __del__ = close

    def _error(self, error: OSError) -> RunError:
        reason = error.strerror or error
        return RunError(f"cannot write {self.path}: {reason}. Make room or give write permission, then resume.")


def read(path: Path) -> list[dict[str, Any]]:
    """The entries of a journal, up to the first that is damaged."""
    return list(read_lines(path)) if os.path.lexists(path) else []
