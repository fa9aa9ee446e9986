"""What a run on a cluster did over time: `cluster_history.jsonl`, written beside `cluster.json`, read without JAX.

A line is `{"seconds", "queues", "restarts", "rate"}`: seconds that drivers have worked on the run, what waits in each
queue, restarts of workers so far, and how much workers finished in a second since the line before (env steps of a
training, tasks of a population). All of it goes on when the run does. The file is bounded: when it is full, every other
line goes, and lines become half as frequent.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.core.errors import RunError
from shoal.core.files import open_file, read_lines, write_atomically
from shoal.core.schema import Maybe, Whole, check

FILE = "cluster_history.jsonl"
MOST_LINES = 1000
EVERY = 2.0
"""Seconds between two lines at first."""
MOST_QUEUES = 32
LINE = {"seconds": float, "queues": {str: Whole()}, "restarts": Whole(), "rate": Maybe(float)}


def read_cluster_history(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run, in order; those up to the first that is damaged. Empty if there are none."""
    path, found = folder / FILE, []
    if not os.path.lexists(path):
        return found
    try:
        for line in read_lines(path):
            check(line, LINE, "line")
            if len(line["queues"]) > MOST_QUEUES or (found and line["seconds"] < found[-1]["seconds"]):
                break
            found.append(line)
            if len(found) == MOST_LINES:
                break
    except ValueError:  # what a driver that was killed left half-written, or what is none of ours
        pass
    return found


class ClusterHistory:
    """Adds lines to the history of a run. `add` raises `OSError` or `RunError` if it cannot be written."""

    def __init__(self, folder: Path):
        self.path = folder / FILE
        try:
            self.lines = read_cluster_history(folder)
        except (OSError, RunError):  # said again by whoever adds a line
            self.lines = []
        last = self.lines[-1] if self.lines else {"seconds": 0.0, "restarts": 0}
        self._seconds, self._restarts = last["seconds"], last["restarts"]
        self.every = max(EVERY, self._seconds / len(self.lines)) if self.lines else EVERY
        self._finished: dict[str, int] = {}
        self._rewrite = bool(self.lines)  # whatever stood behind them goes

    def add(
        self,
        seconds: float,
        queues: Mapping[str, int],
        restarts: int,
        finished: Mapping[str, int],
        last: bool = False,
    ) -> None:
        """Adds a line, if it is time, or if it is the last one of this driver.

        seconds, restarts: of this driver. finished: by worker, since it was started.
        """
        now = round(self._seconds + seconds, 2)
        before = self.lines[-1]["seconds"] if self.lines else 0.0
        if self.lines and now - before < self.every and not last:
            return
        known = [name for name in finished if name in self._finished]
        made = sum(max(0, finished[name] - self._finished[name]) for name in known)
        rate = round(made / (now - before), 3) if known and now > before else None
        self._finished = dict(finished)
        told = {"queues": dict(sorted(queues.items())[:MOST_QUEUES]), "restarts": self._restarts + restarts}
        self.lines.append({"seconds": now, **told, "rate": rate})
        if len(self.lines) >= MOST_LINES:
            self.lines, self.every, self._rewrite = self.lines[::2], 2 * self.every, True
        if self._rewrite:
            write_atomically(self.path, "".join(map(_text, self.lines)))
            self._rewrite = False
        else:
            with open_file(self.path, "ab") as file:
                file.write(_text(self.lines[-1]).encode())


def _text(line: Mapping[str, Any]) -> str:
    return json.dumps(line, separators=(",", ":")) + "\n"
