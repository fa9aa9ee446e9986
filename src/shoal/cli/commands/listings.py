"""`shoal envs`, `shoal algos` and `shoal presets`: what there is.

What ships with Shoal is listed from `index.json`, without JAX; the rest is described by its code (see `inventory`).
"""

import dataclasses
import fnmatch
import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from tyro.conf import DisallowNone, Positional, arg

from shoal.cli.arguments import Flag, Imports, parse
from shoal.cli.index import read_index, speeds, world_entries
from shoal.cli.terminal import Column, console, emit, format_count, list_table, say
from shoal.core.errors import OptionError, unknown_name

Pattern = Annotated[Positional[str], arg(metavar="[PATTERN]", help_behavior_hint="")]
"""A part of a name, or a pattern such as mpe/*; empty for all."""
Filter = Annotated[DisallowNone[str | None], arg(metavar="PATTERN")]
Kind = Literal["all", "cooperative", "competitive", "mixed"]
Action = Literal["all", "discrete", "multi-discrete", "continuous"]
ALL = "all"
"""The value of filters that leave nothing out."""
LETTERS = {"discrete": "D", "multi-discrete": "M", "continuous": "C"}
"""How the actions that an algorithm takes are written."""
EXTENSIONS = ("shoal.algorithms", "shoal.torsos")
"""Groups of entry points by which installed packages declare more algorithms and torsos."""


@dataclasses.dataclass(frozen=True)
class EnvsOptions:
    """List the worlds: groups of agents, what they see and do."""

    pattern: Pattern = ""  # only those whose name has this in it, or fits it: mpe, 'mpe/*_tag'
    kind: Kind = "all"  # only worlds of this kind
    imports: Imports = ()  # a Python file that registers worlds
    json: Flag = False  # one JSON object on stdout


@dataclasses.dataclass(frozen=True)
class PresetsOptions:
    """List the presets, which are experiments that are ready to train, by environment."""

    pattern: Pattern = ""  # only those whose name or world has this in it, or fits it: tag, 'qmix/*'
    env: Filter = None  # only those whose world has this in its id, or fits it; by default all
    algo: Filter = None  # only those that train with this algorithm; by default all
    imports: Imports = ()  # a Python file that registers presets
    json: Flag = False  # one JSON object on stdout


@dataclasses.dataclass(frozen=True)
class AlgosOptions:
    """List the algorithms that `--algo` takes: what they are made of, and what each is for."""

    pattern: Pattern = ""  # only those whose name or class has this in it, or fits it: mix, '*vdn'
    actions: Action = "all"  # only those that can take such actions
    replay: DisallowNone[bool | None] = None  # only those with a replay, or only those without; by default all
    imports: Imports = ()  # a Python file that registers algorithms or torsos
    json: Flag = False  # one JSON object on stdout


def envs(args: Sequence[str]) -> int:
    """Lists every known world. One that cannot be built is listed with the reason."""
    options = parse(EnvsOptions, args, "shoal envs")
    _import(options.imports)
    every = world_entries()
    chosen = _chosen(options.pattern, {id: (id,) for id in every}, "world")
    worlds = [every[id] for id in chosen if options.kind in (ALL, every[id].get("kind"))]
    _require_some(worlds, "world", options.pattern, {"kind": options.kind})
    if options.json:
        emit({"envs": list(map(_with_speed, worlds)), "wrappers": read_index()["wrappers"]})
        return 0
    out = console()
    table = list_table(WORLD, [row for world in worlds for row in _world_rows(world)], out.width)
    out.print(table)
    for world in worlds:
        if "error" in world:
            say(out, f"{world['id']} cannot be built: {world['error']}")
    shown = [str(column.header) for column in table.columns]
    if hidden := [column.title for column in WORLD if column.title not in shown]:
        out.print(f"A wider terminal, and --json, also show: {', '.join(hidden)}.")
    if "CPU" in shown:
        out.print("CPU, H200: env steps per second with random actions, of one core and of that GPU.")
    out.print("Options of a world: shoal train WORLD --help. Its speed here: shoal bench env WORLD")
    out.print(f"Wrappers that can be put around a world with --wrap: {', '.join(read_index()['wrappers'])}")
    return 0


WORLD = (
    Column("world"),
    Column("group", rank=1),
    Column("agents", rank=2, right=True),
    Column("view", rank=3, least=12),
    Column("actions", rank=2, least=12),
    Column("kind", rank=4),
    Column("CPU", rank=5, right=True),
    Column("H200", rank=6, right=True),
)


def _world_rows(world: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """One row per group of agents; the world's name stands in the first."""
    rows = []
    speed = speeds().get(world["id"], {})
    fast = [format_count(rate) if (rate := speed.get(device)) else "" for device in ("cpu", "h200")]
    for i, (name, group) in enumerate(world.get("groups", {}).items()):
        own = name, str(group["size"]), shapes_text(group["view"]), group["action"]
        rows.append((world["id"], *own, world["kind"], *fast) if i == 0 else ("", *own, "", "", ""))
    return rows


def _with_speed(world: Mapping[str, Any]) -> dict[str, Any]:
    if "error" in world:
        return dict(world)
    return {**world, "speed": speeds().get(world["id"], {"cpu": None, "h200": None})}


def list_presets(args: Sequence[str]) -> int:
    """Lists every preset below its world."""
    options = parse(PresetsOptions, args, "shoal presets")
    _import(options.imports)
    every = _presets()
    chosen = _chosen(options.pattern, {name: (name, entry["env"]) for name, entry in every.items()}, "preset")
    found = [every[name] for name in chosen if _fits(every[name], options)]
    _require_some(found, "preset", options.pattern, {"env": options.env, "algo": options.algo})
    if options.json:
        emit({"presets": found})
        return 0
    out, rows = console(), []
    for world in sorted({entry["env"] for entry in found}):
        rows += [(f"  {entry['name']}", *_preset_cells(entry)) for entry in found if entry["env"] == world]
        rows.insert(-sum(entry["env"] == world for entry in found), (world, "", "", ""))
    out.print(list_table(PRESET, rows, out.width))
    out.print("Train one: shoal train PRESET. The name of a world means its default preset.")
    return 0


PRESET = (
    Column("world and presets"),
    Column("learners", rank=2, least=10),
    Column("env steps", rank=3, right=True),
    Column("what it is", rank=1, least=20),
)


def _preset_cells(entry: Mapping[str, Any]) -> tuple[str, ...]:
    algorithms = entry["learners"]
    same = len(set(algorithms.values())) == 1
    who = next(iter(algorithms.values())) if same else ", ".join(f"{name}: {by}" for name, by in algorithms.items())
    return who, format_count(entry["total_env_steps"]), entry["description"]


def _fits(entry: Mapping[str, Any], options: PresetsOptions) -> bool:
    world = options.env is None or _matches(options.env, entry["env"])
    names = [entry["name"].partition("/")[0], *entry["learners"].values()]  # appo/pong trains with impala
    return world and (options.algo is None or any(_matches(options.algo, name) for name in names))


def algos(args: Sequence[str]) -> int:
    """Lists every algorithm by the names that the field knows it by."""
    options = parse(AlgosOptions, args, "shoal algos")
    _import(options.imports)
    every, torsos, broken = _algorithms()
    named = _chosen(options.pattern, {name: (name, entry["class"]) for name, entry in every.items()}, "algorithm")
    found = [every[name] for name in named if _suits(every[name], options)]
    _require_some(found, "algorithm", options.pattern, {"actions": options.actions, "replay": options.replay})
    if options.json:
        emit({"algorithms": found, "torsos": torsos, "broken": broken})
        return 0
    out = console()
    rows = [
        (
            entry["name"],
            ", ".join([entry["class"], *(f"{key}={value}" for key, value in entry["options"].items())]),
            *(entry[key] for key in ("actions", "experience", "use")),
        )
        for entry in found
    ]
    out.print(list_table(ALGORITHM, rows, out.width))
    out.print("Actions: D discrete, M multi-discrete, C continuous (C*: with finite bounds).")
    out.print("Options of one: shoal train WORLD --algo NAME --help")
    for name, entry in torsos.items():
        own = " ".join(f"{option}={value}" for option, value in entry["options"].items())
        say(out, f"Torso: --algo.network.torso {name} --algo.network.torso-options {own}: {entry['description']}")
    for text in broken:
        say(out, f"Broken: {text}", style="yellow")
    return 0


ALGORITHM = (
    Column("--algo"),
    Column("made of", rank=3, least=14),
    Column("actions", rank=1),
    Column("experience", rank=2, least=10),
    Column("use it", rank=1, least=20),
)


def _suits(entry: Mapping[str, Any], options: AlgosOptions) -> bool:
    takes = options.actions == ALL or any(letter[0] == LETTERS[options.actions] for letter in entry["actions"].split())
    return takes and (options.replay is None or entry["experience"].startswith("replay") == options.replay)


def _import(files: Sequence[str]) -> None:
    if files:
        from shoal.api.targets import import_files

        import_files(files)


def _presets() -> Mapping[str, dict[str, Any]]:
    """Every preset. Those of one's own are registered by `shoal.presets`: until that is imported, there are none."""
    if "shoal.presets" not in sys.modules:
        return read_index()["presets"]
    from shoal.cli.inventory import preset_entries

    return preset_entries()


def _algorithms() -> tuple[Mapping[str, dict[str, Any]], dict[str, Any], list[str]]:
    """Every algorithm, torsos that are not Shoal's own, and what is wrong with those of installed packages."""
    declared = any(importlib.metadata.entry_points(group=group) for group in EXTENSIONS)
    if "shoal.algorithms" not in sys.modules and not declared:
        return read_index()["algorithms"], {}, []
    from shoal.cli.inventory import broken_extensions, known_algorithms, known_torsos

    broken = broken_extensions()  # which imports what packages declare
    return known_algorithms(), known_torsos(), broken


def _chosen(pattern: str, known: Mapping[str, Sequence[str]], kind: str) -> list[str]:
    """The names of which one of their words has the pattern in it, or fits it; an error if there is none."""
    found = [name for name, words in known.items() if any(_matches(pattern, word) for word in words)]
    if known and not found:
        raise unknown_name(kind, pattern, known, f"Leave it out to see all {len(known)}.")
    return found


def _require_some(found: Sequence[Any], what: str, pattern: str, filters: Mapping[str, Any]) -> None:
    """Refuses filters that leave nothing."""
    given = [f"--{name} {value}" for name, value in filters.items() if value not in (None, ALL)]
    given = [text.replace("--replay True", "--replay").replace("--replay False", "--no-replay") for text in given]
    if given and not found:
        among = f" among those with {pattern!r} in their names" if pattern else ""
        raise OptionError(f"no {what} fits {' '.join(given)}{among}: leave it out to see all")


def _matches(pattern: str, word: str) -> bool:
    return pattern.lower() in word.lower() or fnmatch.fnmatchcase(word.lower(), pattern.lower())


def shapes_text(view: Mapping[str, list[int]]) -> str:
    """The parts of a view in few words."""
    parts = [f"{name} {'x'.join(map(str, shape)) or 1}".strip() for name, shape in view.items()]
    return ", ".join(parts)
