"""Checkpoints: any pytree of arrays in one file, written atomically, read back to the bit, without pickle.

A checkpoint is an uncompressed `.npz` (numpy's own zip of arrays) with one member per leaf, named by its path in the
tree, and `manifest.json`: format version, Shoal version, path, shape and dtype of every leaf, and the caller's `meta`.
A file can therefore be read without Shoal: `numpy.load("step-0000000042.npz")["params/tagger/kernel"]`.

Two kinds of leaves need help. Types that numpy does not know (such as bfloat16) are stored as unsigned integers of
the same width; typed PRNG keys are stored as their raw data, with the name of their generator in the manifest.

The structure of the tree is not stored: `load` takes it from `like`, a tree of the same form, so static metadata never
comes from a file. Damage is noticed, and sizes other than those that the manifest declares and `like` requires are
refused before an array is allocated (see `sealed_archive`). Callers check what they keep in `meta` themselves (see
`records`).

One process at a time may write to a folder.
"""

import contextlib
import json
import os
import re
import threading
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.errors import OptionError, RunError, require
from shoal.core.files import check_folder, open_file, parse_json, sync_folder
from shoal.core.keys import is_key
from shoal.core.types import PyTree
from shoal.core.version import VERSION
from shoal.training import sealed_archive
from shoal.training.mismatch import differing_shapes
from shoal.training.sealed_archive import DamagedError, MalformedError

FORMAT_VERSION = 1

_MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d{10,})\.npz")
_MAX_LISTED = 5
_MOST_MANIFEST = 1 << 27
"""Bytes. Manifests of early versions contained a row of metrics for every update since the last line."""
_MOST_DIMENSIONS, _MOST_LENGTH = 32, 1 << 40
_writing = threading.Lock()  # a run may save from a background thread and, on Ctrl-C, from its main thread


def save(
    folder: Path, step: int, tree: PyTree, meta: dict[str, Any], keep: int = 3, newest_only: Collection[str] = ()
) -> Path:
    """Writes `folder/step-<step>.npz` and returns its path; then all but the `keep` newest checkpoints are removed.

    Until the new file is complete and on disk under a temporary name, nothing already there is touched. If the disk
    is full or the folder is not writable, the temporary file is removed and a `RunError` says so. newest_only: paths of
    leaves that the older checkpoints lose once the new one is there; each of them is replaced atomically, too.
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
            check_folder(folder)
            folder.mkdir(exist_ok=True)  # no parents: a run folder that was removed is not recreated
            _remove(folder.glob("step-*.npz.tmp"))  # left behind by a killed process
            sealed_archive.write(temporary, _MANIFEST, manifest, arrays)
            os.replace(temporary, path)
            sync_folder(folder)
        except OSError as error:
            reason = error.strerror or str(error)
            raise RunError(
                f"could not save the checkpoint {path}: {reason}. The earlier checkpoints are intact. "
                "Make room or give write permission, then resume the run."
            ) from error
        finally:
            _remove([temporary])
        _prune(folder, path, keep)
        for older in _checkpoints(folder):
            if older != path and newest_only:
                _drop(older, newest_only)
    return path


def latest(folder: Path) -> Path | None:
    """The checkpoint with the highest step, or None. Files that were never finished do not count."""
    found = _checkpoints(Path(folder))
    return found[-1] if found else None


def steps(folder: Path) -> dict[int, Path]:
    """The checkpoints of a folder by their steps, the oldest first."""
    return {int(match[1]): path for path in _checkpoints(folder) if (match := _NAME.fullmatch(path.name))}


def load(path: Path, like: PyTree, partial: bool = False) -> PyTree:
    """The tree stored in a file: numpy arrays (typed keys re-wrapped) in the structure of `like`.

    `like` is a pytree of arrays or `jax.ShapeDtypeStruct`s. A Python number among the leaves comes back as an array.
    Raises `RunError` if the file is damaged, of a newer format, or does not contain exactly the leaves of `like`; with
    `partial`, it may contain others too.
    """
    path = Path(path)
    with _open(path) as archive:
        stored = _entries(path, archive)
        wanted = _flatten(like)
        considered = {name: entry for name, entry in stored.items() if name in wanted} if partial else stored
        _check_same(path, considered, wanted)
        leaves = [_read_leaf(archive, stored[name]) for name in wanted]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)


def read_meta(path: Path) -> dict[str, Any]:
    """The `meta` that was passed to `save`."""
    path = Path(path)
    with _open(path) as archive:
        return _read_manifest(path, archive)["meta"]


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Every leaf by its path in the tree, PRNG keys as raw data: needs no code of the tree that was saved."""
    path = Path(path)
    with _open(path) as archive:
        return {name: _read_array(archive, entry) for name, entry in _entries(path, archive).items()}


def leaf_names(tree: PyTree) -> set[str]:
    """The paths of the leaves of a tree, as a checkpoint names them."""
    return set(_flatten(tree))


def stored_names(path: Path) -> set[str]:
    """The paths of the leaves that a checkpoint has."""
    with _open(path) as archive:
        return set(_entries(path, archive))


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


def _manifest(leaves: dict[str, Any], meta: dict[str, Any]) -> bytes:
    content = {
        "format": FORMAT_VERSION,
        "shoal": VERSION,
        "leaves": [_describe(name, leaf)._asdict() for name, leaf in leaves.items()],
        "meta": meta,
    }
    try:
        return _to_json(content)
    except (TypeError, ValueError) as error:
        raise OptionError(f"checkpoint.save: meta must be plain JSON (no arrays, no NaN): {error}") from error


def _to_json(manifest: dict[str, Any]) -> bytes:
    return json.dumps(manifest, indent=1, allow_nan=False).encode()


def _describe(name: str, leaf: Any) -> _Entry:
    if is_key(leaf):
        return _Entry(name, np.shape(leaf), "uint32", str(jax.random.key_impl(leaf)))
    dtype = _dtype(leaf)
    numeric = jnp.issubdtype(dtype, np.number) or dtype == np.bool_
    require(numeric, "checkpoint.save", f"the leaf {name!r}", str(dtype), "an array of numbers, booleans or PRNG keys")
    return _Entry(name, np.shape(leaf), str(dtype), None)


def _to_host(leaves: dict[str, Any]) -> dict[str, np.ndarray]:
    raw = {name: jax.random.key_data(leaf) if is_key(leaf) else leaf for name, leaf in leaves.items()}
    return {name: _as_stored(np.asarray(leaf)) for name, leaf in jax.device_get(raw).items()}


def _as_stored(array: np.ndarray) -> np.ndarray:
    return array.view(sealed_archive.storage_dtype(array.dtype))


def _checkpoints(folder: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    if not check_folder(folder):
        return []
    named = [(match, path) for path in folder.glob("step-*.npz") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted((int(match[1]), path) for match, path in named)]


def _prune(folder: Path, written: Path, keep: int) -> None:
    """The file just written stays whatever its step: it is the one known to be good."""
    others = [path for path in _checkpoints(folder) if path != written]
    _remove(others[: max(0, len(others) - keep + 1)])


def _drop(path: Path, names: Collection[str]) -> None:
    """Replaces a checkpoint by itself without some of its leaves. One that is damaged stays as it is."""
    beside = path.with_name(f"{path.name}.tmp")
    with contextlib.suppress(OSError, RunError):  # costs disk space, not correctness
        with _open(path, sealed=False) as archive:
            manifest, entries = _read_manifest(path, archive), _entries(path, archive)
            kept = {name: entry for name, entry in entries.items() if name not in names}
            if len(kept) == len(entries):
                return
            arrays = {name: _as_stored(_read_array(archive, entry)) for name, entry in kept.items()}
        manifest["leaves"] = [entry._asdict() for entry in kept.values()]
        try:
            sealed_archive.write(beside, _MANIFEST, _to_json(manifest), arrays)
            os.replace(beside, path)
            sync_folder(path.parent)
        finally:
            _remove([beside])


def _remove(paths: Any) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # a leftover file costs disk space, not correctness
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _open(path: Path, sealed: bool = True) -> Iterator[zipfile.ZipFile]:
    """The archive of a checkpoint; what is wrong with it is a `RunError` that says what to do. sealed: see there."""
    try:
        check_folder(path.parent)
        with sealed_archive.open_archive(path, sealed) as archive:
            yield archive
    except DamagedError as error:
        raise _damage_error(path) from error
    except MalformedError as error:
        raise _malformed(path, str(error)) from error
    except OSError as error:
        raise RunError(f"could not read the checkpoint {path}: {error.strerror or error}") from error


def _damage_error(path: Path) -> RunError:
    return RunError(
        f"the checkpoint {path} is damaged or cut short (its checksum does not match its content). {_advice(path)}"
    )


def _advice(path: Path) -> str:
    others = [other for other in _checkpoints(path.parent) if other.name != path.name]
    for other in reversed(others):
        with contextlib.suppress(OSError, RunError), open_file(other, "rb") as file:
            if sealed_archive.seal_holds(cast(BinaryIO, file)):
                return f"Use the newest intact one, {other.name}: remove the damaged file and resume."
    return "There is no intact checkpoint beside it: start a new run."


def _read_manifest(path: Path, archive: zipfile.ZipFile) -> dict[str, Any]:
    try:
        size = archive.getinfo(_MANIFEST).file_size
        if size > _MOST_MANIFEST:
            raise ValueError(f"{size:,} bytes")
        manifest = parse_json(archive.read(_MANIFEST), finite=True)
        version, by = manifest["format"], manifest.get("shoal", "?")
        if type(version) is not int or not isinstance(by, str):
            raise ValueError(f"format {version!r} of {by!r}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _malformed(path, f"{_MANIFEST}: {error!r}") from error
    if version > FORMAT_VERSION:
        raise RunError(
            f"the checkpoint {path} was written by Shoal {by} in format {version}; this Shoal "
            f"({VERSION}) reads formats up to {FORMAT_VERSION}. Upgrade shoal to read it."
        )
    if not isinstance(manifest.get("meta"), dict):
        raise _malformed(path, f"{_MANIFEST}: it has no meta data")
    return manifest


def _entries(path: Path, archive: zipfile.ZipFile) -> dict[str, _Entry]:
    leaves = _read_manifest(path, archive).get("leaves")
    entries = {entry.path: entry for entry in map(_entry, leaves) if entry} if isinstance(leaves, list) else {}
    if not isinstance(leaves, list) or len(entries) < len(leaves):
        raise _malformed(path, f"{_MANIFEST}: it does not list each of its leaves once")
    return entries


def _entry(data: Any) -> _Entry | None:
    """A leaf from plain data; None if that does not describe one."""
    if not isinstance(data, dict) or data.keys() != set(_Entry._fields):
        return None
    name, shape, dtype, key = (data[field] for field in _Entry._fields)
    lengths = isinstance(shape, list) and len(shape) <= _MOST_DIMENSIONS
    if not lengths or not all(type(length) is int and 0 <= length <= _MOST_LENGTH for length in shape):
        return None
    of_key = isinstance(key, str) and dtype == "uint32"
    if not isinstance(name, str) or not _is_dtype(dtype) or not (key is None or of_key):
        return None
    return _Entry(name, tuple(shape), dtype, key)


def _is_dtype(name: Any) -> bool:
    """Whether it is the name of a type of numbers or booleans."""
    if not isinstance(name, str) or not re.fullmatch("[a-z][a-z0-9_]{1,30}", name):
        return False
    try:
        dtype = np.dtype(name)
    except TypeError:
        return False
    return str(dtype) == name and (jnp.issubdtype(dtype, np.number) or dtype == np.bool_)


def _malformed(path: Path, what: str) -> RunError:
    return RunError(f"{path} is not a checkpoint written by Shoal ({what:.300})")


def _check_same(path: Path, stored: dict[str, _Entry], wanted: dict[str, Any]) -> None:
    missing = [f"{name}: missing from the file" for name in wanted if name not in stored]
    unexpected = [f"{name}: in the file, but not expected" for name in stored if name not in wanted]
    other = [
        f"{name}: the file has {_show_entry(stored[name])}, expected {_dtype(leaf)}{list(np.shape(leaf))}"
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
    if entry.shape != np.shape(leaf) or (entry.key is not None) != is_key(leaf):
        return False
    return entry.dtype == str(_dtype(leaf)) if entry.key is None else _wraps_to(entry.key, _dtype(leaf))


def _wraps_to(key: str, dtype: Any) -> bool:
    """Whether keys of this generator have this dtype; the file stores only the generator's name."""
    try:
        return jax.eval_shape(lambda: jax.random.key(0, impl=key)).dtype == dtype
    except ValueError:  # a generator that this version of jax does not know
        return False


def _show_entry(entry: _Entry) -> str:
    kind = entry.dtype if entry.key is None else f"key<{entry.key}>"
    return f"{kind}{list(entry.shape)}"


def _read_leaf(archive: zipfile.ZipFile, entry: _Entry) -> Any:
    if entry.key is None:
        return _read_array(archive, entry)
    each = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=entry.key))).shape
    array = sealed_archive.read_array(archive, entry.path, np.dtype(entry.dtype), entry.shape + each)
    return jax.random.wrap_key_data(jax.device_put(array), impl=entry.key)


def _read_array(archive: zipfile.ZipFile, entry: _Entry) -> np.ndarray:
    """One leaf; the raw data of a key has more axes than the key."""
    return sealed_archive.read_array(archive, entry.path, np.dtype(entry.dtype), entry.shape, entry.key is not None)
