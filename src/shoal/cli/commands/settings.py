"""`shoal show TARGET` and `shoal diff A B`: settings of presets, worlds, runs and files."""

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from rich.table import Table
from tyro.conf import Positional, arg

from shoal.api.figures import unsigned
from shoal.api.settings import ABSENT, differences, is_settings_file, open_config, read_settings, settings_data
from shoal.api.settings import settings_toml as write_settings
from shoal.api.targets import OWN_FILE, find_experiment, import_files
from shoal.cli.arguments import Flag, Imports, parse
from shoal.cli.terminal import console, emit, format_count, pluralise, resolve_run, say
from shoal.presets import describe, names, targets
from shoal.presets.known import known_returns
from shoal.training.catalogue import Catalogue, Entry
from shoal.training.experiment import Config
from shoal.training.run_kinds import CONFIG, KINDS, TRAINING


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """Print the settings of a preset, a world, a run or a file as TOML, which `shoal train FILE.toml` takes back.

    Above them, as comments: what it is, and what it is known to reach.
    """

    target: Annotated[Positional[str], arg(metavar="TARGET")]  # name of a preset or a world, a run folder, or a file
    imports: Imports = ()  # a Python file that registers worlds, algorithms, torsos or presets
    json: Flag = False  # one JSON object on stdout


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiffOptions:
    """Print the settings in which two runs, presets, worlds or files differ."""

    first: Annotated[Positional[str], arg(metavar="A")]  # name of a preset or a world, a run folder, or a file
    second: Annotated[Positional[str], arg(metavar="B")]  # what to compare it with: likewise
    imports: Imports = ()  # a Python file that registers worlds, algorithms, torsos or presets
    json: Flag = False  # one JSON object on stdout


def show(args: Sequence[str]) -> int:
    """Prints settings."""
    options = parse(ShowOptions, args, "shoal show")
    import_files(options.imports)
    config = _config(options.target)
    entry = _entry(options.target)
    if options.json:
        reached = known_returns(options.target) if entry is None else _reached(entry)
        emit({"target": options.target, "kind": config.kind, "settings": settings_data(config), "reaches": reached})
        return 0
    head = _about_run(entry) if entry else _about_name(options.target)
    sys.stdout.write(write_settings(config, head))
    return 0


def diff(args: Sequence[str]) -> int:
    """Prints the settings that differ."""
    options = parse(DiffOptions, args, "shoal diff")
    import_files(options.imports)
    first, second = _config(options.first), _config(options.second)
    found = differences(first, second)
    if options.json:
        pairs = {one.name: [_plain(one.first), _plain(one.second)] for one in found}
        emit({"first": options.first, "second": options.second, "differ": pairs})
        return 0
    out = console()
    if not found:
        say(out, "all settings are the same")
        return 0
    table = Table("setting", options.first, options.second)
    table.columns[0].no_wrap = True
    for one in found:
        table.add_row(one.name, _text(one.first), _text(one.second))
    out.print(table)
    say(
        out, f"{pluralise(len(found), 'setting')} {'differs' if len(found) == 1 else 'differ'}; all others are the same"
    )
    return 0


def _config(target: str) -> Config:
    """The config that a target stands for: of any kind, if it is that of a run or a file."""
    if target not in targets():
        path = resolve_run(target)
        if (path / CONFIG).is_file():
            return open_config(path)
        if is_settings_file(target):
            return read_settings(target)
    return find_experiment(target, None, OWN_FILE)


def _entry(target: str) -> Entry | None:
    """What the catalogue says of a run; None if the target is none."""
    path = resolve_run(target)
    if target in targets() or not (path / CONFIG).is_file():
        return None
    return Catalogue(path, cache=False).entry(".")


def _about_name(target: str) -> list[str]:
    if target not in names():
        return [target]
    lines = [f"{target}: {describe(target)}"]
    known = known_returns(target)
    if known:
        figures = ", ".join(f"{group} {_interval(found)}" for group, found in known["returns"].items())
        random = ", ".join(f"{group} {value:.2f}" for group, value in known["random"].items())
        seeds = f" ({pluralise(known['seeds'], 'seed')})" if known["seeds"] else ""
        lines.append(f"known to reach, greedy, after {format_count(known['env_steps'])} env steps{seeds}: {figures}")
        lines.append(f"at random: {random}")
    return lines


def _interval(found: Mapping[str, float]) -> str:
    around = f" (95 % interval {found['low']:.2f} to {found['high']:.2f})" if "low" in found else ""
    return f"{found['mean']:.2f}{around}"


def _reached(entry: Entry) -> dict[str, Any]:
    names = ("status", "env_steps", "last_return", "best_return", "sides", "nash_conv")
    return {name: getattr(entry, name) for name in names}


def _about_run(entry: Entry) -> list[str]:
    made = KINDS[entry.kind].what if entry.kind in KINDS else ""
    lines = [f"run {made}: {entry.path}, {entry.status}"]
    if entry.last_return is not None and entry.best_return is not None:
        figures = f"return {entry.last_return:.2f} at the end, {entry.best_return:.2f} at best, while training"
        lines.append(f"has reached, after {format_count(entry.env_steps)} env steps: {figures}")
    if entry.sides:
        figures = ", ".join(f"{name} {value:.2f}" for name, value in entry.sides.items())
        lines.append(f"last returns, after {format_count(entry.env_steps)} env steps: {figures}; their sum is always 0")
    if entry.nash_conv is not None:
        lines.append(f"NashConv {unsigned(entry.nash_conv)} after {pluralise(entry.update, 'iteration')}")
    origin = Catalogue(entry.path, cache=False).config(".").get("provenance")
    for name in ("command", "date", "git_commit"):
        if isinstance(origin, Mapping) and isinstance(origin.get(name), str):
            lines.append(f"{name.replace('_', ' ')}: {origin[name][:1000]}")
    if entry.kind != TRAINING:
        lines.append(f"settings of `shoal {KINDS[entry.kind].command}`")
    return lines


def _text(value: Any) -> str:
    return "(none)" if value is ABSENT else value if isinstance(value, str) else json.dumps(value)


def _plain(value: Any) -> Any:
    return None if value is ABSENT else value
