"""From `TARGET --num-envs 64 --env.num-agents 5 --algo.learning-rate 1e-3 ...` to an `Experiment`.

The options of a target follow from it: those of its world, of its algorithm and of its learners, with its values as
their defaults. So the target, `--import`, `--algo` and `--sharing` are looked for first, and the rest is parsed into
dataclasses that are made to fit.
"""

import dataclasses
import json
import keyword
import re
import shlex
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from tyro.conf import DisallowNone, OmitArgPrefixes, UseAppendAction, arg

from shoal.api.building import OWN_FILE, attributed_to, build_world, has_options, import_files, options_of
from shoal.api.targets import NOT_OPTIONS, change_algorithm, find_experiment, freeze_learners, give_weights
from shoal.cli.arguments import comments, parse, scan
from shoal.cli.start import parse_pairs
from shoal.cli.terminal import resolve_path
from shoal.cli.wrappers import Wraps, parse_wrappers
from shoal.core.algorithm import Algorithm
from shoal.core.env import Env
from shoal.core.errors import OptionError
from shoal.core.origin import USER, trust
from shoal.core.registry import is_foreign
from shoal.presets import Sharing, describe, names, share, targets
from shoal.training.experiment import Experiment, Learner
from shoal.training.run import check_weights

DECIDING = ("--import", "--algo", "--sharing", "--env-option")
"""Options that others follow from."""
PRESET = "preset"
"""Value of `--sharing` that leaves policies as the preset has them."""
MIXED = "mixed"
"""Value of `--algo` for an experiment whose learners have different algorithms."""

ForeignOptions = Annotated[
    UseAppendAction[tuple[str, ...]],
    arg(metavar="NAME=VALUE", help="an option of the environment's own, as its library has it, such as max_cycles=50"),
]


class Parsed(NamedTuple):
    """An experiment, and the options of the command that is to run it."""

    experiment: Experiment
    command: Any


def parse_target(command: type, args: Sequence[str], prog: str) -> Parsed:
    """Reads a target and its options. `command` is the dataclass of the command's own options."""
    import_files(scan(args, "--import"))
    target, rest = _split(args)
    if target is None:
        _explain(command, args, prog)
        raise OptionError(
            f"{prog}: which world or preset? For instance `{prog} demo`. All: `shoal envs`, `shoal presets`."
        )
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
    deciding = [f" {name} {shlex.quote(value)}" for name in DECIDING for value in scan(rest, name)]
    return _parse_options(command, experiment, rest, _Words(f"{prog} {shlex.quote(target)}", about, "".join(deciding)))


class _Words(NamedTuple):
    """What is said of a command: its name, what its target is, and the options that decide which others there are."""

    prog: str
    about: str | None
    extra: str

    def parse(self, options: type[Any], args: Sequence[str]) -> Any:
        return parse(options, args, self.prog, self.about, self.prog + self.extra)


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


def _split(args: Sequence[str]) -> tuple[str | None, list[str]]:
    """The target and the other arguments. It comes first or, if it is known, anywhere."""
    known = targets()
    for place, argument in enumerate(args):
        if argument in known or (place == 0 and not argument.startswith("-")):
            return argument, [*args[:place], *args[place + 1 :]]
    return None, list(args)


def _explain(command: type, args: Sequence[str], prog: str) -> None:
    """Help without a target: what can be named, and the options that every target has."""
    if {"-h", "--help"} & set(args):
        description = (
            f"TARGET is a world or a preset, such as `demo` or `tag/grid`: `shoal envs` and `shoal presets` list them; "
            f"or the folder of a run, to begin with its options. "
            f"`{prog} TARGET --help` also shows the options of its world and their defaults."
        )
        parse(_options_class(command, Experiment(env="-"), None), args, f"{prog} TARGET", description)


def _parse_options(command: type, experiment: Experiment, args: Sequence[str], words: _Words) -> Parsed:
    world = build_world(experiment.origin, experiment.env, experiment.env_options)
    if len(experiment.learners) > 1 and _common_algorithm(experiment):
        # `--algo.x` is meant for all learners, but each has its own defaults: so it is read once for each.
        learners = {}
        for name, learner in experiment.learners.items():
            options = words.parse(_options_class(command, experiment, world, learner.algorithm), args)
            learners[name] = dataclasses.replace(learner, algorithm=options.algorithm)
        experiment = dataclasses.replace(experiment, learners=learners)
    options = words.parse(_options_class(command, experiment, world), args)
    plain = {name: getattr(options, name) for name in _plain_options(command)}
    env_options = options_of(options.env) if hasattr(options, "env") else {}
    if is_foreign(experiment.env):
        env_options = parse_env_options(options.env_option) or dict(experiment.env_options)
        if options.env_option:  # of an id that was admitted, and typed here
            USER.admit(experiment.env, env_options)
    wrappers = (*experiment.wrappers, *parse_wrappers(options.wrap))
    learners = _learners(experiment, options)
    experiment = dataclasses.replace(experiment, env_options=env_options, wrappers=wrappers, learners=learners, **plain)
    if options.sharing != PRESET:  # once more: the number of agents may have changed
        experiment = share(experiment, options.sharing)
    experiment = freeze_learners(experiment, options.freeze, "--freeze")
    experiment = give_weights(experiment, _parse_weights(options.weights, experiment), "--weights")
    check_weights(experiment)
    experiment.to_dict()  # refuses what a run folder could not give back
    return Parsed(experiment, options.run)


def _options_class(
    command: type, experiment: Experiment, world: Env | None, algorithm: Algorithm | None = None
) -> type[Any]:
    """A dataclass of all options, with the experiment's values as defaults."""
    common = _common_algorithm(experiment) or MIXED
    algorithm = algorithm or next(iter(experiment.learners.values())).algorithm
    help = comments(Experiment)
    fields: list[Any] = [("run", OmitArgPrefixes[command], command())]
    fields += [
        (name, type(getattr(experiment, name)), _field(getattr(experiment, name), help.get(name, "")))
        for name in _plain_options(command)
    ]
    fields += [
        ("wrap", Wraps, ()),
        ("algo", Annotated[str, arg(metavar="NAME")], _field(common, "the algorithm of all learners: see shoal algos")),
        ("sharing", Literal[PRESET, *get_args(Sharing)], _field(PRESET, "who shares a policy: group, all or none")),
        ("freeze", _repeated("NAME"), _field((), "a learner that plays but does not learn")),
        ("weights", _repeated("NAME=RUN"), _field((), "start a learner from the weights of another run")),
    ]
    if is_foreign(experiment.env):
        fields.append(("env_option", ForeignOptions, ()))
    elif world is not None and has_options(world):
        fields.append(("env", Annotated[type(world), arg(help=f"Options of {experiment.env}.")], world))
    if common != MIXED:
        help_text = "Options of the algorithm" + (", for all learners." if len(experiment.learners) > 1 else ".")
        fields.append(("algorithm", Annotated[type(algorithm), arg(name="algo", help=help_text)], algorithm))
    if len(experiment.learners) > 1:
        fields.append(_learners_field(experiment))
    return dataclasses.make_dataclass("Options", fields, frozen=True)


def _learners_field(experiment: Experiment) -> tuple[str, type, Any]:
    fields = []
    as_fields = _identifiers(experiment.learners)
    for name, learner in experiment.learners.items():
        kind = Annotated[type(learner.algorithm), arg(help=f"Options of the learner {name!r} alone.")]
        own = [
            ("algorithm", kind, learner.algorithm),
            ("frozen", bool, _field(learner.frozen, "it plays but does not learn")),
            ("weights", DisallowNone[str | None], _field(learner.weights, "run folder to start from")),
        ]
        cls = dataclasses.make_dataclass("LearnerOptions", own, frozen=True)
        fields.append((as_fields[name], cls, cls()))
    cls = dataclasses.make_dataclass("LearnersOptions", fields, frozen=True)
    return "learners", cls, cls()


def _learners(experiment: Experiment, options: Any) -> dict[str, Learner]:
    if len(experiment.learners) == 1:
        ((name, learner),) = experiment.learners.items()
        return {name: dataclasses.replace(learner, algorithm=options.algorithm)}
    changed, as_fields = {}, _identifiers(experiment.learners)
    for name, learner in experiment.learners.items():
        own = getattr(options.learners, as_fields[name])
        weights = str(resolve_path(own.weights)) if own.weights else None
        if weights is not None and own.weights != learner.weights:
            trust(weights)
        changed[name] = dataclasses.replace(learner, algorithm=own.algorithm, frozen=own.frozen, weights=weights)
    return changed


def _parse_weights(texts: Sequence[str], experiment: Experiment) -> dict[str, str | Path]:
    """Run folders by learner, from `NAME=RUN`, or `RUN` where there is one learner."""
    found = {}
    for text in texts:
        name, equals, run = text.partition("=")
        if not equals and len(experiment.learners) == 1:
            name, run = next(iter(experiment.learners)), text
        if not run:
            raise OptionError(f"--weights must be NAME=RUN, a learner's name and a run folder, got {text!r}")
        found[name] = resolve_path(run)
    return found


def _plain_options(command: type) -> list[str]:
    """The fields of an experiment that are options: without those that mean nothing to the command, its `unused`."""
    hidden = (*NOT_OPTIONS, *getattr(command, "unused", ()))
    return [field.name for field in dataclasses.fields(Experiment) if field.name not in hidden]


def _common_algorithm(experiment: Experiment) -> str | None:
    """The name of the algorithm that all learners have in common, if they have."""
    names = {learner.algorithm.name for learner in experiment.learners.values()}  # pyright: ignore[reportAttributeAccessIssue]
    return names.pop() if len(names) == 1 else None


def _field(default: Any, help: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": help} if help else {})


def _repeated(metavar: str) -> Any:
    return Annotated[UseAppendAction[tuple[str, ...]], arg(metavar=metavar)]


def _identifiers(names: Iterable[str]) -> dict[str, str]:
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
