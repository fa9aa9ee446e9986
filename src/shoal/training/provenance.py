"""Where a run comes from: the command, the versions, the device, the date and the user's own files that were imported.

It is kept in `config.json` beside the settings, is no part of them, and nothing that a run computes depends on it.
"""

import datetime
import hashlib
import importlib.metadata
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import jax

from shoal.core.registry import imported_files
from shoal.core.version import VERSION

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy")
MOST_LETTERS = 4000
"""The longest command that is kept."""
MOST_BYTES = 1 << 20


def provenance(on_device: bool = True) -> dict[str, Any]:
    """Plain data about this process and the machine. on_device: the run is made by this process, on its devices."""
    found: dict[str, Any] = {
        "command": _command(),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "versions": {"shoal": VERSION, "python": platform.python_version()} | _versions(),
    }
    if on_device:
        devices = jax.local_devices()
        found["device"] = {"platform": devices[0].platform, "kind": devices[0].device_kind, "count": len(devices)}
    commit = git_commit(Path.cwd()) if _has_folder() else None
    if commit is not None:
        found["git_commit"] = commit
    if files := {file: digest for file in imported_files() if (digest := _sha256(file)) is not None}:
        found["imports"] = files
    return found


def _command() -> str:
    """What was typed; the program by its name alone."""
    program, *words = sys.argv or [""]
    name = "shoal" if os.path.basename(program) in ("shoal", "__main__.py") else os.path.basename(program) or "python"
    return shlex.join([name, *words])[:MOST_LETTERS]


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in PACKAGES}


def _has_folder() -> bool:
    try:
        return bool(os.getcwd())
    except OSError:  # it was removed
        return False


def _sha256(file: str) -> str | None:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:  # it was removed since
        return None


def git_commit(folder: Path) -> str | None:
    """The commit that is checked out around a folder, read from git's own files; no program is run."""
    for place in (folder, *folder.parents):
        git = place / ".git"
        if git.exists():
            try:
                return _head(git)
            except (OSError, ValueError):
                return None
    return None


def _head(git: Path) -> str | None:
    if git.is_file():  # a further work tree, whose files are elsewhere
        git = (git.parent / _text(git).removeprefix("gitdir:").strip()).resolve()
    head = _text(git / "HEAD")
    if not head.startswith("ref:"):
        return _hash(head)
    name = head.removeprefix("ref:").strip()
    common = git / "commondir"
    homes = [git, *([(git / _text(common)).resolve()] if common.is_file() else [])]
    for home in homes:
        if (home / name).is_file():
            return _hash(_text(home / name))
        packed = home / "packed-refs"
        lines = _text(packed).splitlines() if packed.is_file() else []
        for line in lines:
            if line.endswith(f" {name}"):
                return _hash(line.split()[0])
    return None


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(MOST_BYTES).decode().strip()


def _hash(text: str) -> str | None:
    digits = len(text) in (40, 64) and all(letter in "0123456789abcdef" for letter in text)
    return text if digits else None
