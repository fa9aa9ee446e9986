"""What lies in a run's folder, seen without following links: files, checkpoints, and pages that can be shown."""

import os
import re
import stat
from pathlib import Path
from typing import Any

from shoal.core.errors import RunError
from shoal.core.files import check_folder, open_file
from shoal.training.scene_files import read_scenes

METRICS = "metrics.jsonl"
MOST_FILES = 2000
_TAIL = 1 << 20
_CHECKPOINT = re.compile(r"step-(\d{1,18})\.npz")
PAGES = {"replay.html": "Replay", "population.html": "Population"}
"""Pages that Shoal writes to run folders, and their names."""


def list_files(folder: Path) -> list[dict[str, Any]]:
    """Regular files of a run by their path inside it, with sizes and times; links and the like are left out."""
    found: list[dict[str, Any]] = []
    waiting = [folder]
    while waiting and len(found) < MOST_FILES:
        here = waiting.pop()
        try:
            inside = sorted(os.scandir(here), key=lambda one: one.name)
        except OSError:  # removed meanwhile
            continue
        for one in inside:
            facts = _facts(one)
            if facts is None or len(found) >= MOST_FILES:
                continue
            if stat.S_ISDIR(facts.st_mode):
                waiting.append(Path(one.path))
            elif stat.S_ISREG(facts.st_mode):
                inner = Path(one.path).relative_to(folder).as_posix()
                found.append({"name": inner, "size": facts.st_size, "updated": facts.st_mtime})
    return sorted(found, key=lambda file: (file["name"].count("/"), file["name"]))


def list_checkpoints(folder: Path) -> list[dict[str, Any]]:
    """Checkpoints of a run, newest first: the update, whether it is the best in evaluation, size and time."""
    found = []
    for inner, best in (("checkpoints", False), ("best", True)):
        try:
            inside = list(os.scandir(folder / inner)) if check_folder(folder / inner) else []
        except (OSError, RunError):
            continue
        for one in inside[:MOST_FILES]:
            facts, name = _facts(one), _CHECKPOINT.fullmatch(one.name)
            if facts is not None and name and stat.S_ISREG(facts.st_mode):
                update = int(name[1])
                found.append({"update": update, "best": best, "size": facts.st_size, "updated": facts.st_mtime})
    return sorted(found, key=lambda one: (one["best"], one["update"]), reverse=True)


def pages_of(folder: Path) -> list[dict[str, str]]:
    """Pages that can be shown inside the user interface."""
    there = {file.name for file in map(folder.joinpath, PAGES) if is_file(file)}
    return [{"name": name, "title": title} for name, title in PAGES.items() if name in there]


def scenes_of(folder: Path) -> list[dict[str, int]]:
    """Where along its curve a run has kept episodes, oldest first; a folder that cannot be read has none."""
    try:
        return [{"update": point.update, "env_steps": point.env_steps} for point in read_scenes(folder)]
    except (OSError, RunError):
        return []


def end_of_lines(path: Path) -> int:
    """The offset behind the last complete line of a file; 0 if there is none."""
    try:
        with open_file(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = max(0, size - _TAIL)
            file.seek(start)
            return start + file.read(size - start).rfind(b"\n") + 1
    except (OSError, RunError):
        return 0


def inner_path(folder: Path, name: str) -> Path:
    """The path of a file inside a run; refuses anything that could lead out of it."""
    parts = name.split("/")
    sound = all(part not in ("", ".", "..") and "\\" not in part and "\0" not in part for part in parts)
    if not sound:
        raise RunError(f"{name!r} is not the name of a file inside a run")
    path = folder
    for part in parts[:-1]:
        path = path / part
        if not check_folder(path):
            raise RunError(f"{name!r} is not in this run")
    return path / parts[-1]


def _facts(one: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return one.stat(follow_symlinks=False)
    except OSError:
        return None


def is_file(path: str | Path) -> bool:
    """Whether there is a regular file, which is no link."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False
