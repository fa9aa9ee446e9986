"""How a run ended, if an error ended it: `outcome.json` in its folder, until it is resumed. Needs no JAX."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from shoal.core.errors import RunError, ShoalError
from shoal.core.files import read_json, write_atomically
from shoal.core.schema import check
from shoal.training.folder_lock import lock_folder

FILE = "outcome.json"
MOST_LETTERS = 2000


@contextlib.contextmanager
def work_in(folder: Path) -> Iterator[None]:
    """Locks a run folder for as long as a run is made there, and keeps the error that ends it, if one does."""
    with lock_folder(folder):
        with contextlib.suppress(OSError):
            (folder / FILE).unlink(missing_ok=True)
        try:
            yield
        except Exception as error:
            _keep(folder, error)
            raise


def _keep(folder: Path, error: Exception) -> None:
    text = str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
    with contextlib.suppress(OSError, RunError):  # the folder may be gone, or its disk be full: the error itself counts
        if (folder / "config.json").is_file():
            write_atomically(folder / FILE, json.dumps({"error": text[:MOST_LETTERS]}) + "\n")


def read_outcome(folder: Path) -> str | None:
    """The error that ended a run; None if none did. What is in the file is shown and nothing else."""
    try:
        data = read_json(folder / FILE, 1 << 20)
        check(data, {"error": str}, "outcome")
    except (OSError, ValueError, RunError):
        return None
    return " ".join(data["error"][:MOST_LETTERS].split())
