"""Metrics of a run: per-update rows from the device become lines of `metrics.jsonl` and TensorBoard events.

A line covers a fixed number of updates, whatever the size of the calls that made them, so a resumed run writes the
same lines as an uninterrupted one (but for times).
"""

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.errors import RunError
from shoal.core.files import write_atomically


class Aggregator:
    """Turns rows of the metrics table, `[updates, (seeds,) columns]`, into lines over `every` updates each."""

    def __init__(self, names: tuple[str, ...], every: int, steps_per_update: int, update: int = 0):
        self.names = names
        self.every = every
        self.steps_per_update = steps_per_update
        self.update = update
        self.pending: list[np.ndarray] = []

    def add(self, rows: np.ndarray, last_update: int) -> list[dict[str, Any]]:
        """The lines that these rows complete."""
        lines = []
        for row in rows:
            self.update += 1
            self.pending.append(row)
            if self.update % self.every == 0 or self.update == last_update:
                lines.append(self._line())
        return lines

    def _line(self) -> dict[str, Any]:
        rows, self.pending = np.stack(self.pending).astype(np.float64), []
        column = {name: rows[..., i] for i, name in enumerate(self.names)}
        episodes = column["episodes"].sum(0)
        line: dict[str, Any] = {"update": self.update, "env_steps": self.update * self.steps_per_update}
        line["episodes"] = episodes.tolist()
        returns = {name: values.sum(0) for name, values in column.items() if name.startswith("return/")}
        sums = returns | {"return": sum(returns.values()), "length": column["length"].sum(0)}
        with np.errstate(invalid="ignore", divide="ignore"):
            means = {name: total / episodes for name, total in sums.items()}
        rest = {n: v.mean(0) for n, v in column.items() if n not in ("episodes", "length", "fault", *returns)}
        for name, value in (means | rest).items():
            line[name] = _plain(value)
        return line


class MetricsLog:
    """Appends lines to `metrics.jsonl` and, if tensorboardX is installed, TensorBoard events."""

    def __init__(self, folder: Path, keep_until: int | None = None):
        """Lines after the update `keep_until` are dropped: they are about to be written again by a resumed run."""
        self.path = folder / "metrics.jsonl"
        with self._explained():
            if keep_until is not None and self.path.exists():
                kept = [line for line in read_metrics(self.path) if line["update"] <= keep_until]
                write_atomically(self.path, "".join(json.dumps(line) + "\n" for line in kept))
            self._file = open(self.path, "a")  # noqa: SIM115, held open for the whole run
            self._board = _board(folder)

    def write(self, line: dict[str, Any]) -> None:
        with self._explained():
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
            if self._board is not None:
                for name, value in line.items():
                    values = [v for v in (value if isinstance(value, list) else [value]) if v is not None]
                    if values and name not in ("update", "env_steps"):
                        self._board.add_scalar(name, sum(values) / len(values), line["env_steps"])  # mean over seeds

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            raise RunError(
                f"cannot write metrics to {self.path}: {reason}. Make room or give write permission, then resume."
            ) from error

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a full disk has been reported by then
            self._file.close()
            if self._board is not None:
                self._board.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl`; what a crash has cut short or damaged, and what follows it, is left out."""
    lines = []
    for text in path.read_text(errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            break
        if not isinstance(line, dict) or not isinstance(line.get("update"), int):
            break
        lines.append(line)
    return lines


def _board(folder: Path) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "events"), flush_secs=10)


def _plain(value: Any) -> Any:
    value = np.asarray(value, np.float64)
    if value.ndim:
        return [_plain(entry) for entry in value]
    return round(float(value), 6) if math.isfinite(value) else None
