"""Child processes find modules where this one does, and not in the current folder.

That folder may be a run folder from anyone: `cd RUN; shoal resume .` must not import what lies in RUN.
"""

import contextlib
import os
import sys
from collections.abc import Iterator

SAFE = "PYTHONSAFEPATH"


def module_command(module: str, *words: str) -> list[str]:
    """The command that runs a module of this package with this Python; nothing of the current folder is imported."""
    return [sys.executable, "-P", "-m", module, *words]


@contextlib.contextmanager
def away_from_current_folder() -> Iterator[None]:
    """Within it, newly started Python processes do not search the current folder for modules.

    `multiprocessing` passes this process's own path on: a script's own folder is still searched.
    """
    before = os.environ.get(SAFE)
    os.environ[SAFE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE]
        else:
            os.environ[SAFE] = before
