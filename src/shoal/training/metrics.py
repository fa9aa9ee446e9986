"""Metrics of a run: per-update rows from the device become lines of `metrics.jsonl` and TensorBoard events.

A line covers a fixed number of updates, whatever the size of the calls that made them, so a resumed run writes the same
lines as an uninterrupted one (except for times).
"""

import contextlib
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from shoal.core.errors import RunError
from shoal.core.files import check_folder, open_file, read_lines, write_atomically
from shoal.core.schema import Maybe, Whole, check

LINE = {"update": Whole(), "env_steps": Whole()}
"""Entries of every line of `metrics.jsonl`. All others are a number, or one number per seed; None if missing."""
COLUMNS = ("update", "env_steps", "seed", "name", "value")
"""Columns of metrics as a tidy table: one row per metric, seed and line."""
MOST_CELLS = 1 << 25
"""The most numbers in the table of all lines, names and seeds that is read from a file."""
MOST_NAMES = 4096
MOST_LETTERS = 200
"""The most metrics of a run, and the most letters of a metric's name."""


class Aggregator:
    """Turns rows of the metrics table, `[updates, (seeds,) columns]`, into lines over `every` updates each.

    Between two lines it keeps sums only, adding one row at a time: so its part of a checkpoint does not grow, and the
    sums are the same to the bit however the rows are grouped.
    """

    def __init__(self, names: tuple[str, ...], every: int, steps_per_update: int):
        self.names = names
        self.every = every
        self.steps_per_update = steps_per_update
        self.update = self.count = 0
        self.sums = np.zeros(0)

    def add(self, rows: np.ndarray, last_update: int) -> list[dict[str, Any]]:
        """The lines that these rows complete."""
        lines = []
        for row in np.asarray(rows, np.float64):
            self.update += 1
            self.sums = self.sums + row if self.count else row
            self.count += 1
            if self.update % self.every == 0 or self.update == last_update:
                lines.append(self._line())
        return lines

    def updates_of(self, env_steps: int) -> int:
        """Updates of whole lines that make at least so many env steps; 0 for none."""
        return -(-env_steps // (self.steps_per_update * self.every)) * self.every

    def pending(self) -> dict[str, Any]:
        """The unfinished line as plain data for a checkpoint; None for sums that are not finite."""
        sums = [each if math.isfinite(each) else None for each in self.sums.ravel().tolist()] if self.count else []
        return {"count": self.count, "sums": sums}

    def restore(self, update: int, pending: Any, last_update: int, shape: tuple[int, ...] = ()) -> None:
        """Continues after that update; shape: of the seeds. Raises `ValueError` if the data does not fit.

        pending: as above or, in checkpoints of early versions, the rows themselves.
        """
        count = 0 if update == last_update else update % self.every
        if isinstance(pending, dict) and pending.get("count") == 0:
            count = 0  # a line was just completed, also if the run was finished and is trained further
        shape = (*shape, len(self.names))
        early = isinstance(pending, list)
        if early:
            try:
                rows = np.array(pending, np.float32) if pending else np.zeros((0, *shape), np.float32)
            except TypeError as error:
                raise ValueError("meta.pending must be rows of numbers") from error
            if rows.shape != (count, *shape):
                raise ValueError(f"meta.pending must be {[count, *shape]} numbers")
            self.update, self.count = update - count, 0
            self.add(rows, last_update)
            return
        check(pending, {"count": Whole(count, count), "sums": [Maybe(float)]}, "meta.pending")
        if len(pending["sums"]) != (math.prod(shape) if count else 0):
            raise ValueError(f"meta.pending.sums must be {list(shape)} numbers")
        self.update, self.count = update, count
        self.sums = np.array(pending["sums"], np.float64).reshape(shape) if count else np.zeros(0)

    def _line(self) -> dict[str, Any]:
        count, self.count = self.count, 0
        column = {name: self.sums[..., i] for i, name in enumerate(self.names)}
        episodes = column["episodes"]
        line: dict[str, Any] = {"update": self.update, "env_steps": self.update * self.steps_per_update}
        line["episodes"] = episodes.tolist()
        returns = {name: total for name, total in column.items() if name.startswith("return/")}
        sums = returns | {"return": sum(returns.values()), "length": column["length"]}
        with np.errstate(invalid="ignore", divide="ignore"):
            means = {name: total / episodes for name, total in sums.items()}
        rest = {n: v / count for n, v in column.items() if n not in ("episodes", "length", "fault", *returns)}
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
            self._file: TextIO = io.TextIOWrapper(open_file(self.path, "ab"), "utf-8")  # open for the whole run
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

    def saved(self) -> None:
        """Nothing is left to write: every line is on its way to the disk when it is made."""

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
    """The lines of a `metrics.jsonl` up to the first one that a crash cut short or damaged.

    Raises `RunError` for more than a run writes: in a table, each metric is as wide as its longest list.
    """
    lines, widths = [], {}
    for line in read_lines(path):
        try:
            check(line, LINE, "line")
        except ValueError:
            break
        if not all(map(_is_metric, line.values())):
            break
        lines.append(line)
        for name, value in line.items():
            width = len(value) if isinstance(value, list) else 1
            if width > widths.get(name, 0):
                _check_name(path, name)
                widths[name] = width
        if len(widths) > MOST_NAMES or len(lines) * sum(widths.values()) > MOST_CELLS:
            raise RunError(
                f"{path} is not what a run writes: line {len(lines)} makes it a table of {len(widths):,} metrics with "
                f"up to {max(widths.values()):,} numbers each in a line, more than is read. Move it away to continue."
            )
    return lines


def tidy_rows(line: Mapping[str, Any], seeds: Sequence[int]) -> Iterator[tuple[int, int, int, str, float]]:
    """The rows of a tidy table for one line (see `COLUMNS`). A value that all seeds share is repeated for each.

    For lists over the members of a population instead of seeds, `seed` is the member's number.
    """
    for name, value in line.items():
        if name in LINE:
            continue
        values = value if isinstance(value, list) else [value] * len(seeds)
        lanes = seeds if len(values) == len(seeds) else range(len(values))
        for seed, one in zip(lanes, values, strict=True):
            if one is not None:
                yield line["update"], line["env_steps"], seed, name, one


def tidy(lines: Iterable[Mapping[str, Any]], seeds: Sequence[int]) -> dict[str, np.ndarray]:
    """Lines of metrics as a tidy table, one list per column: `pandas.DataFrame(tidy(lines, seeds))`."""
    rows = [row for line in lines for row in tidy_rows(line, seeds)]
    kinds = (np.int64, np.int64, np.int64, object, np.float64)
    return {name: np.array([row[i] for row in rows], kinds[i]) for i, name in enumerate(COLUMNS)}


def _check_name(path: Path, name: str) -> None:
    if len(name) > MOST_LETTERS or not name.isprintable():
        raise RunError(
            f"{path} is not what a run writes: it has a metric named {name[:40]!a}, {len(name):,} letters. Names "
            f"have at most {MOST_LETTERS} that can be printed. Move it away to continue."
        )


def _is_metric(entry: Any) -> bool:
    """A number or None, or a list with one per seed."""
    values = entry if isinstance(entry, list) else [entry]
    return all(value is None or (type(value) in (int, float) and not abs(value) > 1e300) for value in values)


def _board(folder: Path) -> Any:
    check_folder(folder / "events")
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
