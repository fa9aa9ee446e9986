"""Errors that say which environment went wrong, in which episode, at which step; and how environments are found."""

import contextlib
import difflib
import importlib
import pkgutil
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from shoal.bridges.incoming._parts import Misfit, NotFinite
from shoal.core.errors import NonFiniteWorldError, OptionError, ShoalError, UnknownNameError, WorldError
from shoal.core.interrupts import is_users, listening

CHECKED_STEPS = 1000
"""Observations are compared with the bounds of their spaces for this many steps of each copy."""

_PIPE_ERRORS = (EOFError, BrokenPipeError, ConnectionResetError)

_KNOWN = ("ale_py", "dm_control", "dm_env", "gymnasium", "gymnasium_robotics", "highway_env", "minigrid", "mpe2")
_KNOWN += ("multi_agent_ale_py", "pettingzoo", "pygame", "rlcard", "shimmy", "supersuit", "bsuite", "chess")
"""Modules of packages that are known to exist; other names may belong to other packages, or not exist."""

_INSTALLED_AS = {
    "multi_agent_ale_py": "multi-agent-ale-py ale-py",
    "Box2D": "'gymnasium[box2d]'",
}  # the second has the ROMs for the first


_LOCAL = "A module in the current folder is found if PYTHONPATH=. is set"
_BY_FILE = "; or name its file, --import FILE, and the environment by its id alone, without 'module:'."


class Place:
    """Where an environment is: its name, the episode (from 1; not for batches) and the step (0 is the reset).

    workers: whether it runs in processes of its own, which may die.
    """

    def __init__(self, name: str, episodes: bool = True, workers: bool = False):
        self.name, self.episodes, self.workers = name, episodes, workers
        self.broken = False
        self.episode, self.step, self.total = 0, 0, 0

    def begin(self) -> None:
        self.episode, self.step = self.episode + 1, 0

    def advance(self) -> None:
        self.step, self.total = self.step + 1, self.total + 1

    def __str__(self) -> str:
        episode = f", episode {self.episode}" if self.episodes else ""
        return f"{self.name}{episode}, step {self.step}"

    def error(self, text: str) -> WorldError:
        return WorldError(f"{self}: {text}")

    @contextlib.contextmanager
    def inside(self, what: str) -> Iterator[None]:
        """Adds the place to every error raised inside; what: the function of the library that is called."""
        try:
            yield
        except NotFinite as error:
            raise NonFiniteWorldError(f"{self}: {error}") from error
        except Misfit as error:
            raise self.error(str(error)) from error
        except ShoalError:
            raise
        except _PIPE_ERRORS as error:
            self.broken = self.workers
            died = "a worker process died; its last messages are in its own output" if self.workers else ""
            raise self.error(died or f"{what} raised {type(error).__name__}: {error}") from error
        except BaseException as error:  # an environment must not end the process that trains with it
            if is_users(error):
                raise
            raise self.error(f"{what} raised {type(error).__name__}: {error}") from error


def import_object(scheme: str, path: str) -> Any:
    """The module `path`. One that does not exist suggests the nearest, one that lacks a package how to install it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # between their authors and them
            return importlib.import_module(path)
    except ModuleNotFoundError as error:
        missing = error.name or path
        if path == missing or path.startswith(missing + "."):
            hint = nearest(missing, _LOCAL + (_BY_FILE if scheme == "gymnasium" else "."))
            raise UnknownNameError(f"{scheme}:{path}: there is no module {missing!r}. {hint}") from error
        raise missing_package(f"{scheme}:{path}", missing) from error
    except Exception as error:  # whatever a module of theirs does when it is imported
        raise OptionError(f"{scheme}:{path}: importing it raised {type(error).__name__}: {error}") from error


def missing_package(owner: str, package: str) -> OptionError:
    """The error for a package that is not installed, with the command that installs it."""
    root = package.split(".")[0]
    if root not in (*_KNOWN, *_INSTALLED_AS):
        return OptionError(f"{owner}: it needs the module {root!r}, which is not installed")
    return OptionError(
        f"{owner}: needs the package {root!r}: pip install {_INSTALLED_AS.get(root, _with_dashes(root))}"
    )


def call_maker(owner: str, function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """`function(**options)`; its errors name the environment and the options."""
    with listening():
        try:
            return function(**options)
        except ShoalError:
            raise
        except ModuleNotFoundError as error:
            raise missing_package(owner, error.name or str(error)) from error
        except BaseException as error:  # an unknown option, a wrong value: whatever their code makes of it
            if is_users(error):
                raise
            given = f" with the options {options}" if options else ""
            raise OptionError(f"{owner}: making it{given} raised {type(error).__name__}: {error}") from error


def nearest(missing: str, otherwise: str = "") -> str:
    """What may have been meant by a module's name, in a sentence; `otherwise`, if it is of no package that is known."""
    parent, _, name = missing.rpartition(".")
    if not parent:
        known = missing in (*_KNOWN, *_INSTALLED_AS)
        return (
            f"Is it installed? pip install {_INSTALLED_AS.get(missing, _with_dashes(missing))}" if known else otherwise
        )
    try:
        inside = importlib.import_module(parent)
    except Exception:
        return f"Is {parent} installed whole?"
    known = sorted(
        module.name for module in pkgutil.iter_modules(getattr(inside, "__path__", [])) if module.name != name
    )
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or [other for other in known if name in other][:3]
    if near:
        return "Did you mean " + " or ".join(repr(f"{parent}.{other}") for other in near) + "?"
    return f"{parent} has {', '.join(known) or 'no modules'}."


def nearest_function(module: Any, names: list[str]) -> str:
    """What a module has in place of the functions that were looked for, in a sentence."""
    inside = sorted(found.name for found in pkgutil.iter_modules(getattr(module, "__path__", [])))
    if inside:
        return f"It is a package; {module.__name__} has {', '.join(inside)}."
    own = [name for name in dir(module) if not name.startswith("_") and callable(getattr(module, name))]
    near = [other for name in names for other in difflib.get_close_matches(name, own, n=2, cutoff=0.5)]
    return f"Did you mean {' or '.join(map(repr, near))}?" if near else ""


def _with_dashes(package: str) -> str:
    return package.replace("_", "-")
