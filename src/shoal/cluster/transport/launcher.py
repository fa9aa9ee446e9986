"""Starts services, wherever they live, and restarts those that die.

`ThreadLauncher` is the in-process twin of a cluster: every service is an object, every loop a thread, and `kill`
forgets the object, so that faults can be rehearsed without a process. On Ray it is `ray_launcher.RayLauncher`.
"""

import contextlib
import dataclasses
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, Protocol, TypeVar

from shoal.cluster.transport.service import MESSAGES, Failure, Service, ServiceUnavailable, Store
from shoal.core.errors import ShoalError

T = TypeVar("T")


class ClusterGoneError(ShoalError):
    """The cluster itself has died, not one of its workers."""


class Launcher(Protocol):
    """Starts services. where: the cluster in a few words. private: whether it was started here for one run."""

    @property
    def store(self) -> Store: ...

    @property
    def where(self) -> str: ...

    @property
    def private(self) -> bool: ...

    def start(
        self, name: str, factory: Callable[..., T], *args: Any, cpus: float = 0.0, gpus: float = 0.0
    ) -> Service[T]:
        """Starts a service, `factory(*args)` where it will live; it is recreated whenever it dies."""
        ...

    def kill(self, name: str) -> None:
        """Kills a service, as a fault would; it is recreated."""
        ...

    def remove(self, name: str) -> None:
        """Ends a service for good."""
        ...

    def stop(self) -> None:
        """Ends everything."""
        ...

    def check(self) -> None:
        """Raises `ClusterGoneError` if nothing that died can come back, as the cluster itself is gone."""
        ...

    def dashboard(self) -> str | None:
        """The address of a page that shows the cluster, if there is one."""
        ...


class Served:
    """A service where it lives: carries calls out, counts them, and turns what they raise into a `Failure`."""

    def __init__(self, factory: Callable[..., Any], args: tuple[Any, ...]):
        self.service = factory(*args)
        self.counts: Counter[str] = Counter()

    def do(self, method: str, args: tuple[Any, ...], options: dict[str, Any], sender: str) -> Any:
        if method == MESSAGES:
            return dict(self.counts)
        self.counts[f"{sender}>{method}"] += 1
        try:
            return getattr(self.service, method)(*args, **options)
        except ServiceUnavailable:
            raise
        except BaseException as error:  # whatever it is, the caller is to know
            return Failure.of(error)


def answer(value: Any, name: str) -> Any:
    """What a call returned, or the error that it brought."""
    if isinstance(value, Failure):
        raise value.error(name)
    return value


class LocalStore:
    """The store of one process."""

    def put(self, value: Any) -> Any:
        return value

    def get(self, ref: Any) -> Any:
        return ref


@dataclasses.dataclass(frozen=True)
class LocalHandle:
    """A service of this process."""

    name: str
    launcher: "ThreadLauncher"
    sender: str = "driver"

    def by(self, sender: str) -> "LocalHandle":
        return dataclasses.replace(self, sender=sender)

    def call(self, method: str, *args: Any, **options: Any) -> Any:
        served, died = self.launcher.find_served(self.name)
        value = served.do(method, args, options, self.sender)
        if died.is_set():  # it was killed meanwhile: nobody hears what it says
            raise ServiceUnavailable(self.name)
        return answer(value, self.name)

    def call_async(self, method: str, *args: Any, **options: Any) -> Future[Any]:
        future: Future = Future()

        def work() -> None:
            try:
                value, error = self.call(method, *args, **options), None
            except BaseException as raised:
                value, error = None, raised
            with contextlib.suppress(InvalidStateError):  # it was killed, and whoever asked was told
                future.set_exception(error) if error is not None else future.set_result(value)

        self.launcher.add_waiting(self.name, future)
        threading.Thread(target=work, daemon=True, name=f"{self.name}.{method}").start()
        return future


class ThreadLauncher:
    """A cluster in one process."""

    where = "threads of this process"
    private = True

    def __init__(self) -> None:
        self.store = LocalStore()
        self._made: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
        self._served: dict[str, tuple[Served, threading.Event]] = {}
        self._asked: dict[str, list[Future]] = {}
        self._lock = threading.RLock()

    def start(
        self, name: str, factory: Callable[..., T], *args: Any, cpus: float = 0.0, gpus: float = 0.0
    ) -> Service[T]:
        with self._lock:
            self._made[name] = (factory, args)
            self._served[name] = (Served(factory, args), threading.Event())
        return Service(LocalHandle(name, self))

    def find_served(self, name: str) -> tuple[Served, threading.Event]:
        with self._lock:
            if name not in self._made:
                raise ServiceUnavailable(name)
            if name not in self._served:
                self._served[name] = (Served(*self._made[name]), threading.Event())
            return self._served[name]

    def add_waiting(self, name: str, future: Future) -> None:
        """Somebody waits for an answer of that service."""
        with self._lock:
            waiting = self._asked.get(name, [])
            self._asked[name] = [one for one in waiting if not one.done()] + [future]

    def kill(self, name: str) -> None:
        with self._lock:
            served, died = self._served.pop(name, (None, threading.Event()))
            asked = self._asked.pop(name, [])
        died.set()
        for future in asked:  # what hangs never answers
            with contextlib.suppress(InvalidStateError):
                future.set_exception(ServiceUnavailable(name))
        stop = getattr(getattr(served, "service", None), "die", None)
        if stop is not None:
            stop()

    def remove(self, name: str) -> None:
        with self._lock:
            self._made.pop(name, None)
        self.kill(name)

    def stop(self) -> None:
        for name in list(self._made):
            self.remove(name)

    def check(self) -> None:
        """It is there for as long as this process."""

    def dashboard(self) -> None:
        """There is no cluster to be shown."""
