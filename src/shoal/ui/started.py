"""Trainings that the page started, and what is remembered of them, so that a later server can stop them too.

What is remembered lies in the user's own state folder, never in a run folder: that may come from anyone, and must not
say which process is to be stopped. A process is known again by its number, the time at which it began and the boot of
the machine, and is held by a descriptor, so that a number which another process has by now is never signalled. That
takes Linux; elsewhere nothing is remembered.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from shoal.core.errors import RunError, shell_command
from shoal.core.files import open_file, read_json, write_atomically
from shoal.core.schema import Whole, check

TAIL = 4000
"""Bytes of its output that are shown of a training."""
MOST_BYTES = 1 << 16
"""Of what is remembered of a training."""
UNKNOWN = 1 << 16
"""Stands for the exit code of a process that another server started: only that one is told."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
"""Names of the runs that are started."""
_REMEMBERED = {"pid": Whole(2, 1 << 31), "began": Whole(), "boot": str, "words": [str], "since": float, "stopped": bool}


class Process(Protocol):
    """As much of `subprocess.Popen` as is needed."""

    pid: int

    def poll(self) -> int | None: ...

    def send_signal(self, sig: int) -> None: ...


class FoundProcess:
    """A process that another server started, held by a descriptor of it. began: as `began_at` tells."""

    def __init__(self, pid: int, began: int):
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)
        if began_at(pid) != began:  # asked now that the number cannot be given to another one unnoticed
            os.close(self._descriptor)
            raise ProcessLookupError(f"process {pid} is another one")

    def poll(self) -> int | None:
        """None as long as it runs."""
        if self._descriptor < 0:
            return UNKNOWN
        if not select.select([self._descriptor], [], [], 0)[0]:
            return None
        os.close(self._descriptor)
        self._descriptor = -1
        return UNKNOWN

    def send_signal(self, sig: int) -> None:
        """Sends it a signal, if it still runs."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._descriptor, sig)


def began_at(pid: int) -> int | None:
    """When a process of this user began, in ticks since the machine did; None if there is no such process."""
    try:
        place = Path(f"/proc/{pid}")
        if place.stat().st_uid != os.getuid():
            return None
        fields = (place / "stat").read_bytes().rsplit(b")", 1)[1].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def boot() -> str:
    """Which boot of the machine is running; empty where there is no telling."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@dataclasses.dataclass
class Started:
    """A training that was started, and its process. words: of its command. stopped: whether it was asked to end."""

    name: str
    words: list[str]
    log: Path
    process: Process
    since: float = dataclasses.field(default_factory=time.time)
    stopped: bool = False

    def plain(self) -> dict[str, Any]:
        """What the page shows of it."""
        code = self.process.poll()
        ended = "stopped" if self.stopped else {0: "finished", UNKNOWN: "ended"}.get(code or 0, "failed")
        facts = {"name": self.name, "command": shell_command(*self.words), "since": self.since}
        facts |= {"status": "running" if code is None else ended, "code": None if code == UNKNOWN else code}
        return facts | {"stopping": self.stopped and code is None, "log": self.log.name, "tail": _tail(self.log)}

    def stop(self) -> None:
        """Ends it as Ctrl-C does, with a checkpoint; when asked again, at once."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM if self.stopped else signal.SIGINT)
            self.stopped = True


class Memory:
    """What is remembered of the trainings below a folder, a file each. Whatever cannot be kept or read is forgotten."""

    def __init__(self, root: Path):
        self._root = root
        state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
        key = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:24]
        self._home = Path(state) / "shoal" / "started" / key

    def keep(self, one: Started) -> None:
        """Remembers a training that runs."""
        began = began_at(one.process.pid)
        if began is None or not boot():
            return
        facts = {"pid": one.process.pid, "began": began, "boot": boot(), "words": one.words}
        with contextlib.suppress(OSError, RunError):
            self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self._file(one.name), json.dumps(facts | {"since": one.since, "stopped": one.stopped}))

    def find(self) -> Iterator[Started]:
        """Those that still run, oldest first; the others are forgotten."""
        try:
            files = sorted(self._home.glob("*.json")) if self._home.stat().st_uid == os.getuid() else []
        except OSError:
            return
        found = [self._read(file) for file in files if NAME.fullmatch(file.stem)]
        yield from sorted(filter(None, found), key=lambda one: one.since)

    def _read(self, file: Path) -> Started | None:
        try:
            facts = read_json(file, MOST_BYTES)
            check(facts, _REMEMBERED, file.name)
            if facts["boot"] == boot():
                process = FoundProcess(facts["pid"], facts["began"])
                log = self._root / f"{file.stem}.log"
                return Started(file.stem, facts["words"], log, process, facts["since"], facts["stopped"])
        except (OSError, ValueError, RunError, AttributeError):  # the last: no descriptors of processes here
            pass
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
        return None

    def _file(self, name: str) -> Path:
        return self._home / f"{name}.json"


def _tail(path: Path) -> str:
    """The last lines of a log."""
    try:
        with open_file(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            return file.read(TAIL).decode("utf-8", "replace")
    except (OSError, RunError):
        return ""
