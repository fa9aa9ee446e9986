"""The requested number of workers, passed to a running driver through a file in its run folder."""

import json
import os
from pathlib import Path

from shoal.core.errors import RunError
from shoal.core.files import read_json, write_atomically

WANTED = "wanted.json"
MOST = 4096
"""Largest number of processes of a run."""
MOST_A_CORE = 16
"""Processes per core of this machine, and as many once more, that a run folder alone may ask for."""


def request_workers(folder: Path, workers: int) -> None:
    """Requests that number of actors or workers."""
    write_atomically(folder / WANTED, json.dumps({"workers": workers}) + "\n")


def requested_workers(folder: Path) -> int | None:
    """The requested number; None if there is no request."""
    try:
        found = read_json(folder / WANTED)["workers"]
    except (OSError, ValueError, KeyError, TypeError, RunError):
        return None
    return found if type(found) is int and 1 <= found <= MOST else None


def check_request(folder: Path, processes: int, private: bool) -> None:
    """Refuses more processes on this machine than a run folder, which may come from anybody, can ask for.

    private: whether they would be on a cluster that is this machine alone, where nothing else keeps them few.
    """
    most = MOST_A_CORE * ((os.cpu_count() or 1) + 1)
    if private and processes > most:
        raise RunError(
            f"{folder} asks for {processes:,} processes, and a folder gets at most {most} on this machine. If you want "
            "them, start a cluster, `ray start --head`, and name it, --cluster ADDRESS."
        )
