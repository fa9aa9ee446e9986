"""Reading `metrics.jsonl` for those who look at many runs: a digest from a few places of the file, its newest lines,
and its columns, averaged as they are read.

A run may write a hundred thousand lines and two hundred runs be looked at, so a digest parses the ends of a large
file and lines at even distances between them; a small file is parsed whole. The best return alone is that of all
lines: it is searched for in the bytes, some megabytes at a time, and when the file has grown, only in what is new.
Columns are read once, in the order of the file, and extended when it grows: they hold at most `2 * BUCKETS` means of
neighbouring lines, however many lines there are.
"""

import dataclasses
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from shoal.core.errors import OptionError, RunError, unknown_name
from shoal.core.files import MOST_LINE, open_file, parse_json
from shoal.training.metrics import MOST_LETTERS, MOST_NAMES

SMALL = 1 << 17
"""The size in bytes up to which a digest reads a file whole."""
CURVE = 24
"""Points of a digest's curve, and places between the ends of a larger file at which a digest reads lines."""
WINDOW = 1 << 10
TAIL = 1 << 13
"""Bytes that are read at one place, and at the end, where lines of usual length are meant to lie."""
CHUNK = 1 << 20
"""Bytes that are read and parsed at once."""
BUCKETS = 2048
MOST_CELLS = 1 << 24
"""The most numbers that the columns of a run may hold."""
POSITION = ("update", "env_steps", "iteration", "seconds")
"""Entries of a line that say where it is, and are no metrics."""
RETURN = re.compile(rb'"return": ?(\[[^\[\]{}"]{0,100000}\]|[-+.0-9eE]{1,40})')
"""The return in the text of a line."""
MOST_SIDES = 64
CANCEL = 1e-4
"""Returns that add up to less than this part of the largest are those of sides of which one wins what others lose."""
Line = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Digest:
    """What a listing says of a run's metrics. Of a large file, the curve is that of some lines at even distances.

    If sides win what others lose, the sum of their returns says nothing: there are no last and best return then, but
    those of the sides, and the curve is that of the first one.
    """

    update: int = 0  # of a population, the iteration
    env_steps: int = 0
    seconds: float = 0.0
    lanes: int = 1  # trainings side by side: seeds, points of a sweep, or members
    last_return: float | None = None
    best_return: float | None = None
    curve: tuple[float, ...] = ()  # returns from the first line to the last
    nash_conv: float | None = None
    gains: tuple[float, ...] = ()  # of the newest iterations of a population, each the largest of its players
    """of those that were made without uniform play; infinity for the others"""
    sides: tuple[tuple[str, float], ...] = ()  # the last returns of sides whose returns add up to 0
    searched: int = 0  # bytes at the beginning of a large file in which the best return was searched for
    is_searched: bool = True  # whether that is all of it; the best return may be larger otherwise


def read_digest(path: Path, newest: int = 1, before: Digest | None = None) -> Digest:
    """The digest of a file of metrics; newest: how many of the last lines matter (see `Digest.gains`).

    before: the digest of the same file when it was shorter, so that its best return is not searched for again.
    """
    with open_file(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= SMALL:
            lines = last = _parse(file.read(SMALL))
            return _digest(lines, last[-max(newest, 1) :])
        last = _last_lines(file, size)
        lines = [*_sample(file, size, CURVE), *last[-1:]]
    found = _digest(lines, last[-max(newest, 1) :])
    if found.sides:
        return found
    known = before if before is not None and before.searched <= size else Digest()
    best = _larger(found.best_return, known.best_return if known.searched else None)
    return dataclasses.replace(found, best_return=best, searched=known.searched, is_searched=False)


def search_best(path: Path, digest: Digest, most: int) -> Digest:
    """The digest with the best return of about so many bytes more, all lines of which are looked at."""
    best, offset, end = digest.best_return, digest.searched, digest.searched + most
    with open_file(path, "rb") as file:
        while offset < end:
            text = os.pread(file.fileno(), CHUNK, offset)
            while len(text) % CHUNK == 0 and text and b"\n" not in text and len(text) < MOST_LINE:
                more = os.pread(file.fileno(), CHUNK, offset + len(text))
                if not more:
                    break
                text += more
            whole = text[: text.rfind(b"\n") + 1]
            if not whole:
                return dataclasses.replace(digest, best_return=best, searched=offset, is_searched=True)
            best = _larger(best, _best_return(whole))
            offset += len(whole)
    return dataclasses.replace(digest, best_return=best, searched=offset)


def _best_return(text: bytes) -> float | None:
    """The best return in the text of whole lines."""
    best = None
    for found in RETURN.findall(text):
        try:
            value = mean_of(json.loads(found) if found[:1] == b"[" else float(found))
        except ValueError:  # a damaged line
            continue
        best = _larger(best, value)
    return best


def _larger(one: float | None, other: float | None) -> float | None:
    return other if one is None or (other is not None and other > one) else one


def _digest(lines: Sequence[Line], last: Sequence[Line]) -> Digest:
    if not last:
        return Digest()
    returns = [value for line in lines if (value := mean_of(line.get("return"))) is not None]
    end = last[-1]
    width = max((len(value) for value in end.values() if isinstance(value, list) and "iteration" not in end), default=1)
    sides = _opposed_sides(lines)
    curve = (
        [value for line in lines if (value := mean_of(line.get(f"return/{sides[0][0]}"))) is not None] if sides else []
    )
    return Digest(
        update=_whole(end.get("update", end.get("iteration"))),
        env_steps=_whole(end.get("env_steps")),
        seconds=max(mean_of(end.get("seconds")) or 0.0, 0.0),
        lanes=width,
        last_return=returns[-1] if returns and not sides else None,
        best_return=max(returns) if returns and not sides else None,
        curve=_shorten(curve or returns, CURVE),
        nash_conv=mean_of(end.get("nash_conv")),
        gains=tuple(_gain(line) for line in last) if "iteration" in end else (),
        sides=sides,
    )


def _opposed_sides(lines: Sequence[Line]) -> tuple[tuple[str, float], ...]:
    """The last returns of all sides by name, if in every line they add up to 0 without being 0; none otherwise."""
    found: dict[str, float] = {}
    for line in lines:
        total = mean_of(line.get("return"))
        if total is None:  # no episode has ended
            continue
        now = {name: mean_of(value) for name, value in line.items() if name.startswith("return/")}
        sides = {name[7:][:MOST_LETTERS]: value for name, value in now.items() if value is not None}
        largest = max(map(abs, sides.values()), default=0.0)
        if not 2 <= len(sides) <= MOST_SIDES or abs(total) > CANCEL * max(largest, 1.0):
            return ()
        found = sides if largest or not found else found
    return tuple(found.items()) if any(found.values()) else ()


def _gain(line: Line) -> float:
    """The largest gain of an iteration; infinity if its responses were not to the mixtures alone."""
    gains = line.get("gain")
    numbers = [gain for gain in gains if _is_number(gain)] if isinstance(gains, list) else []
    return max(numbers) if numbers and not line.get("uniform_share", line.get("breadth")) else math.inf


def mean_of(value: Any) -> float | None:
    """The mean over seeds of one entry of a line; None if it has no number."""
    numbers = [one for one in (value if isinstance(value, list) else [value]) if _is_number(one)]
    return sum(numbers) / len(numbers) if numbers else None


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -1e300 < value < 1e300


def _whole(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**62 else 0


def _shorten(values: Sequence[float], count: int) -> tuple[float, ...]:
    """At most so many values: means of neighbours, rounded as they are for a picture."""
    count = min(count, len(values))
    edges = [number * len(values) // count for number in range(count + 1)] if count else []
    parts = [values[start:end] for start, end in itertools.pairwise(edges)]
    return tuple(float(f"{sum(part) / len(part):.6g}") for part in parts)


def _sample(file: IO[bytes], size: int, count: int) -> list[Line]:
    """So many lines at even distances, with the first. The system is told that what lies between is not wanted."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
    head = os.pread(file.fileno(), WINDOW, 0)
    if b"\n" not in head:
        head = os.pread(file.fileno(), TAIL, 0)
    first = head[: head.find(b"\n") + 1]
    found, window = _parse(first), max(WINDOW, 3 * len(first))
    for number in range(1, count):
        text = os.pread(file.fileno(), window, size * number // count)
        begin = text.find(b"\n") + 1
        end = text.find(b"\n", begin)
        if begin and end > 0:
            found += _parse(text[begin : end + 1])
    return found


def _last_lines(file: IO[bytes], size: int) -> list[Line]:
    """The whole lines in the last part of a file, which is taken larger until there is one."""
    part = TAIL
    while True:
        start = max(size - part, 0)
        text = os.pread(file.fileno(), size - start, start)
        found = _parse(text if start == 0 else text[text.find(b"\n") + 1 :])
        if found or start == 0 or part >= MOST_LINE:
            return found
        part *= 8


def _parse(text: bytes) -> list[Line]:
    """The lines of a text up to the first that is damaged; one that is cut short at its end is left out."""
    return list(_objects(text[: text.rfind(b"\n") + 1]))


def _objects(text: bytes) -> Iterator[Line]:
    """The objects of whole lines: all at once if they are sound, which is faster, or else one by one."""
    body = text.rstrip(b"\n")
    if not body:
        return
    try:
        lines = json.loads(b"[" + body.replace(b"\n", b",") + b"]")
        if len(lines) == body.count(b"\n") + 1 and all(type(line) is dict for line in lines):
            yield from lines
            return
    except (ValueError, RecursionError):
        pass
    for raw in body.split(b"\n"):
        try:
            line = parse_json(raw)
        except ValueError:
            return
        if not isinstance(line, dict):
            return
        yield line


def lines_after(path: Path, offset: int) -> tuple[list[Line], int]:
    """The whole lines behind a place of a file, a few megabytes at most, and the place behind them.

    A file that has become shorter was written anew by a run that goes on: it is read from its beginning.
    """
    with open_file(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        offset = offset if 0 <= offset <= size else 0
        text = os.pread(file.fileno(), 4 * CHUNK, offset)
        if len(text) == 4 * CHUNK and b"\n" not in text:
            text = os.pread(file.fileno(), MOST_LINE, offset)
    whole = text[: text.rfind(b"\n") + 1]
    found = list(_objects(whole))
    read = sum(len(line) + 1 for line in whole.split(b"\n")[: len(found)])
    return [_harmless(line) for line in found], offset + read


def _harmless(value: Any) -> Any:
    """Plain data in which numbers are finite: JSON knows no others."""
    if isinstance(value, dict):
        return {key: _harmless(entry) for key, entry in value.items() if len(key) <= MOST_LETTERS}
    if isinstance(value, list):
        return [_harmless(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclasses.dataclass
class Column:
    """Sums and counts of a metric in each bucket, `[buckets, seeds]`; its first and its last place and value."""

    sums: np.ndarray
    counts: np.ndarray
    first: tuple[float, float, np.ndarray] | None = None  # env steps, seconds, values
    last: tuple[float, float, np.ndarray] | None = None

    def widen(self, buckets: int, width: int) -> None:
        rows, columns = self.sums.shape
        if buckets > rows or width > columns:
            room = max(buckets, rows), max(width, columns)
            self.sums, self.counts = (_padded(array, room) for array in (self.sums, self.counts))

    def add(self, place: np.ndarray, steps: np.ndarray, seconds: np.ndarray, values: np.ndarray) -> None:
        known = ~np.isnan(values)
        where = slice(0, values.shape[1])
        np.add.at(self.sums[:, where], place, np.where(known, values, 0.0))
        np.add.at(self.counts[:, where], place, known)
        rows = np.flatnonzero(known.any(axis=1))
        if len(rows):
            ends = [(float(steps[row]), float(seconds[row]), values[row]) for row in (rows[0], rows[-1])]
            self.first, self.last = self.first or ends[0], ends[1]

    def merge(self) -> None:
        self.sums, self.counts = _pairs(self.sums), _pairs(self.counts)


class Columns:
    """All metrics of a file: read as far as it is written, and further when it has grown."""

    def __init__(self, path: Path):
        self.path = path
        self.offset = self.lines = 0
        self.size = 1  # lines in a bucket
        self.damaged = False  # a line cannot be read: what follows is not read either
        self.position = {name: Column(np.zeros((0, 1)), np.zeros((0, 1))) for name in ("env_steps", "seconds")}
        self.metrics: dict[str, Column] = {}

    @property
    def cells(self) -> int:
        """The numbers that are kept."""
        return sum(column.sums.size + column.counts.size for column in self.metrics.values())

    def advance(self) -> None:
        """Reads what was written since."""
        with open_file(self.path, "rb") as file:
            while not self.damaged:
                text = os.pread(file.fileno(), CHUNK, self.offset)
                while len(text) % CHUNK == 0 and text and b"\n" not in text and len(text) < MOST_LINE:
                    text += os.pread(file.fileno(), CHUNK, self.offset + len(text))
                whole = text[: text.rfind(b"\n") + 1]
                if not whole:
                    return
                found = list(_objects(whole))
                self.damaged = len(found) < whole.rstrip(b"\n").count(b"\n") + 1
                self.offset += len(whole)
                if found:
                    self._add(found)

    def sample(self, count: int) -> None:
        """Takes about so many lines at even distances, the first and the last among them, for all that there are."""
        with open_file(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            found = [*_sample(file, size, count), *_last_lines(file, size)[-1:]]
        different = [line for line, before in zip(found, [None, *found], strict=False) if line != before]
        if different:
            self._add(different)

    def _add(self, lines: Sequence[Line]) -> None:
        place = (self.lines + np.arange(len(lines))) // self.size
        self.lines += len(lines)
        buckets = int(place[-1]) + 1
        numbers = np.arange(self.lines - len(lines), self.lines, dtype=np.float64)
        steps = _table([line.get("env_steps", line.get("iteration")) for line in lines], numbers)
        seconds = _table([line.get("seconds") for line in lines], np.full(len(lines), np.nan))
        for name, values in (("env_steps", steps), ("seconds", seconds)):
            self._into(self.position[name], buckets, place, steps, seconds, values[:, None])
        for name in dict.fromkeys(itertools.chain.from_iterable(lines)):
            values = None if name in POSITION else _values([line.get(name) for line in lines])
            if values is None or len(name) > MOST_LETTERS or not name.isprintable():
                continue
            if name not in self.metrics:
                self.metrics[name] = Column(np.zeros((buckets, 1)), np.zeros((buckets, 1)))
            self._into(self.metrics[name], buckets, place, steps, seconds, values)
        cells = sum(max(column.sums.shape[1], 1) for column in self.metrics.values()) * buckets
        if len(self.metrics) > MOST_NAMES or cells > MOST_CELLS:
            raise RunError(f"{self.path} is not what a run writes: {len(self.metrics):,} metrics, {cells:,} numbers")
        while buckets > 2 * BUCKETS:
            for column in (*self.position.values(), *self.metrics.values()):
                column.widen(buckets, 1)
                column.merge()
            self.size, buckets = 2 * self.size, -(-buckets // 2)

    @staticmethod
    def _into(column: Column, buckets: int, place: np.ndarray, steps: Any, seconds: Any, values: np.ndarray) -> None:
        column.widen(buckets, values.shape[1])
        column.add(place, steps, seconds, values)

    def series(self, metric: str, points: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Env steps `[n]`, seconds `[n]` and values `[n, seeds]` of a metric, at most so many of them."""
        if points < 2:
            raise OptionError(f"series: points must be at least 2, got {points}")
        if metric not in self.metrics:
            raise unknown_name("metric", metric, self.metrics)
        column = self.metrics[metric]
        rows = np.flatnonzero(column.counts.any(axis=1))
        if not len(rows) or column.first is None or column.last is None:
            return np.zeros(0), np.zeros(0), np.zeros((0, column.sums.shape[1]))
        exact = self.size == 1 and len(rows) <= points
        starts = np.arange(len(rows)) if exact else np.arange(points - 2) * len(rows) // max(points - 2, 1)
        starts = np.unique(starts)
        steps, seconds, values = (_means(each, rows, starts) for each in (*self.position.values(), column))
        steps, seconds = steps[:, 0], seconds[:, 0]
        if exact:
            return steps, seconds, values
        inner = (steps > column.first[0]) & (steps < column.last[0])
        width = values.shape[1]
        ends = [[end[0] for end in (column.first, column.last)], [end[1] for end in (column.first, column.last)]]
        sides = [_padded(end[2][None], (1, width), np.nan) for end in (column.first, column.last)]
        return (
            np.concatenate([ends[0][:1], steps[inner], ends[0][1:]]),
            np.concatenate([ends[1][:1], seconds[inner], ends[1][1:]]),
            np.concatenate([sides[0], values[inner], sides[1]]),
        )


def _means(column: Column, rows: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Means over groups of buckets; NaN where there is no value."""
    if not len(starts):
        return np.zeros((0, column.sums.shape[1]))
    column.widen(int(rows[-1]) + 1, 1)
    sums = np.add.reduceat(column.sums[rows], starts, axis=0)
    counts = np.add.reduceat(column.counts[rows], starts, axis=0)
    with np.errstate(invalid="ignore"):
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _table(values: Iterable[Any], missing: np.ndarray) -> np.ndarray:
    """One number per line; for those that are no number, another."""
    return np.array([value if _is_number(value) else other for value, other in zip(values, missing, strict=True)])


def _values(values: list[Any]) -> np.ndarray | None:
    """The values of a metric in some lines, `[lines, seeds]`, NaN for none; None if it is no metric."""
    kinds = set(map(type, values))
    try:
        if kinds <= {int, float, type(None)}:
            return _tamed(np.array(values, np.float64)[:, None])
        if not kinds <= {int, float, type(None), list}:
            return None
        lists = values if kinds == {list} else [value if type(value) is list else [value] for value in values]
        if not set(map(type, itertools.chain.from_iterable(lists))) <= {int, float, type(None)}:
            return None
        widths = set(map(len, lists))
        width = max(widths)
        if len(lists) * width > MOST_CELLS:
            return None
        even = lists if len(widths) == 1 else [value + [None] * (width - len(value)) for value in lists]
        return _tamed(
            np.fromiter(itertools.chain.from_iterable(even), np.float64, len(even) * width).reshape(-1, width)
        )
    except OverflowError:  # whole numbers of any length
        return None


def _tamed(values: np.ndarray) -> np.ndarray:
    return np.where(np.abs(values) < 1e300, values, np.nan)


def _padded(array: np.ndarray, shape: tuple[int, int], filling: float = 0.0) -> np.ndarray:
    rows, columns = shape[0] - array.shape[0], shape[1] - array.shape[1]
    return np.pad(array, ((0, rows), (0, columns)), constant_values=filling)


def _pairs(array: np.ndarray) -> np.ndarray:
    """Sums of neighbouring rows."""
    even = _padded(array, (array.shape[0] + array.shape[0] % 2, array.shape[1]))
    return even[0::2] + even[1::2]


def metric_names(columns: Mapping[str, Column]) -> tuple[str, ...]:
    """The names of all metrics, returns first."""
    return tuple(sorted(columns, key=lambda name: (not name.startswith("return"), name)))
