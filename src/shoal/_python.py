"""Whether this Python can run Shoal. It is the first that is imported, so any Python 3 must be able to read it."""

import os
import sys

FIRST = (3, 11)
"""The oldest version that is supported; as in `pyproject.toml`."""


def check_python(version, argv):
    """Refuses older versions: the command with one line and exit code 2, an import with an error."""
    if tuple(version[:2]) >= FIRST:
        return
    found, first = (".".join(map(str, numbers)) for numbers in (version[:3], FIRST))
    message = "Shoal needs Python %s or newer, and this is Python %s: python%s -m venv .venv" % (first, found, first)  # noqa: UP031
    if argv and os.path.basename(argv[0]) in ("shoal", "-m"):
        sys.stderr.write("error: " + message + "\n")
        sys.exit(2)
    raise ImportError(message)
