"""The lock of a run folder, by which processes know that one of them is training there; needs no JAX."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from shoal.core.errors import RunError

try:
    import fcntl
except ImportError:  # not on this system: then there is no lock
    fcntl = None

TRIES, PAUSE = 10, 0.02
"""How often a lock is tried, and the seconds in between: a look at it (`is_locked`) holds it for a moment."""


@contextlib.contextmanager
def lock_folder(path: Path) -> Iterator[None]:
    """Keeps other processes from training in the same folder; released when the process ends, however it ends."""
    if fcntl is None:
        yield
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        _take(folder, path)
        yield
    finally:
        os.close(folder)


def _take(folder: int, path: Path) -> None:
    assert fcntl is not None
    for left in reversed(range(TRIES)):
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if not left:
                raise RunError(f"another process is training in {path}: wait for it, or stop it first") from error
            time.sleep(PAUSE)


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Whether a process is training in a folder. It asks for a shared lock: those who only look do not disturb."""
    if fcntl is None:
        return False
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(folder)
    return False
