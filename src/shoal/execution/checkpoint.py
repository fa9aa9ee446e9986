"""Checkpoints: any pytree of arrays in one file, written atomically, read back to the bit, without pickle.

A checkpoint is an uncompressed `.npz` (numpy's own zip of arrays) with one member per leaf, named by its path in the
tree, and `manifest.json`: format version, Shoal version, path, shape and dtype of every leaf, and the caller's `meta`.
So a file can be read without Shoal: `numpy.load("step-0000000042.npz")["params/tagger/kernel"]`.

Two kinds of leaves need help. Types that numpy does not know (bfloat16 and its kin) are stored as unsigned integers of
the same width; typed PRNG keys are stored as their raw data, with the name of their generator in the manifest.

The structure of the tree is not stored: `load` takes it from `like`, a tree of the same form, so static metadata never
comes from a file. The zip's comment is a SHA-256 of the whole file (its own digits counted as zeros), because zip's
checksums cover the arrays and not what stands between them.

One process at a time may write to a folder.
"""

import contextlib
import hashlib
import json
import os
import re
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.errors import OptionError, RunError, require
from shoal.core.types import PyTree
from shoal.core.version import VERSION
from shoal.execution.mismatch import differing_shapes

FORMAT_VERSION = 1

_MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d{10,})\.npz")
_SEAL = b"shoal sha256 "
_BLANK_SEAL = _SEAL + b"0" * 64
_MAX_LISTED = 5
_writing = threading.Lock()  # a run may save from a background thread and, on Ctrl-C, from its main thread


def save(folder: Path, step: int, tree: PyTree, meta: dict[str, Any], keep: int = 3) -> Path:
    """Writes `folder/step-<step>.npz` and returns its path; then all but the `keep` newest checkpoints are removed.

    Until the new file is complete and on disk under a temporary name, nothing already there is touched. If the disk
    is full or the folder is not writable, the temporary file is removed and a `RunError` says so.
    """
    require(step >= 0, "checkpoint.save", "step", step, "0 or more")
    require(keep >= 1, "checkpoint.save", "keep", keep, "1 or more")
    leaves = _flatten(tree)
    manifest = _manifest(leaves, meta)
    arrays = _to_host(leaves)
    folder = Path(folder)
    path = folder / f"step-{step:010d}.npz"
    temporary = path.with_name(path.name + ".tmp")
    with _writing:
        try:
            folder.mkdir(exist_ok=True)  # in a run folder that is gone nothing is to be made
            _remove(folder.glob("step-*.npz.tmp"))  # left behind by a killed process
            _write(temporary, manifest, arrays)
            os.replace(temporary, path)
            _sync_folder(folder)
        except OSError as error:
            reason = error.strerror or str(error)
            raise RunError(
                f"could not save the checkpoint {path}: {reason}. The earlier checkpoints are intact. "
                "Make room or give write permission, then resume the run."
            ) from error
        finally:
            _remove([temporary])
        _prune(folder, path, keep)
    return path


def latest(folder: Path) -> Path | None:
    """The checkpoint with the highest step, or None. Files that were never finished do not count."""
    found = _checkpoints(Path(folder))
    return found[-1] if found else None


def load(path: Path, like: PyTree, partial: bool = False) -> PyTree:
    """The tree stored in a file: numpy arrays (typed keys re-wrapped) in the structure of `like`.

    `like` is a pytree of arrays or `jax.ShapeDtypeStruct`s. A Python number among the leaves comes back as an array.
    Raises `RunError` if the file is damaged, of a newer format, or does not hold exactly the leaves of `like`;
    with `partial`, it may hold others too.
    """
    path = Path(path)
    with _opened(path) as archive:
        stored = _entries(path, archive)
        wanted = _flatten(like)
        considered = {name: entry for name, entry in stored.items() if name in wanted} if partial else stored
        _check_same(path, considered, wanted)
        leaves = [_read_leaf(path, archive, stored[name]) for name in wanted]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def restore_latest(folder: Path, like: PyTree) -> tuple[PyTree, dict[str, Any]]:
    """The tree and the `meta` of the newest checkpoint of a folder.

    A damaged one is an error that names the newest intact one: falling back is for the user to decide.
    """
    path = latest(folder)
    if path is None:
        raise RunError(f"{folder} holds no checkpoint: the run was stopped before its first one. Start it anew.")
    return load(path, like), read_meta(path)


def read_meta(path: Path) -> dict[str, Any]:
    """The `meta` that was handed to `save`."""
    path = Path(path)
    with _opened(path) as archive:
        return _read_manifest(path, archive)["meta"]


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Every leaf by its path in the tree; PRNG keys as their raw data. For looking into a file without its code."""
    path = Path(path)
    with _opened(path) as archive:
        return {name: _read_array(path, archive, entry) for name, entry in _entries(path, archive).items()}


class _Entry(NamedTuple):
    """A leaf as the manifest describes it. `key` is the generator's name if the leaf is a typed PRNG key."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    key: str | None


def _flatten(tree: PyTree) -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(keys, simple=True, separator="/") or "."
        if name in leaves:
            raise OptionError(f"checkpoint: two leaves of the tree have the path {name!r}; rename one of them")
        leaves[name] = leaf
    return leaves


def _dtype(leaf: Any) -> Any:
    return leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(_dtype(leaf), jax.dtypes.prng_key)


def _manifest(leaves: dict[str, Any], meta: dict[str, Any]) -> bytes:
    content = {
        "format": FORMAT_VERSION,
        "shoal": VERSION,
        "leaves": [_describe(name, leaf)._asdict() for name, leaf in leaves.items()],
        "meta": meta,
    }
    try:
        return json.dumps(content, indent=1, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise OptionError(f"checkpoint.save: meta must be plain JSON (no arrays, no NaN): {error}") from error


def _describe(name: str, leaf: Any) -> _Entry:
    if _is_key(leaf):
        return _Entry(name, np.shape(leaf), "uint32", str(jax.random.key_impl(leaf)))
    dtype = _dtype(leaf)
    numeric = jnp.issubdtype(dtype, np.number) or dtype == np.bool_
    require(numeric, "checkpoint.save", f"the leaf {name!r}", str(dtype), "an array of numbers, booleans or PRNG keys")
    return _Entry(name, np.shape(leaf), str(dtype), None)


def _to_host(leaves: dict[str, Any]) -> dict[str, np.ndarray]:
    raw = {name: jax.random.key_data(leaf) if _is_key(leaf) else leaf for name, leaf in leaves.items()}
    arrays = {name: np.asarray(leaf) for name, leaf in jax.device_get(raw).items()}
    return {name: array.view(_storage_dtype(array.dtype)) for name, array in arrays.items()}


def _storage_dtype(dtype: np.dtype) -> np.dtype:
    """The type that numpy's file format can name: unsigned integers in place of types made outside numpy."""
    return dtype if dtype.isbuiltin == 1 or dtype.byteorder == ">" else np.dtype(f"u{dtype.itemsize}")


class _HashingStream:
    """Passes everything on to a file and digests it. Without `seek`, so zip writes each byte once and in order."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def _write(path: Path, manifest: bytes, arrays: dict[str, np.ndarray]) -> None:
    with open(path, "wb") as file:
        stream = _HashingStream(file)
        with zipfile.ZipFile(cast(IO[bytes], stream), "w", zipfile.ZIP_STORED) as archive:
            archive.comment = _BLANK_SEAL
            archive.writestr(zipfile.ZipInfo(_MANIFEST), manifest)  # ZipInfo: a fixed date, so equal trees, equal files
            for name, array in arrays.items():
                with archive.open(zipfile.ZipInfo(name + ".npy"), "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        file.seek(-len(_BLANK_SEAL), os.SEEK_END)
        file.write(_SEAL + stream.digest.hexdigest().encode())
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Makes the renaming itself durable."""
    if os.name != "posix":  # elsewhere a folder cannot be opened
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    named = [(match, path) for path in folder.glob("step-*.npz") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted((int(match[1]), path) for match, path in named)]


def _prune(folder: Path, written: Path, keep: int) -> None:
    """The file just written stays whatever its step: it is the one known to be good."""
    others = [path for path in _checkpoints(folder) if path != written]
    _remove(others[: max(0, len(others) - keep + 1)])


def _remove(paths: Any) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # a leftover costs room, not correctness
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive, once its seal has been checked."""
    try:
        with open(path, "rb") as file:
            if not _seal_holds(file):
                raise _damaged(path)
            with zipfile.ZipFile(file) as archive:
                yield archive
    except zipfile.BadZipFile as error:
        raise _damaged(path) from error
    except OSError as error:
        raise RunError(f"could not read the checkpoint {path}: {error.strerror or error}") from error


def _seal_holds(file: BinaryIO) -> bool:
    body = file.seek(0, os.SEEK_END) - len(_BLANK_SEAL)
    if body < 0:
        return False
    file.seek(0)
    digest = hashlib.sha256()
    for start in range(0, body, 1 << 20):
        digest.update(file.read(min(1 << 20, body - start)))
    digest.update(_BLANK_SEAL)
    return file.read() == _SEAL + digest.hexdigest().encode()


def _damaged(path: Path) -> RunError:
    return RunError(
        f"the checkpoint {path} is damaged or cut short (its checksum does not match its content). {_advice(path)}"
    )


def _advice(path: Path) -> str:
    others = [other for other in _checkpoints(path.parent) if other.name != path.name]
    for other in reversed(others):
        with contextlib.suppress(OSError), open(other, "rb") as file:
            if _seal_holds(file):
                return f"Use the newest intact one, {other.name}: remove the damaged file and resume."
    return "There is no intact checkpoint beside it: start the run anew."


def _read_manifest(path: Path, archive: zipfile.ZipFile) -> dict[str, Any]:
    try:
        manifest = json.loads(archive.read(_MANIFEST))
        version = int(manifest["format"])
    except (KeyError, TypeError, ValueError) as error:
        raise _malformed(path, f"{_MANIFEST}: {error!r}") from error
    if version > FORMAT_VERSION:
        raise RunError(
            f"the checkpoint {path} was written by Shoal {manifest.get('shoal', '?')} in format {version}; this Shoal "
            f"({VERSION}) reads formats up to {FORMAT_VERSION}. Upgrade shoal to read it."
        )
    return manifest


def _entries(path: Path, archive: zipfile.ZipFile) -> dict[str, _Entry]:
    try:
        entries = [_Entry(**entry) for entry in _read_manifest(path, archive)["leaves"]]
        return {entry.path: entry._replace(shape=tuple(entry.shape)) for entry in entries}
    except (KeyError, TypeError) as error:
        raise _malformed(path, f"{_MANIFEST}: {error!r}") from error


def _malformed(path: Path, what: str) -> RunError:
    return RunError(f"{path} is not a checkpoint written by Shoal ({what})")


def _check_same(path: Path, stored: dict[str, _Entry], wanted: dict[str, Any]) -> None:
    missing = [f"{name}: missing from the file" for name in wanted if name not in stored]
    unexpected = [f"{name}: in the file, but not expected" for name in stored if name not in wanted]
    other = [
        f"{name}: the file has {_show_entry(stored[name])}, expected {_show_leaf(leaf)}"
        for name, leaf in wanted.items()
        if name in stored and not _fits(stored[name], leaf)
    ]
    problems = other + missing + unexpected
    if problems:
        more = f"; and {len(problems) - _MAX_LISTED} more" if len(problems) > _MAX_LISTED else ""
        shapes = {name: np.shape(leaf) for name, leaf in wanted.items()}, {name: e.shape for name, e in stored.items()}
        said = (
            differing_shapes(*shapes, "in config.json", "in the checkpoint") or "; ".join(problems[:_MAX_LISTED]) + more
        )
        raise RunError(
            f"{path} is a checkpoint of another network shape or experiment: {said}. Use the options that the run was "
            "started with."
        )


def _fits(entry: _Entry, leaf: Any) -> bool:
    if entry.shape != np.shape(leaf) or (entry.key is not None) != _is_key(leaf):
        return False
    return entry.dtype == str(_dtype(leaf)) if entry.key is None else _wraps_to(entry.key, _dtype(leaf))


def _wraps_to(key: str, dtype: Any) -> bool:
    """Whether keys of this generator have this dtype; the generator's name is all that the file holds."""
    try:
        return jax.eval_shape(lambda: jax.random.key(0, impl=key)).dtype == dtype
    except ValueError:  # a generator that this version of jax does not know
        return False


def _show_entry(entry: _Entry) -> str:
    kind = entry.dtype if entry.key is None else f"key<{entry.key}>"
    return f"{kind}{list(entry.shape)}"


def _show_leaf(leaf: Any) -> str:
    return f"{_dtype(leaf)}{list(np.shape(leaf))}"


def _read_leaf(path: Path, archive: zipfile.ZipFile, entry: _Entry) -> Any:
    array = _read_array(path, archive, entry)
    return array if entry.key is None else jax.random.wrap_key_data(jax.device_put(array), impl=entry.key)


def _read_array(path: Path, archive: zipfile.ZipFile, entry: _Entry) -> np.ndarray:
    try:
        dtype = np.dtype(entry.dtype)
        with archive.open(entry.path + ".npy") as member:
            array = np.lib.format.read_array(member, allow_pickle=False)
    except (KeyError, TypeError, ValueError) as error:
        raise _malformed(path, f"{entry.path}: {error}") from error
    shape = array.shape if entry.key is None else array.shape[: len(entry.shape)]
    if array.dtype != _storage_dtype(dtype) or shape != entry.shape:
        raise _malformed(path, f"{entry.path}: the array is {array.dtype}{list(array.shape)}")
    return array.view(dtype)
