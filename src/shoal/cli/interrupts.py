"""Ctrl-C is answered at once, whatever the command is doing; and compiling that takes long says so.

Python handles signals in its main thread, between two of its own instructions. While that thread is inside the compiler
or waits for a device, nothing would happen. So a thread of its own is told of every Ctrl-C by the system: it says what
becomes of the first one, and ends the process if the second has not ended it by itself. Files are written under other
names first, so that nothing is ever half there.
"""

import _thread
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from shoal.cli.leaving import INTERRUPTED
from shoal.core.compiling import is_compiling
from shoal.core.stopping import saves

TICK_SECONDS = 0.25
ANSWER_SECONDS = 1.0
"""How long the main thread has to react to the first Ctrl-C before somebody else says what is going on."""
GRACE_SECONDS = 2.0
"""How long it has to come to an end after the second one."""
COMPILING_SECONDS = 10.0
"""Between two lines that say that a program is still being compiled."""
PAUSE_SECONDS = 3.0
"""Programs that are compiled with no longer pause between them are spoken of as one."""
AGAIN = "Ctrl-C again ends it at once"


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Answers Ctrl-C for as long as it lasts. To be entered by the main thread of a process that is all ours."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)  # the system's handler must never wait
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watch = _Watch(reader)
    thread = threading.Thread(target=watch.run, daemon=True, name="interrupts")
    thread.start()
    hook, sys.unraisablehook = sys.unraisablehook, watch.lost(sys.unraisablehook)
    try:
        yield
    finally:
        sys.unraisablehook = hook
        signal.set_wakeup_fd(before)
        os.close(writer)
        thread.join(5 * TICK_SECONDS)


class _Watch:
    """Looks on from a thread of its own."""

    def __init__(self, reader: int):
        self.reader = reader
        self.times = 0  # Ctrl-C was pressed
        self.missed = False  # one of them was
        self.repeated = 0  # of those to come, not by the user
        self.answer_at: float | None = None
        self.end_at: float | None = None
        self.compiling_since: float | None = None
        self.paused_at: float | None = None  # or is compiling
        self.told_at = 0.0
        self.told_before = 0.0  # seconds of compiling that were told of, of programs before this one
        self.pauses = 0.0  # seconds since then in which nothing was compiled

    def run(self) -> None:
        while True:
            if select.select([self.reader], [], [], TICK_SECONDS)[0]:
                signals = os.read(self.reader, 64)
                if not signals:  # the other end was closed: the command is over
                    os.close(self.reader)
                    return
                for number in signals:
                    if number == signal.SIGINT:
                        self.pressed(time.monotonic())
            self.look(time.monotonic())

    def lost(self, hook: Callable[[Any], Any]) -> Callable[[Any], None]:
        """A hook for exceptions that cannot be raised: a Ctrl-C that met, say, the garbage collector is repeated."""

        def handle(unraisable: Any) -> None:
            if unraisable.exc_type is KeyboardInterrupt:
                self.missed = True
            else:
                hook(unraisable)

        return handle

    def pressed(self, now: float) -> None:
        if self.repeated:
            self.repeated -= 1
            return
        self.times += 1
        if self.times == 1 and saves():
            tell(f"stopping after what runs now, then saving; {AGAIN}")
        elif self.times == 1:
            self.answer_at = now + ANSWER_SECONDS
        else:
            self.end_at = now if self.times > 2 else now + GRACE_SECONDS

    def look(self, now: float) -> None:
        if self.missed:
            self.missed, self.repeated = False, self.repeated + 1
            _thread.interrupt_main()
        compiling = is_compiling()
        if self.end_at is not None and now >= self.end_at:
            end()
        if self.answer_at is not None and now >= self.answer_at:
            self.answer_at = None
            what = "compiling" if compiling else "what runs now"
            tell(f"interrupted, but {what} cannot be cut short; {AGAIN}")
        if not compiling:
            self.paused_at = now if self.paused_at is None else self.paused_at
            return
        pause, self.paused_at = 0.0 if self.paused_at is None else now - self.paused_at, None
        self.pauses += pause
        if self.compiling_since is None or pause > PAUSE_SECONDS:
            self._begin(now)
        elif now - self.told_at >= COMPILING_SECONDS:
            if 2 * self.pauses > now - self.told_at:  # it trains, and now and then makes something small
                self._begin(now)
                return
            self.told_at, self.pauses = self.told_at + COMPILING_SECONDS, 0.0
            if type(sys.stderr).__name__ != "FileProxy":  # a live table, which shows the time itself
                tell(f"compiling ... {round(self.told_before + self.told_at - self.compiling_since)} s")

    def _begin(self, now: float) -> None:
        """A program is being made that has nothing to do with those before; the seconds that were told go on."""
        if self.compiling_since is not None:
            self.told_before += self.told_at - self.compiling_since
        self.compiling_since = self.told_at = now
        self.pauses = 0.0


def tell(text: str) -> None:
    """A line on stderr, if anybody still reads it."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def end() -> None:
    """Ends the process, whatever its other threads are doing."""
    shown = (
        "\x1b[?25h" if sys.__stderr__ is not None and sys.__stderr__.isatty() else ""
    )  # a live table hides the cursor
    tell(f"{shown}ended at once: what was saved last is what there is")
    flush = threading.Thread(target=_flush, daemon=True)  # somebody may hold the stream, and wait for its reader
    flush.start()
    flush.join(0.5)
    os._exit(INTERRUPTED)


def _flush() -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
