"""Which process drives a run: told in `cluster.json`, so that others can see at once that it is gone."""

import contextlib
import os
import platform
from pathlib import Path
from typing import Any


def identity() -> dict[str, Any]:
    """Who drives: the process that calls it, and where it can be looked for."""
    return {"where": _where(), "pid": os.getpid(), "began": _began(os.getpid())}


def is_gone(told: Any) -> bool:
    """Whether the process that told this of itself is known to be no more. Of other machines nothing is known."""
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
    """A name for all processes whose numbers can be told apart."""
    space = ""
    with contextlib.suppress(OSError):  # Linux: containers count for themselves
        space = os.readlink("/proc/self/ns/pid")
    return f"{platform.node()} {space}".strip()


def _began(pid: int) -> str:
    """When a process began, in whatever the system counts; "" where that is not known, or it is dead but not buried."""
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    return ""
