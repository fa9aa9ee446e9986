"""Trainings that the page starts: processes of their own, which go on when the server ends; the next one finds them.

A form may only say what the index of the package knows: a target that ships, options by their names, one value each.
Nothing goes through a shell, and options that run or read other files (`--import`, `--weights`), send metrics elsewhere
or need other machines are left to the terminal.
"""

import dataclasses
import os
import re
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.core.errors import OptionError, RunError, require, unknown_name
from shoal.core.files import open_file
from shoal.core.processes import module_command
from shoal.ui.inventory import read_index
from shoal.ui.started import NAME, Memory, Started

MOST_RUNNING = 16
"""Trainings at a time."""
MOST_LETTERS = 400
"""Of a value."""
OF_A_RUN = ("--scenes", "--devices", "--checkpoint-minutes", "--checkpoint-every", "--eval-every", "--eval-episodes")
"""Options of the section Run that the form has."""
WITHHELD = frozenset({"--weights", "--freeze", "--wrap", "--algo.network.torso", "--algo.network.torso-options"})
"""Options of other sections that it has not."""
SECTIONS = ("Common options", "Environment", "Algorithm", "Network", "Run")
"""As `--help` orders them."""
_NUMBERS = re.compile(r"[-+]?[0-9][0-9.eE+-]*( +[-+]?[0-9][0-9.eE+-]*)+")


@dataclasses.dataclass(frozen=True)
class Choice:
    """An option of the form. off: the flag that says no, of a switch. values: those allowed, if few."""

    flag: str
    section: str
    text: str
    off: str | None = None
    values: tuple[str, ...] = ()
    is_switch: bool = False


def choices(target: str, algorithm: str = "") -> list[Choice]:
    """The options of a training, as the form shows them: common ones first. algorithm: if another one is chosen."""
    index = read_index()
    facts = index["targets"].get(target)
    if facts is None:
        raise unknown_name("target", target, index["targets"], "See `shoal presets`.")
    if algorithm and algorithm not in index["algorithms"]:
        raise unknown_name("algorithm", algorithm, index["algorithms"])
    kind = index["algorithms"][algorithm]["algorithm"] if algorithm else facts["algorithm"]
    options, texts = index["options"], index["texts"]
    train = {flag: said for flag, said in texts["train"].items() if said["section"] not in ("Run", "Cluster")}
    found = [_choice(flag, options["commands"]["train"], **said) for flag, said in train.items()]
    world = texts["worlds"][facts["env"]]
    found += [_choice(flag, options["worlds"][facts["env"]], "Environment", text) for flag, text in world.items()]
    for flag, text in texts["algorithms"].get(kind, {}).items():
        section = "Network" if flag.startswith("--algo.network.") else "Algorithm"
        found.append(_choice(flag, options["algorithms"][kind], section, text))
    found += [_choice(flag, options["commands"]["train"], **texts["train"][flag]) for flag in OF_A_RUN]
    names = tuple(index["algorithms"])
    found = [dataclasses.replace(one, values=names) if one.flag == "--algo" else one for one in found]
    return sorted((one for one in found if one.flag not in WITHHELD), key=lambda one: SECTIONS.index(one.section))


def _choice(flag: str, flags: Mapping[str, Any], section: str, text: str) -> Choice:
    head, dot, last = flag.removeprefix("--").rpartition(".")
    off = f"--{head}{dot}no-{last}"
    return Choice(flag, section, text, off if off in flags else None, tuple(flags[flag] or ()), flags[flag] is None)


def arguments(target: Any, options: Any) -> list[str]:
    """The words of `shoal train` for a filled form; options: a text by flag, or True for a switch."""
    if not isinstance(target, str) or not isinstance(options, dict):
        raise OptionError("a training needs a target, which is a text, and options by their names")
    algorithm = options.get("--algo", "")
    known: dict[str, Choice] = {}
    for one in choices(target, algorithm if isinstance(algorithm, str) else "?"):
        known |= {flag: one for flag in (one.flag, one.off) if flag}
    words = ["train", target]
    for flag, value in options.items():
        if flag not in known:
            raise OptionError(f"{flag} is not an option that can be given here: type the command in a terminal instead")
        words += _words(flag, known[flag], value)
    return words


def _words(flag: str, choice: Choice, value: Any) -> list[str]:
    """An option as it is typed. Its value is part of the same word, so that it can never be another option."""
    if choice.is_switch:
        require(value is True, "form", flag, value, "true, as it is a switch")
        return [flag]
    sound = isinstance(value, str) and 0 < len(value) <= MOST_LETTERS and value.isprintable()
    require(sound, "form", flag, value, f"a text of at most {MOST_LETTERS} letters")
    require(not choice.values or value in choice.values, "form", flag, value, f"one of {', '.join(choice.values)}")
    return [flag, *value.split()] if _NUMBERS.fullmatch(value) else [f"{flag}={value}"]


class Launcher:
    """Starts trainings below a folder, and stops those that it started, or that a server before it did."""

    def __init__(self, root: Path):
        self.root = root
        self.program: Sequence[str] = module_command("shoal")
        self._memory = Memory(root)
        self._started = {one.name: one for one in self._memory.find()}
        self._lock = threading.Lock()

    def words(self, body: Mapping[str, Any]) -> list[str]:
        """The words of the command that a filled form stands for: `{"target", "options", "name"}`."""
        words = arguments(body.get("target"), body.get("options", {}))
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
