"""A service as others call it. Services themselves are plain classes; a `Service[T]` stands for one that may live in
another process, and is called as the class is written:

    queue: Service[Queue]
    queue.once.take(4)                             one attempt; raises `ServiceUnavailable` if it is not there
    queue.retry.take(4)                            until it answers: services are restarted
    queue.retry_until(stopped).take(4)             the same, but gives up once `stopped()` is true
    queue.submit(Queue.take, 4).result()           does not wait until the answer is asked for

Type checkers know the arguments and the answer of each of these, and editors find the method. What a service raises
comes back as a `WorkerError`.
"""

import dataclasses
import time
import traceback
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

from shoal.core.errors import ShoalError

T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
P = ParamSpec("P")

MESSAGES = "message_counts"
"""What a service is asked for how many messages it got: answered for it, where it lives."""
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
"""Seconds between attempts; pauses double."""


class ServiceUnavailable(Exception):
    """The service did not answer: it has died, or is restarting."""


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


class Answer(Protocol[R_co]):
    """An answer that is on its way."""

    def done(self) -> bool: ...

    def result(self, timeout: float | None = None) -> R_co: ...


class Handle(Protocol):
    """What carries calls to a service, by the name of the method."""

    @property
    def name(self) -> str: ...

    def call(self, method: str, *args: Any, **options: Any) -> Any: ...

    def call_async(self, method: str, *args: Any, **options: Any) -> Answer[Any]: ...

    def by(self, sender: str) -> "Handle":
        """The same handle in the hands of `sender`, so that messages can be counted by who sent them."""
        ...


class Store(Protocol):
    """Where large values wait to be fetched: `put` returns something small that `get` turns back into the value."""

    def put(self, value: Any) -> Any: ...

    def get(self, ref: Any) -> Any:
        """The value; raises `ServiceUnavailable` if whoever put it there died with it."""
        ...


def call_with_retry(call: Callable[P, R], give_up: Callable[[], bool], *args: P.args, **options: P.kwargs) -> R:
    """Retries until the service answers: one that died is being restarted."""
    pause = FIRST_PAUSE
    while True:
        try:
            return call(*args, **options)
        except ServiceUnavailable:
            if give_up():
                raise
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


class _Methods:
    """Looks like the service, but every method is a call to it. give_up: None for a single attempt."""

    def __init__(self, handle: Handle, give_up: Callable[[], bool] | None):
        self._handle, self._give_up = handle, give_up

    def __getattr__(self, method: str) -> Callable[..., Any]:
        handle, give_up = self._handle, self._give_up
        if give_up is None:
            return lambda *args, **options: handle.call(method, *args, **options)
        return lambda *args, **options: call_with_retry(handle.call, give_up, method, *args, **options)


@dataclasses.dataclass(frozen=True)
class Service(Generic[T]):
    """A service of class `T`, as others see it."""

    handle: Handle

    @property
    def name(self) -> str:
        return self.handle.name

    @property
    def once(self) -> T:
        """Its methods, each one attempt: raises `ServiceUnavailable` if it is not there."""
        return cast(T, _Methods(self.handle, None))

    @property
    def retry(self) -> T:
        """Its methods, tried until it answers."""
        return self.retry_until(lambda: False)

    def retry_until(self, give_up: Callable[[], bool]) -> T:
        """Its methods, tried until it answers or there is a reason to give up; then raises `ServiceUnavailable`."""
        return cast(T, _Methods(self.handle, give_up))

    def submit(self, method: Callable[Concatenate[T, P], R], *args: P.args, **options: P.kwargs) -> Answer[R]:
        """Calls a method of its class and does not wait. One attempt."""
        return self.handle.call_async(method.__name__, *args, **options)

    def by(self, sender: str) -> "Service[T]":
        """The same service in the hands of `sender`, so that messages can be counted by who sent them."""
        return Service(self.handle.by(sender))

    def messages(self) -> dict[str, int]:
        """How many messages it got, by `sender>method`."""
        return self.handle.call(MESSAGES)
