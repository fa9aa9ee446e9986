"""Errors that tell the user what was wrong, what was expected and what to do.

Every error that a user can cause derives from `ShoalError`; the command line prints its text, without a
traceback, and exits with code 2.
"""

import difflib
import shlex
from collections.abc import Iterable

from shoal.core.version import DISTRIBUTION

_LONGEST = 200
"""The most letters of a value that are shown."""
_FEW = 20
"""So many names are listed in any case."""
_MOST_LISTED = 40
"""The most names that are listed if none is similar."""


class ShoalError(Exception):
    """Base of every error that the user can fix."""


class OptionError(ShoalError, ValueError):
    """An option or argument has a value that is not allowed."""


class UnknownNameError(ShoalError, LookupError):
    """A world, algorithm, preset or policy of that name does not exist."""

    def __init__(self, text: str, kind: str = "", name: str = ""):
        super().__init__(text)
        self.kind, self.name = kind, name  # what was looked up, if known

    def __str__(self) -> str:  # LookupError subclasses may quote their text
        return str(self.args[0])


class WorldError(ShoalError):
    """A world breaks the environment contract."""


class AlgorithmError(ShoalError):
    """An algorithm breaks the algorithm contract."""


class NonFiniteWorldError(WorldError):
    """An environment on the host returned NaN or infinity."""


class RunError(ShoalError):
    """A run folder or a checkpoint cannot be created, read or written."""


class NonFiniteError(ShoalError):
    """NaN or infinity appeared in an observation, a reward, the loss or the weights."""


class HostError(ShoalError):
    """The hosts of a run do not find each other, do not fit together, or one of them is gone."""


def unknown_name(kind: str, name: str, known: Iterable[str], see: str = "") -> UnknownNameError:
    """The error for a misspelt name: suggests the nearest ones, or lists all. see: who lists them, if they are many."""
    known, name = sorted(known), name[:_LONGEST]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if not near:  # `grid` should find `tag/grid`
        near = [k for k in known if name and name.lower() in k.lower()][:3]
    some = [*known[:_MOST_LISTED], f"... ({len(known)} in all)"] if len(known) > _MOST_LISTED else known
    listed = see if see and len(known) > _FEW else f"Known: {', '.join(some) or 'none'}."
    hint = f"Did you mean {_either(near)}?" if near else listed
    return UnknownNameError(f"unknown {kind} {_short(repr(name))}. {hint}", kind, name)


def require(condition: bool, owner: str, option: str, got: object, allowed: str) -> None:
    """Raises an `OptionError` that names the owner, the option, its value and the allowed values."""
    if not condition:
        raise OptionError(f"{owner}: {option} must be {allowed}, got {_short(repr(got))}")


def require_positive(owner: str, **options: float) -> None:
    """Each option must be a number greater than 0."""
    for option, got in options.items():
        require(not isinstance(got, bool) and got > 0, owner, option, got, "greater than 0")


def shell_command(*words: object) -> str:
    """A `shoal` command that can be pasted into a shell: `shoal resume 'my run'`."""
    return shlex.join(["shoal", *map(str, words)])


def install_command(extra: str, version: str = "") -> str:
    """The command that installs what an extra stands for: `pip install 'shoal-rl[video]'`."""
    return f"pip install '{DISTRIBUTION}[{extra}]{f'=={version}' if version else ''}'"


def _short(text: str) -> str:
    """A text of any length, shortened for a readable line."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 40]} ... {text[-35:]}"


def require_type(owner: str, option: str, got: object, kind: type, hint: str) -> None:
    """Refuses an argument of another type; hint: where to get one of the right type."""
    require(isinstance(got, kind), owner, option, got, f"of the type {kind.__name__} ({hint})")


def _either(names: list[str]) -> str:
    return " or ".join(repr(name) for name in names)
