"""The dataset service's replay: one shard of it. Makers push steps, learners draw windows and write priorities back.

Every table (one for each learner of the experiment) has a ring for each maker (see `ring`), uniform or prioritised.
Steps are sent as bare arrays; actors and learners know their structure.

Back-pressure: with `news` a learner admits a number of further steps and is told how many have arrived; a push beyond
that has to wait. A learner that has too few steps waits in `news`. So neither runs away from the other, and nothing
has to be remembered when an actor, a learner or the shard restarts.

The rings are regularly written to the run folder, one after the other, for at most a twentieth of the time; a restarted
shard reads back what was written last. Stamps make all calls safe to repeat.
"""

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.cluster.replay.ring import Ring, Table, places
from shoal.core.errors import OptionError, RunError
from shoal.core.files import make_folder
from shoal.core.schema import Whole, check
from shoal.training import checkpoint

LIFE = 1 << 40
"""Stamps of a maker that restarted start so much higher: more steps than any ever makes."""
TABLE = {"rows": Whole(1), "window": Whole(1), "prioritised": bool}
SPILL = {"name": str, "maker": Whole(), "next": Whole(), "table": TABLE}
"""What is kept beside a ring's arrays."""
SPILL_SHARE = 0.05
"""Share of the time that writing to disk may take."""


class ReplayPush(NamedTuple):
    """Steps of one actor.

    stamp: of its first row. steps: by table, leaves `[T, E, ...]` and priorities `[T, E]` of the windows that end there
    (see `Ring.add`) or None. told: figures of the episodes and the world, sums and means, by name.
    """

    maker: int
    stamp: int
    version: int
    env_steps: int
    steps: Mapping[str, tuple[Sequence[np.ndarray], np.ndarray | None]]
    told: Mapping[str, float]


class WindowSample(NamedTuple):
    """Windows of one table: leaves `[W, B, ...]`.

    ids: maker, row, copy and stamp of each `[B, 4]`; chance: how probable each was within the shard; version: of the
    weights that acted. mass, possible: the sum of all priorities of the shard, and how many windows there are.
    """

    leaves: list[np.ndarray]
    ids: np.ndarray
    chance: np.ndarray
    version: np.ndarray
    mass: float
    possible: int


class News(NamedTuple):
    """What came. life: differs each time that the shard begins; inserted: env steps in this life; told: since last."""

    life: int
    inserted: int
    told: dict[str, float]
    pushes: int


class ReplayService:
    """One shard. room: env steps that may come before a learner asks for `news`."""

    def __init__(
        self, tables: Mapping[str, Table], room: int, folder: str | None = None, seconds: float = 10.0, seed: int = 0
    ):
        self.tables, self.room = dict(tables), room
        self.folder = None if folder is None else Path(folder)
        self.seconds = seconds  # between two spills, at least
        self.life = time.time_ns()
        self._random = np.random.default_rng([seed, self.life & 0xFFFFFFFF])
        self._rings: dict[tuple[str, int], Ring] = {}
        self._changed = threading.Condition()
        self._told: dict[str, float] = {}
        self._pushes = 0
        self.counts: Counter[str] = Counter(
            inserted=0, pushed=0, judged=0, refused=0, repeated=0, drawn=0, written=0, late=0
        )
        self._spilled: dict[tuple[str, int], int] = {}
        self._spilling, self._due, self._spills = threading.Lock(), time.monotonic() + seconds, 0
        self._dead = False
        self._reload()

    def push(self, made: ReplayPush, timeout: float = 0.0) -> bool:
        """Adds steps; False if there was no room within the time-out. Duplicates are ignored."""
        with self._changed:
            if self._holds(made):
                self.counts["repeated"] += 1
                return True
            if not self._changed.wait_for(lambda: self.room > 0, timeout):
                self.counts["refused"] += 1
                return False
            for table, (leaves, priority) in made.steps.items():
                ring = self._ring(table, made.maker, leaves)
                ring.add(leaves, made.stamp, made.version, priority)
                self.counts["judged"] += priority is not None
            self.room -= made.env_steps
            self.counts["inserted"] += made.env_steps
            self.counts["pushed"] += 1
            self._told |= {name: self._told.get(name, 0.0) + value for name, value in made.told.items()}
            self._pushes += 1
            self._changed.notify_all()
        self._spill_if_due()
        return True

    def _holds(self, made: ReplayPush) -> bool:
        rings = [self._rings.get((table, made.maker)) for table in made.steps]
        return any(ring is not None and ring.newest >= made.stamp for ring in rings)

    def _ring(self, table: str, maker: int, leaves: Sequence[np.ndarray]) -> Ring:
        if table not in self.tables:
            raise OptionError(f"replay: there is no table {table!r}, only {', '.join(self.tables)}")
        ring = self._rings.get((table, maker))
        if ring is None or (ring.copies and ring.copies != leaves[0].shape[1]):  # resumed with another number of actors
            ring = self._rings[table, maker] = Ring(self.tables[table])
        return ring

    def news(self, room: int, known: tuple[int, int] = (0, 0), enough: int = 0, timeout: float = 0.0) -> News:
        """What came since the last call; `room` env steps may come after those `known` (of a life of the shard).

        Waits up to `timeout` seconds until `enough` more than those known have come.
        """
        with self._changed:
            before = known[1] if known[0] == self.life else 0
            self.room = room - (self.counts["inserted"] - before)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.counts["inserted"] - before >= enough, timeout)
            told, pushes = {name: float(value) for name, value in self._told.items()}, self._pushes
            self._told.clear()
            self._pushes = 0
            return News(self.life, self.counts["inserted"], told, pushes)

    def draw(self, counts: Mapping[str, int]) -> dict[str, WindowSample | None]:
        """`counts` windows of each table, sampled with replacement; None where there is none yet."""
        with self._changed:
            return {table: self._draw(table, count) for table, count in counts.items()}

    def _draw(self, table: str, count: int) -> WindowSample | None:
        rings = {maker: ring for (name, maker), ring in self._rings.items() if name == table}
        masses = [ring.masses() for ring in rings.values()]
        total = float(sum(mass.sum() for mass in masses))
        if total <= 0.0:
            return None
        number, row, rest = places(masses, self._random.random(count))
        parts, ids, chance, version = [], np.zeros((count, 4), np.int64), np.zeros(count), np.zeros(count, np.int64)
        where = []
        for index, (maker, ring) in enumerate(rings.items()):
            mine = np.flatnonzero(number == index)
            if len(mine):
                rows = row[mine]
                copy = ring.copies_at(rows, rest[mine])
                parts.append(ring.windows(rows, copy))
                ids[mine] = np.stack([np.full(len(mine), maker), rows, copy, ring.stamp[rows]], axis=1)
                chance[mine], version[mine] = ring.weight(rows, copy) / total, ring.version[rows]
                where.append(mine)
        order = np.argsort(np.concatenate(where), kind="stable")
        leaves = [np.concatenate(leaf, axis=1)[:, order] for leaf in zip(*parts, strict=True)]
        self.counts["drawn"] += count
        possible = sum(int(ring.possible.sum()) * ring.copies for ring in rings.values())
        return WindowSample(leaves, ids, chance, version, total, possible)

    def reprioritise(self, table: str, ids: np.ndarray, priority: np.ndarray) -> int:
        """New priorities `[B]` for windows that were drawn; those overwritten since are left alone. How many it was."""
        written = 0
        with self._changed:
            for maker in np.unique(ids[:, 0]):
                ring, mine = self._rings.get((table, int(maker))), ids[:, 0] == maker
                if ring is not None:
                    _, row, copy, stamp = ids[mine].T
                    written += ring.reprioritise(row, copy, stamp, priority[mine])
            self.counts["written"] += written
            self.counts["late"] += len(ids) - written
        return written

    def spill(self) -> None:
        """Writes every ring that has changed to the run folder."""
        if self.folder is None:
            return
        with self._spilling:
            for (table, maker), ring in list(self._rings.items()):
                with self._changed:
                    newest = ring.newest
                    if self._dead or self._spilled.get((table, maker)) == newest:
                        continue
                    arrays, meta = ring.pack()
                self._spills += 1
                meta |= {"name": table, "maker": maker}
                place = self.folder / f"{list(self.tables).index(table)}-{maker}"
                checkpoint.save(place, self._spills, arrays, meta, keep=1)
                self._spilled[table, maker] = newest

    def _spill_if_due(self) -> None:
        if self.folder is None or time.monotonic() < self._due or self._dead:
            return
        self._due = float("inf")  # one at a time
        threading.Thread(target=self._spill_aside, daemon=True, name="spill").start()

    def _spill_aside(self) -> None:
        began = time.monotonic()
        try:
            self.spill()
        except (RunError, OSError):  # a full disk must not end a run whose replay is in memory
            self.counts["spills_failed"] += 1
        took = time.monotonic() - began
        self._due = time.monotonic() + max(self.seconds, took / SPILL_SHARE)

    def _reload(self) -> None:
        if self.folder is None:
            return
        make_folder(self.folder.parent)  # of all shards of a run
        make_folder(self.folder)
        for place in sorted(self.folder.glob("[0-9]*")):
            newest = checkpoint.latest(place)
            if newest is None:
                continue
            self._spills = max(self._spills, int(newest.stem.split("-")[1]))
            try:
                meta = checkpoint.read_meta(newest)
                check(meta, SPILL, "meta")
                if self.tables.get(meta["name"]) != Table(**meta["table"]):
                    continue
                ring = Ring.unpack(checkpoint.read_arrays(newest), meta)
            except (RunError, ValueError, TypeError):  # damaged: what it held is made again
                continue
            self._rings[meta["name"], meta["maker"]] = ring
            self._spilled[meta["name"], meta["maker"]] = ring.newest
            self.counts["reloaded"] += int(np.sum(ring.stamp >= 0)) * ring.copies

    def die(self) -> None:
        """Ends the service; a spill in progress is finished."""
        self._dead = True
        with self._spilling:
            pass

    def figures(self) -> dict[str, Any]:
        """Its size, and how much has passed through it."""
        with self._changed:
            held = dict.fromkeys(self.tables, 0)
            for (table, _), ring in self._rings.items():
                held[table] += int(np.sum(ring.stamp >= 0)) * ring.copies
            size = sum(leaf.nbytes for ring in self._rings.values() for leaf in ring.store)
            return {"steps": held, "bytes": size, "room": self.room, "spills": self._spills, **self.counts}
