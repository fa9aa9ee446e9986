"""From what a user names to an `Experiment`: a preset, a world, a run or an experiment, and what is to be different.

Both the command line and the calls of `shoal` are built on it. Options are given by name: those of the experiment, of
the algorithm and of its network; `learner.option` is one learner's alone.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.api.changes import change_algorithm, change_options, freeze_learners, give_weights
from shoal.api.object_targets import no_target
from shoal.api.settings import SUFFIXES, read_experiment
from shoal.core.algorithm import Algorithm
from shoal.core.env import Env
from shoal.core.errors import (
    OptionError,
    RunError,
    ShoalError,
    UnknownNameError,
    WorldError,
    require,
)
from shoal.core.extensions import is_own
from shoal.core.host import HostEnvProxy
from shoal.core.registry import WORLDS, import_named, is_foreign, world_class
from shoal.core.zoo import find_run, names_entry
from shoal.envs.wrappers import NOTHING, Wrapper, innermost
from shoal.presets import Sharing, foreign_experiment, resolve, share, targets
from shoal.testing.structure import check_structure, in_words
from shoal.training import checkpoint
from shoal.training.experiment import Experiment, make_world
from shoal.training.run import RunFolder, check_weights, extend, open_run
from shoal.training.run_kinds import TRAINING, advise_on, check_whole

Target = str | Path | Experiment | Env | type[Env]
"""The name of a preset or a world, the folder of a run, a file of settings, an experiment, or a registered world."""
OWN_FILE = "If it is a world of your own, name the file that registers it: --import FILE."


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
    if not isinstance(target, str | Path):
        raise no_target(target)
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


def import_files(files: Sequence[str]) -> None:
    """Makes the worlds of these Python files known, and lets folders name these ids."""
    for file in files:
        import_named(file)


def open_known(path: Path, kind: str | None = TRAINING) -> RunFolder:
    """An existing run, by its folder; its world must be known. kind: as which it is opened, as in `open_run`."""
    found = open_run(path, kind)
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
        return innermost(experiment.world)


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
    if experiment.randomise and type(innermost(world)).sample_params is Env.sample_params:
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
