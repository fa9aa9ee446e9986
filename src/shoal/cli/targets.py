"""From `TARGET --num-envs 64 --env.num-agents 5 --algo.learning-rate 1e-3 ...` to an `Experiment`.

The options of a target follow from it: those of its world, of its algorithm and of its learners, with its values as
their defaults. So the target, `--import`, `--algo` and `--sharing` are looked for first, and the rest is parsed into
dataclasses that are made to fit.
"""

import contextlib
import dataclasses
import json
import keyword
import re
import shlex
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

from tyro.conf import DisallowNone, OmitArgPrefixes, UseAppendAction, arg

from shoal.algorithms.names import name_of, with_options
from shoal.api.changes import NOT_OPTIONS, change_algorithm, freeze_learners, give_weights
from shoal.api.targets import (
    OWN_FILE,
    attributed_to,
    build_world,
    changed_options,
    find_experiment,
    import_files,
    option_values,
)
from shoal.cli.arguments import (
    asks_for_help,
    comments,
    option_field,
    parse,
    parse_pairs,
    repeated,
    respell,
    scan,
    whole_number,
)
from shoal.cli.terminal import resolve_run
from shoal.core.env import Env
from shoal.core.errors import OptionError, require
from shoal.core.host import HostEnvProxy
from shoal.core.origin import USER, trust
from shoal.core.registry import LIBRARIES, is_foreign, world_class
from shoal.envs.wrappers import WRAPPERS, Wrapper, wrapper_class
from shoal.presets import Sharing, describe, names, share, targets
from shoal.training.experiment import Experiment, Learner
from shoal.training.run import check_weights
from shoal.training.serialise import from_plain

STEPPING = ("env_workers", "env_timeout")
"""Options of how environments of other libraries are stepped."""
DECIDING = ("--import", "--strategy", "--algo", "--sharing", "--env-option")
"""Options that others follow from."""
ANY = "-"
"""In place of a world's id, for help without a target."""
PRESET = "preset"
"""Value of `--sharing` that leaves policies as the preset has them."""
MIXED = "mixed"
"""Value of `--algo` for an experiment whose learners have different algorithms."""

WRAP_HELP = f"put a wrapper around the world ({', '.join(WRAPPERS)}); may be repeated, the innermost first"
_SHOWN = arg(name="wrap", metavar="NAME[:OPTION=VALUE,...]", help=WRAP_HELP, help_behavior_hint="")
Wraps = Annotated[UseAppendAction[tuple[str, ...]], _SHOWN]
ForeignOptions = Annotated[
    UseAppendAction[tuple[str, ...]],
    arg(metavar="NAME=VALUE", help="an option of the environment's own, as its library has it, such as max_cycles=50"),
]


class Parsed(NamedTuple):
    """An experiment, the options of the command that is to run it, and the values of its further fields."""

    experiment: Experiment
    command: Any
    more: tuple[Any, ...] = ()


def parse_target(command: type, args: Sequence[str], prog: str, more: Sequence[tuple[str, Any, Any]] = ()) -> Parsed:
    """Reads a target and its options. `command` is the dataclass of the command's own options.

    more: further fields, each its name, type and default: options with a prefix, or ones that follow from others.
    """
    import_files(scan(args, "--import"))
    target, rest = split_target(args, targets())
    if target is None:
        _explain(command, args, prog, more)
        raise OptionError(
            f"{prog}: which world or preset? For instance `{prog} demo`. All: `shoal envs`, `shoal presets`."
        )
    check_used(command, rest, prog)
    algo = scan(rest, "--algo")
    with attributed_to(target, "groups"):
        typed = parse_env_options(scan(rest, "--env-option")) if is_foreign(target) else {}
        own = find_experiment(target, typed, OWN_FILE)
    experiment = change_algorithm(own, algo[-1]) if algo else own
    check_env_options(experiment.env, scan(rest, "--env-option"), f"{prog} {shlex.quote(target)}")
    about = f"{target}: {describe(target)}." if target in names() else None
    if experiment.learners != own.learners:  # what a preset says of itself may name its algorithm
        about = f"{target}, with {algo[-1]} in place of its own algorithm."
    sharing: Any = scan(rest, "--sharing")
    if sharing and sharing[-1] in get_args(Sharing):  # anything else is refused when all options are parsed
        experiment = share(experiment, sharing[-1])
    deciding = "".join(f" {name} {shlex.quote(value)}" for name in DECIDING for value in scan(rest, name))
    prog = f"{prog} {shlex.quote(target)}"
    kind = _options_class(command, experiment, more)
    rest = respell(kind, rest)
    hidden = _refused(command, experiment) if asks_for_help(rest) else ()
    options = parse(kind, rest, prog, about, prog + deciding, hidden)
    experiment = _apply_options(experiment, options, rest, command)
    return Parsed(experiment, options.run, tuple(getattr(options, name) for name, _, _ in more))


def check_used(command: type, args: Sequence[str], prog: str) -> None:
    """Refuses options of a training that mean nothing to the command."""
    typed = {word.partition("=")[0].replace("_", "-") for word in args}
    for name, why in command.unused.items():
        option = f"--{name.replace('_', '-')}"
        if option in typed:
            raise OptionError(f"{prog} has no {option}: {why}")


def _refused(command: type, experiment: Experiment) -> list[str]:
    """Options that a target would be refused with, or that do nothing for it: help does not show them."""
    refused = ["frozen", "weights"] if "freeze" in command.unused else []
    world = build_world(experiment)
    if isinstance(world, HostEnvProxy):
        return [*refused, "wrap", "randomise"]
    drawn = type(world).sample_params is not Env.sample_params
    return [*refused, *(name.replace("_", "-") for name in STEPPING), *([] if drawn else ["randomise"])]


def parse_env_options(texts: Sequence[str]) -> dict[str, Any]:
    """`max_cycles=50`, `continuous_actions=true`, `render_mode=human`: values in JSON, or else text."""
    options = {}
    for name, text in parse_pairs(texts, "--env-option", "NAME=VALUE, such as max_cycles=50").items():
        try:
            options[name] = json.loads(text)
        except ValueError:
            options[name] = text
    return options


def check_env_options(env: str, texts: Sequence[str], prog: str) -> None:
    """Refuses `--env-option` for a world of ours, and says how the same is written for it."""
    if not texts or is_foreign(env):
        return
    name, _, value = texts[-1].partition("=")
    option = f"--env.{name.replace('_', '-')} {value or 'VALUE'}"
    raise OptionError(
        f"{prog}: --env-option is for environments of other libraries. The options of {env} are written --env.NAME "
        f"VALUE: {option}. `{prog} --help` lists them."
    )


def split_target(args: Sequence[str], known: Sequence[str]) -> tuple[str | None, list[str]]:
    """The target and the other arguments. It comes first or, if it is known or another library's, anywhere."""
    for place, argument in enumerate(args):
        first = place == 0 and not argument.startswith("-")
        foreign = argument.partition(":")[0] in LIBRARIES and ":" in argument and not args[place - 1].startswith("-")
        if argument in known or first or foreign:
            return argument, [*args[:place], *args[place + 1 :]]
    return None, list(args)


def _explain(command: type, args: Sequence[str], prog: str, more: Sequence[tuple[str, Any, Any]]) -> None:
    """Help without a target: what can be named, and the options that every target has."""
    if asks_for_help(args):
        description = (
            f"TARGET is a world or a preset, such as `demo` or `tag/grid`: `shoal envs` and `shoal presets` list them; "
            f"or the folder of a run, to begin with its options. "
            f"`{prog} TARGET --help` also shows the options of its world and their defaults."
        )
        parse(_options_class(command, Experiment(env=ANY), more), args, f"{prog} TARGET", description, prog)


def _apply_options(experiment: Experiment, options: Any, args: Sequence[str], command: type) -> Experiment:
    """The experiment as the options, which were made for it, say."""
    plain = {name: getattr(options, name) for name in _plain_options(command)}
    env_options = typed_env_options(experiment, options)
    wrappers = (*experiment.wrappers, *parse_wrappers(options.wrap))
    learners = _learners(experiment, options, args)
    experiment = experiment.replace(env_options=env_options, wrappers=wrappers, learners=learners, **plain)
    build_world(experiment)
    if options.sharing != PRESET:  # once more: the number of agents may have changed
        experiment = share(experiment, options.sharing)
    if "freeze" not in command.unused:
        experiment = freeze_learners(experiment, options.freeze, "--freeze")
        experiment = give_weights(experiment, _parse_weights(options.weights, experiment), "--weights")
        check_weights(experiment)
    experiment.to_dict()  # refuses what a run folder could not give back
    return experiment


def _options_class(command: type, experiment: Experiment, more: Sequence[tuple[str, Any, Any]] = ()) -> type[Any]:
    """A dataclass of all options, with the experiment's values as defaults."""
    common = _common_algorithm(experiment)
    help = comments(Experiment)
    fields: list[Any] = [("run", OmitArgPrefixes[command], command()), *more]
    fields += [
        (name, type(getattr(experiment, name)), option_field(getattr(experiment, name), help[name]))
        for name in _plain_options(command)
    ]
    algo_help = "the algorithm of all learners: see shoal algos"
    fields += [
        ("wrap", Wraps, ()),
        ("algo", Annotated[str, arg(metavar="NAME")], option_field(name_of(common) if common else MIXED, algo_help)),
        (
            "sharing",
            Literal[PRESET, *get_args(Sharing)],
            option_field(PRESET, "who shares a policy: group, all or none"),
        ),
        ("freeze", repeated("NAME"), option_field((), "a learner that plays but does not learn")),
        ("weights", repeated("NAME=RUN"), option_field((), "start a learner from the weights of another run")),
    ]
    fields = [field for field in fields if field[0] not in command.unused]
    if experiment.env != ANY:
        fields += env_fields(experiment)
    if common:
        help_text = "Options of the algorithm" + (", for all learners." if len(experiment.learners) > 1 else ".")
        fields.append(("algorithm", Annotated[type(common), arg(name="algo", help=help_text)], common))
    if len(experiment.learners) > 1:
        fields.append(_learners_field(experiment))
    return dataclasses.make_dataclass("Options", fields, frozen=True)


def world_options(command: type, experiment: Experiment | None) -> type[Any]:
    """A dataclass of a command's options and, if it is known, those of the world."""
    fields: list[Any] = [("run", OmitArgPrefixes[command], command())]
    fields += env_fields(experiment) if experiment else []
    return dataclasses.make_dataclass("Options", fields, frozen=True)


def env_fields(experiment: Experiment) -> list[tuple[str, Any, Any]]:
    """The field for the options of an experiment's world, if it has any: a dataclass of their values, `--env.NAME`."""
    if is_foreign(experiment.env):
        return [("env_option", ForeignOptions, ())]
    world = build_world(experiment)
    values, help, kinds = option_values(world), comments(type(world)), get_type_hints(type(world), include_extras=True)
    fields = [(name, kinds[name], dataclasses.field(metadata={"help": help.get(name)})) for name in values]
    if not fields:
        return []
    cls = dataclasses.make_dataclass("EnvOptions", fields, frozen=True)
    return [("env", Annotated[cls, arg(help=f"Options of {experiment.env}.")], cls(**values))]


def typed_env_options(experiment: Experiment, options: Any) -> dict[str, Any]:
    """The options of an experiment's world, from options that were made for it by `env_fields`."""
    if not is_foreign(experiment.env):
        values = option_values(build_world(experiment))
        return changed_options(world_class(experiment.env), vars(options.env) if values else {})
    if not options.env_option:
        return dict(experiment.env_options)
    env_options = parse_env_options(options.env_option)
    USER.admit(experiment.env, env_options)  # the id was admitted, and the options were typed here
    return env_options


def _learners_field(experiment: Experiment) -> tuple[str, type, Any]:
    fields = []
    as_fields = identifiers(experiment.learners)
    for name, learner in experiment.learners.items():
        kind = Annotated[type(learner.algorithm), arg(help=f"Options of the learner {name!r} alone.")]
        own = [
            ("algorithm", kind, learner.algorithm),
            ("frozen", bool, option_field(learner.frozen, "it plays but does not learn")),
            ("weights", DisallowNone[str | None], option_field(learner.weights, "run folder to start from")),
        ]
        cls = dataclasses.make_dataclass("LearnerOptions", own, frozen=True)
        fields.append((as_fields[name], cls, cls()))
    cls = dataclasses.make_dataclass("LearnersOptions", fields, frozen=True)
    return "learners", cls, cls()


def _learners(experiment: Experiment, options: Any, args: Sequence[str]) -> dict[str, Learner]:
    """The learners with their options. What was typed for all is each one's, but for what was typed for it alone."""
    if len(experiment.learners) == 1:
        ((name, learner),) = experiment.learners.items()
        return {name: dataclasses.replace(learner, algorithm=options.algorithm)}
    changed, as_fields = {}, identifiers(experiment.learners)
    common = _common_algorithm(experiment)
    everybody = _typed(args, "algo", options.algorithm) if common else {}
    for name, learner in experiment.learners.items():
        own = getattr(options.learners, as_fields[name])
        weights = str(resolve_run(own.weights)) if own.weights else None
        if weights is not None and own.weights != learner.weights:
            trust(weights)
        algorithm = own.algorithm
        if everybody:
            alone = _typed(args, f"learners.{as_fields[name]}.algorithm", common)
            given = {key: value for key, value in everybody.items() if key not in alone}
            algorithm = with_options(algorithm, given)
        changed[name] = dataclasses.replace(learner, algorithm=algorithm, frozen=own.frozen, weights=weights)
    return changed


def _typed(args: Sequence[str], prefix: str, algorithm: Any) -> dict[str, Any]:
    """The options of an algorithm that were typed behind a prefix, and their values; those of its network dotted."""
    words = {word.partition("=")[0].replace("_", "-").removeprefix("--") for word in args if word.startswith("--")}
    found, where = {}, prefix.replace("_", "-")
    for field in dataclasses.fields(algorithm):
        value = getattr(algorithm, field.name)
        if field.name == "network":
            inner = _typed(args, f"{prefix}.network", value)
            found |= {f"network.{name}": part for name, part in inner.items()}
        elif {f"{where}.{form}{field.name.replace('_', '-')}" for form in ("", "no-")} & words:
            found[field.name] = value
    return found


def _parse_weights(texts: Sequence[str], experiment: Experiment) -> dict[str, str | Path]:
    """Run folders by learner, from `NAME=RUN`, or `RUN` where there is one learner."""
    found = {}
    for text in texts:
        name, equals, run = text.partition("=")
        if not equals and len(experiment.learners) == 1:
            name, run = next(iter(experiment.learners)), text
        if not run:
            raise OptionError(f"--weights must be NAME=RUN, a learner's name and a run folder, got {text!r}")
        found[name] = resolve_run(run)
    return found


def _plain_options(command: type) -> list[str]:
    """The fields of an experiment that are options: without those that mean nothing to the command, its `unused`."""
    hidden = (*NOT_OPTIONS, *command.unused)
    return [field.name for field in dataclasses.fields(Experiment) if field.name not in hidden]


def _common_algorithm(experiment: Experiment) -> Any:
    """The first learner's algorithm, if all learners have the same, whatever their options; else None."""
    algorithms: list[Any] = [learner.algorithm for learner in experiment.learners.values()]
    return algorithms[0] if len({algorithm.name for algorithm in algorithms}) == 1 else None


def identifiers(names: Iterable[str]) -> dict[str, str]:
    """Learners' names as names of fields, each its own: numbered where they would be the same."""
    found: dict[str, str] = {}
    taken: dict[str, int] = {}
    for name in names:
        text = re.sub(r"\W", "_", unicodedata.normalize("NFKC", name))  # as Python reads names
        if text.startswith("_") or not text.isidentifier():
            text = f"learner_{text.strip('_')}"
        field = text = f"{text}_" if keyword.iskeyword(text) else text
        while field in taken:
            taken[text] += 1
            field = f"{text}_{taken[text]}"
        taken[field] = 1
        found[name] = field
    return found


def parse_wrappers(texts: Sequence[str]) -> tuple[Wrapper, ...]:
    """`agent_ids`, `frame_stack:count=4`: the wrappers that these texts stand for."""
    return tuple(_parse_wrapper(text) for text in texts)


def _parse_wrapper(text: str) -> Wrapper:
    name, colon, rest = text.partition(":")
    data: dict[str, Any] = {"name": name}
    kinds = {field.name: field.type for field in dataclasses.fields(wrapper_class(name))}
    for part in rest.split(",") if colon else ():
        option, equals, value = part.partition("=")
        if not (option and equals and value):
            raise OptionError(f"--wrap must be NAME or NAME:OPTION=VALUE,OPTION=VALUE, got {text!r}")
        option = option.replace("-", "_")
        data[option] = _number(value)
        if kinds.get(option) in (int, float):
            allowed, wanted = (int, "a whole number") if kinds[option] is int else (int | float, "a number")
            require(isinstance(data[option], allowed), f"--wrap {name}", option, data[option], wanted)
    return from_plain(Wrapper, data, f"--wrap {name}")


def _number(text: str) -> Any:
    """A number if it is one; wrappers have no other options."""
    for kind in (whole_number, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text
