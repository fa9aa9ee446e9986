"""How many workers a run is to have, while it is on: word is left in its folder, and whoever watches over it looks."""

import json
from pathlib import Path

from shoal.core.files import write_atomically

WANTED = "wanted.json"


def want(folder: Path, workers: int) -> None:
    """Leaves word that there are to be so many actors, or workers."""
    write_atomically(folder / WANTED, json.dumps({"workers": workers}) + "\n")


def wanted_of(folder: Path) -> int | None:
    """How many are wanted; None if nobody said so."""
    try:
        found = int(json.loads((folder / WANTED).read_text())["workers"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if found >= 1 else None
