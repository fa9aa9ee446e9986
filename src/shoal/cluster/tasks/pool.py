"""A pool of workers that run tasks: dead ones are restarted, hung ones replaced.

    WorkerPool (driver)  --add, wait, results-->  TaskBoard  <--report_and_fetch--  Worker, Worker, ...

A `TaskWorker` is created in its own process with a `TaskHandler`, an object with a method `run(task, board)` that
returns figures and, optionally, arrays; compiled programs are kept between tasks. It fetches tasks from the board until
it gets a task `stop`. A task that raises is reported and retried by the next free worker; if it fails too often, the
driver raises one error with the worker, the task and the original error.
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
from shoal.core.checks import check_types
from shoal.core.errors import ShoalError, require, require_positive
from shoal.core.stopping import stopping
from shoal.training.run_kinds import check_there

BOARD = "board"
WAIT = 1.0
"""Seconds that the board waits for a task before it returns none."""
MOST = 16
"""The most tasks that a worker fetches at once."""
GROUP_SECONDS = 0.02
"""It fetches as many tasks as it runs in this many seconds: short ones in groups, or messages would dominate."""
LOOK_SECONDS = 0.05


@dataclasses.dataclass(frozen=True)
class PoolConfig:
    """The size of a worker pool, its resources and time limits."""

    workers: int = 2  # processes of the cluster that train and play
    cpus: float = 1.0  # CPU cores of each worker
    gpus: float = 0.0  # GPUs of each worker
    task_timeout: float = 600.0  # seconds that a task may take before its worker is taken for hung, and replaced
    retries: int = 3  # times that a task may fail, or a worker in a row, before the run gives up
    devices: int | None = 1  # devices that a worker's programs use; None: all that it sees

    def __post_init__(self):
        check_types(self, "cluster")
        require_positive("cluster", workers=self.workers, task_timeout=self.task_timeout)
        require(self.workers <= MOST_WORKERS, "cluster", "workers", self.workers, f"{MOST_WORKERS} at most")
        require(self.retries >= 0, "cluster", "retries", self.retries, "0 or more")
        for name in ("cpus", "gpus"):
            require(getattr(self, name) >= 0, "cluster", name, getattr(self, name), "0 or more")

    @property
    def needs(self) -> dict[str, float]:
        """The resources of a worker."""
        return {"CPU": self.workers * self.cpus} | ({"GPU": self.workers * self.gpus} if self.gpus else {})


class TaskHandler(Protocol):
    """Runs tasks. board: gives access to the results of other tasks."""

    def run(self, task: Task, board: Service[TaskBoard]) -> tuple[dict[str, Any], Sequence[np.ndarray] | None]: ...


class TaskWorker:
    """Fetches tasks and runs them. `run` returns when it is asked to stop.

    most: tasks that it fetches at once, if they are short.
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
        """Works until it is asked to stop; returns why."""
        if self.handler is None:
            self.handler = self.make(*self.args)
        ticket, results, count, kind = uuid.uuid4().hex, [], 1, ""
        self.board.retry_until(self.dead.is_set).hello(self.name, ticket)
        while not self.dead.is_set():
            asked = (self.name, ticket, (), results, count, WAIT, kind)
            tasks = self.board.retry_until(self.dead.is_set).report_and_fetch(*asked)
            results = []
            if tasks is None:  # the board was restarted, or has replaced this worker
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
        """The result of a task; None if it failed, which is reported to the board."""
        assert self.handler is not None
        if self.dead.is_set():
            return None
        try:
            return TaskResult(task.id, *self.handler.run(task, self.board))
        except BaseException as error:  # any error must reach the driver
            if not self.dead.is_set():
                self.board.retry_until(self.dead.is_set).report_failure(self.name, task.id, Failure.of(error))
                self.dead.wait(0.2)
            return None


class WorkerPool(Supervisor):
    """A task board and its workers. `run` hands tasks to them and waits; a thread watches for dead and hung workers.

    make, args: the task handler of each worker, created in its process. most: tasks that a worker fetches at once, if
    they are short; 1 if tasks wait for results of others that the same worker could have.
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
        self.board = self.service(BOARD, TaskBoard, str(self.folder / FOLDER), config.task_timeout, config.retries)
        self.error: ShoalError | None = None
        self._ended = threading.Event()
        for number in range(config.workers):
            self.add(number)
        self._thread = threading.Thread(target=self._watch, daemon=True, name="pool")
        self._thread.start()

    def run(self, tasks: Sequence[Task], ahead: Sequence[Task] = ()) -> list[TaskResult]:
        """The results of all tasks, in order; returns when everything is on disk.

        ahead: further tasks that workers may start meanwhile; their results are fetched later.
        """
        ids = [task.id for task in tasks]
        by_id = dict(zip(ids, tasks, strict=True))
        with contextlib.suppress(ServiceUnavailable):  # then there is a reason to give up
            self.board.retry_until(self._over).add([*tasks, *ahead])
        while True:
            self.check()
            if stopping():  # finished results are on disk, and reused on resume
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
        """Raises the error that has ended the work."""
        check_there(self.folder)
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """Ends the pool. The launcher keeps running."""
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
        self.board.retry.release(f"worker-{number}")  # its tasks are leased to others

    def on_return(self, name: str, value: Any) -> None:
        """It was asked to stop."""

    def on_death(self, name: str, watched: WatchedWorker) -> None:
        # A board that dies loses the counts of its workers' restarts, so these do not identify a death.
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
    """The workers of a run, started with the first tasks: by then the folder exists and bad input was refused."""

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
        """The results of all tasks, which are kept until the next checkpoint."""
        assert self.pool is not None
        self._done += [task.id for task in tasks]
        return self.pool.run(tasks)

    def saved(self) -> None:
        """Called after every checkpoint, which contains the results of tasks."""
        if self.pool is not None:
            self.pool.forget(self._done)
            self.pool.write_status()
            self._done = []

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()
