"""`shoal envs`, `shoal algos` and `shoal presets`: what there is."""

import dataclasses
import fnmatch
import functools
import importlib.resources
import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import jax
from rich.table import Table
from tyro.conf import Positional, arg

from shoal import presets
from shoal.algorithms import ALGORITHMS, NAMES, find_name
from shoal.algorithms.names import Named
from shoal.api.targets import attributed_to, build_world, import_files
from shoal.cli.arguments import Flag, Imports, parse
from shoal.cli.terminal import console, emit, format_count, say
from shoal.core.env import describe
from shoal.core.errors import ShoalError, unknown_name
from shoal.core.registry import ids
from shoal.core.spaces import ActionSpace, Box, Discrete, MultiDiscrete
from shoal.core.types import PyTree
from shoal.envs.wrappers import WRAPPERS
from shoal.networks.own_torsos import TORSOS, torso_options
from shoal.training.experiment import Experiment

Pattern = Annotated[Positional[str], arg(metavar="[PATTERN]")]
"""A part of a name, or a pattern such as mpe/*; empty for all."""


@dataclasses.dataclass(frozen=True)
class EnvsOptions:
    """List the worlds: groups of agents, what they see and do."""

    pattern: Pattern = ""  # only those whose name has this in it, or fits it: mpe, 'mpe/*_tag'
    imports: Imports = ()  # a Python file that registers worlds
    json: Flag = False  # one JSON object on stdout


@dataclasses.dataclass(frozen=True)
class PresetsOptions:
    """List the presets: experiments that are ready to train."""

    pattern: Pattern = ""  # only those whose name or world has this in it, or fits it: tag, 'qmix/*'
    imports: Imports = ()  # a Python file that registers presets
    json: Flag = False  # one JSON object on stdout


@dataclasses.dataclass(frozen=True)
class AlgosOptions:
    """List the algorithms that `--algo` takes: what they are made of, and what each is for."""

    pattern: Pattern = ""  # only those whose name or class has this in it, or fits it: mix, '*vdn'
    imports: Imports = ()  # a Python file that registers algorithms or torsos
    json: Flag = False  # one JSON object on stdout


def envs(args: Sequence[str]) -> int:
    """Lists every known world. One that cannot be built is listed with the reason."""
    options = parse(EnvsOptions, args, "shoal envs")
    import_files(options.imports)
    worlds = [_world(id) for id in _chosen(options.pattern, {id: (id,) for id in ids()}, "world")]
    if options.json:
        emit({"envs": worlds, "wrappers": {name: _first_line(wrapper) for name, wrapper in WRAPPERS.items()}})
        return 0
    out = console()
    columns = "world", "group", "agents", "view", "actions", "kind", "CPU", "H200"
    table = Table(*columns, title="Worlds", title_justify="left")
    for world in worlds:
        if "error" in world:
            continue
        for i, (name, group) in enumerate(world["groups"].items()):
            own = name, str(group["size"]), shapes_text(group["view"]), group["action"]
            speeds = [format_count(speed) if speed else "" for speed in (world["speed"]["cpu"], world["speed"]["h200"])]
            table.add_row(*((world["id"], *own, world["kind"], *speeds) if i == 0 else ("", *own)))
        table.add_section()
    out.print(table)
    for world in worlds:
        if "error" in world:
            say(out, f"{world['id']} cannot be built: {world['error']}")
    say(
        out,
        "CPU, H200: env steps per second with random actions, of one core and of that GPU. Here: shoal bench env WORLD",
    )
    say(out, "Options and defaults of a world: shoal train WORLD --help")
    say(out, f"Wrappers that can be put around a world with --wrap: {', '.join(WRAPPERS)}")
    return 0


def list_presets(args: Sequence[str]) -> int:
    """Lists every preset."""
    options = parse(PresetsOptions, args, "shoal presets")
    import_files(options.imports)
    every = {name: _preset(name) for name in presets.names()}
    chosen = _chosen(options.pattern, {name: (name, entry["env"]) for name, entry in every.items()}, "preset")
    found = [every[name] for name in chosen]
    if options.json:
        emit({"presets": found})
        return 0
    out = console()
    table = Table("preset", "world", "learners", "env steps", "what it is", title="Presets", title_justify="left")
    for entry in found:
        learners = ", ".join(f"{name} ({algorithm})" for name, algorithm in entry["learners"].items())
        table.add_row(
            entry["name"], entry["env"], learners, format_count(entry["total_env_steps"]), entry["description"]
        )
    out.print(table)
    say(out, "Train one: shoal train PRESET. The name of a world means its default preset.")
    return 0


def algos(args: Sequence[str]) -> int:
    """Lists every algorithm by the names that the field knows it by."""
    options = parse(AlgosOptions, args, "shoal algos")
    import_files(options.imports)
    broken = [*ALGORITHMS.problems(), *TORSOS.problems()]
    every = {name: find_name(name) for name in {**NAMES, **ALGORITHMS.table}}  # without those that are broken
    found = _chosen(options.pattern, {name: (name, entry.cls.__name__) for name, entry in every.items()}, "algorithm")
    if options.json:
        listed = [_algorithm(name, every[name]) for name in found]
        emit({"algorithms": listed, "torsos": _torsos(), "broken": broken})
        return 0
    out = console()
    table = Table("--algo", "made of", "actions", "experience", "use it", title="Algorithms", title_justify="left")
    for name in found:
        entry = every[name]
        made = ", ".join([entry.cls.__name__, *(f"{key}={value}" for key, value in entry.options.items())])
        table.add_row(name, made, entry.actions, entry.experience, entry.use)
    out.print(table)
    say(out, "Actions: D discrete, M multi-discrete, C continuous (C*: with finite bounds).")
    say(out, "Train with one: shoal train WORLD --algo NAME; its options: shoal train WORLD --algo NAME --help")
    for name, entry in _torsos().items():
        own = " ".join(f"{option}={value}" for option, value in entry["options"].items())
        say(out, f"Torso: --algo.network.torso {name} --algo.network.torso-options {own}: {entry['description']}")
    for text in broken:
        say(out, f"Broken: {text}", style="yellow")
    return 0


def _torsos() -> dict[str, Any]:
    """The torsos that are not Shoal's own, with what they are and the defaults of their options."""
    return {
        name: {"description": _first_line(cls), "options": torso_options(cls)}
        for name, cls in sorted(TORSOS.table.items())
    }


def _algorithm(name: str, entry: Named) -> dict[str, Any]:
    texts = {key: getattr(entry, key) for key in ("title", "actions", "experience", "sees", "use")}
    return {"name": name, "algorithm": entry.cls.name, "options": dict(entry.options), **texts}


def _chosen(pattern: str, known: Mapping[str, Sequence[str]], kind: str) -> list[str]:
    """The names of which one of their words has the pattern in it, or fits it; an error if there is none."""
    found = [name for name, words in known.items() if any(_matches(pattern, word) for word in words)]
    if known and not found:
        raise unknown_name(kind, pattern, known)
    return found


def _matches(pattern: str, word: str) -> bool:
    return pattern.lower() in word.lower() or fnmatch.fnmatchcase(word.lower(), pattern.lower())


def _world(id: str) -> dict[str, Any]:
    try:
        world = build_world(Experiment(id))
        with attributed_to(id, "describing it"):
            groups = describe(world).groups
    except ShoalError as error:
        return {"id": id, "error": str(error)}
    return {
        "id": id,
        "kind": world.kind,
        "speed": _speeds().get(id, {"cpu": None, "h200": None}),
        "description": _first_line(type(world)),
        "groups": {
            name: {"size": group.size, "view": view_shapes(group.observation), "action": action_text(group.action)}
            for name, group in groups.items()
        },
        "options": {field.name: getattr(world, field.name) for field in dataclasses.fields(world) if field.init},  # pyright: ignore[reportArgumentType]
    }


def _first_line(cls: type) -> str:
    return (inspect.getdoc(cls) or "").partition("\n")[0]


@functools.cache
def _speeds() -> dict[str, dict[str, float | None]]:
    """Env steps per second of the worlds that ship, as measured by benchmarks/worlds_speed.py."""
    return json.loads(importlib.resources.files("shoal.envs").joinpath("speeds.json").read_text())


def _preset(name: str) -> dict[str, Any]:
    experiment = presets.get(name)
    return {
        "name": name,
        "description": presets.describe(name),
        "env": experiment.env,
        "learners": {key: learner.algorithm.name for key, learner in experiment.learners.items()},  # pyright: ignore[reportAttributeAccessIssue]
        "total_env_steps": experiment.total_env_steps,
    }


def view_shapes(observation: PyTree) -> dict[str, list[int]]:
    """Shape of each part of a view, by its path; a view of one part has the path ''."""
    leaves = jax.tree_util.tree_leaves_with_path(observation, is_leaf=lambda leaf: isinstance(leaf, Box))
    return {jax.tree_util.keystr(path, simple=True, separator="."): list(leaf.shape) for path, leaf in leaves}


def shapes_text(view: dict[str, list[int]]) -> str:
    """The parts of a view in few words."""
    parts = [f"{name} {'x'.join(map(str, shape)) or 1}".strip() for name, shape in view.items()]
    return ", ".join(parts)


def action_text(space: ActionSpace) -> str:
    """An action space in few words."""
    match space:
        case Discrete(n):
            return f"{n} choices"
        case MultiDiscrete(sizes):
            return " x ".join(map(str, sizes)) + " choices"
        case Box(shape, low, high):
            size = "x".join(map(str, shape)) or "1"
            return f"{size} {'number' if size == '1' else 'numbers'} in [{low:g}, {high:g}]"
