"""Safe access to files of a run folder, which may come from anyone: no access outside it, no blocking, limited memory.

All code that reads, writes or appends inside a run folder uses this module. Files are opened without following links
and without blocking, and must be regular files; folders inside a run must be real folders. (The run folder itself may
be reached through a link: that path comes from the user, not from the folder.) JSON is read up to a size, a depth and a
number of parts, so that a small file cannot become a large object. Writes are atomic.
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
"""The largest JSON file, unless a limit is given."""
MOST_LINE = 1 << 23
"""The longest line of a file of JSON lines."""
MOST_LINES_BYTES = 1 << 28
"""The largest file of JSON lines."""
MOST_DEPTH = 32
MOST_COST = 1 << 29
"""Approximate limit of the memory, in bytes, that parsed JSON may take."""
_COSTS = {b"[": 88, b"{": 240, b",": 40, b":": 60}
"""Memory that each of these characters accounts for: a list, a dict, a value, a key."""
_MODES = {
    "rb": os.O_RDONLY,
    "wb": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "xb": os.O_RDWR | os.O_CREAT | os.O_EXCL,
    "ab": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
}
_SAFE = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))


def open_file(path: str | os.PathLike[str], mode: str) -> IO[bytes]:
    """A regular file, opened for bytes: `rb`, `wb`, `ab`, or `xb` to write and read one that is not there yet.

    Refuses anything else of that name, and writing to a file with other hard links, perhaps elsewhere.
    """
    return os.fdopen(open_descriptor(path, mode), "w+b" if mode == "xb" else mode)


def open_descriptor(path: str | os.PathLike[str], mode: str) -> int:
    """The same, as a file descriptor."""
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
    """Whether a folder of that name exists inside a run; refuses anything else of that name, in particular links."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISDIR(found.st_mode):
        raise RunError(f"{path} is {_kind(found.st_mode)}, and must be a folder: nothing outside of a run is touched")
    return True


def make_folder(path: Path) -> None:
    """A folder inside a run, created if missing."""
    if not check_folder(path):
        path.mkdir(parents=True, exist_ok=True)


def read_file(path: str | os.PathLike[str], most: int = MOST_BYTES) -> bytes:
    """The content of a regular file; refuses one of more than `most` bytes before reading it."""
    with open_file(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        content = b"" if size > most else file.read(most + 1)
    if max(size, len(content)) > most:
        raise RunError(f"{path} is too large to be what it should be: {size:,} bytes, at most {most:,} are read")
    return content


def read_json(path: str | os.PathLike[str], most: int = MOST_BYTES) -> Any:
    """The content of a JSON file. Raises `ValueError` if it is not JSON, or too large."""
    return parse_json(read_file(path, most))


def read_lines(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines, up to the first that is cut short, damaged, or not an object."""
    left = MOST_COST
    with open_file(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_LINES_BYTES:
            raise RunError(f"{path} is too large to be what it should be: {size:,} bytes, at most {MOST_LINES_BYTES:,}")
        while text := file.readline(MOST_LINE + 1):
            left -= _cost(text) + len(text)
            try:
                if len(text) > MOST_LINE or left < 0:
                    raise RunError(f"{path} is too large to be what it should be: one of its lines, or all together")
                line = parse_json(text)
            except ValueError:
                return
            if not isinstance(line, dict):
                return
            yield line


def parse_json(content: bytes | str, finite: bool = False) -> Any:
    """JSON as plain data. Raises `ValueError` if it is not JSON, too deep, too large or, with `finite`, has a NaN."""
    raw = content.encode() if isinstance(content, str) else content
    if _cost(raw) > MOST_COST:
        raise ValueError("it has too many parts")
    try:
        value = json.loads(raw)
    except RecursionError:
        raise ValueError(f"it is nested too deeply; {MOST_DEPTH} levels are read") from None
    except UnicodeDecodeError as error:  # whose text would contain all of it
        raise ValueError(f"it is not text: {error.reason} at byte {error.start}") from None
    _check_plain(value, finite)
    return value


def nan_to_none(value: Any) -> Any:
    """Plain data with None for numbers that are not finite, which JSON does not know."""
    if isinstance(value, dict):
        return {str(key): nan_to_none(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [nan_to_none(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


LEFTOVER = ".partial"
"""Suffix of unfinished files and folders: a killed process may leave them behind."""
STALE_SECONDS = 60.0
"""Seconds after which something unfinished is considered a leftover."""


def write_atomically(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Writes a file atomically: at every moment the path has either its previous content or all of `content`."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}{LEFTOVER}")
    partial.unlink(missing_ok=True)  # a leftover, or a trap
    try:
        with open_file(partial, "xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def write_file(path: str | os.PathLike[str], content: bytes) -> None:
    """`write_atomically`, with an error that a user can read."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error


def create_folder(path: str | os.PathLike[str], files: Mapping[str, str], folders: Sequence[str] = ()) -> None:
    """Makes a folder with these files and empty folders, atomically.

    An existing folder gets them one by one, files last: the last one should mark the folder as complete.
    """
    target = Path(path)
    if target.is_dir():  # perhaps a mount point, which cannot be replaced
        _fill(target, files, folders)
        return
    if not target.parent.exists():  # a file of that name is reported below
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
    """Flushes a folder's entries to disk."""
    if os.name != "posix":  # other systems cannot open a folder
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _tidy(folder: Path) -> None:
    """Removes unfinished folders of killed processes."""
    for leftover in folder.glob(f".folder-*{LEFTOVER}"):
        try:
            stale = time.time() - leftover.stat().st_mtime > STALE_SECONDS
        except OSError:  # another process was quicker
            continue
        if stale:
            shutil.rmtree(leftover, ignore_errors=True)


def file_stem(name: str) -> str:
    """A name as (the first part of) a file's name: unsafe characters are written as %XX, as in URLs.

    Names of policies, groups and members come from the user or from a run folder, and may contain `/` or `..`.
    Different names have different stems.
    """

    def escaped(found: re.Match[str]) -> str:
        return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))

    return _UNSAFE.sub(escaped, name)


def _check_link(path: str | os.PathLike[str]) -> None:
    """Refuses a link with a clear message; `O_NOFOLLOW`, where available, makes sure that none is followed."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:  # opening it will report the reason
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
    """Checks the depth, level by level without recursion, and that numbers are finite, if they must be."""
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
                raise ValueError("it contains a number that is not finite")
        level, depth = following, depth + 1
