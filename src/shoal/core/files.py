"""Files of a run folder, which may be from anybody: nothing outside it is touched, nothing hangs, nothing fills memory.

Whatever reads, writes or appends inside a run folder does it through here. Files are opened without following links and
without waiting, and must be regular ones; folders inside a run must be folders themselves. (The run folder itself may
be reached through a link: that is the user's word, not the folder's.) JSON is read up to a size, a depth and a number
of parts, so that a small file cannot become a large object. What is written is never half there.
"""

import json
import math
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from shoal.core.errors import RunError

_UNSAFE = re.compile(r"[^\w .,=+@()\[\]-]|^[.]")

MOST_BYTES = 1 << 24
"""Of a JSON file, unless told."""
MOST_LINE = 1 << 23
"""Of one line of a file of JSON lines."""
MOST_LINES_BYTES = 1 << 28
"""Of a file of JSON lines."""
MOST_DEPTH = 32
MOST_COST = 1 << 29
"""Bytes of memory that what JSON describes may take, about."""
_COSTS = {b"[": 88, b"{": 240, b",": 40, b":": 60}
"""What one of these stands for takes in memory: a list, a dict, a value, a key."""
_MODES = {
    "rb": os.O_RDONLY,
    "wb": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "xb": os.O_RDWR | os.O_CREAT | os.O_EXCL,
    "ab": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
}
_SAFE = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))


def open_file(path: str | os.PathLike[str], mode: str) -> IO[bytes]:
    """A regular file, opened for bytes: `rb`, `wb`, `ab`, or `xb` to write and read one that is not there yet.

    Anything else of that name is refused, and so is writing to a file that has other names, perhaps elsewhere.
    """
    return os.fdopen(open_descriptor(path, mode), "w+b" if mode == "xb" else mode)


def open_descriptor(path: str | os.PathLike[str], mode: str) -> int:
    """The same, as the system's number of the open file."""
    descriptor = -1
    try:
        _check_link(path)
        descriptor = os.open(path, _MODES[mode] & ~os.O_TRUNC | _SAFE, 0o666)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _not_regular(path, found.st_mode)
        if mode != "rb" and found.st_nlink > 1:
            raise RunError(f"{path} has another name too, perhaps outside of its folder: it is not written to")
        if mode == "wb":
            os.ftruncate(descriptor, 0)
    except BaseException:
        if descriptor >= 0:
            os.close(descriptor)
        raise
    return descriptor


def check_folder(path: str | os.PathLike[str]) -> bool:
    """Whether there is a folder of that name inside a run; anything else of that name, links above all, is refused."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISDIR(found.st_mode):
        raise RunError(f"{path} is {_kind(found.st_mode)}, and must be a folder: nothing outside of a run is touched")
    return True


def make_folder(path: Path) -> None:
    """A folder inside a run, made if it is not there."""
    if not check_folder(path):
        path.mkdir(parents=True, exist_ok=True)


def read_file(path: str | os.PathLike[str], most: int = MOST_BYTES) -> bytes:
    """What a regular file holds; one that holds more than `most` bytes is refused before it is read."""
    with open_file(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        content = b"" if size > most else file.read(most + 1)
    if max(size, len(content)) > most:
        raise RunError(f"{path} is too large to be what it should be: {size:,} bytes, at most {most:,} are read")
    return content


def read_json(path: str | os.PathLike[str], most: int = MOST_BYTES) -> Any:
    """What a JSON file holds. Raises `ValueError` if that is no JSON, or too much of it."""
    return parse_json(read_file(path, most))


def read_lines(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines, up to the first that is cut short, damaged, or no object."""
    left = MOST_COST
    with open_file(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_LINES_BYTES:
            raise RunError(f"{path} is too large to be what it should be: {size:,} bytes, at most {MOST_LINES_BYTES:,}")
        while text := file.readline(MOST_LINE + 1):
            left -= _cost(text) + len(text)
            try:
                if len(text) > MOST_LINE or left < 0:
                    raise RunError(f"{path} holds too much to be what it should be: one of its lines, or all together")
                line = parse_json(text)
            except ValueError:
                return
            if not isinstance(line, dict):
                return
            yield line


def parse_json(content: bytes | str, finite: bool = False) -> Any:
    """JSON as plain data. Raises `ValueError` if it is none, too deep or too much; if `finite`, if it has a NaN."""
    raw = content.encode() if isinstance(content, str) else content
    if _cost(raw) > MOST_COST:
        raise ValueError("it has too many parts")
    try:
        value = json.loads(raw)
    except RecursionError:
        raise ValueError(f"it is nested too deeply; {MOST_DEPTH} levels are read") from None
    except UnicodeDecodeError as error:  # which would show all of it
        raise ValueError(f"it is no text: {error.reason} at byte {error.start}") from None
    _check_plain(value, finite)
    return value


LEFTOVER = ".partial"
"""How the names of what is not whole yet end: a killed process may leave it behind."""
STALE_SECONDS = 60.0
"""After which something unfinished is taken for a leftover: making it takes a moment."""


def write_atomically(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Writes a file so that at every moment the path holds either what it held before or all of `content`."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}{LEFTOVER}")
    partial.unlink(missing_ok=True)  # left behind, or laid as a trap
    try:
        with open_file(partial, "xb") as file:
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


def file_stem(name: str) -> str:
    """A name as (the first part of) a file's name: what could lead elsewhere is written as %XX, as in addresses.

    Names of policies, groups and members come from the user or from a run folder, and may hold `/` or `..`. Different
    names have different stems.
    """

    def escaped(found: re.Match[str]) -> str:
        return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))

    return _UNSAFE.sub(escaped, name)


def _check_link(path: str | os.PathLike[str]) -> None:
    """Says it of a link in words; that none is followed is the system's doing where it can (`O_NOFOLLOW`)."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:  # which opening it will say
        return
    if not stat.S_ISREG(mode):
        raise _not_regular(path, mode)


def _not_regular(path: str | os.PathLike[str], mode: int) -> RunError:
    return RunError(f"{path} is {_kind(mode)}, and must be a regular file: nothing outside of a run is touched")


def _kind(mode: int) -> str:
    kinds = {stat.S_ISLNK: "a link", stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISREG: "a file"}
    return next((name for is_kind, name in kinds.items() if is_kind(mode)), "a device or a socket")


def _cost(raw: bytes) -> int:
    return sum(each * raw.count(mark) for mark, each in _COSTS.items())


def _check_plain(value: Any, finite: bool) -> None:
    """Level by level, without recursion: how deep it is, and that its numbers are finite, if they must be."""
    level, depth = [value], 0
    while level:
        if depth > MOST_DEPTH:
            raise ValueError(f"it is nested too deeply; {MOST_DEPTH} levels are read")
        following: list[Any] = []
        for entry in level:
            if isinstance(entry, dict):
                following.extend(entry.values())
            elif isinstance(entry, list):
                following.extend(entry)
            elif finite and isinstance(entry, float) and not math.isfinite(entry):
                raise ValueError("it holds a number that is not finite")
        level, depth = following, depth + 1
