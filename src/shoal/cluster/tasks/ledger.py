"""The ledger: results of tasks on disk, without pickle. Arrays are checkpoints, the rest is lines of a journal.

A result's arrays are on disk under a number of their own before the journal names it, and the journal is on disk before
the result counts; concurrent reports share one flush. So after any crash a result is complete or absent. Forgotten
results are removed when the ledger is opened next.
"""

import contextlib
import json
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.cluster.services import journal
from shoal.cluster.services.journal import Journal
from shoal.core.errors import RunError
from shoal.core.files import make_folder, write_atomically
from shoal.core.schema import Whole, check
from shoal.training import checkpoint

ALL = 1 << 30
"""Number of checkpoints to keep: all, as each is a result."""
LINE = {"done?": str, "figures?": {str: Any}, "file?": Whole(), "forgot?": [str]}
"""Schema of a line of the journal: a finished task, or forgotten ones."""


class TaskResult(NamedTuple):
    """The result of a task: figures in plain JSON and, optionally, arrays."""

    id: str
    figures: dict[str, Any]
    leaves: Sequence[np.ndarray] | None = None


class Ledger:
    """Results in a folder. Opened by one process at a time; any number of its threads may write."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._lock = threading.Lock()
        # Numbers of files never repeat, even if a ledger that was given up still writes.
        self._number = time.time_ns() // 1000
        self._entries = self._read_back()
        self._journal = Journal(folder)
        self._closed = False

    def __contains__(self, id: str) -> bool:
        return id in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def write(self, results: Sequence[TaskResult]) -> list[dict[str, Any]]:
        """Returns when they are on disk. They do not count yet: see `count`."""
        try:
            entries = [self._store(result) for result in results]
            with self._lock:
                self._append(entries)
            self._journal.flush()
        except RunError:
            self._mend()
            raise
        return entries

    def count(self, entries: Iterable[dict[str, Any]]) -> None:
        """Makes written results count; of several for a task, the first."""
        for entry in entries:
            self._entries.setdefault(entry["done"], entry)

    def read(self, id: str) -> TaskResult:
        """A result that counts."""
        entry = self._entries[id]
        if "file" not in entry:
            return TaskResult(id, entry["figures"])
        arrays = checkpoint.read_arrays(self._path(entry))
        if set(arrays) != {str(i) for i in range(len(arrays))}:
            raise RunError(f"{self._path(entry)} is not a result of a task: remove {self.folder}, and resume")
        return TaskResult(id, entry["figures"], [arrays[str(i)] for i in range(len(arrays))])

    def forget(self, ids: Iterable[str]) -> None:
        """Drops results that are safe elsewhere."""
        gone = [entry for id in ids if (entry := self._entries.pop(id, None)) is not None]
        if gone:
            with self._lock:
                self._append([{"forgot": [entry["done"] for entry in gone]}])
            self._journal.flush()
        for entry in gone:
            if "file" in entry:
                self._path(entry).unlink(missing_ok=True)

    def close(self) -> None:
        """Stops all writing."""
        with self._lock:
            self._closed = True

    def _append(self, entries: Sequence[dict[str, Any]]) -> None:
        if self._closed:
            raise RunError(f"{self.folder} was given up")
        for entry in entries:
            self._journal.write(entry, wait=False)

    def _store(self, result: TaskResult) -> dict[str, Any]:
        """A result as a line of the journal, its arrays already on disk."""
        entry: dict[str, Any] = {"done": result.id, "figures": result.figures}
        if result.leaves is None:
            return entry
        with self._lock:
            self._number += 1
            number = self._number
        leaves = [_with_own_dtype(leaf) for leaf in result.leaves]
        checkpoint.save(self.folder, number, leaves, {"task": result.id}, keep=ALL)
        return entry | {"file": number}

    def _mend(self) -> None:
        """Truncates the journal after a failed write: nothing would be read after half a line."""
        with self._lock, contextlib.suppress(RunError):
            self._journal = Journal(self.folder)

    def _path(self, entry: dict[str, Any]) -> Path:
        return self.folder / f"step-{entry['file']:010d}.npz"

    def _read_back(self) -> dict[str, dict[str, Any]]:
        """Reads the journal and the files that it names; removes all others."""
        make_folder(self.folder)
        path = self.folder / journal.NAME
        lines = journal.read(path)
        for number, line in enumerate(lines):
            try:
                check(line, LINE, f"line {number + 1}")
                if "done" in line and "figures" not in line:
                    raise ValueError(f"line {number + 1} has no figures")
            except ValueError as error:
                raise RunError(
                    f"{path} is not a journal of tasks: {error}. Remove {self.folder}, and resume."
                ) from error
        found: dict[str, dict[str, Any]] = {}
        for line in lines:
            for id in line.get("forgot", []):
                found.pop(id, None)
            if "done" in line:
                found.setdefault(line["done"], line)
        found = {id: entry for id, entry in found.items() if "file" not in entry or self._path(entry).exists()}
        if len(found) < len(lines):
            write_atomically(path, "".join(json.dumps(entry) + "\n" for entry in found.values()))
        kept = {self._path(entry) for entry in found.values() if "file" in entry}
        for other in self.folder.glob("step-*.npz*"):
            if other not in kept:
                other.unlink(missing_ok=True)
        return found


def _with_own_dtype(leaf: np.ndarray) -> np.ndarray:
    """The same array with numpy's own dtype object, which deserialisation may have recreated."""
    leaf = np.asarray(leaf)
    return leaf.view(np.dtype(leaf.dtype.name))
