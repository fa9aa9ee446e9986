"""Kinds of run folders: created, identified and opened by `config.json` alone.

It contains a format, a version, the kind, and the entries of the run's config. The modules of the kinds are not
imported here, so identifying a folder is cheap.
"""

import importlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from shoal.core.errors import RunError, ShoalError, UnknownNameError, shell_command, unknown_name
from shoal.core.extensions import advise, sources
from shoal.core.files import LEFTOVER, create_folder, read_json, write_atomically
from shoal.core.version import DISTRIBUTION, VERSION

Settings = TypeVar("Settings")

FORMAT = 1
TRAINING, EVOLUTION, PBT, PSRO, SWEEP = "training", "evolution", "pbt", "psro", "sweep"
CONFIG = "config.json"
CHECKPOINTS = "checkpoints"
SLIM = "slim"
"""The entry of a run that was cut down to what playing its policies takes; see `zoo/build.py`."""
SOURCES = "sources"
"""The entry with the sources of algorithms, torsos and worlds that are not Shoal's own."""


class ForeignFolderError(RunError):
    """A folder has a `config.json`, but of something else."""


class Kind(NamedTuple):
    """Entries of `config.json`, its own last; the command that makes such a run, and the one that shows it."""

    entries: tuple[str, ...]
    what: str
    command: str
    shown_by: str
    config: str  # module and class of the config of such a run


KINDS = {
    TRAINING: Kind(("experiment",), "of training", "train", "eval", "shoal.training.experiment:Experiment"),
    EVOLUTION: Kind(
        ("experiment", EVOLUTION), "of an evolution", "evolve", "eval", "shoal.populations.evolution.plan:Evolution"
    ),
    PBT: Kind(("experiment", PBT), "of population-based training", "pbt", "eval", "shoal.populations.pbt.plan:PBT"),
    PSRO: Kind((PSRO,), "a population", "psro", "population", "shoal.populations.population:PopulationConfig"),
    SWEEP: Kind((SWEEP,), "a sweep", "sweep", "resume", "shoal.training.sweep_plan:Sweep"),
}


def config_class(kind: str) -> Any:
    """The class of the configs of a kind of run."""
    module, _, name = KINDS[kind].config.partition(":")
    return getattr(importlib.import_module(module), name)


def check_new(folder: Path) -> None:
    """Refuses a folder that exists and is not empty: nothing is ever overwritten."""
    if not folder.exists() or (folder.is_dir() and all(map(_left_behind, folder.iterdir()))):
        return
    other = "hoose another folder with --run-dir."
    if (folder / CONFIG).exists():
        go_on = shell_command("resume", folder)
        raise RunError(f"{folder} already exists. Continue it with `{go_on}`, or c{other}")
    raise RunError(f"{folder} already exists, and is no run. C{other}")


def _left_behind(entry: Path) -> bool:
    """Whether the file was left behind by a process that was killed before the folder was complete."""
    if entry.name == CHECKPOINTS:
        return entry.is_dir() and not any(entry.iterdir())
    return entry.name.startswith(f".{CONFIG}.") and entry.name.endswith(LEFTOVER)


def create(folder: Path, kind: str, **entries: Any) -> None:
    """Makes a new run folder with these entries as plain data, atomically."""
    try:
        check_new(folder)
        noted = {SOURCES: sources()} if sources() else {}
        config = {"format": FORMAT, "shoal": VERSION, "kind": kind, **noted, **entries}
        create_folder(folder, {CONFIG: json.dumps(config, indent=2) + "\n"}, [CHECKPOINTS])
        for leftover in folder.glob(f".{CONFIG}.*{LEFTOVER}"):
            leftover.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(
            f"cannot create the run folder {folder}: {error.strerror or error}. Choose another --run-dir."
        ) from error


def read_entry(folder: Path, name: str, default: Any = None) -> Any:
    """An entry of the `config.json` of a run, as plain data."""
    return read_config(folder)[1].get(name, default)


def rewrite(folder: Path, **entries: Any) -> None:
    """Replaces entries of the `config.json` of an existing run, atomically."""
    data = dict(read_config(folder)[1]) | entries
    try:
        write_atomically(folder / CONFIG, json.dumps(data, indent=2) + "\n")
    except OSError as error:
        raise RunError(f"cannot write {folder / CONFIG}: {error.strerror or error}") from error


def check_there(folder: Path) -> None:
    """Refuses to continue in a folder that has been removed meanwhile."""
    if not (folder / CONFIG).is_file():
        raise RunError(
            f"the run folder {folder} is gone: it was removed or renamed during the run. If it has "
            "another name now, continue it with `shoal resume`; otherwise start a new run."
        )


def read_kind(folder: Path) -> str:
    """The kind of a run folder; refuses what is not a run folder, or cannot be read."""
    return read_config(folder)[0]


def kind_of(folder: Path) -> str | None:
    """The kind of a run folder; None if it is not a run folder, or cannot be read."""
    try:
        return read_kind(folder)
    except RunError:
        return None


def open_entry(folder: Path, kind: str, build: Callable[[Mapping[str, Any]], Settings]) -> Settings:
    """The settings of an existing run, converted by `build`.

    An evolution or a population-based training may be opened as a training too, to play its policies.
    """
    found, data = read_config(folder)
    entry = KINDS[kind].entries[-1]
    if entry not in KINDS[found].entries:
        raise RunError(
            f"{folder} is a run of `shoal {KINDS[found].command}`, not {KINDS[kind].what}: "
            f"{_shown(folder, KINDS[found])}`{shell_command('resume', folder)}` continues it"
        )
    config = folder / CONFIG
    if entry not in data:
        raise RunError(f"{config} is damaged or cut short: it has no entry {entry!r}")
    if not isinstance(data[entry], Mapping):
        raise RunError(f"{config} is damaged: its entry {entry!r} must be a mapping, got {data[entry]!r:.80}")
    try:
        return build(data[entry])
    except ShoalError as error:
        advice = advise(error, data.get(SOURCES)) if isinstance(error, UnknownNameError) else ""
        raise RunError(f"{config}: {error!s:.1000}{advice}") from error
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as error:
        raise RunError(f"{config} is damaged: its entry {entry!r} cannot be read ({error!r:.300})") from error


def is_slim(folder: Path) -> bool:
    """Whether a run was cut down to what playing its policies takes."""
    return SLIM in read_config(folder)[1]


def check_whole(folder: Path) -> None:
    """Refuses to go on with a run that was cut down."""
    kind, data = read_config(folder)
    if SLIM not in data:
        return
    again = f": `{shell_command('train', folder)}` starts a new run with its options" if kind == TRAINING else ""
    raise RunError(
        f"{folder} is a slim run: it has policies to play, but not what training goes on from (optimisers, worlds, "
        f"room for more policies), so it cannot be resumed{again}"
    )


def advise_on(folder: Path, error: UnknownNameError) -> str:
    """Advice about an unknown name in a run folder."""
    return advise(error, read_config(folder)[1].get(SOURCES))


def _shown(folder: Path, kind: Kind) -> str:
    return "" if kind.shown_by == "resume" else f"`{shell_command(kind.shown_by, folder)}` shows it, "


def read_config(folder: Path) -> tuple[str, Mapping[str, Any]]:
    """The kind of a run folder, and what its `config.json` holds, as plain data."""
    config = folder / CONFIG
    if not folder.is_dir():
        raise RunError(f"{folder} is not a run folder: no such folder")
    if not os.path.lexists(config) and (folder / "sweep.json").is_file():
        raise RunError(
            f"{folder} is a sweep of an earlier version of shoal, which kept its results (sweep.json, sweep.png) and "
            "nothing to resume from. To sweep again, run the command that sweep.json names, with another --run-dir"
        )
    if not os.path.lexists(config):
        raise RunError(f"{folder} is not a run folder: it has no config.json")
    data: Any = {}
    try:
        data = read_json(config)
        found = data["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        foreign = isinstance(error, KeyError) and "shoal" not in data
        kind = ForeignFolderError if foreign else RunError
        raise kind(f"{config} is damaged or cut short ({type(error).__name__}: {error})") from error
    if not isinstance(found, int) or found > FORMAT:
        raise RunError(
            f"{folder} was made by a newer version of shoal ({data.get('shoal')}, format {found}; this one reads up to "
            f"format {FORMAT}). Upgrade with `pip install -U {DISTRIBUTION}`."
        )
    # Early folders do not state their kind; all except those of trainings have an entry of that name.
    kind = data.get("kind") or next((kind for kind in KINDS if kind in data), TRAINING)
    if not isinstance(kind, str) or kind not in KINDS:
        raise RunError(f"{config}: {unknown_name('kind of run', str(kind), KINDS)}")
    return kind, data
