"""Watches over the services and workers of a run: what died is restarted, what hangs is replaced.

A training (`training.TrainingSupervisor`) and the worker pool of a population (`tasks.pool.WorkerPool`) are both
supervisors; they differ in who tracks the workers' progress and in what is done with their results. A supervisor holds
no state of the run: that is in the run folder. It writes `cluster.json`, which `shoal cluster status` shows.
"""

import abc
import contextlib
import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from shoal.cluster import driver
from shoal.cluster.history import ClusterHistory
from shoal.cluster.services.scaling import requested_workers
from shoal.cluster.transport.launcher import Launcher
from shoal.cluster.transport.service import Answer, Service, ServiceUnavailable, WorkerError
from shoal.core.errors import RunError, ShoalError, shell_command
from shoal.core.files import write_atomically

STATUS = "cluster.json"
STATUS_SECONDS = 1.0
FATAL = ("NonFiniteError", "OptionError")
"""Errors that restarting a worker does not help against."""

T = TypeVar("T")


class Runs(Protocol):
    """A worker: its `run` is called once it has started, and again after every restart."""

    def run(self) -> Any: ...


@dataclasses.dataclass
class WatchedWorker:
    """A worker, as its supervisor knows it."""

    service: Service[Any]
    running: Answer[Any] | None = None  # its loop
    failures: int = 0  # in a row
    finished: int = 0  # rounds or tasks
    wait_until: float = 0.0
    restarts: int = 0
    died: int = -1  # how often it had been restarted when it was last seen to be dead
    replaced: int = -1  # which of its lives was replaced: the next one is given the time that it takes to start


class Supervisor(abc.ABC):
    """Services and workers of one run. `look` checks all of them once and is called repeatedly."""

    role: ClassVar[str]
    """The role of the workers that may be added and removed during the run."""

    def __init__(self, folder: Path, launcher: Launcher, retries: int):
        self.folder, self.launcher, self.retries = folder, launcher, retries
        self.services: dict[str, Service[Any]] = {}
        self.workers: dict[str, WatchedWorker] = {}
        self.status: dict[str, Any] = {}
        self.events: list[dict[str, Any]] = []
        self._began, self._written = time.monotonic(), 0.0
        self._history = ClusterHistory(folder)

    @abc.abstractmethod
    def read_status(self) -> dict[str, Any]:
        """The status of the run; `workers` has the `task`, `busy_s` and `restarts` of each worker."""

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Further entries of `cluster.json`."""

    @abc.abstractmethod
    def add(self, number: int) -> None:
        """Starts one more worker."""

    @abc.abstractmethod
    def is_hung(self, told: dict[str, Any]) -> bool:
        """Whether a worker with this status has taken too long."""

    @abc.abstractmethod
    def count_finished(self, told: dict[str, Any]) -> int:
        """How many rounds or tasks a worker has finished."""

    @abc.abstractmethod
    def on_return(self, name: str, value: Any) -> None:
        """A worker's loop is over."""

    @abc.abstractmethod
    def on_death(self, name: str, watched: WatchedWorker) -> None:
        """A worker was found to be dead; it is restarted."""

    @property
    def scales(self) -> bool:
        """Whether workers may be added and removed."""
        return True

    @property
    def path(self) -> str:
        """The run folder, as every process knows it."""
        return str(self.folder)

    def service(self, name: str, factory: Callable[..., T], *args: Any) -> Service[T]:
        """Starts a service, which all that are started later can call."""
        self.services[name] = started = self.launcher.start(name, factory, *args)
        return started

    def worker(self, name: str, factory: Callable[..., Runs], *args: Any, cpus: float = 0.0, gpus: float = 0.0) -> None:
        """Starts a worker; its `run` is called, and called again after every restart."""
        self.workers[name] = WatchedWorker(self.launcher.start(name, factory, *args, cpus=cpus, gpus=gpus))

    def remove(self, number: int) -> None:
        """Removes a worker; only what it has not handed in yet is lost."""
        name = f"{self.role}-{number}"
        del self.workers[name]
        self.launcher.remove(name)

    def look(self) -> None:
        """Checks all workers once; raises errors that end the run."""
        for name, watched in list(self.workers.items()):
            self._look_after(name, watched)
        self.launcher.check()
        with contextlib.suppress(ServiceUnavailable):
            self.status = self.read_status()
            for name, told in self.status["workers"].items():
                if name in self.workers:
                    self._replace_if_hung(name, self.workers[name], told)
        if time.monotonic() - self._written >= STATUS_SECONDS:
            self._scale()
            self.write_status()

    def _look_after(self, name: str, watched: WatchedWorker) -> None:
        if watched.running is None:
            if time.monotonic() >= watched.wait_until:
                with contextlib.suppress(ServiceUnavailable):
                    watched.running = watched.service.submit(Runs.run)
            return
        if not watched.running.done():
            return
        running, watched.running = watched.running, None
        try:
            value = running.result()
        except ServiceUnavailable:
            restarts = self.status.get("workers", {}).get(name, {}).get("restarts", 0)
            if restarts != watched.died:  # not counted again before it has come back
                watched.restarts += 1
                self._note(name, "died")
            watched.died = restarts
            watched.wait_until = time.monotonic() + 0.1
            self.on_death(name, watched)
        except WorkerError as error:
            self._count_failure(name, watched, error)
        else:
            self.on_return(name, value)

    def _count_failure(self, name: str, watched: WatchedWorker, error: WorkerError) -> None:
        """Counts a worker's own error: it is retried with growing pauses, up to the limit."""
        watched.failures += 1
        watched.restarts += 1
        self._note(name, error.line)
        if watched.failures > self.retries or error.kind in FATAL:
            task = self.status.get("workers", {}).get(name, {}).get("task") or "starting"
            times = f" {watched.failures} times in a row" if watched.failures > 1 else ""
            raise WorkerError(f"{name} failed{times} ({task}): {error.text}\n{self.how_to_resume}")
        watched.wait_until = time.monotonic() + min(0.1 * 2**watched.failures, 5.0)

    def _replace_if_hung(self, name: str, watched: WatchedWorker, told: dict[str, Any]) -> None:
        finished = self.count_finished(told)
        if finished > watched.finished:
            watched.failures = 0
        watched.finished = finished
        if self.is_hung(told) and watched.running is not None and told["restarts"] != watched.replaced:
            self._note(name, f"hung for {told['busy_s']:.0f} s in {told['task']}")
            watched.replaced = told["restarts"]
            self.launcher.kill(name)

    def _scale(self) -> None:
        """Adds or removes workers, if `wanted.json` in the run folder says another number (`shoal cluster scale`)."""
        wanted = requested_workers(self.folder)
        if wanted is None or not self.scales:
            return
        there = sorted(int(name.split("-")[1]) for name in self.workers if name.split("-")[0] == self.role)
        following = max(there, default=-1) + 1
        for number in range(following, following + wanted - len(there)):
            self._note(f"{self.role}-{number}", "added")
            self.add(number)
        for number in there[wanted:]:
            self._note(f"{self.role}-{number}", "removed")
            self.remove(number)

    @property
    def how_to_resume(self) -> str:
        """The advice that is added to every error that ends a run."""
        return f"What is committed is safe in {self.folder}: go on with `{shell_command('resume', self.folder)}`."

    def _note(self, name: str, what: str) -> None:
        self.events.append({"seconds": round(time.monotonic() - self._began, 2), "worker": name, "what": what})

    def write_status(self, last: bool = False) -> None:
        """Writes the status of the run to `cluster.json`."""
        self._written = time.monotonic()
        with contextlib.suppress(ServiceUnavailable, ShoalError):
            self.status = self.read_status()
        status = self.status | {"services": {}, "messages": {}}
        for name, service in self.services.items():
            with contextlib.suppress(ServiceUnavailable, ShoalError):
                status["services"][name] = service.once.figures()
                status["messages"][name] = service.messages()
        status["restarts"] = {name: watched.restarts for name, watched in list(self.workers.items())}
        status["events"] = self.events[-50:]
        status["running"], status["driver"] = not last, driver.identity()
        status["dashboard"] = self.launcher.dashboard()
        status |= self.describe()
        with contextlib.suppress(OSError, RunError):  # what is shown is not what matters
            write_atomically(self.folder / STATUS, json.dumps(status, indent=1) + "\n")
            self._remember(status, last)

    def _remember(self, status: dict[str, Any], last: bool) -> None:
        """Adds a line to the history of the run."""
        lengths = ((name, told.get("length", told.get("open"))) for name, told in status["services"].items())
        queues = {name: length for name, length in lengths if length is not None}
        each = max(1, status.get("copies", 1) * status.get("steps", 1))
        told = self.status.get("workers", {})
        finished = {name: each * self.count_finished(told[name]) for name in self.workers if name in told}
        restarts = sum(status["restarts"].values())
        self._history.add(time.monotonic() - self._began, queues, restarts, finished, last)
