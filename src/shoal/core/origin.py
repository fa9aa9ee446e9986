"""Where a world's id comes from, and what a run folder may not decide by itself.

A run folder is data and may come from anyone. Ids of other libraries can name modules and functions, and options can
name files: such ids are taken from a folder only if the user repeats them (`--import ID`, or `shoal.trust(ID)`), or if
an installed package declares them by an entry point. Ids that are only looked up in a library's own registry need no
consent. Nor is another run read because a folder names it.
"""

import dataclasses
import importlib.metadata
import json
import os
import re
import shlex
from collections.abc import Mapping
from typing import Any

from shoal.core.errors import RunError

GROUP = "shoal.envs"
"""The entry points by which an installed package declares worlds, and ids of other libraries that folders may use."""
_ENV_PACKAGES = r"(?:ale_py|gymnasium_robotics|highway_env|minigrid|mo_gymnasium)"
_FREE = {
    "gymnasium": re.compile(rf"(?:{_ENV_PACKAGES}:)?[^:]+"),
    "pettingzoo": re.compile(r"(?:pettingzoo|mpe2|magent2|momaland)(?:\.\w+)+|[^:/]+/[^:]+"),
    "openspiel": re.compile(r"(?!.*(?:file|path|root|dir)\w*\s*=)\w+(?:/\w+)*(?:\([^/\\:~]*\))?", re.DOTALL),
    "vmas": re.compile(r".*"),
    "jaxmarl": re.compile(r".*"),
    "jumanji": re.compile(r"(?!.*sokoban).*", re.IGNORECASE),  # its levels are downloaded
    "gymnax": re.compile(r"(?!.*mnist).*", re.IGNORECASE),  # its digits are downloaded
}
"""Names that a folder may use: they are looked up in a registry, or import a package of environments. No others."""
_FILE_OPTION = re.compile(r"(?:^|_)(?:file|path|root|dir|folder|module|import|entry|url|rom)|[a-z](?:File|Path|Dir)")
_NOT_A_WORD = re.compile(r"[/\\:~$]|\w\.[A-Za-z_]|[^\S\n ]|^\.+$")
"""Characters of a path, an address or a module's name that the text of a setting does not have."""
MOST_LETTERS = 300
"""The longest id, or text of an option, that is accepted from a folder; longer ones would take long to check."""
_trusted: set[str] = set()


@dataclasses.dataclass(frozen=True)
class Origin:
    """The source of an id: a run folder or, without one, the user, on the command line or in Python."""

    folder: str | None = None

    def admit(self, id: str, options: Mapping[str, Any]) -> None:
        """Refuses an environment of another library that a folder must not name. Nothing is imported here."""
        if self.folder is not None and len(id) > MOST_LETTERS:
            raise RunError(f"{self.folder}: its environment's id has {len(id):,} letters: {id[:40]!r} ...")
        claim = claimed(id, options)
        if claim is None:
            return
        if self.folder is None:
            trust(claim)
        elif claim not in _trusted and not (claim == id and id in declared()):
            raise RunError(f"{self.folder}: {_refusal(id, claim)}")

    def admit_folder(self, path: str, why: str) -> None:
        """Refuses another folder that would be read only because a folder names it."""
        place = os.path.abspath(path)
        if self.folder is None:
            trust(place)
        elif place not in _trusted:
            raise RunError(
                f"{self.folder}: {why} {path!r}, and a run folder does not decide what else is read. If you "
                f"want that, repeat it: --import {shlex.quote(path)} (in Python, shoal.trust)"
            )


USER = Origin()
DATA = Origin("this run")
"""Plain data from a run folder whose path is not known here."""


def trust(text: str) -> None:
    """Lets run folders name what the user has named: an id like `pettingzoo:my.module:make`, or another folder."""
    _trusted.add(os.path.abspath(text) if os.path.isdir(text) else text)


def trusted() -> tuple[str, ...]:
    """Everything trusted in this process, to be sent to workers."""
    return tuple(sorted(_trusted))


def claimed(id: str, options: Mapping[str, Any]) -> str | None:
    """What the user must repeat before a folder may name this environment; None if it names no code and no file."""
    library, colon, name = id.partition(":")
    if not colon:
        return None
    free = _FREE.get(library)
    safe = free is not None and free.fullmatch(name) is not None and id.isprintable()
    named = [f"{option}={_text(value)}" for option, value in sorted(options.items()) if _names("", {option: value})]
    return None if safe and not named else " ".join([id, *named])


def declared() -> dict[str, importlib.metadata.EntryPoint]:
    """Entry points of installed packages, by id."""
    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}


def _refusal(id: str, claim: str) -> str:
    what = "names code to import" if claim == id else "names code or files"
    if not claim.isprintable():
        return f"its environment {claim!r} {what}, and is not a name that can be repeated"
    return (
        f"its environment {claim} {what}, and a run folder does not decide what is run. Nothing was run. If you know "
        f"and trust it, repeat it: --import {shlex.quote(claim)} (in Python, shoal.trust)"
    )


def _names(option: str, value: Any) -> bool:
    """Whether an option may name a file, an address or a module, at any depth."""
    if isinstance(value, Mapping):
        return any(_NOT_A_WORD.search(str(key)) or _names(str(key), part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return any(_names(option, part) for part in value)
    if not isinstance(value, str):
        return False
    return len(value) > MOST_LETTERS or bool(_NOT_A_WORD.search(value) or (value and _FILE_OPTION.search(option)))


def _text(value: Any) -> str:
    return value if isinstance(value, str) and value.isprintable() else json.dumps(value, sort_keys=True, default=repr)
