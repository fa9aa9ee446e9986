"""Stopping on request: a first signal lets a run finish cleanly, a second one interrupts it.

Long trainings run inside `stop_requested` and check its event between two calls of a program. The command line
handles signals while no Python code runs (`cli.interrupts`).
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

_requests: list[threading.Event] = []


def stopping() -> bool:
    """Whether SIGINT or SIGTERM was received; polled by code that blocks on workers."""
    return any(event.is_set() for event in _requests)


def saves() -> bool:
    """Whether the current run would finish cleanly on request."""
    return bool(_requests)


@contextlib.contextmanager
def stop_requested() -> Iterator[threading.Event]:
    """An event that is set by Ctrl-C, SIGTERM or a closed terminal; a second signal interrupts at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def request(number: int, frame: Any) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = {number: signal.signal(number, request) for number in _stop_signals()}
    _requests.append(event)
    try:
        yield event
    finally:
        _requests.remove(event)
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop_signals() -> list[signal.Signals]:
    """Signals that ask a run to save and stop. Under `nohup` a hang-up is ignored, and stays so."""
    asked = [signal.SIGINT, signal.SIGTERM]
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        asked.append(signal.SIGHUP)
    return asked
