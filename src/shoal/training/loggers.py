"""Loggers: they receive a run's lines of metrics, in addition to `metrics.jsonl`, which every run folder has.

`shoal.train(..., loggers=["csv", "wandb:project=mine"])` and `shoal train ... --log csv --log wandb:project=mine` name
built-in ones; a logger of your own is a subclass of `Logger`.
"""

import contextlib
import csv
import dataclasses
import importlib.util
import io
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from shoal.core.algorithm import Algorithm
from shoal.core.errors import OptionError, RunError, ShoalError, install_command, require, unknown_name
from shoal.core.files import check_folder, open_file, write_atomically
from shoal.training import run_kinds
from shoal.training.experiment import Experiment
from shoal.training.metrics import COLUMNS, tidy_rows


class Logger:
    """Receives lines of metrics. A line maps names to numbers, or to lists of one number per seed; None: no value.

    Errors that it raises end the run.
    """

    def open(self, experiment: Experiment, folder: Path | None, update: int) -> None:
        """Called before the first line. folder: of the run, if it has one. update: the run's position; later lines will
        be written, again if a stopped run had written them before.
        """

    def write(self, line: Mapping[str, Any]) -> None:
        """Receives one line; it has `update` and `env_steps`."""
        raise NotImplementedError(f"{type(self).__name__} must define `write(line)`")

    def close(self) -> None:
        """Called after the last line, however the run ended."""


@dataclasses.dataclass
class CSV(Logger):
    """A table with the columns update, env_steps, seed, name and value: `metrics.csv` in the run folder."""

    path: str | None = None  # another file

    def open(self, experiment: Experiment, folder: Path | None, update: int) -> None:
        self.file = _place(self.path, folder, "metrics.csv", "csv")
        self.seeds = range(experiment.seed, experiment.seed + experiment.num_seeds)
        with _explain_errors(self.file):
            self._keep(update)
            self._stream: TextIO = io.TextIOWrapper(open_file(self.file, "ab"), "utf-8", newline="")
            self._writer = csv.writer(self._stream, lineterminator="\n")

    def _keep(self, update: int) -> None:
        """Drops the lines after an update: they are about to be written again."""
        rows = []
        if update and self.file.exists():
            with open_file(self.file, "rb") as file:
                rows = file.read().decode("utf-8", "replace").splitlines(keepends=True)[1:]
        kept = [row for row in rows if row.partition(",")[0].isdigit() and int(row.partition(",")[0]) <= update]
        write_atomically(self.file, "".join([",".join(COLUMNS) + "\n", *kept]))

    def write(self, line: Mapping[str, Any]) -> None:
        with _explain_errors(self.file):
            self._writer.writerows(tidy_rows(line, self.seeds))
            self._stream.flush()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a full disk has been reported by then
            self._stream.close()


@dataclasses.dataclass
class TensorBoard(Logger):
    """TensorBoard events, means over seeds: `events/` in the run folder. Runs with a folder always have them."""

    path: str | None = None  # another folder

    def __post_init__(self):
        _require_package("tensorboard", "tensorboardX")

    def open(self, experiment: Experiment, folder: Path | None, update: int) -> None:
        from tensorboardX import SummaryWriter

        del experiment, update
        place = _place(self.path, folder, "events", "tensorboard")
        check_folder(place)
        own = self.path is None  # then `metrics.MetricsLog` writes them
        self._board = None if own else SummaryWriter(str(place), flush_secs=10)

    def write(self, line: Mapping[str, Any]) -> None:
        if self._board is not None:
            for name, mean in means(line).items():
                self._board.add_scalar(name, mean, step_of(line))

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


@dataclasses.dataclass
class WandB(Logger):
    """Weights & Biases, means over seeds. Offline by default, in the run folder: `wandb sync` uploads it later."""

    project: str = "shoal"
    name: str | None = None  # default: the name of the run folder
    group: str | None = None
    entity: str | None = None
    mode: str = "offline"  # or online

    def __post_init__(self):
        require(self.mode in ("offline", "online"), "logger wandb", "mode", self.mode, "offline or online")
        _require_package("wandb", "wandb")

    def open(self, experiment: Experiment, folder: Path | None, update: int) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        del update
        if folder:
            check_folder(folder / "wandb")  # a link would lead elsewhere
        self._run = wandb.init(
            project=self.project,
            name=self.name or (folder.name if folder else None),
            group=self.group,
            entity=self.entity,
            mode=self.mode,
            dir=str(folder) if folder else None,
            config=_settings(experiment),
            reinit="create_new",
        )

    def write(self, line: Mapping[str, Any]) -> None:
        self._run.log({"update": line["update"], **means(line)}, step=step_of(line))

    def close(self) -> None:
        self._run.finish()


ENTRY = "loggers"
"""The entry of `config.json` with the names of a run's loggers."""
MOST = 32
"""The most loggers that a run folder may name."""
OTHERWISE = "To choose: loggers=[...], empty for none (on the command line, --log NAME, none for none)."
LOGGERS: dict[str, type[Logger]] = {"csv": CSV, "tensorboard": TensorBoard, "wandb": WandB}


Loggers = str | Logger | Iterable[str | Logger]
"""One logger or several, by name or as they are."""


def make_loggers(given: Loggers) -> list[Logger]:
    """Loggers from names, such as `csv` or `wandb:project=mine,mode=online`; `Logger` objects are passed through."""
    return [one if isinstance(one, Logger) else _named(one) for one in _list(given)]


def named_loggers(given: Loggers) -> tuple[str, ...]:
    """Those that are given by name, which a run folder can record."""
    return tuple(one for one in _list(given) if isinstance(one, str))


def record_loggers(folder: Path, names: tuple[str, ...]) -> None:
    """Keeps the names of a run's loggers in its folder, for when it is resumed."""
    if tuple(run_kinds.read_entry(folder, ENTRY, [])) != names:
        run_kinds.rewrite(folder, **{ENTRY: list(names)})


def recorded_loggers(folder: Path) -> tuple[str, ...]:
    """The loggers that a run had before, but for those that write outside its folder or send: folders may come from
    anyone, so these are left to the user, with a warning.
    """
    config, names = folder / run_kinds.CONFIG, run_kinds.read_entry(folder, ENTRY, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(names) > MOST:
        raise RunError(f"{config} is damaged: its entry {ENTRY!r} must be a short list of names, got {names!r:.80}")
    try:
        inside = [name for name in names if _stays_inside(name)]
        make_loggers(inside)
    except ShoalError as error:
        raise RunError(f"{config}: {error}. {OTHERWISE}") from error
    for name in (name for name in names if name not in inside):
        warnings.warn(
            f"{folder} was also logged by {name[:200]!r}, which writes outside the run folder and is not opened "
            f"because a folder says so. {OTHERWISE}",
            stacklevel=4,
        )
    return tuple(inside)


def _stays_inside(text: str) -> bool:
    _, options = _parse(text)
    return "path" not in options and options.get("mode", "offline") == "offline"


def _list(given: Loggers) -> list[str | Logger]:
    one = isinstance(given, str | Logger)
    allowed = "a name such as 'csv', a shoal.Logger, or a list of these"
    require(one or isinstance(given, Iterable), "shoal", "loggers", given, allowed)
    return [given] if isinstance(given, str | Logger) else list(given)


def _named(text: str) -> Logger:
    allowed = "a name such as 'csv' or 'wandb:project=mine', or a shoal.Logger"
    require(isinstance(text, str), "loggers", "each", text, allowed)
    cls, options = _parse(text)
    return cls(**options)


def _parse(text: str) -> tuple[Any, dict[str, str]]:
    """The class of a logger and its options."""
    name, colon, rest = text.partition(":")
    if name not in LOGGERS:
        raise unknown_name("logger", name, LOGGERS)
    cls: Any = LOGGERS[name]
    known, options = [field.name for field in dataclasses.fields(cls)], {}
    for part in rest.split(",") if colon else ():
        option, equals, value = part.partition("=")
        if not (option and equals and value):
            raise OptionError(f"a logger must be NAME or NAME:OPTION=VALUE,OPTION=VALUE, got {text!r}")
        if option not in known:
            raise OptionError(f"logger {name}: {unknown_name('option', option, known)}")
        options[option] = value
    return cls, options


def step_of(line: Mapping[str, Any]) -> int:
    """The x value of a line: env steps or, in a population, which does not count them, iterations."""
    return line["env_steps"] or line["update"]


def means(line: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a line, each as its mean over the seeds that have one; without the line's own counters."""
    lists = {name: value if isinstance(value, list) else [value] for name, value in line.items()}
    known = {name: [one for one in values if one is not None] for name, values in lists.items()}
    return {name: sum(v) / len(v) for name, v in known.items() if v and name not in ("update", "env_steps")}


def _settings(value: Any) -> Any:
    """An experiment as plain data for display, even if its classes are not registered."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        known = {"algorithm": type(value).__name__} if isinstance(value, Algorithm) else {}
        fields = [field.name for field in dataclasses.fields(value) if field.metadata.get("stored", True)]
        return known | {name: _settings(getattr(value, name)) for name in fields}
    if isinstance(value, Mapping):
        return {str(key): _settings(entry) for key, entry in value.items()}
    return list(map(_settings, value)) if isinstance(value, tuple | list) else value


def _place(path: str | None, folder: Path | None, name: str, logger: str) -> Path:
    if path is None and folder is None:
        raise OptionError(
            f"the logger {logger} has nowhere to write: give the run a run_dir, or use {logger}:path=PATH"
        )
    return Path(path).absolute() if path is not None else Path(folder or ".") / name


def _require_package(logger: str, package: str) -> None:
    """Refuses a logger whose package is missing, before the run begins. Its extra has the logger's name."""
    if package not in sys.modules and importlib.util.find_spec(package) is None:
        raise OptionError(f"the logger {logger} needs the package {package}: {install_command(logger)}")


@contextlib.contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise RunError(f"cannot write {path}: {reason}. Make room or give write permission, then resume.") from error
