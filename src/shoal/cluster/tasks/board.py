"""The task board: open tasks, the workers that run them, and their results, which are on disk before they count.

    add      tasks, each with the ids of those that must be done before it
    report_and_fetch    a worker reports results and gets its next tasks, in one message
    results  of tasks that are done, from disk

Results are written ahead (see `ledger`); only then is a task done. A task that a worker has is only leased, which is
not written: the lease ends when its worker restarts, is known to be dead, or takes too long, and the task is leased
again. A second result of a task is ignored. A restarted board reads finished tasks from disk and never leases them
again; open ones are added again by the process that waits for them. So an id must identify a task completely: a result
stored under it is reused.
"""

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shoal.cluster.tasks.ledger import Ledger, TaskResult
from shoal.cluster.transport.service import Failure
from shoal.core.errors import require

__all__ = ["Broken", "Task", "TaskBoard", "TaskResult", "Waiting"]

FOLDER = "tasks"
"""The folder of results in a run, beside its checkpoints."""
FIRST_TASK = 5.0
"""Factor on the time limit of a worker's first task of a kind, which compiles."""
LOOK_SECONDS = 0.2
"""Seconds between checks of leases while a worker is idle."""


class Task(NamedTuple):
    """A unit of work. payload: what its kind needs; large values by reference (see `launcher.Store`).

    after: ids of tasks that must be done first. limit: seconds that it may take; None: the board's default.
    """

    id: str
    kind: str
    payload: Any = None
    after: tuple[str, ...] = ()
    limit: float | None = None


class Waiting(NamedTuple):
    """The state of some tasks: how many are done, which the board does not know, the first that failed for good."""

    done: int
    unknown: list[str]
    broken: "Broken | None" = None


class Broken(NamedTuple):
    """A task that failed too often: where it failed last, how often, and how."""

    id: str
    worker: str
    times: int
    failure: Failure


@dataclasses.dataclass
class _Lease:
    worker: str
    since: float
    limit: float


@dataclasses.dataclass
class _Known:
    """The record of a worker. ticket: of its current incarnation; an earlier one gets no tasks."""

    ticket: str
    kinds: set[str] = dataclasses.field(default_factory=set)
    done: int = 0
    begun: int = 0


class TaskBoard:
    """Tasks of one run, in memory; results in `folder`. limit: seconds of a task. retries: of one that fails."""

    def __init__(self, folder: str | Path, limit: float = 600.0, retries: int = 3):
        require(limit > 0, "task board", "limit", limit, "a positive number of seconds")
        require(retries >= 0, "task board", "retries", retries, "0 or more")
        self.limit, self.retries = limit, retries
        self._changed = threading.Condition()
        self._tasks: dict[str, Task] = {}
        self._before: dict[str, set[str]] = {}  # open dependencies of each task
        self._then: dict[str, list[str]] = {}  # tasks that depend on it
        self._ready: dict[str, deque[tuple[int, str]]] = {}
        self._leases: dict[str, _Lease] = {}
        self._failures: dict[str, int] = {}
        self._broken: dict[str, Broken] = {}
        self._workers: dict[str, _Known] = {}
        self._hung: dict[str, str] = {}
        self._writing: set[str] = set()
        self._number, self._looked, self._stopping = 0, 0.0, False
        self.handed = self.repeated = self.ignored = 0
        self._done = Ledger(Path(folder))

    def die(self) -> None:
        """Closes a board that is given up: it writes nothing more, and all waiting calls return."""
        self._done.close()
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def add(self, tasks: Sequence[Task]) -> None:
        """Adds tasks. Known or finished ones are left unchanged."""
        with self._changed:
            for task in tasks:
                if task.id in self._tasks or task.id in self._done:
                    continue
                self._tasks[task.id] = task
                waits = {id for id in task.after if id not in self._done}
                for id in waits:
                    self._then.setdefault(id, []).append(task.id)
                if waits:
                    self._before[task.id] = waits
                else:
                    self._put(task.id)
            self._changed.notify_all()

    def _put(self, id: str, first: bool = False) -> None:
        """Queues a task; one that was leased before comes first."""
        self._number += 1
        queue = self._ready.setdefault(self._tasks[id].kind, deque())
        if first:
            queue.appendleft((-self._number, id))
        else:
            queue.append((self._number, id))

    def hello(self, worker: str, ticket: str) -> None:
        """Registers a new or restarted worker: its earlier leases end."""
        with self._changed:
            known = self._workers.setdefault(worker, _Known(ticket, begun=-1))
            known.ticket, known.kinds = ticket, set()
            known.begun += 1
            self._let_go(worker)

    def release(self, worker: str) -> None:
        """Ends the leases of a worker that is known to be dead."""
        with self._changed:
            self._workers.setdefault(worker, _Known("")).ticket = ""
            self._let_go(worker)

    def _let_go(self, worker: str) -> None:
        self._hung.pop(worker, None)
        for id in [id for id, lease in self._leases.items() if lease.worker == worker]:
            self._again(id)
        self._changed.notify_all()

    def _again(self, id: str) -> None:
        del self._leases[id]
        self.repeated += 1
        self._put(id, first=True)

    def report_and_fetch(
        self,
        worker: str,
        ticket: str,
        kinds: Sequence[str],
        results: Sequence[TaskResult] = (),
        count: int = 1,
        timeout: float = 0.0,
        group: str = "",
    ) -> list[Task] | None:
        """Accepts results and leases up to `count` tasks of these kinds (of any, if none is named).

        group: a kind whose tasks are leased in groups; of other kinds, one at a time and alone. Waits up to `timeout`
        seconds for one. None: the ticket is not, or no longer, the worker's, which must register again. A task of the
        kind `stop` means that there will be no more.
        """
        if results:
            self.report(worker, results)
        end = time.monotonic() + timeout
        with self._changed:
            while True:
                known = self._workers.setdefault(worker, _Known(ticket))
                if known.ticket != ticket:
                    return None
                if self._stopping:
                    return [Task("", "stop")]
                found = self._hand_out(worker, known, kinds, count, group)
                left = end - time.monotonic()
                if found or left <= 0:
                    return found
                self._changed.wait(min(left, LOOK_SECONDS))

    def _hand_out(self, worker: str, known: _Known, kinds: Sequence[str], count: int, group: str) -> list[Task]:
        now, found = time.monotonic(), []
        while len(found) < count:
            id = self._pop(kinds)
            if id is None:
                break
            task = self._tasks[id]
            first = 1.0 if task.kind in known.kinds else FIRST_TASK
            self._leases[id] = _Lease(worker, now, first * (task.limit or self.limit))
            found.append(task)
            kinds, count = ((group,), count if task.kind == group else 1) if group else (kinds, count)
        self.handed += len(found)
        if not found and now - self._looked > LOOK_SECONDS:
            self._looked = now
            self._expire_leases(now)
            if any(self._ready.values()):
                return self._hand_out(worker, known, kinds, count, group)
        return found

    def _pop(self, kinds: Sequence[str]) -> str | None:
        """The oldest queued task of these kinds that is not done yet."""
        while True:
            queues = [queue for kind, queue in self._ready.items() if queue and (not kinds or kind in kinds)]
            if not queues:
                return None
            _, id = min(queues, key=lambda queue: queue[0]).popleft()
            if id in self._tasks and id not in self._leases:
                return id

    def _expire_leases(self, now: float) -> None:
        """Requeues tasks that take too long; the first result counts."""
        for id in [id for id, lease in self._leases.items() if now - lease.since > lease.limit]:
            self._hung[self._leases[id].worker] = id
            self._again(id)

    def report(self, worker: str, results: Sequence[TaskResult]) -> None:
        """Returns when the results are on disk; only then are the tasks done."""
        with self._changed:
            fresh = {
                result.id: result
                for result in results
                if result.id not in self._done and result.id not in self._writing
            }
            self.ignored += len(results) - len(fresh)
            self._writing |= fresh.keys()
        try:
            entries = self._done.write(list(fresh.values()))
        except BaseException:
            with self._changed:
                self._writing -= fresh.keys()
            raise
        with self._changed:
            self._writing -= fresh.keys()
            self._hung.pop(worker, None)
            known = self._workers.setdefault(worker, _Known(""))
            known.done += len(entries)
            for entry in entries:
                self._finish(entry, known)
            self._changed.notify_all()

    def _finish(self, entry: dict[str, Any], worker: _Known) -> None:
        id = entry["done"]
        self._done.count([entry])
        if id in self._tasks:
            worker.kinds.add(self._tasks[id].kind)
        for known in (self._tasks, self._leases, self._failures, self._broken, self._before):
            known.pop(id, None)
        for other in self._then.pop(id, []):
            waits = self._before.get(other, set())
            waits.discard(id)
            if not waits and self._before.pop(other, None) is not None:
                self._put(other)

    def report_failure(self, worker: str, id: str, failure: Failure) -> None:
        """Records that a task raised on a worker; it is retried a limited number of times."""
        with self._changed:
            if id not in self._tasks:
                return
            times = self._failures[id] = self._failures.get(id, 0) + 1
            if times > self.retries:
                self._leases.pop(id, None)
                self._broken[id] = Broken(id, worker, times, failure)
            elif id in self._leases and self._leases[id].worker == worker:
                self._again(id)
            self._changed.notify_all()

    def wait(self, ids: Sequence[str], timeout: float = 0.0) -> Waiting:
        """Waits up to `timeout` seconds until all are done, or one has failed for good or is unknown."""
        with self._changed:
            unknown = [id for id in ids if id not in self._done and id not in self._tasks]
            left, wanted = list(ids), set(ids)

            def is_done() -> bool:
                while left and left[-1] in self._done:
                    left.pop()
                return not left or self._stopping or not wanted.isdisjoint(self._broken)

            if not unknown:
                self._changed.wait_for(is_done, timeout)
            done = sum(id in self._done for id in ids)
            return Waiting(done, unknown, next((self._broken[id] for id in ids if id in self._broken), None))

    def results(self, ids: Sequence[str]) -> list[TaskResult]:
        """Results of finished tasks; arrays are read from disk."""
        return [self._done.read(id) for id in ids]

    def forget(self, ids: Sequence[str]) -> None:
        """Drops results that are safe elsewhere."""
        with self._changed:
            self._done.forget(ids)

    def stop(self) -> None:
        """Makes every worker stop at its next call."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def figures(self) -> dict[str, int]:
        """Numbers of tasks by state."""
        with self._changed:
            return {
                "open": len(self._tasks) - len(self._leases),
                "leased": len(self._leases),
                "done": len(self._done),
                "broken": len(self._broken),
                "handed": self.handed,
                "repeated": self.repeated,
                "ignored": self.ignored,
            }

    def status(self) -> dict[str, dict[str, Any]]:
        """For each worker: tasks done, the current one, for how long, and whether that is too long."""
        with self._changed:
            now = time.monotonic()
            told: dict[str, dict[str, Any]] = {
                name: {"done": known.done, "restarts": known.begun, "task": "", "busy_s": 0.0, "hangs": False}
                for name, known in self._workers.items()
            }
            for id, lease in self._leases.items():
                busy = round(now - lease.since, 3)
                told[lease.worker] |= {"task": id, "busy_s": busy, "hangs": busy > lease.limit}
            for name, id in self._hung.items():
                told[name] |= {"task": id, "hangs": True}
            return told
