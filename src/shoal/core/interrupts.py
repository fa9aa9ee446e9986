"""A Ctrl-C of the user's, told apart from a `KeyboardInterrupt` that the code of an environment raises."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

_heard: list[bool] = []
"""For each `listening` that is going on, whether Ctrl-C was pressed since it began."""


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """While it lasts, Ctrl-C does what it did before, and is remembered."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before, place = signal.getsignal(signal.SIGINT), len(_heard)

    def hear(number: int, frame: Any) -> None:
        _heard[place] = True
        if callable(before):
            before(number, frame)
        elif before == signal.SIG_DFL:
            raise KeyboardInterrupt

    _heard.append(False)
    signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        _heard.pop()


def is_users(error: BaseException) -> bool:
    """Whether an error out of an environment is a Ctrl-C of the user's, which is nobody else's to handle.

    Ctrl-C reaches the main thread only. Where nobody listens, it cannot be known, and is taken to be the user's.
    """
    if not isinstance(error, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread():
        return False
    return not _heard or any(_heard)
