"""Worlds as the command line meets them: files imported, worlds built, and looked over before anything is run."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shoal.core.env import Env
from shoal.core.errors import ShoalError, WorldError
from shoal.core.origin import Origin
from shoal.core.registry import build_env, import_named, is_foreign, world_class
from shoal.testing.structure import check_structure, in_words
from shoal.training.experiment import Experiment, make_world


def import_files(files: Sequence[str]) -> None:
    """Makes the worlds of these Python files known, and lets folders name these ids."""
    for file in files:
        import_named(file)


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
