"""Settings as files: what `shoal show` writes, `shoal train exp.toml` reads, and `shoal diff` compares.

A file holds the fields of an experiment, as TOML or JSON; what it leaves out has its default. That of another kind of
run says so (`kind = "sweep"`), and holds the experiment as one of its entries. The `config.json` of a run is such a
file too. A file is data, as a run folder is: it does not decide what code is imported.
"""

import dataclasses
import tomllib
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.core.comments import comments
from shoal.core.errors import OptionError, ShoalError, unknown_name
from shoal.core.files import parse_json, read_file
from shoal.core.origin import Origin
from shoal.core.toml import Item, write_toml
from shoal.training import run_kinds
from shoal.training.experiment import Config, Experiment
from shoal.training.run import open_run
from shoal.training.run_kinds import KINDS, TRAINING
from shoal.training.serialise import from_plain, stored_fields, to_plain

SUFFIXES = (".toml", ".json")


def is_settings_file(target: object) -> bool:
    """Whether somebody who names this means a file of settings, which may be missing."""
    return isinstance(target, str | Path) and Path(target).suffix in SUFFIXES and not Path(target).is_dir()


def read_settings(path: str | Path) -> Config:
    """The config in a file: TOML or JSON, as `shoal show` writes them, or the `config.json` of a run."""
    file = Path(path)
    data = _read(file)
    kind = data.pop("kind", TRAINING)
    if not isinstance(kind, str) or kind not in KINDS:
        raise OptionError(f"{file}: {unknown_name('kind of run', str(kind), KINDS)}")
    *shared, own = KINDS[kind].entries
    if "format" in data:  # of a run
        entry = data.get(own)
        data = {**entry, **{name: data.get(name) for name in shared}} if isinstance(entry, Mapping) else {}
    if kind == TRAINING and "env" not in data:
        raise OptionError(f"{file}: an experiment needs at least `env`, the name of a world")
    try:
        config = from_plain(run_kinds.config_class(kind), data, own, Origin(str(file)))
        config.played.origin.admit(config.played.env, config.played.env_options)
    except ShoalError as error:
        raise OptionError(f"{file}: {str(error).removeprefix(f'{file}: ')}") from error
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, LookupError) as error:
        raise OptionError(f"{file} cannot be read as settings ({error!s:.300}).") from error
    return config


def read_experiment(path: str | Path) -> Experiment:
    """The experiment in a file of settings; refuses those of other kinds of runs."""
    config = read_settings(path)
    if not isinstance(config, Experiment):
        kind = KINDS[config.kind]
        raise OptionError(f"{path} holds settings {kind.what}, for `shoal {kind.command}`, not of one training")
    return config


def _read(file: Path) -> dict[str, Any]:
    try:
        content = read_file(file.resolve())  # the user's own path, which may be a link
        data = tomllib.loads(content.decode()) if file.suffix == ".toml" else parse_json(content)
    except FileNotFoundError:
        raise OptionError(f"{file}: no such file. `shoal show TARGET > {file}` writes one to begin with.") from None
    except OSError as error:
        raise OptionError(f"{file}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # of tomllib, of JSON, and of texts that are none
        raise OptionError(f"{file} is not {file.suffix[1:].upper()}: {error!s:.300}") from error
    if not isinstance(data, dict):
        raise OptionError(f"{file} must hold settings by name, and holds a {type(data).__name__}")
    return data


def settings_toml(config: Config, head: Sequence[str] = ()) -> str:
    """A config as TOML, with what the classes of its settings say about each; `read_settings` reads it back."""
    items = [] if config.kind == TRAINING else [Item("kind", config.kind)]
    try:
        return write_toml([*items, *_items(config)], head)
    except ValueError as error:
        raise OptionError(f"these settings cannot be written as TOML ({error}): use --json") from error


def settings_data(config: Config) -> dict[str, Any]:
    """The same as plain data, for JSON."""
    return ({} if config.kind == TRAINING else {"kind": config.kind}) | to_plain(config)


def _items(value: Any) -> list[Item]:
    """The fields of a dataclass as items of TOML, in their order, each with its comment."""
    cls, plain = type(value), to_plain(value)
    said = _comments(cls)
    found = [Item("name", plain["name"])] if "name" in plain else []
    for field in stored_fields(cls):
        if field.name == "name" and found:
            continue
        held = getattr(value, field.name)
        if held is None and field.default is not None:
            raise ValueError(f"{cls.__name__}.{field.name} is None, which TOML cannot express")
        found.append(Item(field.name, _value(held), said.get(field.name, "")))
    return found


def _value(held: Any) -> Any:
    """Items for a dataclass and for a mapping that holds some; plain data for everything else."""
    if dataclasses.is_dataclass(held) and not isinstance(held, type):
        return _items(held) or {}
    if isinstance(held, Mapping) and any(dataclasses.is_dataclass(entry) for entry in held.values()):
        return [Item(str(name), _value(entry)) for name, entry in held.items()]
    return to_plain(held)


def _comments(cls: type) -> dict[str, str]:
    try:
        return comments(cls)
    except (OSError, TypeError):  # made by a program, or its file is gone
        return {}


def flatten(data: Any, path: str = "") -> dict[str, Any]:
    """Plain data by dotted names: `learners.team.algorithm.gamma`. The policies of a learner are one setting."""
    if not isinstance(data, Mapping) or not data or path.endswith(".policies"):
        return {path: data}
    found = {}
    for name, entry in data.items():
        found |= flatten(entry, f"{path}.{name}" if path else str(name))
    return found


class Difference(typing.NamedTuple):
    """A setting that differs; `ABSENT` where there is none of that name."""

    name: str
    first: Any
    second: Any


ABSENT = object()


def differences(first: Config, second: Config) -> list[Difference]:
    """The settings in which two configs differ, in the order of the first.

    If each has one learner, the two are compared whatever they are called.
    """
    one, other = settings_data(first), settings_data(second)
    alone = [_learners(data) for data in (one, other)]
    renamed = all(len(found) == 1 for found in alone) and list(alone[0]) != list(alone[1])
    if renamed:
        for data, found in zip((one, other), alone, strict=True):
            (name,) = found
            data.get("experiment", data)["learners"] = {"name": name, "*": found[name]}
    ours, theirs = flatten(one), flatten(other)
    names = [*ours, *(name for name in theirs if name not in ours)]
    pairs = [Difference(name, ours.get(name, ABSENT), theirs.get(name, ABSENT)) for name in names]
    return [pair for pair in pairs if pair.first != pair.second and not _is_parent(pair, names)]


def _is_parent(pair: Difference, names: Sequence[str]) -> bool:
    """Whether one has nothing under a name where the other has settings, which are told themselves."""
    empty = pair.first in ({}, ABSENT) and pair.second in ({}, ABSENT)
    return empty and any(name.startswith(f"{pair.name}.") for name in names)


def _learners(data: Mapping[str, Any]) -> Mapping[str, Any]:
    return data.get("experiment", data)["learners"]


def open_config(path: Path) -> Config:
    """The config of a run folder, of any kind."""
    return open_run(path, None).config
