"""What Ctrl-C does while modules are imported: nothing is under way yet, so the process ends at once.

An exception would not do: extension modules turn it into an `ImportError`, or end the process with a long trace.
"""

import os
from typing import Any

INTERRUPTED = 130
"""The exit code of what was stopped by Ctrl-C."""


def leave(*signal: Any) -> None:
    """A handler of SIGINT that ends the process, with the words and the exit code of `shoal`."""
    del signal
    os.write(2, b"error: interrupted\n")
    os._exit(INTERRUPTED)
