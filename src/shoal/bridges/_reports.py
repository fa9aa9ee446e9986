"""Errors that say which environment went wrong, in which episode, at which step; and how environments are found."""

import contextlib
import difflib
import importlib
import pkgutil
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from shoal.bridges._parts import Misfit
from shoal.core.errors import OptionError, ShoalError, UnknownNameError, WorldError

CHECKED_STEPS = 1000
"""Observations are compared with the bounds of their spaces for this many steps of each copy."""

_INSTALLED_AS = {"multi_agent_ale_py": "multi-agent-ale-py ale-py"}  # the second has the ROMs for the first


class Place:
    """Where an environment is: its name, the episode (from 1; not for batches) and the step (0 is the reset)."""

    def __init__(self, name: str, episodes: bool = True):
        self.name, self.episodes = name, episodes
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
        """Whatever goes wrong inside says where it did; `what` is the function of theirs that is called."""
        try:
            yield
        except Misfit as error:
            raise self.error(str(error)) from error
        except ShoalError:
            raise
        except Exception as error:
            raise self.error(f"{what} raised {type(error).__name__}: {error}") from error


def found(scheme: str, path: str) -> Any:
    """The module `path`. One that does not exist suggests the nearest, one that lacks a package how to install it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # between their authors and them
            return importlib.import_module(path)
    except ModuleNotFoundError as error:
        missing = error.name or path
        if path == missing or path.startswith(missing + "."):
            raise UnknownNameError(f"{scheme}:{path}: there is no module {missing!r}. {nearest(missing)}") from error
        raise missing_package(f"{scheme}:{path}", missing) from error
    except Exception as error:  # whatever a module of theirs does when it is imported
        raise OptionError(f"{scheme}:{path}: importing it raised {type(error).__name__}: {error}") from error


def missing_package(owner: str, package: str) -> OptionError:
    """The error for a package that is not installed, with the command that installs it."""
    root = package.split(".")[0]
    return OptionError(f"{owner}: needs the package {root!r}: pip install {_INSTALLED_AS.get(root, _dashed(root))}")


def called(owner: str, function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """`function(**options)`; what it raises names the environment and the options."""
    try:
        return function(**options)
    except ShoalError:
        raise
    except ModuleNotFoundError as error:
        raise missing_package(owner, error.name or str(error)) from error
    except Exception as error:  # an unknown option, a wrong value: whatever their code makes of it
        given = f" with the options {options}" if options else ""
        raise OptionError(f"{owner}: making it{given} raised {type(error).__name__}: {error}") from error


def nearest(missing: str) -> str:
    """What may have been meant by a module's name, in a sentence."""
    parent, _, name = missing.rpartition(".")
    if not parent:
        return f"Is it installed? pip install {_dashed(missing)}"
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


def _dashed(package: str) -> str:
    return package.replace("_", "-")
