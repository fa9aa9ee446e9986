"""How services are started and reach each other. Services themselves are plain classes that know handles only.

A `Handle` stands for a service that may live in another process: `call` waits for an answer, `ask` returns a future.
A service that is not there any more makes a call raise `Gone`; as everything that dies is started again, callers that
can wait use `insist`. A `Store` keeps large values out of messages: `put` returns something small that `get` turns back
into the value.

`Threads` is the in-process twin of a cluster: every service is an object, every loop a thread, and `kill` forgets the
object, so that faults can be rehearsed without a process.
"""

import contextlib
import dataclasses
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, Protocol

from shoal.core.errors import ShoalError


class Gone(Exception):
    """The service was not there to answer: it died, or is being started again."""


class WorkerError(ShoalError):
    """Something raised inside a worker. In words: its role, its task and the original error, once.

    text: without who it was. kind: the class of the original error.
    """

    def __init__(self, text: str, who: str = "", kind: str = ""):
        super().__init__(f"{who}: {text}" if who else text)
        self.text, self.kind = text, kind

    @property
    def line(self) -> str:
        """What was wrong, in a line."""
        return next(iter(self.text.splitlines()), "") or self.kind or "it failed without a word"


class ClusterGoneError(ShoalError):
    """The cluster itself has died, not one of its workers."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """An error on its way from one process to another: never pickled itself, as its class may not be known there."""

    kind: str
    text: str
    trace: str
    ours: bool  # a `ShoalError`: its text says all

    @staticmethod
    def of(error: BaseException) -> "Failure":
        trace = "".join(traceback.format_exception(error))
        return Failure(type(error).__name__, str(error), trace, isinstance(error, ShoalError))

    def error(self, who: str) -> WorkerError:
        if self.ours:
            return WorkerError(self.text, who, self.kind)
        return WorkerError(f"{self.kind}: {self.text}\n{self.trace}", who, self.kind)


class Handle(Protocol):
    """A service, as others see it."""

    @property
    def name(self) -> str: ...

    def call(self, method: str, *args: Any) -> Any: ...

    def ask(self, method: str, *args: Any) -> Future: ...

    def by(self, sender: str) -> "Handle":
        """The same handle in the hands of `sender`, so that messages can be counted by who sent them."""
        ...


class Store(Protocol):
    """Where large values wait to be fetched."""

    def put(self, value: Any) -> Any: ...

    def get(self, ref: Any) -> Any:
        """The value; raises `Gone` if whoever put it there died with it."""
        ...


class Fabric(Protocol):
    """What starts services. where: the cluster in a few words. private: whether it is this machine's, for one run."""

    @property
    def store(self) -> Store: ...

    @property
    def where(self) -> str: ...

    @property
    def private(self) -> bool: ...

    def start(self, name: str, factory: Callable[..., Any], *args: Any, cpus: float = 0.0, gpus: float = 0.0) -> Handle:
        """A service, made by `factory(*args)` where it will live; made again there whenever it died."""
        ...

    def kill(self, name: str) -> None:
        """Ends a service at once, as a fault would; it is made anew."""
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

    def do(self, method: str, args: tuple[Any, ...], sender: str) -> Any:
        if method == "counts":
            return dict(self.counts)
        self.counts[f"{sender}>{method}"] += 1
        try:
            return getattr(self.service, method)(*args)
        except Gone:
            raise
        except BaseException as error:  # whatever it is, the caller is to know
            return Failure.of(error)


def answer(value: Any, name: str) -> Any:
    """What a call returned, or the error that it brought."""
    if isinstance(value, Failure):
        raise value.error(name)
    return value


def role_of(name: str) -> str:
    """`actor` of `actor-3`."""
    return name.split("-")[0]


def insist(handle: Handle, method: str, *args: Any, give_up: Callable[[], bool] = lambda: False) -> Any:
    """Calls until somebody answers: a service that died is on its way back."""
    wait = 0.02
    while True:
        try:
            return handle.call(method, *args)
        except Gone:
            if give_up():
                raise
            time.sleep(wait)
            wait = min(2 * wait, 0.5)


class Memory:
    """The store of one process."""

    def put(self, value: Any) -> Any:
        return value

    def get(self, ref: Any) -> Any:
        return ref


@dataclasses.dataclass(frozen=True)
class LocalHandle:
    """A service of this process."""

    name: str
    fabric: "Threads"
    sender: str = "driver"

    def by(self, sender: str) -> "LocalHandle":
        return dataclasses.replace(self, sender=sender)

    def call(self, method: str, *args: Any) -> Any:
        served, died = self.fabric.served(self.name)
        value = served.do(method, args, self.sender)
        if died.is_set():  # it was killed meanwhile: nobody hears what it says
            raise Gone(self.name)
        return answer(value, self.name)

    def ask(self, method: str, *args: Any) -> Future:
        future: Future = Future()

        def work() -> None:
            try:
                value, error = self.call(method, *args), None
            except BaseException as raised:
                value, error = None, raised
            with contextlib.suppress(InvalidStateError):  # it was killed, and whoever asked was told
                future.set_exception(error) if error is not None else future.set_result(value)

        self.fabric.asked(self.name, future)
        threading.Thread(target=work, daemon=True, name=f"{self.name}.{method}").start()
        return future


class Threads:
    """A cluster in one process."""

    where = "threads of this process"
    private = True

    def __init__(self) -> None:
        self.store = Memory()
        self._made: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
        self._served: dict[str, tuple[Served, threading.Event]] = {}
        self._asked: dict[str, list[Future]] = {}
        self._lock = threading.RLock()

    def start(self, name: str, factory: Callable[..., Any], *args: Any, cpus: float = 0.0, gpus: float = 0.0) -> Handle:
        del cpus, gpus
        with self._lock:
            self._made[name] = (factory, args)
            self._served[name] = (Served(factory, args), threading.Event())
        return LocalHandle(name, self)

    def served(self, name: str) -> tuple[Served, threading.Event]:
        with self._lock:
            if name not in self._made:
                raise Gone(name)
            if name not in self._served:
                self._served[name] = (Served(*self._made[name]), threading.Event())
            return self._served[name]

    def asked(self, name: str, future: Future) -> None:
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
                future.set_exception(Gone(name))
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
