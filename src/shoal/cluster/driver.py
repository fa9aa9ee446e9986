"""The process that drives a run, as recorded in `cluster.json`, so that others see at once when it is gone."""

import contextlib
import os
import platform
from pathlib import Path
from typing import Any


def identity() -> dict[str, Any]:
    """The identity of the calling process: machine, process id and start time."""
    return {"where": _where(), "pid": os.getpid(), "began": _began(os.getpid())}


def is_gone(told: Any) -> bool:
    """Whether a process with this identity is known to have ended. Nothing is known of other machines."""
    if not isinstance(told, dict) or told.get("where") != _where() or type(told.get("pid")) is not int:
        return False
    pid = told["pid"]
    try:
        os.kill(pid, 0)
    except PermissionError:  # somebody else's
        pass
    except (OSError, OverflowError):
        return True
    return _began(pid) != told.get("began")  # its number may be another's by now


def _where() -> str:
    """A name for the scope in which process ids are unique: machine and container."""
    space = ""
    with contextlib.suppress(OSError):  # Linux: containers count for themselves
        space = os.readlink("/proc/self/ns/pid")
    return f"{platform.node()} {space}".strip()


def _began(pid: int) -> str:
    """When a process began, in the system's own units; "" where that is not known, or the process is a zombie."""
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    return ""
