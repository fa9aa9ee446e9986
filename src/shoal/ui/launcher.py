"""Trainings that the page starts: processes of their own, which go on when the server ends; the next one finds them.

Nothing goes through a shell: see `form` for what can be started.
"""

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.core.errors import OptionError, RunError, require, unknown_name
from shoal.core.files import open_file
from shoal.core.processes import module_command
from shoal.ui.form import TRAIN, arguments
from shoal.ui.started import NAME, Memory, Started

MOST_RUNNING = 16
"""Trainings at a time."""


class Launcher:
    """Starts trainings below a folder, and stops those that it started, or that a server before it did."""

    def __init__(self, root: Path):
        self.root = root
        self.program: Sequence[str] = module_command("shoal")
        self._memory = Memory(root)
        self._started = {one.name: one for one in self._memory.find()}
        self._lock = threading.Lock()

    def words(self, body: Mapping[str, Any]) -> list[str]:
        """The words of the command that a filled form stands for: `{"kind", "target", "options", "name"}`."""
        words = arguments(body.get("kind", TRAIN), body.get("target"), body.get("options", {}))
        return [*words, f"--run-dir={self.root / self._name(words[1], body.get('name', ''))}"]

    def start(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Starts a training, whose output goes to a file beside its folder."""
        with self._lock:
            running = sum(one.process.poll() is None for one in self._started.values())
            if running >= MOST_RUNNING:
                raise OptionError(f"{running} trainings run already: stop one, or wait for one to end")
            words = self.words(body)
            name = Path(words[-1]).name
            self.root.mkdir(parents=True, exist_ok=True)
            log = self.root / f"{name}.log"
            try:
                output = open_file(log, "xb")
            except OSError as error:
                raise RunError(f"cannot write {log}: {error.strerror or error}") from error
            with output:
                process = subprocess.Popen(
                    [*self.program, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._started[name] = Started(name, words, log, process)
            self._memory.keep(self._started[name])
            return self._started[name].plain()

    def plain(self) -> list[dict[str, Any]]:
        """The trainings that were started, newest first."""
        with self._lock:
            return [one.plain() for one in reversed(self._started.values())]

    def stop(self, name: Any) -> dict[str, Any]:
        """Ends a training as Ctrl-C does, with a checkpoint; when asked again, at once."""
        with self._lock:
            if not isinstance(name, str) or name not in self._started:
                raise unknown_name("training", str(name), self._started)
            self._started[name].stop()
            self._memory.keep(self._started[name])
            return self._started[name].plain()

    def _name(self, target: str, given: Any) -> str:
        """The folder of the run: the name that was given, or one made of the target that is free."""
        require(isinstance(given, str), "form", "name", given, "a text")
        if given:
            require(
                NAME.fullmatch(given) is not None, "form", "name", given, "made of letters, digits, and _ . - inside"
            )
            if self._is_taken(given):
                raise OptionError(f"there is a run or a log named {given} already: choose another name")
            return given
        made = f"{target.replace('/', '_')}-{time.strftime('%Y%m%d-%H%M')}"
        numbers = (f"{made}-{i}" if i else made for i in range(1000))
        return next(name for name in numbers if not self._is_taken(name))

    def _is_taken(self, name: str) -> bool:
        return any(os.path.lexists(self.root / each) for each in (name, f"{name}.log"))
