"""How many workers a run is to have, while it is on: word is left in its folder, and whoever watches over it looks."""

import json
from pathlib import Path

from shoal.core.errors import RunError
from shoal.core.files import read_json, write_atomically

WANTED = "wanted.json"
MOST = 100_000
"""Workers that a file may ask for."""


def want(folder: Path, workers: int) -> None:
    """Leaves word that there are to be so many actors, or workers."""
    write_atomically(folder / WANTED, json.dumps({"workers": workers}) + "\n")


def wanted_of(folder: Path) -> int | None:
    """How many are wanted; None if nobody said so."""
    try:
        found = read_json(folder / WANTED)["workers"]
    except (OSError, ValueError, KeyError, TypeError, RunError):
        return None
    return found if type(found) is int and 1 <= found <= MOST else None
