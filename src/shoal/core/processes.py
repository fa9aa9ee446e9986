"""Processes that are started from here find modules where this one does, and not in the folder that it is in.

That folder may be a run's, from anybody: `cd RUN; shoal resume .` must not import what lies in RUN.
"""

import os


def ignore_current_folder() -> None:
    """Keeps Python processes that are started from now on from looking for modules in the current folder.

    What is on this process's own path, they are told: a script's own folder stays known to them.
    """
    os.environ["PYTHONSAFEPATH"] = "1"
