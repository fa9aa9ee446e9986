"""Distinguishes the user's Ctrl-C from a `KeyboardInterrupt` raised by an environment's code."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

_heard: list[bool] = []
"""For each active `listening`, whether Ctrl-C was pressed since it began."""


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Within it, Ctrl-C has its usual effect, and is recorded."""
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
    """Whether an error from an environment is the user's Ctrl-C, which must be passed on.

    Ctrl-C reaches the main thread only. Without `listening` it cannot be known, and is assumed to be the user's.
    """
    if not isinstance(error, KeyboardInterrupt) or threading.current_thread() is not threading.main_thread():
        return False
    return not _heard or any(_heard)
