"""Workers that carry tasks out, and who watches over them: what died is begun again, what hangs is replaced.

    Crew (driver)  --add, wait, results-->  TaskBoard  <--trade--  Worker, Worker, ...

A `Worker` is made where it will live with a *carrier*, whatever has a method `carry_out(task, board)` that returns
figures and, if any, arrays; it keeps what it has compiled between tasks. It asks the board for tasks until it is told
to stop. A task that raises is reported, and tried again by whoever asks next; if it fails too often, whoever waits for
it is told of the worker, the task and the original error, once.
"""

import contextlib
import dataclasses
import json
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shoal.cluster import driver
from shoal.cluster.services.scaling import MOST as MOST_WORKERS
from shoal.cluster.services.scaling import check_told, wanted_of
from shoal.cluster.tasks.board import FOLDER, Result, Task, TaskBoard
from shoal.cluster.transport.launcher import ClusterGoneError, Fabric, Failure, Gone, Handle, WorkerError, insist
from shoal.core.errors import ShoalError, require, require_positive, shell_command
from shoal.core.files import write_atomically
from shoal.core.options import check_types
from shoal.core.stopping import stopping
from shoal.training.run_kinds import check_there

BOARD = "board"
STATUS = "cluster.json"
WAIT = 1.0
"""Seconds that the board is asked to wait before it says that there is nothing."""
MOST = 16
"""Tasks that a worker asks for at a time, at most."""
GROUP_SECONDS = 0.02
"""And no more than it does in so many seconds: short ones travel in groups, or messages would take longer than work."""
LOOK_SECONDS = 0.05
STATUS_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Team:
    """How many workers there are, and how patient everybody is with them."""

    workers: int = 2  # processes that carry tasks out
    cpus: float = 1.0  # of each
    gpus: float = 0.0  # of each
    patience: float = 600.0  # seconds that a task may take before its worker is taken for hung, and replaced
    retries: int = 3  # times that a task may fail, or a worker in a row, before the run gives up
    devices: int | None = 1  # that a worker's programs are spread over; None: all that it sees

    def __post_init__(self):
        check_types(self, "cluster")
        require_positive("cluster", workers=self.workers, patience=self.patience)
        require(self.workers <= MOST_WORKERS, "cluster", "workers", self.workers, f"{MOST_WORKERS} at most")
        require(self.retries >= 0, "cluster", "retries", self.retries, "0 or more")
        for name in ("cpus", "gpus"):
            require(getattr(self, name) >= 0, "cluster", name, getattr(self, name), "0 or more")

    @property
    def needs(self) -> dict[str, float]:
        """The resources that it asks for."""
        return {"CPU": self.workers * self.cpus} | ({"GPU": self.workers * self.gpus} if self.gpus else {})


class Carrier(Protocol):
    """What can carry tasks out. board: for whoever has to know what came of other tasks."""

    def carry_out(self, task: Task, board: Handle) -> tuple[dict[str, Any], Sequence[np.ndarray] | None]: ...


class Worker:
    """Asks for tasks and carries them out. `run` works until it is told to stop.

    most: tasks that it asks for at a time, if they are short.
    """

    def __init__(self, name: str, board: Handle, make: Callable[..., Carrier], args: tuple[Any, ...], most: int = MOST):
        self.name, self.board, self.most = name, board.by("worker"), most
        self.make, self.args = make, args
        self.carrier: Carrier | None = None
        self.dead = threading.Event()

    def die(self) -> None:
        self.dead.set()

    def run(self) -> str:
        """Works until told to stop; returns why."""
        if self.carrier is None:
            self.carrier = self.make(*self.args)
        ticket, results, count, kind = uuid.uuid4().hex, [], 1, ""
        insist(self.board, "hello", self.name, ticket, give_up=self.dead.is_set)
        while not self.dead.is_set():
            asked = (self.name, ticket, (), results, count, WAIT, kind)
            tasks = insist(self.board, "trade", *asked, give_up=self.dead.is_set)
            results = []
            if tasks is None:  # the board was made anew, or has given this worker up
                if not self.dead.is_set():
                    insist(self.board, "hello", self.name, ticket, give_up=self.dead.is_set)
                continue
            if tasks and tasks[0].kind == "stop":
                return "stopped"
            began = time.perf_counter()
            results = [result for task in tasks if (result := self._carried_out(task)) is not None]
            if tasks:
                each, kind = (time.perf_counter() - began) / len(tasks), tasks[0].kind
                count = max(1, min(self.most, int(GROUP_SECONDS / max(each, 1e-6))))
        return "died"

    def _carried_out(self, task: Task) -> Result | None:
        """What came of a task; None if it failed, which the board is told."""
        assert self.carrier is not None
        if self.dead.is_set():
            return None
        try:
            return Result(task.id, *self.carrier.carry_out(task, self.board))
        except BaseException as error:  # whatever it is, whoever waits is to know
            if not self.dead.is_set():
                insist(self.board, "failed", self.name, task.id, Failure.of(error), give_up=self.dead.is_set)
                self.dead.wait(0.2)
            return None


@dataclasses.dataclass
class _Watched:
    handle: Handle
    running: Any = None
    failures: int = 0
    restarts: int = 0
    done: int = 0
    wait_until: float = 0.0


class Crew:
    """A board and its workers. `carry_out` hands tasks to them and waits; a thread looks after who dies or hangs.

    make, args: the carrier of each worker, made where the worker lives. most: tasks that a worker asks for at a time,
    if they are short; 1 where tasks wait for results of others that could be in the same hands.
    """

    def __init__(
        self, folder: str | Path, fabric: Fabric, team: Team, make: Callable[..., Carrier], *args: Any, most: int = MOST
    ):
        self.folder, self.fabric, self.team = Path(folder).absolute(), fabric, team
        self._make, self._most = (make, args), most
        check_told(self.folder, wanted_of(self.folder) or 0, fabric.private)
        self.board = fabric.start(BOARD, TaskBoard, str(self.folder / FOLDER), team.patience, team.retries)
        self.workers: dict[str, _Watched] = {}
        self.error: ShoalError | None = None
        self.events: list[dict[str, Any]] = []
        self._began, self._ended = time.monotonic(), threading.Event()
        for number in range(team.workers):
            self.add(number)
        self._watch = threading.Thread(target=self._look_on, daemon=True, name="crew")
        self._watch.start()

    def add(self, number: int) -> None:
        """Starts one worker; more may be added while tasks are under way."""
        name, (make, args) = f"worker-{number}", self._make
        team = self.team
        made = self.fabric.start(name, Worker, name, self.board, make, args, self._most, cpus=team.cpus, gpus=team.gpus)
        self.workers[name] = _Watched(made)

    def remove(self, number: int) -> None:
        """One worker less; somebody else is given what it had."""
        name = f"worker-{number}"
        del self.workers[name]
        self.fabric.remove(name)
        insist(self.board, "release", name)

    def carry_out(self, tasks: Sequence[Task], ahead: Sequence[Task] = ()) -> list[Result]:
        """What came of all of them, in their order; returns when everything is on disk.

        ahead: tasks that workers may go on with meanwhile, which will be waited for later.
        """
        ids = [task.id for task in tasks]
        by_id = dict(zip(ids, tasks, strict=True))
        with contextlib.suppress(Gone):  # which it says if there is a reason to give up
            insist(self.board, "add", [*tasks, *ahead], give_up=self._over)
        while True:
            self.check()
            if stopping():  # what is done is on disk, and found again by whoever goes on
                raise KeyboardInterrupt
            with contextlib.suppress(Gone):
                state = self.board.call("wait", ids, WAIT)
                if state.broken is not None:
                    raise self._broken(state.broken)
                if state.unknown:  # a board made anew has forgotten what was open
                    self.board.call("add", [by_id[id] for id in state.unknown])
                elif state.done == len(ids):
                    return self.board.call("results", ids)

    def forget(self, ids: Sequence[str]) -> None:
        """Results that are safe elsewhere are removed."""
        with contextlib.suppress(Gone):
            insist(self.board, "forget", list(ids), give_up=self._over)

    def _over(self) -> bool:
        return self.error is not None or stopping()

    def check(self) -> None:
        """Raises what has ended the work."""
        check_there(self.folder)
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """Ends the work. The fabric goes on."""
        self.tell(last=True)
        with contextlib.suppress(Gone):
            self.board.call("stop")
        self._ended.set()
        self._watch.join()
        for name in [*self.workers, BOARD] if self.error is None else []:  # else the fabric ends them all
            self.fabric.remove(name)

    def tell(self, last: bool = False) -> None:
        """Writes `cluster.json`, what there is to see of the run."""
        status: dict[str, Any] = {
            "team": dataclasses.asdict(self.team),
            "running": not last,
            "driver": driver.identity(),
        }
        with contextlib.suppress(Gone, ShoalError):
            status["workers"] = self.board.call("status")
            status["services"] = {BOARD: self.board.call("figures")}
            status["messages"] = {BOARD: self.board.call("counts")}
        status["restarts"] = {name: watched.restarts for name, watched in list(self.workers.items())}
        status["dashboard"] = self.fabric.dashboard()
        status["events"] = self.events[-50:]
        with contextlib.suppress(OSError):  # what is shown is not what matters
            write_atomically(self.folder / STATUS, json.dumps(status, indent=1) + "\n")

    def _look_on(self) -> None:
        told_at = time.monotonic()
        while not self._ended.wait(LOOK_SECONDS):
            for name, watched in list(self.workers.items()):
                self._look_after(name, watched)
            try:
                self.fabric.check()
            except ClusterGoneError as error:
                self.error = ClusterGoneError(f"{error}. {self._safe}")
                return
            with contextlib.suppress(Gone):
                for name, told in self.board.call("status").items():
                    self._judge(name, told)
            if time.monotonic() - told_at >= STATUS_SECONDS:
                told_at = time.monotonic()
                self._scale()
                self.tell()

    def _scale(self) -> None:
        """Adds or removes workers, if another number is wanted (`shoal cluster scale`)."""
        wanted = wanted_of(self.folder)
        there = sorted(int(name.split("-")[1]) for name in self.workers)
        if wanted is None:
            return
        for number in range(there[-1] + 1, there[-1] + 1 + wanted - len(there)):
            self._note(f"worker-{number}", "added")
            self.add(number)
        for number in there[wanted:]:
            self._note(f"worker-{number}", "removed")
            self.remove(number)

    def _look_after(self, name: str, watched: _Watched) -> None:
        if watched.running is None and self.error is None:
            if time.monotonic() >= watched.wait_until:
                with contextlib.suppress(Gone):
                    watched.running = watched.handle.ask("run")
            return
        if watched.running is None or not watched.running.done():
            return
        running, watched.running = watched.running, None
        try:
            running.result()
        except Gone:
            self._note(name, "died")
            self._died(watched, name)
        except WorkerError as error:
            self._failed(name, watched, error)

    def _died(self, watched: _Watched, name: str) -> None:
        watched.restarts += 1
        watched.running, watched.wait_until = None, time.monotonic() + 0.1
        with contextlib.suppress(Gone):
            self.board.call("release", name)

    def _failed(self, name: str, watched: _Watched, error: WorkerError) -> None:
        """A worker's own error, outside any task: it tries again, with pauses that grow, unless that never helps."""
        watched.failures += 1
        watched.restarts += 1
        self._note(name, error.line)
        watched.wait_until = time.monotonic() + min(0.1 * 2**watched.failures, 5.0)
        if watched.failures > self.team.retries and self.error is None:
            times = f" {watched.failures} times in a row" if watched.failures > 1 else ""
            self.error = WorkerError(f"{name} failed{times} (starting): {error.text}\n{self._safe}")

    def _broken(self, broken: Any) -> WorkerError:
        times = f" {broken.times} times" if broken.times > 1 else ""
        told = broken.failure.error(broken.worker).text
        return WorkerError(f"{broken.worker} failed{times} (task {broken.id}): {told}\n{self._safe}")

    @property
    def _safe(self) -> str:
        return f"What is committed is safe in {self.folder}: go on with `{shell_command('resume', self.folder)}`."

    def _judge(self, name: str, told: dict[str, Any]) -> None:
        watched = self.workers.get(name)
        if watched is None:
            return
        if told["done"] > watched.done:
            watched.failures = 0
        watched.done = told["done"]
        if told["hangs"] and watched.running is not None:
            self._note(name, f"hung for {told['busy_s']:.0f} s in {told['task']}")
            self.fabric.kill(name)
            self._died(watched, name)

    def _note(self, name: str, what: str) -> None:
        self.events.append({"seconds": round(time.monotonic() - self._began, 2), "worker": name, "what": what})
