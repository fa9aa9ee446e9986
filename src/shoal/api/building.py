"""Worlds as users meet them: files imported, worlds built, and looked over before anything is run."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.cluster.training import plan_of
from shoal.core.env import Env
from shoal.core.errors import OptionError, RunError, ShoalError, UnknownNameError, WorldError
from shoal.core.origin import Origin
from shoal.core.registry import build_env, import_named, is_foreign, world_class
from shoal.testing.structure import check_structure, in_words
from shoal.training.experiment import Experiment, make_world
from shoal.training.run import RunFolder, extend, open_run
from shoal.training.run_kinds import advise_on

OWN_FILE = "If it is a world of your own, name the file that registers it: --import FILE."


def import_files(files: Sequence[str]) -> None:
    """Makes the worlds of these Python files known, and lets folders name these ids."""
    for file in files:
        import_named(file)


def open_known(path: Path) -> RunFolder:
    """An existing run, by its folder; its world must be known."""
    found = open_run(path)
    check_known(found.path, found.experiment)
    return found


def open_to_resume(path: Path, total_env_steps: int | None = None) -> RunFolder:
    """A run of any kind that is to go on; its world must be known. total_env_steps: to train it further."""
    found = open_run(path, None)
    check_known(found.path, found.experiment)
    if total_env_steps is None:
        return found
    if plan_of(found.path) is not None:
        raise OptionError(f"{found.path} was begun on a cluster, where runs are not trained further yet")
    return extend(found, total_env_steps)


def check_known(run: Path, experiment: Experiment) -> None:
    """The world of a run must be known, or the file that registers it is missing."""
    try:
        if is_foreign(experiment.env):
            build_env(experiment.origin, experiment.env, experiment.env_options)  # only its library can tell
        else:
            world_class(experiment.env)
    except UnknownNameError as error:
        raise RunError(f"{run}: {error}{advise_on(run, error) or f' {OWN_FILE}'}") from error
    except OptionError as error:
        if isinstance(error.__cause__, ModuleNotFoundError):
            raise  # it says what to install, or where a module is looked for
        raise RunError(f"{run}: {error} {OWN_FILE}") from error


def build_world(origin: Origin, id: str, options: Mapping[str, Any]) -> Env:
    """The world with these options; what goes wrong in its own code is put down to it."""
    if is_foreign(id):
        return build_env(origin, id, options)
    lacking = [field.name for field in _fields(world_class(id)) if _default(field) is dataclasses.MISSING]
    lacking = [name for name in lacking if name not in options]
    if lacking:
        raise WorldError(f"world {id!r}: every option needs a default value; these have none: {', '.join(lacking)}")
    with attributed_to(id, "building it"):
        return build_env(origin, id, options)


def has_options(world: Env) -> bool:
    """Whether there is anything to choose."""
    return bool(_fields(world))


def options_of(world: Env) -> dict[str, Any]:
    """The options of a world that differ from its defaults."""
    values = {field.name: (getattr(world, field.name), _default(field)) for field in _fields(world)}
    return {name: value for name, (value, default) in values.items() if value != default}


def check_world(experiment: Experiment) -> None:
    """Refuses, in words, a world that breaks the contract, or one whose seats cannot be dealt to the policies.

    Methods are traced and nothing is computed, so it takes a moment only; `shoal.testing.check_env` looks much closer.
    """
    problems = check_structure(make_world(experiment)).problems
    if problems:
        first, *others = problems
        more = f" (and {len(others)} more: see shoal.testing.check_env)" if others else ""
        raise WorldError(f"world {experiment.env!r}: {first.where}: {first.what}. {first.fix}{more}.")
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
