"""Processes that are started from here find modules where this one does, and not in the folder that it is in.

That folder may be a run's, from anybody: `cd RUN; shoal resume .` must not import what lies in RUN.
"""

import contextlib
import os
from collections.abc import Iterator

SAFE = "PYTHONSAFEPATH"


@contextlib.contextmanager
def away_from_current_folder() -> Iterator[None]:
    """Python processes that are started meanwhile do not look for modules in the current folder.

    What is on this process's own path, `multiprocessing` tells them: a script's own folder stays known to them.
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
