"""Writing files and folders so that nothing is ever half there."""

import os
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

LEFTOVER = ".partial"
"""How the names of what is not whole yet end: a killed process may leave it behind."""
STALE_SECONDS = 60.0
"""After which something unfinished is taken for a leftover: making it takes a moment."""


def write_atomically(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Writes a file so that at every moment the path holds either what it held before or all of `content`."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}{LEFTOVER}")
    try:
        with open(partial, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def create_folder(path: str | os.PathLike[str], files: Mapping[str, str], folders: Sequence[str] = ()) -> None:
    """Makes a folder that holds these files and empty folders; at every moment it is there as a whole or not at all.

    One that is there already gets them one by one, files last: have the last one decide what the folder is.
    """
    target = Path(path)
    if target.is_dir():  # perhaps where a disk is mounted, which nothing can be put in the place of
        _fill(target, files, folders)
        return
    if not target.parent.exists():  # if it is a file, that is said below
        target.parent.mkdir(parents=True, exist_ok=True)
    _tidy(target.parent)
    partial = target.with_name(f".folder-{uuid.uuid4().hex}{LEFTOVER}")
    try:
        partial.mkdir()
        _fill(partial, files, folders)
        partial.rename(target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _fill(folder: Path, files: Mapping[str, str], folders: Sequence[str]) -> None:
    for name in folders:
        (folder / name).mkdir(exist_ok=True)
    for name, content in files.items():
        write_atomically(folder / name, content)
    sync_folder(folder)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Makes durable which names a folder holds."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _tidy(folder: Path) -> None:
    """Removes folders that killed processes have not finished."""
    for leftover in folder.glob(f".folder-*{LEFTOVER}"):
        try:
            stale = time.time() - leftover.stat().st_mtime > STALE_SECONDS
        except OSError:  # somebody else was quicker
            continue
        if stale:
            shutil.rmtree(leftover, ignore_errors=True)
