"""A catalogue of the runs below a folder: lists them, reads their settings and metrics, keeps tags and notes.

Every run stays what it is, a folder: there is no database, and nothing is written into one but `notes.json`. Folders
may come from anyone, be half written, or vanish while they are looked at. So no link is followed, files are read up to
a size, nothing that a folder names is imported, and a run that cannot be read is listed with the reason. JAX is not
needed.
"""

import dataclasses
import fnmatch
import os
import shutil
import stat
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from shoal.core.errors import RunError, require, unknown_name
from shoal.core.files import LEFTOVER
from shoal.training import run_kinds
from shoal.training.catalogue.facts import Facts, is_finished, read_facts
from shoal.training.catalogue.lines import Columns, Digest, Line, lines_after, metric_names, read_digest, search_best
from shoal.training.catalogue.notes import FILE as NOTES
from shoal.training.catalogue.notes import read_notes, write_notes
from shoal.training.catalogue.store import ABSENT, Record, Signature, Store
from shoal.training.folder_lock import is_locked, lock_folder
from shoal.training.outcome import FILE as OUTCOME
from shoal.training.outcome import read_outcome

STATUSES = ("running", "finished", "stopped", "failed", "unreadable")
METRICS = "metrics.jsonl"
DEEPEST = 6
"""Levels below the root at which runs are looked for."""
MOST_FOLDERS = 100_000
MOST_FILES = 10_000
"""Folders that are looked into at most, and files of a run that are counted for its size."""
READERS = 16
"""Runs that are read at the same time."""
MOST_TABLES, MOST_CELLS = 64, 1 << 23
"""Runs whose columns of metrics are kept in memory, and how many numbers of them all together."""
LONG = 1 << 22
"""Bytes of metrics above which a run is first shown by some of its lines."""
GLANCED = 240
"""How many those are."""
SEARCH_BYTES, ENTRY_BYTES = 1 << 24, 1 << 28
"""What is read for the best returns of long runs: by one listing, and for one run that is asked for by its name."""
SAVE_SECONDS = 10.0
"""Time between two writes of what is known of the runs, if it keeps changing."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One run of a catalogue.

    name: its folder, from the root. kind: see `run_kinds`. status: one of `STATUSES`; `stopped` is a run that can go
    on, `failed` one that an error ended. algorithm: by the name that it was asked for by, or that the field has for
    it; for an evolution its strategy, and `psro (ppo)` or `league (ppo)` for a population. env_steps: of each
    training, if several run side by side; 0 for a population, which counts iterations. update, num_updates: updates,
    generations or iterations, made and in all. Returns are means over seeds; of a very long run, the curve is that of
    lines at even distances. best_is_known: whether all lines have been searched for the best return; many long runs
    take several listings, or `Catalogue.entry`, and best_return may be too small until then. sides: where sides win
    what others lose, the last return of each, in place of last_return and best_return, as their sum is always 0.
    nash_conv: of a population. speed: env steps per second of all trainings together. started, updated: seconds since
    1970. problem: what is wrong with it, if anything. size: in bytes.
    """

    name: str
    path: Path
    kind: str
    status: str
    env: str = ""
    algorithm: str = ""
    num_seeds: int = 1
    env_steps: int = 0
    total_env_steps: int = 0
    last_return: float | None = None
    best_return: float | None = None
    speed: float | None = None
    started: float = 0.0
    updated: float = 0.0
    tags: tuple[str, ...] = ()
    note: str = ""
    problem: str | None = None
    size: int = 0
    update: int = 0
    num_updates: int = 0
    curve: tuple[float, ...] = ()
    sides: Mapping[str, float] = dataclasses.field(default_factory=dict)
    nash_conv: float | None = None
    best_is_known: bool = True

    @property
    def progress(self) -> float | None:
        """How much of it is done, from 0 to 1; None if it is not known."""
        return min(self.update / self.num_updates, 1.0) if self.num_updates else None

    def plain(self) -> dict[str, Any]:
        """The same as JSON data."""
        return dataclasses.asdict(self) | {"path": str(self.path), "progress": self.progress}


@dataclasses.dataclass(frozen=True)
class Series:
    """A metric along a run: `env_steps [n]`, `seconds [n]`, `values [n, seeds]`, all float64; NaN for no value.

    The last axis has an entry for every seed, point of a sweep or member. Of a population, whose lines count
    iterations, env_steps holds these.
    """

    env_steps: np.ndarray
    seconds: np.ndarray
    values: np.ndarray


class Catalogue:
    """The runs below a folder. What was read is kept in memory, and read again when its file has changed.

    cache: keep it on disk too, in the user's cache folder. Its methods may be called from several threads.
    """

    def __init__(self, root: str | Path = "runs", cache: bool = True):
        self.root = Path(root).absolute()
        self._lock = threading.RLock()
        self._reading = threading.Lock()  # of the tables: the list need not wait for a long run that is read
        self._store = Store(self.root) if cache else None
        self._records: dict[str, Record] | None = None
        self._tables: OrderedDict[str, tuple[Signature, Columns]] = OrderedDict()
        self._saved = 0.0

    def entries(
        self, pattern: str = "", env: str | None = None, algo: str | None = None, status: str | None = None
    ) -> list[Entry]:
        """The runs, those first that were written to last.

        pattern: a part of the name, or a pattern such as `tag_*`. env, algo, status: only those with this environment
        (or a pattern of it), algorithm or status.
        """
        if status is not None:
            require(status in STATUSES, "runs", "status", status, " or ".join(STATUSES))
        with self._lock:
            self._loaded()
            folders = list(self._scan())
            self._read_ahead(folders)
            self._search(folders, SEARCH_BYTES)
            found = [entry for name, files in folders if (entry := self._entry(name, files)) is not None]
            self._save({entry.name for entry in found})
        kept = [
            entry
            for entry in found
            if matches(pattern, entry.name)
            and (env is None or matches(env, entry.env))
            and (algo is None or matches(algo, entry.algorithm))
            and (status is None or entry.status == status)
        ]
        return sorted(kept, key=lambda entry: (-entry.updated, entry.name))

    def names(self) -> list[str]:
        """The names of all runs."""
        return [entry.name for entry in self.entries()]

    def entry(self, name: str) -> Entry:
        """One run by its name; an `UnknownNameError` with the nearest names if there is none."""
        folder = self.folder(name)
        name, files = _normal(name), _files(folder)
        with self._lock:
            self._record(name, files)
            self._search([(name, files)], ENTRY_BYTES)
            found = self._entry(name, files)
        if found is None:
            raise self._unknown(name)
        return found

    def folder(self, name: str) -> Path:
        """The folder of a run. No part of the name leads out of the root, also not by a link."""
        parts = PurePosixPath(name).parts
        path = self.root
        if not name or ".." in parts or PurePosixPath(name).is_absolute() or "\0" in name:
            raise self._unknown(name)
        for part in parts:
            path = path / part
            if not _is_folder(path):
                raise self._unknown(name)
        if not os.path.lexists(path / run_kinds.CONFIG):
            raise self._unknown(name)
        return path

    def config(self, name: str) -> dict[str, Any]:
        """What the `config.json` of a run holds, as plain data; its kind and types are checked, nothing is built."""
        folder = self.folder(name)
        kind, data = run_kinds.read_config(folder)
        try:
            read_facts(kind, data)
        except ValueError as error:
            raise RunError(f"{folder / run_kinds.CONFIG} is damaged: {error}") from error
        return dict(data)

    def metric_names(self, name: str) -> tuple[str, ...]:
        """The metrics of a run; returns come first."""
        with self._reading:
            return metric_names(self._columns(name).metrics)

    def series(self, name: str, metric: str, points: int = 500) -> Series:
        """A metric along a run, as at most so many points: means of neighbouring lines, between the first and the last.

        Lines without a value of it are left out.
        """
        with self._reading:
            return Series(*self._columns(name).series(metric, points))

    def glance(self, name: str, points: int = GLANCED) -> dict[str, Series] | None:
        """All metrics of a long run from some lines of it, at once: something to show while `series` reads the others.

        None if these have been read already, or soon are.
        """
        path = self.folder(name) / METRICS
        try:
            found = os.lstat(path)
            if found.st_size <= LONG or self._tables.get(name, (ABSENT,))[0][0] == _signature(found)[0]:
                return None
            rough = Columns(path)
            rough.sample(points)
        except OSError:
            return None
        return {metric: Series(*rough.series(metric, points + 1)) for metric in metric_names(rough.metrics)}

    def lines_after(self, name: str, offset: int) -> tuple[list[Line], int]:
        """The lines of metrics behind a byte offset, some megabytes at most, and the offset behind them.

        A line that is not complete yet waits. A file that was written anew, by a run that goes on, is read from its
        start: then the new offset may be smaller than the old one.
        """
        path = self.folder(name) / METRICS
        try:
            return lines_after(path, offset)
        except FileNotFoundError:
            return [], 0
        except OSError as error:
            raise RunError(f"cannot read {path}: {error.strerror or error}") from error

    def annotate(self, name: str, tags: Sequence[str] | None = None, note: str | None = None) -> None:
        """Replaces the tags, the note, or both, of a run; None: as before."""
        folder = self.folder(name)
        run_kinds.read_kind(folder)  # refuses what is not a run
        with self._lock:
            write_notes(folder, tags, note)

    def remove(self, name: str) -> None:
        """Removes a run folder with all that is in it. Refuses one that is running, and what is no run."""
        folder = self.folder(name)
        if folder == self.root:
            raise RunError(f"{folder} is where runs are looked for: name the folder above it to remove this run")
        run_kinds.read_kind(folder)
        with lock_folder(folder):
            aside = folder.with_name(f".folder-{uuid.uuid4().hex}{LEFTOVER}")
            try:
                folder.rename(aside)  # at once, so that nobody sees half a run
                shutil.rmtree(aside)
            except OSError as error:
                raise RunError(f"cannot remove {folder}: {error.strerror or error}") from error

    def _scan(self) -> Iterator[tuple[str, Mapping[str, os.stat_result]]]:
        """The names of all folders that have a `config.json`, and what is in them."""
        left, folders = MOST_FOLDERS, [(".", self.root, 0)]
        while folders and left:
            name, path, depth = folders.pop()
            left -= 1
            files = _files(path)
            if run_kinds.CONFIG in files:
                yield name, files
                if not self._may_hold_runs(name, files):
                    continue
            if depth < DEEPEST:
                inner = [part for part, found in files.items() if stat.S_ISDIR(found.st_mode) and part[0] != "."]
                folders += [(f"{name}/{part}".removeprefix("./"), path / part, depth + 1) for part in inner]

    def _may_hold_runs(self, name: str, files: Mapping[str, os.stat_result]) -> bool:
        """Whether a folder with a `config.json` is no run, but perhaps has runs below it."""
        if run_kinds.CHECKPOINTS in files:
            return False
        record = self._record(name, files)
        return record is None or record.foreign

    def _read_ahead(self, folders: Sequence[tuple[str, Mapping[str, os.stat_result]]]) -> None:
        """Reads all runs that are new or have changed, several at once: most of the time they wait for the disk."""
        records = self._loaded()
        new = [(name, files) for name, files in folders if not _is_current(records.get(name), files)]
        if len(new) > 1:
            with ThreadPoolExecutor(READERS) as pool:
                list(pool.map(lambda folder: self._record(*folder), new))

    def _search(self, folders: Sequence[tuple[str, Mapping[str, os.stat_result]]], most: int) -> None:
        """Searches on for the best returns of long runs; what is left waits for the next time."""
        records = self._loaded()
        for name, _ in folders:
            record = records.get(name)
            if most <= 0 or record is None or record.digest.is_searched:
                continue
            try:
                digest = search_best(self.root / name / METRICS, record.digest, most)
            except (RunError, OSError):  # it has vanished, and the next listing knows
                continue
            most -= digest.searched - record.digest.searched
            records[name] = dataclasses.replace(record, digest=digest)

    def _entry(self, name: str, files: Mapping[str, os.stat_result]) -> Entry | None:
        """The entry of a run; None if the folder is none, or has vanished."""
        record = self._record(name, files)
        if record is None or record.foreign:
            return None
        path = self.root if name == "." else self.root / name
        facts, digest, problem = record.facts, record.digest, record.problem
        tags, note = (), ""
        try:
            if NOTES in files:
                tags, note = read_notes(path)
        except RunError as error:
            problem = problem or str(error)
        written = [files[file].st_mtime for file in (run_kinds.CONFIG, METRICS, run_kinds.CHECKPOINTS) if file in files]
        common = {"updated": max(written), "tags": tags, "note": note, "size": _size(path, files)}
        if facts is None:
            return Entry(name, path, "", "unreadable", problem=problem, started=min(written), **common)
        ended = read_outcome(path) if OUTCOME in files else None
        total = facts.total_env_steps or (digest.env_steps // digest.update * facts.num_updates if digest.update else 0)
        return Entry(
            name=name,
            path=path,
            kind=facts.kind,
            status=_status(path, facts, digest, ended),
            env=facts.env,
            algorithm=facts.algorithm,
            num_seeds=facts.num_seeds,
            env_steps=digest.env_steps,
            total_env_steps=total,
            last_return=digest.last_return,
            best_return=digest.best_return,
            best_is_known=digest.is_searched,
            speed=digest.env_steps * digest.lanes / digest.seconds if digest.seconds and digest.env_steps else None,
            started=facts.started or files[run_kinds.CONFIG].st_mtime,
            problem=problem or ended,
            update=digest.update,
            num_updates=facts.num_updates,
            curve=digest.curve,
            sides=dict(digest.sides),
            nash_conv=digest.nash_conv,
            **common,
        )

    def _record(self, name: str, files: Mapping[str, os.stat_result]) -> Record | None:
        """What is known of a run: from memory or from the cache, if its files have not changed; None if it vanished."""
        records = self._loaded()
        if run_kinds.CONFIG not in files:
            return None
        known = records.get(name)
        if known is None or not _is_current(known, files):
            known = _read_record(self.root / name, _signatures(files), METRICS in files, known)
            if known is not None:
                records[name] = known
        return known

    def _loaded(self) -> dict[str, Record]:
        if self._records is None:
            self._records = self._store.load() if self._store else {}
        return self._records

    def _save(self, names: set[str]) -> None:
        """Keeps what was read for the next process; not again and again while a run is being written."""
        records = self._records or {}
        for name in [name for name, record in records.items() if name not in names and not record.foreign]:
            del records[name]
        now = time.monotonic()
        if self._store and (not self._saved or now - self._saved > SAVE_SECONDS):
            self._store.save(records)
            self._saved = now

    def _columns(self, name: str) -> Columns:
        """The columns of a run's metrics, read as far as they are written."""
        path = self.folder(name) / METRICS
        try:
            found = os.lstat(path)
        except OSError:
            return Columns(path)  # it has none yet
        signature = _signature(found)
        known, columns = self._tables.pop(name, (ABSENT, None))
        grown = columns is not None and known[0] == signature[0] and found.st_size >= columns.offset
        if columns is None or not grown or (known != signature and known[2] == signature[2]):
            columns = Columns(path)
        if known != signature or not columns.offset:
            try:
                columns.advance()
            except OSError as error:
                raise RunError(f"cannot read {path}: {error.strerror or error}") from error
        self._tables[name] = signature, columns
        cells = sum(kept.cells for _, kept in self._tables.values())
        while len(self._tables) > 1 and (len(self._tables) > MOST_TABLES or cells > MOST_CELLS):
            cells -= self._tables.popitem(last=False)[1][1].cells
        return columns

    def _unknown(self, name: str) -> Exception:
        return unknown_name(f"run in {self.root}", name, self.names())


def runs(root: str | Path = "runs", pattern: str = "", **only: str | None) -> list[Entry]:
    """The runs below a folder, those first that were written to last: `shoal.runs("runs", env="tag")`.

    pattern, env, algo, status: see `Catalogue.entries`.
    """
    return Catalogue(root).entries(pattern, **only)


def matches(pattern: str, text: str) -> bool:
    """Whether a text contains a pattern, or fits one such as `mpe/*`; capitals do not matter."""
    pattern, text = pattern.lower(), text.lower()
    return pattern in text or fnmatch.fnmatchcase(text, pattern)


def _read_record(
    path: Path, signatures: tuple[Signature, ...], has_metrics: bool, known: Record | None = None
) -> Record | None:
    """Reads a run, of which something may be known from before; None if it has vanished meanwhile."""
    facts, problem, digest = None, None, Digest()
    grown = (
        known is not None and known.signatures[1][0] == signatures[1][0] and known.signatures[1][2] < signatures[1][2]
    )
    try:
        kind, data = run_kinds.read_config(path)
        facts = read_facts(kind, data)
    except run_kinds.ForeignFolderError:
        return Record(signatures, foreign=True)
    except (RunError, ValueError, OSError) as error:
        if not os.path.lexists(path / run_kinds.CONFIG):
            return None
        problem = _one_line(error if isinstance(error, RunError) else f"its config.json is damaged: {error}")
    if facts is not None and has_metrics:
        try:
            patience = int(facts.stops.get("patience") or 1)
            digest = read_digest(path / METRICS, patience, known.digest if known is not None and grown else None)
        except (RunError, OSError, ValueError) as error:
            problem = _one_line(error)
    return Record(signatures, facts, digest, problem)


def _status(path: Path, facts: Facts, digest: Digest, ended: str | None) -> str:
    if is_locked(path):
        return "running"
    if is_finished(facts, digest):
        return "finished"
    return "stopped" if ended is None else "failed"


def _files(folder: Path) -> dict[str, os.stat_result]:
    """What is in a folder, without following links; nothing if it cannot be read."""
    found = {}
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    found[entry.name] = entry.stat(follow_symlinks=False)
                except OSError:  # it was removed meanwhile
                    continue
    except OSError:
        return {}
    return found


def _signatures(files: Mapping[str, os.stat_result]) -> tuple[Signature, ...]:
    """Of the files that a record is made of."""
    return tuple(_signature(files.get(file)) for file in (run_kinds.CONFIG, METRICS))


def _is_current(record: Record | None, files: Mapping[str, os.stat_result]) -> bool:
    return record is not None and record.signatures == _signatures(files)


def _signature(found: os.stat_result | None) -> Signature:
    return ABSENT if found is None else (found.st_ino, found.st_mtime_ns, found.st_size)


def _size(folder: Path, files: Mapping[str, os.stat_result]) -> int:
    """Bytes of all files of a run, of which most are in it or one folder below."""
    total, count, folders = 0, 0, [(folder, files)]
    while folders and count < MOST_FILES:
        path, inside = folders.pop()
        count += len(inside) + 1
        for name, found in inside.items():
            if stat.S_ISDIR(found.st_mode):
                folders.append((path / name, _files(path / name)))
            elif stat.S_ISREG(found.st_mode):
                total += found.st_size
    return total


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def _normal(name: str) -> str:
    return PurePosixPath(name).as_posix()


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:500]
