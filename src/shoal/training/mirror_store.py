"""Storage behind a URL, through fsspec, and how a run lies there: see `training.mirror`, which writes and fetches it.

What is read may come from anyone: names are matched, and sizes and numbers bounded.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from shoal.core.errors import OptionError, RunError, install_command
from shoal.core.files import MOST_BYTES, parse_json
from shoal.core.schema import Whole, check
from shoal.core.version import VERSION
from shoal.training import run_kinds

FORMAT = 1
INDEX, FILES = "run.json", "files"
MOST_FILES, MOST_FILE = 2000, 1 << 40
CHUNK = 1 << 20
NAME = re.compile(
    r"(checkpoints|best)/step-\d{10,18}\.npz|(scenes/)?[A-Za-z0-9][\w-]{0,99}\.(json|jsonl|csv|png|html)", re.ASCII
)
CHECKPOINT = re.compile(r"checkpoints/step-(\d+)\.npz")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SCHEMA = {"format": Whole(1), "origin": str, "files": {str: {"bytes": Whole(0, MOST_FILE), "sha256": str}}}


class Stored(NamedTuple):
    """A file of a run."""

    bytes: int
    sha256: str

    def path(self, name: str) -> str:
        """Where it lies in the mirror: with its own name at the end, so that a bucket can be looked through."""
        return f"{FILES}/{self.sha256[:32]}-{name.rpartition('/')[2]}"


class Index(NamedTuple):
    """What `run.json` says. origin: a hash of where the run comes from, the same as long as it is one run."""

    origin: str
    files: dict[str, Stored]

    @property
    def update(self) -> int:
        """That of the newest checkpoint; -1 if there is none."""
        return max((int(found[1]) for name in self.files if (found := CHECKPOINT.fullmatch(name))), default=-1)


class Store:
    """The folder of one run in the storage behind a URL."""

    def __init__(self, url: str):
        self.url = url
        try:
            import fsspec
        except ImportError as error:
            raise OptionError(f"{url}: storage needs fsspec: {install_command('storage')}") from error
        try:
            self._system, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError, OSError) as error:  # a package for this kind of storage is missing, a typo
            raise OptionError(f"{url} cannot be opened as storage: {error}") from error

    def read_index(self) -> Index | None:
        """What is there; None if nothing is."""
        try:
            with self.open(INDEX) as file:
                content = file.read(MOST_BYTES + 1)
        except FileNotFoundError:
            return None
        try:
            if len(content) > MOST_BYTES:
                raise ValueError("it is too large")
            data = parse_json(content)
            check(data, _SCHEMA, INDEX)
            if data["format"] > FORMAT:
                raise ValueError(f"a newer version of shoal wrote it ({data.get('shoal')!s:.40})")
            files = {name: Stored(entry["bytes"], entry["sha256"]) for name, entry in data["files"].items()}
            bad = [
                name for name, file in files.items() if not NAME.fullmatch(name) or not _SHA256.fullmatch(file.sha256)
            ]
            if bad or len(files) > MOST_FILES or run_kinds.CONFIG not in files:
                raise ValueError(f"it names files that no run has: {bad[:1]!r:.100}")
        except (ValueError, TypeError) as error:
            raise RunError(f"{self.url}/{INDEX} is not a mirror of a run: {error!s:.300}") from error
        return Index(data["origin"], files)

    def open(self, path: str) -> Any:
        return self._system.open(f"{self._root}/{path}", "rb")

    def write_index(self, index: Index) -> None:
        files = {name: file._asdict() for name, file in index.files.items()}
        data = {"format": FORMAT, "shoal": VERSION, "origin": index.origin, "files": files}
        aside = f"{self._root}/{INDEX}.new"
        self._system.pipe_file(aside, (json.dumps(data, indent=1) + "\n").encode())
        self._system.mv(aside, f"{self._root}/{INDEX}")

    def sizes(self) -> dict[str, int]:
        """The files that are there, finished or not, by their paths."""
        place = f"{self._root}/{FILES}"
        self._system.makedirs(place, exist_ok=True)
        self._system.invalidate_cache(place)
        found = self._system.ls(place, detail=True)
        return {f"{FILES}/{entry['name'].rpartition('/')[2]}": entry["size"] for entry in found}

    def upload(self, path: str, file: IO[bytes], size: int) -> None:
        with self._system.open(f"{self._root}/{path}", "wb") as target:
            for part in parts(file, size):
                target.write(part)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._system.rm_file(f"{self._root}/{path}")


def parts(file: IO[bytes], size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file; an error if there are fewer."""
    while size > 0:
        part = file.read(min(CHUNK, size))
        if not part:
            raise EOFError("a file is shorter than it should be")
        size -= len(part)
        yield part


def hash_of(file: IO[bytes], size: int) -> str:
    digest = hashlib.sha256()
    for part in parts(file, size):
        digest.update(part)
    return digest.hexdigest()
