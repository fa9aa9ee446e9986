"""A pool of workers that run tasks: what died is restarted, what hangs is replaced.

    WorkerPool (driver)  --add, wait, results-->  TaskBoard  <--report_and_fetch--  Worker, Worker, ...

A `TaskWorker` is made where it will live with a `TaskHandler`, whatever has a method `run(task, board)` that returns
figures and, if any, arrays; it keeps what it has compiled between tasks. It asks the board for tasks until it is told
to stop. A task that raises is reported, and tried again by whoever asks next; if it fails too often, whoever waits for
it is told of the worker, the task and the original error, once.
"""

import contextlib
import dataclasses
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from shoal.cluster.services.scaling import MOST as MOST_WORKERS
from shoal.cluster.services.scaling import check_request, requested_workers
from shoal.cluster.supervisor import Supervisor, WatchedWorker
from shoal.cluster.tasks.board import FOLDER, Broken, Task, TaskBoard, TaskResult
from shoal.cluster.transport.launcher import ClusterGoneError, Launcher
from shoal.cluster.transport.service import Failure, Service, ServiceUnavailable, WorkerError
from shoal.core.errors import ShoalError, require, require_positive
from shoal.core.options import check_types
from shoal.core.stopping import stopping
from shoal.training.run_kinds import check_there

BOARD = "board"
WAIT = 1.0
"""Seconds that the board is asked to wait before it says that there is nothing."""
MOST = 16
"""Tasks that a worker asks for at a time, at most."""
GROUP_SECONDS = 0.02
"""And no more than it does in so many seconds: short ones travel in groups, or messages would take longer than work."""
LOOK_SECONDS = 0.05


@dataclasses.dataclass(frozen=True)
class PoolConfig:
    """How many workers a pool has, and how patient everybody is with them."""

    workers: int = 2  # processes of the cluster that train and play
    cpus: float = 1.0  # CPU cores of each worker
    gpus: float = 0.0  # GPUs of each worker
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


class TaskHandler(Protocol):
    """What can run tasks. board: for whoever has to know what came of other tasks."""

    def run(self, task: Task, board: Service[TaskBoard]) -> tuple[dict[str, Any], Sequence[np.ndarray] | None]: ...


class TaskWorker:
    """Asks for tasks and runs them. `run` works until it is told to stop.

    most: tasks that it asks for at a time, if they are short.
    """

    def __init__(
        self,
        name: str,
        board: Service[TaskBoard],
        make: Callable[..., TaskHandler],
        args: tuple[Any, ...],
        most: int = MOST,
    ):
        self.name, self.board, self.most = name, board.by("worker"), most
        self.make, self.args = make, args
        self.handler: TaskHandler | None = None
        self.dead = threading.Event()

    def die(self) -> None:
        self.dead.set()

    def run(self) -> str:
        """Works until told to stop; returns why."""
        if self.handler is None:
            self.handler = self.make(*self.args)
        ticket, results, count, kind = uuid.uuid4().hex, [], 1, ""
        self.board.retry_until(self.dead.is_set).hello(self.name, ticket)
        while not self.dead.is_set():
            asked = (self.name, ticket, (), results, count, WAIT, kind)
            tasks = self.board.retry_until(self.dead.is_set).report_and_fetch(*asked)
            results = []
            if tasks is None:  # the board was made anew, or has given this worker up
                if not self.dead.is_set():
                    self.board.retry_until(self.dead.is_set).hello(self.name, ticket)
                continue
            if tasks and tasks[0].kind == "stop":
                return "stopped"
            began = time.perf_counter()
            results = [result for task in tasks if (result := self._run(task)) is not None]
            if tasks:
                each, kind = (time.perf_counter() - began) / len(tasks), tasks[0].kind
                count = max(1, min(self.most, int(GROUP_SECONDS / max(each, 1e-6))))
        return "died"

    def _run(self, task: Task) -> TaskResult | None:
        """What came of a task; None if it failed, which the board is told."""
        assert self.handler is not None
        if self.dead.is_set():
            return None
        try:
            return TaskResult(task.id, *self.handler.run(task, self.board))
        except BaseException as error:  # whatever it is, whoever waits is to know
            if not self.dead.is_set():
                self.board.retry_until(self.dead.is_set).failed(self.name, task.id, Failure.of(error))
                self.dead.wait(0.2)
            return None


class WorkerPool(Supervisor):
    """A task board and its workers. `run` hands tasks to them and waits; a thread looks after who dies or hangs.

    make, args: the task handler of each worker, made where the worker lives. most: tasks that a worker asks for at a
    time, if they are short; 1 where tasks wait for results of others that the same worker could be holding.
    """

    role: ClassVar[str] = "worker"

    def __init__(
        self,
        folder: str | Path,
        launcher: Launcher,
        config: PoolConfig,
        make: Callable[..., TaskHandler],
        *args: Any,
        most: int = MOST,
    ):
        super().__init__(Path(folder).absolute(), launcher, config.retries)
        self.config, self._make, self._most = config, (make, args), most
        check_request(self.folder, requested_workers(self.folder) or 0, launcher.private)
        self.board = self.service(BOARD, TaskBoard, str(self.folder / FOLDER), config.patience, config.retries)
        self.error: ShoalError | None = None
        self._ended = threading.Event()
        for number in range(config.workers):
            self.add(number)
        self._thread = threading.Thread(target=self._watch, daemon=True, name="pool")
        self._thread.start()

    def run(self, tasks: Sequence[Task], ahead: Sequence[Task] = ()) -> list[TaskResult]:
        """What came of all tasks, in their order; returns when everything is on disk.

        ahead: tasks that workers may go on with meanwhile, which will be waited for later.
        """
        ids = [task.id for task in tasks]
        by_id = dict(zip(ids, tasks, strict=True))
        with contextlib.suppress(ServiceUnavailable):  # then there is a reason to give up
            self.board.retry_until(self._over).add([*tasks, *ahead])
        while True:
            self.check()
            if stopping():  # what is done is on disk, and found again by whoever resumes
                raise KeyboardInterrupt
            with contextlib.suppress(ServiceUnavailable):
                state = self.board.once.wait(ids, WAIT)
                if state.broken is not None:
                    raise self._describe_failure(state.broken)
                if state.unknown:  # a board that was restarted has forgotten what was open
                    self.board.once.add([by_id[id] for id in state.unknown])
                elif state.done == len(ids):
                    return self.board.once.results(ids)

    def forget(self, ids: Sequence[str]) -> None:
        """Removes results that are safe elsewhere."""
        with contextlib.suppress(ServiceUnavailable):
            self.board.retry_until(self._over).forget(list(ids))

    def check(self) -> None:
        """Raises what has ended the work."""
        check_there(self.folder)
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """Ends the work. The launcher goes on."""
        self.write_status(last=True)
        with contextlib.suppress(ServiceUnavailable):
            self.board.once.stop()
        self._ended.set()
        self._thread.join()
        for name in [*self.workers, BOARD] if self.error is None else []:  # else the launcher ends them all
            self.launcher.remove(name)

    def add(self, number: int) -> None:
        name, (make, args), config = f"worker-{number}", self._make, self.config
        self.worker(name, TaskWorker, name, self.board, make, args, self._most, cpus=config.cpus, gpus=config.gpus)

    def remove(self, number: int) -> None:
        super().remove(number)
        self.board.retry.release(f"worker-{number}")  # somebody else is given what it had

    def on_return(self, name: str, value: Any) -> None:
        """It was told to stop."""

    def on_death(self, name: str, watched: WatchedWorker) -> None:
        # A board that dies forgets how often its workers were restarted: that does not tell one death from the next.
        watched.died = watched.replaced = -1
        with contextlib.suppress(ServiceUnavailable):
            self.board.once.release(name)

    def read_status(self) -> dict[str, Any]:
        return {"workers": self.board.once.status()}

    def is_hung(self, told: dict[str, Any]) -> bool:
        return told["hangs"]

    def count_finished(self, told: dict[str, Any]) -> int:
        return told["done"]

    def describe(self) -> dict[str, Any]:
        return {"team": dataclasses.asdict(self.config)}

    def _over(self) -> bool:
        return self.error is not None or stopping()

    def _watch(self) -> None:
        try:
            while not self._ended.wait(LOOK_SECONDS):
                self.look()
        except ClusterGoneError as error:
            self.error = ClusterGoneError(f"{error}. {self.how_to_resume}")
        except ShoalError as error:
            self.error = error

    def _describe_failure(self, broken: Broken) -> WorkerError:
        times = f" {broken.times} times" if broken.times > 1 else ""
        told = broken.failure.error(broken.worker).text
        return WorkerError(f"{broken.worker} failed{times} (task {broken.id}): {told}\n{self.how_to_resume}")


class LazyPool:
    """The workers of a run, hired when there is something to do: the folder is made, and bad input refused, by then."""

    def __init__(self, folder: Path, config: PoolConfig, launcher: Launcher):
        self.folder, self.config, self.launcher = folder, config, launcher
        self.pool: WorkerPool | None = None
        self._done: list[str] = []

    def start(self, make: Callable[..., TaskHandler], *args: Any, most: int = MOST) -> WorkerPool:
        """The pool, whose handlers are `make(*args)`; it is started by the first call."""
        if self.pool is None:
            self.pool = WorkerPool(self.folder, self.launcher, self.config, make, *args, most=most)
        return self.pool

    def run(self, tasks: Sequence[Task]) -> list[TaskResult]:
        """What came of all tasks; it is kept until the next checkpoint."""
        assert self.pool is not None
        self._done += [task.id for task in tasks]
        return self.pool.run(tasks)

    def saved(self) -> None:
        """After every checkpoint: what came of tasks is safe in it."""
        if self.pool is not None:
            self.pool.forget(self._done)
            self.pool.write_status()
            self._done = []

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()
