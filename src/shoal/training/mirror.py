"""A copy of a run in shared or object storage, kept while the run is made, and fetched to go on elsewhere, by fsspec.

    with mirroring(folder, "s3://bucket/runs"):     # a thread copies what the run has written, again and again
        ...
    folder = fetch_run("s3://bucket/runs/mine", Path("runs"))

`URL/NAME/files/` holds files of the run under names made of their SHA-256, so that none is ever changed, and
`URL/NAME/run.json` says which of them make up the run. It is written after them, under another name, and then renamed:
whoever reads it finds a run as it was at one moment, also while it is written to, and if its writer was killed between
two uploads. A moment means what it means for a run that is killed then: checkpoints are listed before metrics are read,
so metrics are at least as new. Files that neither this `run.json` nor the one before it names are removed.

The store may be away for as long as it likes: that is a warning, never an error of the run. What is fetched may come
from anyone: names are matched, sizes bounded and hashes compared before anything has its place, and the run is then
read as any run folder is.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import threading
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from shoal.core.errors import OptionError, RunError, ShoalError, require, shell_command
from shoal.core.files import LEFTOVER, check_folder, make_folder, open_file, sync_folder
from shoal.core.zoo import find_run
from shoal.training import run_kinds
from shoal.training.folder_lock import lock_folder
from shoal.training.mirror_store import CHECKPOINT, INDEX, NAME, Index, Store, Stored, hash_of, parts

PAUSE = 1.0
"""Seconds between two looks at the folder."""
MOST_PAUSE = 60.0
LAST_TRIES = 5
"""How often the last upload is tried; the pauses between grow from `PAUSE` to twice as long each time."""
READ_TRIES = 3
"""How often a run is fetched anew that its writer changed too quickly."""
FOLDERS = ("checkpoints", "best", "scenes", "")
_RUN_NAME = re.compile(r"[A-Za-z0-9][\w.=+-]{0,199}", re.ASCII)


class Mirror:
    """Copies a run folder to storage, from a thread of its own."""

    def __init__(self, folder: Path, url: str, resumed: bool = False):
        check_url(url)
        self.folder, self.resumed = folder.absolute(), resumed
        self.store = Store(f"{url}{'' if url.endswith('/') else '/'}{folder.name}")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True, name="mirror")
        self._known: dict[str, tuple[Any, Stored]] = {}  # hashes, by name, of files that have not changed since
        self._written: Index | None = None  # what this process wrote last
        self._warned = False

    def start(self) -> None:
        """Refuses a place that holds another run, or a newer state of this one; then begins to copy."""
        if not self.resumed:
            run_kinds.check_new(self.folder)
        try:
            self._written = self._admitted()
        except ShoalError:
            raise
        except Exception as error:
            self._warn(error)
        self._thread.start()

    def finish(self) -> None:
        """Waits for the last upload, as long as there is hope."""
        self._over.set()
        self._thread.join()
        pause = PAUSE
        for left in reversed(range(LAST_TRIES)):
            try:
                self.copy()
                return
            except Exception as error:  # storage fails in many ways, and none may end the run
                if not left:
                    self._warned = False
                    self._warn(error, f"{self.store.url} lacks the end of the run; {self.folder} has all of it")
            threading.Event().wait(pause)
            pause *= 2

    def copy(self) -> None:
        """Brings the mirror up to date."""
        if not (self.folder / run_kinds.CONFIG).is_file():
            return
        if self._written is None:
            self._written = self._admitted()
        present, found = self.store.sizes(), {}
        for name in self._names():
            try:
                file = open_file(self.folder / name, "rb")
            except FileNotFoundError:  # an old checkpoint, removed meanwhile
                continue
            with file:
                found[name] = self._copy_file(name, file, present)
        before, index = self._written, Index(origin_of(self.folder), found)
        if index == before or run_kinds.CONFIG not in found:
            return
        self.store.write_index(index)
        self._written = index
        named = {file.path(name) for known in (before, index) if known for name, file in known.files.items()}
        for path in present.keys() - named:
            self.store.remove(path)

    def _work(self) -> None:
        pause, copied = PAUSE, None
        while not self._over.wait(pause):
            try:
                saved = [name for name in self._names() if name.endswith(".npz")]
                if saved != copied:
                    self.copy()
                pause, copied = PAUSE, saved
            except Exception as error:
                self._warn(error)
                pause = min(2 * pause, MOST_PAUSE)

    def _admitted(self) -> Index | None:
        there = self.store.read_index()
        if there is None:
            return None
        again = f"`{shell_command('resume', self.store.url)}` goes on with it"
        if not self.resumed or there.origin != origin_of(self.folder):
            raise OptionError(f"{self.store.url} has another run already. Choose another URL or name; {again}.")
        if there.update > newest_update(self.folder):
            raise OptionError(f"{self.store.url} is further than {self.folder}: {again}")
        return there

    def _names(self) -> Iterator[str]:
        """The files of a run, checkpoints first, of these the newest: it loses its replay when the next is saved."""
        for part in FOLDERS:
            if check_folder(self.folder / part):
                names = [f"{part}/{entry.name}".lstrip("/") for entry in os.scandir(self.folder / part)]
                yield from sorted((name for name in names if NAME.fullmatch(name)), reverse=True)

    def _copy_file(self, name: str, file: IO[bytes], present: dict[str, int]) -> Stored:
        now = os.fstat(file.fileno())
        mark = (now.st_ino, now.st_size, now.st_mtime_ns)
        known = self._known.get(name)
        stored = known[1] if known and known[0] == mark else Stored(now.st_size, hash_of(file, now.st_size))
        if present.get(stored.path(name)) != stored.bytes:
            file.seek(0)
            self.store.upload(stored.path(name), file, stored.bytes)
        self._known[name] = mark, stored
        return stored

    def _warn(self, error: Exception, what: str = "") -> None:
        if not self._warned:
            self._warned = True
            what = what or f"{self.store.url} is not up to date, and is tried again; the run goes on"
            warnings.warn(f"mirror: {what} ({type(error).__name__}: {error!s:.300})", stacklevel=2)


@contextlib.contextmanager
def mirroring(folder: Path | None, url: str | None, resumed: bool = False) -> Iterator[None]:
    """Keeps a mirror of a run folder at `URL/NAME` meanwhile; url: None for none."""
    if url is None:
        yield
        return
    if folder is None:
        raise OptionError("mirror: this run is in memory alone; give it a run_dir")
    mirror = Mirror(folder, url, resumed)
    mirror.start()
    try:
        yield
    finally:
        mirror.finish()


def check_url(url: str) -> None:
    """Refuses what is no URL, or one of storage that cannot be used here."""
    require(is_url(url), "run", "mirror", url, "a URL, such as s3://bucket/runs or file:///shared/runs")
    Store(url)


def is_url(path: object) -> bool:
    """Whether a run is named by where it is mirrored."""
    return isinstance(path, str) and re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path) is not None


def locate_run(path: str | os.PathLike[str], base: str | os.PathLike[str] = "") -> Path:
    """The folder that is meant by a path, by `zoo/NAME`, or by a URL, whose run is fetched to `runs/` below `base`."""
    return fetch_run(str(path), Path(base, "runs").absolute()) if is_url(path) else find_run(path, base)


def fetch_run(url: str, runs: Path) -> Path:
    """The folder of a run, brought up to date from its mirror; refuses to replace one that is further, or another."""
    url = url.rstrip("/")
    name = url.rpartition("/")[2]
    if not _RUN_NAME.fullmatch(name):
        raise OptionError(f"{url}: the URL of a run ends in the name of its folder, in letters and digits")
    store, target = Store(url), runs / name
    runs.mkdir(parents=True, exist_ok=True)
    for left in reversed(range(READ_TRIES)):
        try:
            index = store.read_index()
            if index is None:
                raise RunError(f"{url}: no run is mirrored there")
            with lock_folder(target) if target.is_dir() else contextlib.nullcontext():
                if not _is_current(target, index, url):
                    _download(store, index, target)
            return target
        except ShoalError:
            raise
        except Exception as error:  # storage fails in many ways; what was removed meanwhile has another name now
            if not left:
                raise RunError(f"{url} cannot be fetched: {error!s:.300}") from error
    raise AssertionError


def newest_update(folder: Path) -> int:
    """That of the newest checkpoint of a run folder; -1 if it has none."""
    if not check_folder(folder / "checkpoints"):
        return -1
    found = (CHECKPOINT.fullmatch(f"checkpoints/{entry.name}") for entry in os.scandir(folder / "checkpoints"))
    return max((int(match[1]) for match in found if match), default=-1)


def origin_of(folder: Path) -> str:
    """A hash of where a run comes from: the command, the date, the machine."""
    plain = json.dumps(run_kinds.read_entry(folder, "provenance"), sort_keys=True)
    return hashlib.sha256(plain.encode()).hexdigest()


def _is_current(target: Path, index: Index, url: str) -> bool:
    """Whether a folder needs nothing from a mirror."""
    if not os.path.lexists(target):
        return False
    if run_kinds.kind_of(target) is None or origin_of(target) != index.origin:
        raise RunError(f"{target} is there already, and is not the run of {url}: rename it, or fetch from elsewhere")
    mine = newest_update(target)
    if mine > index.update:
        raise RunError(
            f"{target} is further than {url}: update {mine}, there {index.update}. Name the folder itself; with "
            "--mirror, resume brings the mirror up to date."
        )
    return mine == index.update


def _download(store: Store, index: Index, target: Path) -> None:
    """Makes the folder aside, and then puts it in its place; of one that is there, other files stay."""
    size, free = sum(file.bytes for file in index.files.values()), shutil.disk_usage(target.parent).free
    if size > free:
        raise RunError(f"{store.url} has {size:,} bytes, and the disk of {target.parent} has room for {free:,}")
    aside = target.parent / f".folder-{uuid.uuid4().hex}{LEFTOVER}"
    try:
        for part in sorted({"", "checkpoints", *(name.rpartition("/")[0] for name in index.files)}):
            (aside / part).mkdir()
        for name, stored in index.files.items():
            with store.open(stored.path(name)) as source, open_file(aside / name, "xb") as file:
                for part in parts(source, stored.bytes):
                    file.write(part)
                file.seek(0)
                if hash_of(file, stored.bytes) != stored.sha256:
                    raise EOFError(f"{stored.path(name)} is damaged")
                os.fsync(file.fileno())
        if origin_of(aside) != index.origin:
            raise RunError(f"{store.url}: {INDEX} and {run_kinds.CONFIG} are of two runs")
        if target.is_dir():
            for name in sorted(index.files, key=lambda name: name.endswith(".npz")):  # what is newest is told last
                make_folder((target / name).parent)
                os.replace(aside / name, target / name)
        else:
            aside.rename(target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
