"""The coordinator hands out tasks and tracks which workers are alive or slow. No data or weights pass through it.

Workers finish a task, report it, and ask for the next one. Facts that must survive a crash (restarts of workers, copies
that are left out, updates that are safe on disk) are written to the run's journal before they count.
"""

import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shoal.cluster.plan import ClusterPlan
from shoal.cluster.services.journal import Journal
from shoal.core.errors import RunError

SLOW = 2.0
"""An actor whose rollouts take so many times as long as the median is called slow."""
MOST_LIVES = 1 << 20
"""Upper limit on a worker's restarts: never reached, and keeps stamps within 64 bits."""
MEMORY = 0.8
"""Weight of the past in running means of times."""


class WorkerRecord:
    """What is known of one worker."""

    def __init__(self) -> None:
        self.begun = 0
        self.round = -1  # newest that it was given
        self.done = -1  # newest that it reported
        self.seen = time.monotonic()
        self.busy: float | None = None  # since when
        self.task = ""
        self.seconds: dict[str, float] = {}
        self.env_steps = 0
        self.sick: list[int] = []  # copies that are left out
        self.resets = 0  # of copies that gave NaN


def count_restarts(entries: Iterable[dict[str, Any]], path: Path) -> dict[str, int]:
    """Restarts of each worker according to a run's journal. Refuses a journal that Shoal has not written."""
    found: dict[str, int] = {}
    for entry in entries:
        if "begun" not in entry:
            continue
        name, times = entry["begun"], entry.get("times")
        if not isinstance(name, str) or type(times) is not int or not 0 <= times < MOST_LIVES:
            raise RunError(f"{path} is no journal of a run: it says that {name!r:.40} began {times!r:.40} times")
        found[name] = times
    return found


class Coordinator:
    """Hands out rollouts and counts them. Essential state is in the journal, the rest comes back with reports."""

    def __init__(self, folder: str, plan: ClusterPlan, total: int):
        self.plan, self.total = plan, total
        self.mode = plan.sync_mode
        self.workers: dict[str, WorkerRecord] = {}
        self.version, self.epoch, self.stopping = -1, 0, False
        self.staleness: list[float] = [0.0, 0.0]  # mean of late, and the largest
        self.learner: dict[str, Any] = {}
        self._changed = threading.Condition()
        self.journal = Journal(folder)
        self.begun = count_restarts(self.journal.entries, self.journal.path)

    def hello(self, name: str) -> int:
        """Registers a worker that has started; returns how often it had started before."""
        with self._changed:
            times = self.begun.get(name, -1) + 1
            self.begun[name] = times
            self.journal.write({"begun": name, "times": times})
            worker = self._worker(name)
            worker.begun, worker.busy, worker.round = times, None, max(worker.done, self._floor())
            worker.seconds = {}  # its first task compiles once more, and may take as long as the very first
            return times

    def _worker(self, name: str) -> WorkerRecord:
        if name not in self.workers:
            self.workers[name] = worker = WorkerRecord()
            worker.begun = self.begun.get(name, 0)
            worker.round = worker.done = self._floor()
        return self.workers[name]

    def _floor(self) -> int:
        """The round before the one that a synchronous learner waits for."""
        return max(self.version, 0) - 1 if self.mode != "async" else -1

    def next(self, name: str, report: dict[str, Any], timeout: float) -> dict[str, Any] | None:
        """The next task of a worker that has finished one, or None if there is none within `timeout` seconds."""
        with self._changed:
            worker = self._worker(name)
            worker.seen, worker.busy, worker.task = time.monotonic(), None, ""
            self._take_in(name, worker, report)
            worker.round = max(worker.round, self._floor())  # who was left behind goes on with the others
            self._changed.wait_for(lambda: self.stopping or self._may_begin(worker), timeout)
            worker.seen = time.monotonic()
            if self.stopping:
                return {"kind": "stop"}
            if not self._may_begin(worker):
                return None
            worker.round += 1
            worker.busy, worker.task = time.monotonic(), f"rollout {worker.round}"
            least = worker.round if self.mode == "sync" else max(0, worker.round - self.plan.max_staleness)
            least = 0 if self.mode == "async" else least
            return {"kind": "rollout", "round": worker.round, "version": least, "epoch": self.epoch}

    def _may_begin(self, worker: WorkerRecord) -> bool:
        ahead = worker.round + 1
        if self.version < 0:
            return False
        if self.mode == "async":
            return True
        return ahead <= self.version + (0 if self.mode == "sync" else self.plan.max_staleness)

    def _take_in(self, name: str, worker: WorkerRecord, report: dict[str, Any]) -> None:
        if "round" not in report or report.get("epoch", 0) != self.epoch:  # nothing, or for a learner that died
            worker.round = worker.done if self.mode != "async" else worker.round
            return
        worker.done = max(worker.done, report["round"])
        worker.env_steps += report["env_steps"]
        worker.resets += report["resets"]
        for what, seconds in report["seconds"].items():
            before = worker.seconds.setdefault(what, seconds)
            worker.seconds[what] = MEMORY * before + (1 - MEMORY) * seconds
        if report["sick"] != worker.sick:
            worker.sick = report["sick"]
            self.journal.write({"quarantine": name, "copies": worker.sick})

    def waiting(self, name: str) -> None:
        """A worker is alive, but waits because the queue is full."""
        with self._changed:
            self._worker(name).seen = self._worker(name).busy = time.monotonic()

    def began(self, update: int, epoch: int = 0) -> None:
        """A learner has (re)started at that update and waits for that round."""
        with self._changed:
            self.version, self.epoch = update, epoch
            for worker in self.workers.values():
                worker.round = worker.done = min(worker.done, self._floor())
            self._changed.notify_all()

    def report_lost(self, name: str, round: int) -> None:
        """A worker's rollout was lost and has to be made again."""
        with self._changed:
            worker = self._worker(name)
            worker.done = worker.round = min(worker.done, round - 1)
            self._changed.notify_all()

    def standing(self, name: str, update: int, epoch: int, present: list[str]) -> bool:
        """A learner waits for rollouts and has those of some workers; returns whether to stop.

        It tells a restarted coordinator or queue all that they have lost: the position of the run and, by what is
        missing, which rollouts have to be made again.
        """
        with self._changed:
            learner = self._worker(name)
            learner.seen, learner.busy = time.monotonic(), None
            self.version, self.epoch = max(self.version, update), max(self.epoch, epoch)
            for other, worker in self.workers.items():
                idle = worker.busy is None and other != name
                if self.mode != "async" and idle and other not in present:
                    worker.done = worker.round = self._floor()
            self._changed.notify_all()
            return self.stopping

    def report_update(self, version: int, figures: dict[str, Any]) -> tuple[bool, int]:
        """A learner has made an update; its weights can be pulled.

        Returns whether to stop, and how many copies have been restarted so far because of NaN.
        """
        with self._changed:
            self.version = max(self.version, version)
            self.learner |= figures
            mean, largest = figures["staleness"]
            self.staleness = [MEMORY * self.staleness[0] + (1 - MEMORY) * mean, max(self.staleness[1], largest)]
            self._changed.notify_all()
            return self.stopping, sum(worker.resets for worker in self.workers.values())

    def report_commit(self, update: int) -> None:
        """An update is safe on disk."""
        with self._changed:
            self.learner["committed"] = update
            self.journal.write({"committed": update})

    def stop(self) -> None:
        """Every worker gets the task to stop when it asks next."""
        with self._changed:
            self.stopping = True
            self._changed.notify_all()

    def figures(self) -> dict[str, int]:
        """How much the journal holds."""
        return {"journal": len(self.journal.entries)}

    def status(self) -> dict[str, Any]:
        """The status of the run."""
        with self._changed:
            now = time.monotonic()
            rolls = sorted(worker.seconds["roll"] for worker in self.workers.values() if "roll" in worker.seconds)
            usual = rolls[len(rolls) // 2] if rolls else 0.0
            return {
                "version": self.version,
                "total": self.total,
                "staleness": {"mean": round(self.staleness[0], 3), "largest": self.staleness[1]},
                "learner": dict(self.learner),
                "workers": {name: self._describe(worker, now, usual) for name, worker in self.workers.items()},
            }

    def _describe(self, worker: WorkerRecord, now: float, usual: float) -> dict[str, Any]:
        roll = worker.seconds.get("roll")
        return {
            "rounds": worker.done + 1,
            "env_steps": worker.env_steps,
            "restarts": worker.begun,
            "task": worker.task,
            "busy_s": round(now - worker.busy, 3) if worker.busy is not None else 0.0,
            "silent_s": round(now - worker.seen, 3),
            "seconds": {name: round(value, 6) for name, value in worker.seconds.items()},
            "slow": roll is not None and roll > SLOW * usual,
            "quarantined": worker.sick,
            "nan_resets": worker.resets,
        }
