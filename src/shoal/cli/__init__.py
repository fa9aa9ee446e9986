"""The `shoal` command. The rest is imported when it is called: Ctrl-C is answered from then on."""

import signal
from collections.abc import Sequence

from shoal.cli.leaving import leave


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    if argv is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)  # until the command is imported, see `app.main`
    from shoal.cli.app import main as run

    return run(argv)


__all__ = ["main"]
