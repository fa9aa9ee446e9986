"""What worlds, presets, algorithms and commands there are, from the code itself: for lists, and for `index.json`."""

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

import jax

from shoal import presets
from shoal.algorithms import ALGORITHMS, NAMES, find_name
from shoal.algorithms.names import Named, name_of
from shoal.api.targets import attributed_to, build_world
from shoal.cli.app import COMMANDS, find_command
from shoal.cli.arguments import DESCRIBE, Described, Section, make_parser
from shoal.cli.help import Option, read_options
from shoal.cli.run_options import NewRunOptions
from shoal.cli.targets import env_fields, identifiers
from shoal.core.env import Env, describe
from shoal.core.errors import ShoalError
from shoal.core.extensions import identity
from shoal.core.registry import WORLDS, is_foreign, world_class
from shoal.core.spaces import ActionSpace, Box, Discrete, MultiDiscrete
from shoal.core.types import PyTree
from shoal.envs.wrappers import WRAPPERS
from shoal.networks.own_torsos import TORSOS, torso_options
from shoal.populations.evolution.strategies import STRATEGIES
from shoal.training.experiment import Experiment

WITHOUT = ("help", "version")
"""Commands without options."""
SHARED = "train"
"""The command whose options are not repeated for others that have them."""
REPEATABLE = "(repeatable)"
"""What help says of an option that may be given several times."""


def make_index() -> dict[str, Any]:
    """All that `index.json` holds, as plain data."""
    worlds = {id: target for id, target in sorted(WORLDS.table.items()) if _ships(target)}
    names = [name for name in presets.names() if presets.get(name).env in worlds]
    data = {
        "worlds": {id: describe_world(id) for id in worlds},
        "wrappers": {name: _first_line(wrapper) for name, wrapper in WRAPPERS.items()},
        "presets": {name: describe_preset(name) for name in names},
        "algorithms": {name: describe_algorithm(name, entry) for name, entry in NAMES.items()},
        "targets": {name: _target(name) for name in sorted({*worlds, *names})},
        "options": {
            "commands": {name: _flags(found) for name, found in command_options().items()},
            "worlds": {id: _flags(_world_options(id)) for id in worlds},
            "algorithms": {
                name: _flags(_algorithm_options(entry.cls())) for name, entry in NAMES.items() if name == entry.cls.name
            },
            "strategies": {name: _flags(_options(make)) for name, make in STRATEGIES.items()},
            "runs": _of_runs(),
        },
        "texts": {
            "kinds": {name: COMMANDS[name].what.partition(";")[0] for name in run_commands()},
            "commands": _texts_of_commands(),
            "strategies": {name: _told(_options(make), Section.ALGORITHM) for name, make in STRATEGIES.items()},
            "worlds": {id: _texts(_world_options(id)) for id in worlds},
            "algorithms": {
                name: _texts(_algorithm_options(entry.cls())) for name, entry in NAMES.items() if name == entry.cls.name
            },
        },
    }
    return json.loads(json.dumps(data))


def command_options() -> dict[str, list[Option]]:
    """The options of every command that do not follow from a target."""
    found = {}
    for name in COMMANDS:
        if name not in WITHOUT:
            own = [option for option in _options(_class_of(name)) if option.name != "randomise"]  # some worlds have it
            found[name] = [option for option in own if not option.form.startswith("--algo.")]
    return found


def run_commands() -> list[str]:
    """The commands that make run folders."""
    known = {name: _class_of(name) for name in COMMANDS if name not in WITHOUT}
    return [name for name, options in known.items() if isinstance(getattr(options, "run", None), NewRunOptions)]


def _class_of(name: str) -> type[Any]:
    """The class of a command's options, as the command itself parses them."""
    command, args = find_command([*name.split(), DESCRIBE])
    try:
        command(args)
    except Described as found:
        return found.options
    raise AssertionError(f"shoal {name} does not parse its arguments first")


def describe_world(id: str) -> dict[str, Any]:
    """A world's groups, options and kind; or why it cannot be built."""
    try:
        world = build_world(Experiment(id))
        with attributed_to(id, "describing it"):
            groups = describe(world).groups
    except ShoalError as error:
        return {"id": id, "error": str(error)}
    return {
        "id": id,
        "class": identity(type(world)),
        "kind": world.kind,
        "description": _first_line(type(world)),
        "groups": {
            name: {"size": group.size, "view": view_shapes(group.observation), "action": action_text(group.action)}
            for name, group in groups.items()
        },
        "options": {field.name: getattr(world, field.name) for field in dataclasses.fields(world) if field.init},  # pyright: ignore[reportArgumentType]
    }


def describe_preset(name: str) -> dict[str, Any]:
    """What a preset trains, with what, for how long."""
    experiment = presets.get(name)
    return {
        "name": name,
        "description": presets.describe(name),
        "env": experiment.env,
        "learners": {key: name_of(learner.algorithm) for key, learner in experiment.learners.items()},
        "total_env_steps": experiment.total_env_steps,
    }


def describe_algorithm(name: str, entry: Named) -> dict[str, Any]:
    """What an algorithm is made of, and what it is for."""
    texts = {key: getattr(entry, key) for key in ("title", "actions", "experience", "sees", "use", "together")}
    options = dict(entry.options)
    return {"name": name, "algorithm": entry.cls.name, "class": entry.cls.__name__, "options": options, **texts}


def known_algorithms() -> dict[str, dict[str, Any]]:
    """Every algorithm by name, those of one's own as well; without those that are broken."""
    return {name: describe_algorithm(name, find_name(name)) for name in {**NAMES, **ALGORITHMS.table}}


def broken_extensions() -> list[str]:
    """What is wrong with algorithms and torsos that installed packages declare."""
    return [*ALGORITHMS.problems(), *TORSOS.problems()]


def known_torsos() -> dict[str, Any]:
    """The torsos that are not Shoal's own, with what they are and the defaults of their options."""
    return {
        name: {"description": _first_line(cls), "options": torso_options(cls)}
        for name, cls in sorted(TORSOS.table.items())
    }


def _ships(target: Any) -> bool:
    return identity(target).startswith("shoal.envs.")


def _target(name: str) -> dict[str, Any]:
    """What the options of a target follow from: its world, its algorithm if there is one, and its learners."""
    experiment = presets.resolve(name)
    algorithms = {type(learner.algorithm).name for learner in experiment.learners.values()}
    several = [*identifiers(experiment.learners).values()] if len(experiment.learners) > 1 else []
    return {"env": experiment.env, "algorithm": algorithms.pop() if len(algorithms) == 1 else None, "learners": several}


def _world_options(id: str) -> list[Option]:
    drawn = world_class(id).sample_params is not Env.sample_params
    fields = [] if is_foreign(id) else env_fields(Experiment(id))
    more = [("randomise", bool, False)] if drawn else []
    return _options(dataclasses.make_dataclass("Options", [*fields, *more])) if fields or more else []


def _algorithm_options(algorithm: Any) -> list[Option]:
    field = ("algo", type(algorithm), dataclasses.field(default=algorithm))
    return _options(dataclasses.make_dataclass("Options", [field], frozen=True))


def _options(cls: type[Any]) -> list[Option]:
    return read_options(cls, make_parser(cls))


def _texts(found: list[Option]) -> dict[str, str]:
    return {option.flags[0]: _text(option) for option in found}


def _texts_of_commands() -> dict[str, dict[str, dict[str, str]]]:
    """What each command that makes runs says of its options: first those of `train`; of others what differs from it.

    Options of a strategy are left out, as they follow from the one that is chosen, and so are those of a cluster.
    """
    of_strategies = {flag for make in STRATEGIES.values() for flag in _told(_options(make))}
    options, found = command_options(), {}
    for name in run_commands():
        told = _told([option for option in options[name] if option.section is not Section.CLUSTER])
        found[name] = {flag: said for flag, said in told.items() if flag not in of_strategies}
    shared = found.pop(SHARED)
    differing = {
        name: {flag: said for flag, said in told.items() if shared.get(flag) != said} for name, told in found.items()
    }
    return {SHARED: shared, **differing}


def _told(found: list[Option], section: Section | None = None) -> dict[str, dict[str, str]]:
    """What is said of options, by flag. section: where all of them belong."""
    return {option.flags[0]: _said(option, section or option.section) for option in found if option.flags}


def _said(option: Option, section: Section) -> dict[str, str]:
    """What a form shows of an option.

    Its `default` as well, empty if there is none, unless that follows from the target; and the `form` of one value, if
    several may be given.
    """
    text, _, default = option.text.partition("(default: ")
    said = {"section": section.value, "text": text.removesuffix(REPEATABLE).strip()}
    if not option.is_of_experiment:
        said["default"] = default.partition(")")[0]
    if text.endswith(REPEATABLE):
        said["form"] = option.form.partition(" ")[2]
    return said


def _text(option: Option) -> str:
    """What an option is for, without its default, which follows from the target."""
    return option.text.partition("(default: ")[0].strip()


def _flags(found: list[Option]) -> dict[str, Any]:
    """Flags, each with the values that are allowed, an empty list for any value, or None for a switch."""
    return {flag: _values(option) if option.takes_value else None for option in found for flag in option.flags}


def _of_runs() -> dict[str, str]:
    """Flags that are given runs, each with the form of its value: RUN, WHO=RUN, or several with commas."""
    options = [option for found in command_options().values() for option in found if "RUN" in option.form]
    return {flag: option.form.partition(" ")[2] for option in options for flag in option.flags}


def _values(option: Option) -> list[str]:
    """The values that are allowed; those beside None come as a set, in another order each time."""
    return sorted(option.values) if "None" in option.values else list(option.values)


def _first_line(cls: type | Callable[..., Any]) -> str:
    return (inspect.getdoc(cls) or "").partition("\n")[0]


def view_shapes(observation: PyTree) -> dict[str, list[int]]:
    """Shape of each part of a view, by its path; a view of one part has the path ''."""
    leaves = jax.tree_util.tree_leaves_with_path(observation, is_leaf=lambda leaf: isinstance(leaf, Box))
    return {jax.tree_util.keystr(path, simple=True, separator="."): list(leaf.shape) for path, leaf in leaves}


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


def preset_entries() -> Mapping[str, dict[str, Any]]:
    """Every preset by name, those of one's own as well."""
    return {name: describe_preset(name) for name in presets.names()}
