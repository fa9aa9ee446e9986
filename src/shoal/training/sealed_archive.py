"""Sealed archives: an uncompressed zip of numpy arrays and one text, written once and checked when it is opened.

The zip's comment is a SHA-256 of the whole file (its own digits counted as zeros), because zip's checksums cover the
members but not the bytes between them. The seal detects damage, not forgery: anyone can compute it. So members must be
uncompressed, adjacent, and of the sizes that the reader expects, which is checked before an array is allocated.
"""

import contextlib
import hashlib
import math
import os
import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import numpy as np

from shoal.core.files import open_file

_SEAL = b"shoal sha256 "
_BLANK_SEAL = _SEAL + b"0" * 64
_MOST_CENTRAL = 1 << 22
"""Bytes of the zip's table of contents: some ten thousand leaves."""
_END, _LOCATOR, _END64 = (struct.Struct(form) for form in ("<4s4H2LH", "<4sLQL", "<4sQ2H2L4Q"))
"""The records at the end of a zip: the last one, and for large files two more before it."""
_HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[a-zA-Z]\d*)', 'fortran_order': (True|False), 'shape': \(([\d, ]*)\), \}\s*"
)
_MOST_HEADER = 4096


class DamagedError(Exception):
    """The file is not what was written: bytes were changed, or are missing."""


class MalformedError(Exception):
    """The file is intact, but nothing that `write` has written."""


def write(path: Path, text_name: str, text: bytes, arrays: dict[str, np.ndarray]) -> None:
    """Writes a new archive to disk: the text, then the arrays, each as `name.npy`."""
    with open_file(path, "xb") as file:
        stream = _HashingStream(cast(BinaryIO, file))
        with zipfile.ZipFile(cast(IO[bytes], stream), "w", zipfile.ZIP_STORED) as archive:
            archive.comment = _BLANK_SEAL
            archive.writestr(zipfile.ZipInfo(text_name), text)  # ZipInfo: a fixed date, so equal content, equal files
            for name, array in arrays.items():
                with archive.open(zipfile.ZipInfo(name + ".npy"), "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        file.seek(-len(_BLANK_SEAL), os.SEEK_END)
        file.write(_SEAL + stream.digest.hexdigest().encode())
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def open_archive(path: Path, sealed: bool = True) -> Iterator[zipfile.ZipFile]:
    """The archive, after checking its seal and its table of contents.

    sealed: False leaves out the seal, for which the whole file is read; members have checksums of their own.
    """
    try:
        with open_file(path, "rb") as file:
            if sealed and not seal_holds(cast(BinaryIO, file)):
                raise DamagedError
            _check_central(cast(BinaryIO, file))
            with zipfile.ZipFile(file) as archive:
                _check_members(archive, os.fstat(file.fileno()).st_size)
                yield archive
    except (zipfile.BadZipFile, EOFError, struct.error) as error:
        raise DamagedError from error
    except (NotImplementedError, UnicodeDecodeError) as error:  # a zip that no version of Shoal writes
        raise MalformedError(str(error)) from error


def seal_holds(file: BinaryIO) -> bool:
    """Whether a file is what was written."""
    body = file.seek(0, os.SEEK_END) - len(_BLANK_SEAL)
    if body < 0:
        return False
    file.seek(0)
    digest = hashlib.sha256()
    for start in range(0, body, 1 << 20):
        digest.update(file.read(min(1 << 20, body - start)))
    digest.update(_BLANK_SEAL)
    return file.read() == _SEAL + digest.hexdigest().encode()


def read_array(
    archive: zipfile.ZipFile, name: str, dtype: np.dtype, shape: tuple[int, ...], more_axes: bool = False
) -> np.ndarray:
    """An array of that type and shape. more_axes: it may have more axes after these.

    Nothing is allocated before these, the array's header and the size of the member agree.
    """
    try:
        size = archive.getinfo(name + ".npy").file_size
        with archive.open(name + ".npy") as member:
            header, stored, fortran, declared = _read_header(cast(BinaryIO, member))
            leading = declared[: len(shape)] if more_axes else declared
            if stored != storage_dtype(dtype) or leading != shape:
                raise ValueError(f"the array is {stored}{list(declared)}")
            if size != header + math.prod(declared) * stored.itemsize:
                raise ValueError(f"{stored}{list(declared)} does not fill {size:,} bytes")
            array = np.empty(math.prod(declared), stored)
            filled = array.view(np.uint8)
            for start in range(0, len(filled), 1 << 20):
                part = np.frombuffer(member.read(min(1 << 20, len(filled) - start)), np.uint8)
                filled[start : start + (1 << 20)] = part.reshape(len(filled[start : start + (1 << 20)]))
            member.read(1)  # at the end of a member, zip compares its checksum
    except (KeyError, TypeError, ValueError) as error:
        raise MalformedError(f"{name}: {error}") from error
    return (array.reshape(declared[::-1]).T if fortran else array.reshape(declared)).view(dtype)


def storage_dtype(dtype: np.dtype) -> np.dtype:
    """The type that numpy's file format can name: unsigned integers in place of types defined outside numpy."""
    return dtype if dtype.isbuiltin == 1 or dtype.byteorder == ">" else np.dtype(f"u{dtype.itemsize}")


class _HashingStream:
    """Writes to a file and digests on the way. Without `seek`, so zip writes each byte once and in order."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def _check_central(file: BinaryIO) -> None:
    """Refuses a huge table of contents before parsing it."""
    place = file.seek(0, os.SEEK_END) - len(_BLANK_SEAL) - _END.size
    size = _record(file, place, _END, b"PK\5\6")[5]
    before = place - _LOCATOR.size
    if before >= _END64.size:
        file.seek(before)
        if file.read(4) == b"PK\6\7":
            size = max(size if size != 0xFFFFFFFF else 0, _record(file, before - _END64.size, _END64, b"PK\6\6")[8])
    if size > _MOST_CENTRAL:
        raise MalformedError(f"its table of contents has {size:,} bytes")


def _record(file: BinaryIO, place: int, form: struct.Struct, mark: bytes) -> tuple[Any, ...]:
    if place < 0:
        raise zipfile.BadZipFile
    file.seek(place)
    found = form.unpack(file.read(form.size))
    if found[0] != mark:
        raise zipfile.BadZipFile
    return found


def _check_members(archive: zipfile.ZipFile, size: int) -> None:
    """Requires members to be uncompressed, uniquely named and adjacent within the file."""
    end, names = 0, set()
    for member in sorted(archive.infolist(), key=lambda member: member.header_offset):
        plain = member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 0x41
        if not plain or member.compress_size != member.file_size:
            raise MalformedError(f"{member.filename}: it is compressed or encrypted")
        if member.filename in names:
            raise MalformedError(f"{member.filename}: it occurs twice")
        if member.header_offset < end or member.header_offset + member.file_size > size:
            raise MalformedError(f"{member.filename}: it overlaps with another member, or with the end of the file")
        names.add(member.filename)
        end = member.header_offset + member.file_size


def _read_header(member: BinaryIO) -> tuple[int, np.dtype, bool, tuple[int, ...]]:
    """Parses an array in numpy's format: length of the header, then type, order and shape.

    Only headers of arrays of numbers and booleans are accepted.
    """
    start = member.read(8)
    wide = start[6:] != b"\1\0"
    length = int.from_bytes(member.read(4 if wide else 2), "little")
    if start[:6] != b"\x93NUMPY" or length > _MOST_HEADER:
        raise ValueError("it is not an array")
    text = member.read(length)
    found = _HEADER.fullmatch(text)
    if not found or found[1][-1:] == b"O":
        raise ValueError("it is not an array of numbers: objects are never loaded")
    shape = tuple(int(part) for part in found[3].split(b",") if part.strip())
    return 12 + length if wide else 10 + length, np.dtype(found[1].decode()), found[2] == b"True", shape
