"""Matches of a population that someone asked to see, each played in a process of its own.

Their pages are kept in memory, the last ones: a run folder is only read.
"""

import os
import secrets
import subprocess
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.core.errors import OptionError, RunError, require
from shoal.core.files import open_file
from shoal.core.processes import module_command
from shoal.ui.replays import Shown, shown_page

MOST_RUNNING = 2
"""Matches that are played at a time."""
MOST_KEPT = 8
"""Pages that are kept."""
SECONDS = 300.0
"""After which a match is given up."""
_WAIT = 0.2

Match = tuple[Path, int, tuple[int, ...], int]
"""A population, the update of its checkpoint, a policy of each player, and the seed of the episode."""


class Matches:
    """Plays matches, and keeps the pages of the last ones. closing: whether the server ends, and nobody waits."""

    def __init__(self, closing: Callable[[], bool]):
        self.program: Sequence[str] = module_command("shoal.ui.match_page")
        self._closing = closing
        self._lock = threading.Lock()
        self._running = 0
        self._kept: OrderedDict[Match, tuple[str, Shown]] = OrderedDict()

    def play(self, match: Match) -> str:
        """The key of the page of a match, which is played now unless it is there already."""
        with self._lock:
            if match in self._kept:
                self._kept.move_to_end(match)
                return self._kept[match][0]
            if self._running >= MOST_RUNNING:
                raise OptionError(f"{self._running} matches are played already: try again when one has ended")
            self._running += 1
        key = secrets.token_hex(16)
        try:
            with tempfile.TemporaryDirectory(prefix="shoal-ui-") as home:
                shown = self._record(match, Path(home))
        finally:
            with self._lock:
                self._running -= 1
        with self._lock:
            self._kept[match] = key, shown
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return key

    def page(self, key: str) -> Shown:
        """The page of a match that was played."""
        with self._lock:
            pages = dict(self._kept.values())
        require(key in pages, "address", "key", key, "that of a match which was played just now")
        return pages[key]

    def _record(self, match: Match, home: Path) -> Shown:
        """The page that another process writes to a folder that is nobody else's."""
        target = home / "replay.html"
        folder, _, lineup, seed = match
        environment = {**os.environ, "JAX_PLATFORMS": "cpu"}  # the accelerator is for the training that may go on
        command = [*self.program, str(folder), str(target), str(seed), *map(str, lineup)]
        with open_file(home / "said.txt", "xb") as said:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment, start_new_session=True
            )
            try:
                self._wait(process)
            finally:
                process.kill()
                process.wait()
        if process.returncode:
            words = (home / "said.txt").read_text("utf-8", "replace").strip().splitlines()
            raise RunError(f"this match cannot be shown: {(words or ['its process ended without a word'])[-1][:500]}")
        return shown_page(target)

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + SECONDS
        while process.poll() is None:
            if self._closing():
                raise RunError("the server ends")
            if time.monotonic() > deadline:
                raise RunError(f"this match was given up after {SECONDS:.0f} s: `shoal population` has more patience")
            time.sleep(_WAIT)
