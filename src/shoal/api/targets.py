"""From what a user names to an `Experiment`: a preset, a world, a run or an experiment, and what is to be different.

Both the command line and the calls of `shoal` are built on it. Options are given by name: those of the experiment, of
the algorithm and of its network; `learner.option` is one learner's alone.
"""

import contextlib
import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

from shoal.algorithms import find_name
from shoal.algorithms.names import Named, with_options
from shoal.api.settings import SUFFIXES, read_experiment
from shoal.api.synonyms import meant_by
from shoal.core.algorithm import Algorithm, Replays
from shoal.core.env import Env
from shoal.core.errors import (
    AlgorithmError,
    OptionError,
    RunError,
    ShoalError,
    UnknownNameError,
    WorldError,
    require,
    unknown_name,
)
from shoal.core.extensions import is_own
from shoal.core.host import HostEnvProxy
from shoal.core.origin import trust
from shoal.core.registry import WORLDS, import_named, is_foreign, world_class
from shoal.core.zoo import find_run, names_entry
from shoal.envs.wrappers import NOTHING, Wrapper
from shoal.networks import Network
from shoal.presets import Sharing, foreign_experiment, resolve, share, targets
from shoal.testing.structure import check_structure, in_words
from shoal.training import checkpoint
from shoal.training.experiment import Experiment, Learner, make_world
from shoal.training.run import RunFolder, check_weights, extend, open_run
from shoal.training.run_kinds import advise_on, check_whole

Target = str | Path | Experiment | Env | type[Env]
"""The name of a preset or a world, the folder of a run, a file of settings, an experiment, or a registered world."""
NOT_OPTIONS = ("env", "env_options", "wrappers", "learners", "origin")
"""Fields of an experiment that other options stand for."""
KEPT = ("gamma", "critic", "normalise_views", "normalise_values")
KEPT_NETWORK = ("hidden", "recurrent", "recurrent_size", "filters", "dtype", "torso", "torso_options")
"""Fields that another algorithm and its network take over from the preset's: they suit the world."""
OWN_FILE = "If it is a world of your own, name the file that registers it: --import FILE."
TEAM = "team"
"""Name of the learner that takes the place of several."""
REPLAY_SIZES = {"num_envs": 64, "num_steps": 5}
"""At most so many copies and steps between updates for a learner with a replay: it learns little by little."""


@dataclasses.dataclass(frozen=True)
class Changes:
    """What is to be different from what the target stands for. options: by name (see the module)."""

    algorithm: str | Algorithm | type[Algorithm] | None = None
    env: Mapping[str, Any] | None = None  # options of the world
    wrappers: Sequence[Wrapper] = ()  # around the world and what it has around it already
    sharing: Sharing | None = None
    freeze: Sequence[str] = ()
    weights: Mapping[str, str | Path] | str | Path | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def make_experiment(target: Target, changes: Changes, owner: str, others: Iterable[str] = ()) -> Experiment:
    """The experiment that is meant. owner: the call, for errors. others: names of its further arguments."""
    given = changes.env is None or isinstance(changes.env, Mapping)
    require(given, owner, "env", changes.env, "a mapping with options of the world, such as {'max_steps': 50}")
    env = dict(changes.env or {})
    with attributed_to(str(target), "groups"):
        experiment = find_experiment(target, env)
        if env:
            experiment = experiment.replace(env_options={**experiment.env_options, **env})
        if changes.wrappers:
            experiment = experiment.replace(wrappers=(*experiment.wrappers, *changes.wrappers))
    if changes.algorithm is not None:
        experiment = change_algorithm(experiment, changes.algorithm)
    with attributed_to(experiment.env, "groups"):
        if changes.sharing is not None:
            experiment = share(experiment, changes.sharing)
        experiment = change_options(experiment, changes.options, owner, others)
    freeze = [changes.freeze] if isinstance(changes.freeze, str) else changes.freeze
    require(isinstance(freeze, list | tuple), owner, "freeze", freeze, "names of learners")
    experiment = give_weights(freeze_learners(experiment, freeze, "freeze"), changes.weights or {}, "weights")
    check_weights(experiment)
    check_world(experiment)
    return experiment


def find_experiment(target: Target, env_options: Mapping[str, Any] | None = None, hint: str = "") -> Experiment:
    """The experiment of a preset, of a world or, if there is none of that name, of a run. hint: for unknown names."""
    if isinstance(target, Experiment):
        return target
    if isinstance(target, Env) or (isinstance(target, type) and issubclass(target, Env)):
        return _of_world(target)
    kinds = "the name of a preset or a world, a run folder, a file of settings, a shoal.Experiment or a world"
    require(isinstance(target, str | Path), "shoal", "target", target, kinds)
    if isinstance(target, str) and is_foreign(target):
        return foreign_experiment(target, env_options or {})
    if Path(target).suffix in SUFFIXES and not Path(target).is_dir() and str(target) not in targets():
        return _of_file(Path(target))
    if is_run(target):
        return open_known(find_run(target)).experiment
    try:
        return resolve(str(target))
    except UnknownNameError as error:
        if _is_path(target):
            what = "is a folder, but not of a run" if Path(target).is_dir() else "is no run folder: nothing is there"
            names = "The names of worlds and presets: `shoal envs`, `shoal presets`."
            raise RunError(f"{target} {what}, and no world or preset has that name. {names}") from error
        hint = hint or "A world of your own must be registered first: @shoal.register(ID) above its class."
        raise UnknownNameError(f"{error} {hint}") from error


def is_run(target: str | Path) -> bool:
    """Whether a target is the folder of a run, or an entry of the zoo."""
    return str(target) not in targets() and (names_entry(target) or (Path(target) / "config.json").is_file())


def _of_file(path: Path) -> Experiment:
    """The experiment in a file of settings; its world must be known."""
    experiment = read_experiment(path)
    try:
        if not is_foreign(experiment.env):
            world_class(experiment.env)
    except UnknownNameError as error:
        raise OptionError(f"{path}: {error} {OWN_FILE}") from error
    return experiment


def _is_path(target: str | Path) -> bool:
    """Whether somebody who names this means a folder: by how it begins, or as the folder around it is there."""
    first, *rest = Path(target).parts or ("",)
    family = first in {name.partition("/")[0] for name in targets()}
    begins = isinstance(target, Path) or target.startswith(("/", ".", "~")) or first in ("runs", "sweeps")
    return begins or (bool(rest) and not family and Path(target).parent.is_dir())


def _of_world(world: Any) -> Experiment:
    """The experiment of a world's id, with the options and wrappers of this one."""
    wrappers: list[Wrapper] = []
    while isinstance(world, Wrapper):
        wrappers.insert(0, dataclasses.replace(world, env=NOTHING))
        world = world.env
    if isinstance(world, HostEnvProxy):
        raise OptionError(
            f"{world.id} is an environment of another library, which a run makes by itself: name it, and give its "
            f"options, as in shoal.train({world.id!r}, env={{...}})"
        )
    cls = world if isinstance(world, type) else type(world)
    id = next((id for id in WORLDS.table if not is_foreign(id) and _is_class(WORLDS.table[id], cls)), None)
    if id is None:
        raise OptionError(
            f"{cls.__name__} is not registered, so a run could not say what it was trained in: write "
            f"@shoal.register('my/world') above its class"
        )
    options = {} if isinstance(world, type) else changed_options(cls, option_values(world))
    return resolve(id).replace(env_options=options, wrappers=tuple(wrappers))


def _is_class(known: Any, cls: type) -> bool:
    return known is cls or known == f"{cls.__module__}:{cls.__qualname__}"


def change_algorithm(experiment: Experiment, algorithm: str | Algorithm | type[Algorithm]) -> Experiment:
    """The experiment with all its learners changed to another algorithm, by its name or as it is."""
    kinds = "a name such as 'mappo', or an algorithm such as shoal.PPO()"
    if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        algorithm = algorithm()
    require(isinstance(algorithm, str | Algorithm), "shoal", "algorithm", algorithm, kinds)
    if isinstance(algorithm, str):
        found = find_name(algorithm)
        cls = found.cls
        new = {name: _adapt(learner.algorithm, found) for name, learner in experiment.learners.items()}
        learners = _together(_with_algorithms(experiment, new), experiment, found)
    else:
        cls = type(algorithm)
        learners = _with_algorithms(experiment, dict.fromkeys(experiment.learners, algorithm))
    others = any(type(learner.algorithm) is not cls for learner in experiment.learners.values())
    replays = issubclass(cls, Replays) and others
    sizes = {name: min(getattr(experiment, name), most) for name, most in REPLAY_SIZES.items()} if replays else {}
    return experiment.replace(learners=learners, **sizes)


def _with_algorithms(experiment: Experiment, algorithms: Mapping[str, Algorithm]) -> dict[str, Learner]:
    learners = experiment.learners
    return {name: dataclasses.replace(learners[name], algorithm=new) for name, new in algorithms.items()}


def _adapt(old: Algorithm, found: Named) -> Algorithm:
    """The algorithm of that name, with those options of the one it replaces that suit the world."""
    cls = found.cls
    before = {field.name: getattr(old, field.name) for field in dataclasses.fields(old) if field.init}  # pyright: ignore[reportArgumentType]
    if issubclass(cls, type(old)):  # one of your own has all the options of its parent
        return _build(cls, before, found.options)
    known = {field.name for field in dataclasses.fields(cls)}
    kept = {name: before[name] for name in KEPT if name in before and name in known}
    if kept.get("critic") not in get_args(get_type_hints(cls).get("critic")):
        kept.pop("critic", None)  # the other algorithm has no such critic
    options = dict(found.options)
    if isinstance(before.get("network"), Network) and get_type_hints(cls).get("network") is Network:
        options = {f"network.{name}": getattr(before["network"], name) for name in KEPT_NETWORK} | options
    return _build(cls, kept, options)


def _build(cls: type[Any], options: Mapping[str, Any], more: Mapping[str, Any]) -> Algorithm:
    """An algorithm with options, then more of them; what goes wrong in its own code is put down to it."""
    try:
        return with_options(cls(**options), more)
    except ShoalError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise AlgorithmError(f"algorithm {cls.name!r}: {in_words(error, 'building it')}") from error


def _together(learners: dict[str, Learner], experiment: Experiment, found: Named) -> dict[str, Learner]:
    """One learner in place of several, where an algorithm is about the whole team, or about everybody.

    A mixer pays all agents of its learner alike, so it never gets those who compete. Learners that do not learn, or
    start from weights of their own, stay apart.
    """
    apart = any(learner.frozen or learner.weights or not learner.policies for learner in learners.values())
    if len(learners) == 1 or apart or not found.together:
        return learners
    if found.together == "team" and make_world(experiment).kind != "cooperative":
        return learners
    policies = {name: seats for learner in learners.values() for name, seats in learner.policies.items()}
    return {TEAM: dataclasses.replace(next(iter(learners.values())), policies=policies)}


def change_options(
    experiment: Experiment, options: Mapping[str, Any], owner: str, others: Iterable[str] = ()
) -> Experiment:
    """The experiment with other values of these options; unknown ones are refused with the nearest known."""
    own = [field.name for field in dataclasses.fields(Experiment) if field.name not in NOT_OPTIONS]
    hints = get_type_hints(Experiment)
    plain = {name: as_whole(hints[name], value) for name, value in options.items() if name in own}
    changes: dict[str, dict[str, Any]] = {}  # by learner, all at once: some options fit only together
    for name, value in options.items():
        places = {} if name in own else _places(experiment.learners, name)
        for learner, option in places.items():
            changes.setdefault(learner, {})[option] = value
        if name not in own and not places:
            every = (option for learner in experiment.learners.values() for option in _options(learner.algorithm))
            raise _unknown(name, value, [*own, *others, *every], experiment, owner)
    changed = {name: _with_options(experiment.learners[name], given) for name, given in changes.items()}
    return experiment.replace(learners={**experiment.learners, **changed}, **plain)


def _places(learners: Mapping[str, Learner], name: str) -> dict[str, str]:
    """The learners that a name is about, and what the option is called there: `network.hidden`, by `hidden` too."""
    where, _, option = name.rpartition(".")
    among, option = ({where: learners[where]}, option) if where in learners else (learners, name)
    known = {learner: _options(one.algorithm) for learner, one in among.items()}
    return {learner: options[option] for learner, options in known.items() if option in options}


def _options(algorithm: Any) -> dict[str, str]:
    """The options of an algorithm by name, those of its network with and without the prefix; what they are there."""
    own = {field.name: field.name for field in dataclasses.fields(algorithm) if field.name != "network"}
    if not any(field.name == "network" for field in dataclasses.fields(algorithm)):
        return own
    inner = [field.name for field in dataclasses.fields(algorithm.network)]
    dotted = {f"network.{name}": f"network.{name}" for name in inner}
    return {name: f"network.{name}" for name in inner} | dotted | own | {"network": "network"}


def _with_options(learner: Learner, options: Mapping[str, Any]) -> Learner:
    algorithm: Any = learner.algorithm
    if "network" in options:
        algorithm = dataclasses.replace(algorithm, network=options["network"])
    whole = {}
    for option, value in options.items():
        if option != "network":
            holder = algorithm.network if option.startswith("network.") else algorithm
            whole[option] = as_whole(get_type_hints(type(holder))[option.removeprefix("network.")], value)
    return dataclasses.replace(learner, algorithm=with_options(algorithm, whole))


def _unknown(name: str, value: Any, known: Sequence[str], experiment: Experiment, owner: str) -> OptionError:
    """Where an option is not known: it may be the world's, or called otherwise in other libraries, or misspelt."""
    world = _unwrap(make_world(experiment))
    if dataclasses.is_dataclass(world) and name in [field.name for field in dataclasses.fields(world)]:
        return OptionError(
            f"{owner}: {name} is an option of {experiment.env}, not of the training: write env={{{name!r}: {value!r}}}"
        )
    by_dashes = {option.replace("_", "-"): option for option in known}
    near = meant_by(name.replace("_", "-").lower(), by_dashes) or difflib.get_close_matches(name, known, 3, 0.6)
    plain = list(dict.fromkeys(option.removeprefix("network.") for option in near))
    hint = f"Did you mean {' or '.join(map(repr, plain))}?" if plain else f"Known: {', '.join(sorted(set(known)))}."
    return OptionError(f"{owner}: unknown option {name!r}. {hint}")


def take(config: Any, options: dict[str, Any], leave: Sequence[str] = ()) -> dict[str, Any]:
    """Takes what is a field of a dataclass out of `options`, whole numbers as such."""
    hints, leave = get_type_hints(config), (*leave, "experiment", "over")
    names = [field.name for field in dataclasses.fields(config) if field.name not in leave and field.name in options]
    return {name: as_whole(hints[name], options.pop(name)) for name in names}


def as_whole(hint: Any, value: Any) -> Any:
    """A whole number written as a float, 2e6, where whole numbers are wanted; all else stays as it is."""
    wanted = {hint, *get_args(hint)}
    return int(value) if int in wanted and float not in wanted and _is_whole(value) else value


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def freeze_learners(experiment: Experiment, names: Sequence[str], option: str) -> Experiment:
    """The experiment with these learners frozen. option: what a user calls it, for errors."""
    learners = dict(experiment.learners)
    for text in names:
        name = _learner_named(text, learners, option)
        learners[name] = dataclasses.replace(learners[name], frozen=True)
    if all(learner.frozen for learner in learners.values()):
        raise OptionError("every learner is frozen: nothing would be trained. Leave one to learn.")
    return experiment.replace(learners=learners)


def give_weights(experiment: Experiment, runs: Mapping[str, str | Path] | str | Path, option: str) -> Experiment:
    """The experiment with learners that start from the weights of these runs; a path alone is for the only learner."""
    learners = dict(experiment.learners)
    if isinstance(runs, str | Path):
        if len(learners) > 1:
            raise OptionError(f"{option}: whose? Name the learner: {', '.join(learners)}")
        runs = dict.fromkeys(learners, runs)
    for text, run in runs.items():
        name, place = _learner_named(text, learners, option), str(find_run(run))
        trust(place)
        learners[name] = dataclasses.replace(learners[name], weights=place)
    return experiment.replace(learners=learners)


def _learner_named(text: str, learners: dict[str, Learner], option: str) -> str:
    """The learner that a user means by its name or by the name of its only policy."""
    if text in learners:
        return text
    for name, learner in learners.items():
        if text not in {seat.partition("[")[0] for seats in learner.policies.values() for seat in seats}:
            continue
        if len(learner.policies) == 1 and len(next(iter(learner.policies.values()))) == 1:
            return name
        raise OptionError(
            f"{option} {text}: the learner {name!r} plays others too. Name it instead, or add --sharing group."
        )
    raise OptionError(f"{option}: {unknown_name('learner', text, learners)}")


def import_files(files: Sequence[str]) -> None:
    """Makes the worlds of these Python files known, and lets folders name these ids."""
    for file in files:
        import_named(file)


def open_known(path: Path) -> RunFolder:
    """An existing run, by its folder; its world must be known."""
    found = open_run(path)
    check_known(found.path, found.experiment)
    return found


def open_to_resume(path: Path, total_env_steps: int | None = None, iterations: int | None = None) -> RunFolder:
    """A run of any kind that is to go on; its world must be known. total_env_steps, iterations: to go on for longer."""
    found = open_run(path, None)
    check_whole(found.path)
    check_known(found.path, found.experiment)
    found = extend(found, total_env_steps=total_env_steps, iterations=iterations)
    if iterations is not None:
        _check_grows(found, iterations)
    return found


def _check_grows(run: RunFolder, iterations: int) -> None:
    """Refuses more iterations for a population that has stopped for another reason than their number."""
    newest = checkpoint.latest(run.checkpoints)
    meta = run.config.read_meta(newest) if newest else None
    if meta and meta["update"] < iterations and run.config.is_finished(meta):
        raise OptionError(
            f"{run.path} has stopped by its target or its patience after {meta['update']} iterations, and would stop "
            "again at once. To grow it further, start a new one with --import-policies."
        )


def check_known(run: Path, experiment: Experiment) -> None:
    """The world of a run must be known, or the file that registers it is missing."""
    try:
        if is_foreign(experiment.env):
            _ = experiment.world  # only its library can tell
        else:
            world_class(experiment.env)
    except UnknownNameError as error:
        raise RunError(f"{run}: {error}{advise_on(run, error) or f' {OWN_FILE}'}") from error
    except OptionError as error:
        if isinstance(error.__cause__, ModuleNotFoundError):
            raise  # it says what to install, or where a module is looked for
        raise RunError(f"{run}: {error} {OWN_FILE}") from error


def build_world(experiment: Experiment) -> Env:
    """The world of an experiment, without its wrappers; what goes wrong in its own code is put down to it."""
    id, options = experiment.env, experiment.env_options
    if is_foreign(id):
        return experiment.world
    lacking = [field.name for field in _fields(world_class(id)) if _default(field) is dataclasses.MISSING]
    lacking = [name for name in lacking if name not in options]
    if lacking:
        raise WorldError(f"world {id!r}: every option needs a default value; these have none: {', '.join(lacking)}")
    with attributed_to(id, "building it"):
        return _unwrap(experiment.world)


def _unwrap(world: Env) -> Env:
    while isinstance(world, Wrapper):
        world = world.env
    return world


def option_values(world: Env) -> dict[str, Any]:
    """All options of a world."""
    return {field.name: getattr(world, field.name) for field in _fields(world)}


def changed_options(world: type[Env], values: Mapping[str, Any]) -> dict[str, Any]:
    """Those options of a world that differ from its defaults."""
    defaults = {field.name: _default(field) for field in _fields(world)}
    return {name: value for name, value in values.items() if value != defaults[name]}


def check_world(experiment: Experiment) -> None:
    """Refuses, in words, a world that breaks the contract, or one whose seats cannot be dealt to the policies.

    Methods are traced and nothing is computed, so it takes a moment only; `shoal.testing.check_env` looks much closer.
    Shoal's own worlds, as they come, are looked at by its tests.
    """
    world = make_world(experiment)
    tested = is_own(world) and not (experiment.env_options or experiment.wrappers)
    problems = [] if tested else check_structure(world).problems
    if problems:
        first, *others = problems
        more = f" (and {len(others)} more: see shoal.testing.check_env)" if others else ""
        raise WorldError(f"world {experiment.env!r}: {first.where}: {first.what}. {first.fix}{more}.")
    if experiment.randomise and type(_unwrap(world)).sample_params is Env.sample_params:
        raise OptionError(f"{experiment.env} has no sample_params to draw from: leave out --randomise")
    _ = experiment.setup


@contextlib.contextmanager
def attributed_to(id: str, doing: str) -> Iterator[None]:
    """Turns what a world's own code raises into a `WorldError` that names the world and the line."""
    try:
        yield
    except ShoalError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise WorldError(f"world {id!r}: {in_words(error, doing)}") from error


def _fields(world: Any) -> list[dataclasses.Field]:
    return [field for field in dataclasses.fields(world) if field.init]


def _default(field: dataclasses.Field) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
