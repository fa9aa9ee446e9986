"""How many workers a run is to have, while it is on: word is left in its folder, and whoever watches over it looks."""

import json
import os
from pathlib import Path

from shoal.core.errors import RunError
from shoal.core.files import read_json, write_atomically

WANTED = "wanted.json"
MOST = 4096
"""Processes that a run may have."""
MOST_A_CORE = 16
"""Processes on this machine, for each core of it and once more, that are started because a folder says so."""


def request_workers(folder: Path, workers: int) -> None:
    """Leaves word that there are to be so many actors, or workers."""
    write_atomically(folder / WANTED, json.dumps({"workers": workers}) + "\n")


def requested_workers(folder: Path) -> int | None:
    """How many are wanted; None if nobody said so."""
    try:
        found = read_json(folder / WANTED)["workers"]
    except (OSError, ValueError, KeyError, TypeError, RunError):
        return None
    return found if type(found) is int and 1 <= found <= MOST else None


def check_request(folder: Path, processes: int, private: bool) -> None:
    """Refuses more processes on this machine than a folder, which may be anybody's, can ask for.

    private: whether they would be on a cluster that is this machine alone, where nothing else keeps them few.
    """
    most = MOST_A_CORE * ((os.cpu_count() or 1) + 1)
    if private and processes > most:
        raise RunError(
            f"{folder} asks for {processes:,} processes, and a folder gets at most {most} on this machine. If you want "
            "them, start a cluster, `ray start --head`, and name it, --cluster ADDRESS."
        )
