"""World ids such as `tag/grid`, and where their code comes from.

A world's code comes from one of three places: worlds that ship with the package, installed entry points of the group
`shoal.envs`, and what the user names: files, by `--import FILE`, and environments of other libraries, whose ids may
name modules and functions. Never from a run folder: code that builds a world passes the origin of its id (see
`origin`). Files may register algorithms and torsos as well (see `extensions`).
"""

import dataclasses
import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.core.errors import OptionError, ShoalError, WorldError, unknown_name
from shoal.core.extensions import FILE_MODULE, Registry
from shoal.core.origin import GROUP, USER, Origin, trust

if TYPE_CHECKING:  # which imports JAX; names can be listed without it
    from shoal.core.env import Env

LIBRARIES = {
    "gymnasium": "gymnasium:CartPole-v1",
    "pettingzoo": "pettingzoo:mpe2.simple_spread_v3",
    "openspiel": "openspiel:leduc_poker",
    "dm_env": "dm_env:my.module:make",
    "vmas": "vmas:balance",
    "jaxmarl": "jaxmarl:MPE_simple_spread_v3",
    "jumanji": "jumanji:Game2048-v1",
    "gymnax": "gymnax:CartPole-v1",
}
"""Libraries whose environments are named `library:name`, with an example; `bridges.incoming` has a module for each."""
PACKAGES = {"pyspiel": "open_spiel"}
"""Packages whose name is not that of their module."""
_foreigners: dict[tuple[str, str], "Env"] = {}
_files: dict[Path, None] = {}


def _check_world(id: str, cls: Any) -> None:
    from shoal.core.env import Env

    if not (isinstance(cls, type) and issubclass(cls, Env) and dataclasses.is_dataclass(cls)):
        raise WorldError(f"the world {id!r} must be a frozen dataclass derived from shoal.Env, got {cls!r}")
    if not cls.__dataclass_params__.frozen:  # pyright: ignore[reportAttributeAccessIssue]
        raise WorldError(f"the world {id!r} is not frozen: write `@dataclasses.dataclass(frozen=True)` above its class")


WORLDS = Registry("world", GROUP, (r"[a-z0-9_]+(/[a-z0-9_]+)*", "tag/grid"), _check_world)


def register(id: str, world: "type[Env] | str | None" = None) -> Any:
    """Registers a world under an id: `register("my/world", World)`, or as a class decorator.

    `world` may be the string `"module:Class"`, imported when the world is first made.
    """
    return WORLDS.register(id, world)


def ids() -> list[str]:
    """Every known world id, sorted."""
    return [id for id in WORLDS if not is_foreign(id)]


def world_class(id: str) -> "type[Env]":
    """The class behind a world id."""
    return WORLDS[id]


def is_foreign(id: str) -> bool:
    """Whether an id names an environment of another library, such as `gymnasium:CartPole-v1`."""
    return ":" in id


def names_library(text: str) -> bool:
    """Whether a text is an id of a library with a bridge, and not a path."""
    return text.partition(":")[0] in LIBRARIES and is_foreign(text)


def make(id: str, /, **options: Any) -> "Env":
    """Builds a world by id: `make("tag/grid", num_taggers=8)`; or one of another library: `gymnasium:CartPole-v1`."""
    return build_env(USER, id, options)


def build_env(origin: Origin, id: str, options: Mapping[str, Any]) -> "Env":
    """Builds a world. All ids pass through here: refuses one from a run folder that names code or files."""
    if is_foreign(id):
        origin.admit(id, options)
        return _foreign(id, dict(options))
    cls = world_class(id)
    known = [field.name for field in dataclasses.fields(cls) if field.init]  # pyright: ignore[reportArgumentType]
    for option in options:
        if option not in known:
            raise OptionError(f"world {id!r}: {unknown_name('option', option, known)}")
    return cls(**{name: _hashable(value) for name, value in options.items()})


def import_named(text: str) -> None:
    """Implements `--import`: runs a file, or trusts an environment of another library or a run that a folder names."""
    if names_library(text) or Path(text).is_dir():
        trust(text)
    else:
        import_file(text)


def import_file(path: str) -> None:
    """Runs a Python file named by the user, which may register worlds, algorithms and torsos.

    It finds the modules that lie beside it, unless an installed package is called the same.
    """
    file = Path(path)
    if not file.is_file():
        raise OptionError(f"--import {path}: no such file")
    # Two files of one name, in different folders, are two modules.
    place = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:8]
    name = f"{FILE_MODULE}{re.sub(r'[^0-9a-zA-Z]', '_', file.stem)}_{place}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise OptionError(f"--import {path}: not a Python file (it should end in .py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    beside = str(file.resolve().parent)
    if beside not in sys.path:
        sys.path.append(beside)
    try:
        spec.loader.exec_module(module)
    except ShoalError as error:
        raise OptionError(f"--import {path}: {error}") from error
    except Exception as error:
        raise OptionError(f"--import {path}: {type(error).__name__}: {error}") from error
    _files[file.absolute()] = None


def imported_files() -> list[str]:
    """The files named by the user, in order: another process needs them to know the same names."""
    return [str(file) for file in _files]


def _foreign(id: str, options: dict[str, Any]) -> "Env":
    """An environment of another library; opened once to get its spaces, and cached."""
    asked = (id, repr(sorted(options.items())))
    if asked not in _foreigners:
        _foreigners[asked] = _opened(id, options)
    return _foreigners[asked]


def _opened(id: str, options: dict[str, Any]) -> "Env":
    library, _, name = id.partition(":")
    if library not in LIBRARIES:
        raise OptionError(f"{id}: {unknown_name('library', library, LIBRARIES)}")
    if not name:
        raise OptionError(f"{id}: which environment? For instance {LIBRARIES[library]}")
    if "name" in options:
        raise OptionError(f"{id}: name is not an option here: it is what follows `{library}:`")
    try:
        bridge = importlib.import_module(f"shoal.bridges.incoming.{library}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("shoal"):
            raise
        package = PACKAGES.get(error.name, error.name)
        raise OptionError(f"{id} needs a package that is not installed: pip install {package}") from error
    try:
        return bridge.make(name, **options)
    except ShoalError:
        raise
    except Exception as error:  # from the library, for options that it does not accept
        raise OptionError(f"{id} cannot be made: {type(error).__name__}: {error}") from error


def _hashable(value: Any) -> Any:
    """JSON knows lists only, but a world must be hashable: lists become tuples, at every depth."""
    return tuple(map(_hashable, value)) if type(value) in (list, tuple) else value
