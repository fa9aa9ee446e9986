"""`replay.html` of an environment that draws itself: one self-contained file that plays its pictures, offline.

Pictures are PNGs inside the page. Those that are wider or higher than `LARGEST` are made smaller by leaving out rows
and columns.
"""

import base64
import io
import math
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from shoal.core.errors import require
from shoal.viz.replay import filled_page, write_file

LARGEST = 480
"""Pixels of a side at most."""
_OWNER = "write_film"


def write_film(path: str | os.PathLike[str], frames: Sequence[np.ndarray], **look: Any) -> None:
    """Writes the page that `film_page` makes."""
    write_file(path, film_page(frames, **look))


def film_page(
    frames: Sequence[np.ndarray],
    *,
    title: str,
    subtitle: str = "",
    fps: float = 15.0,
    series: Mapping[str, ArrayLike] | None = None,
) -> bytes:
    """A page that plays `frames`, pictures `[height, width, 3]` of uint8; series: numbers `[T]` by name."""
    require(math.isfinite(fps) and fps > 0, _OWNER, "fps", fps, "a number greater than 0")
    require(bool(frames), _OWNER, "frames", len(frames), "at least one picture")
    stride = max(1, -(-max(max(frame.shape[:2]) for frame in frames) // LARGEST))
    pictures = [png(np.ascontiguousarray(frame[::stride, ::stride])) for frame in frames]
    payload = {
        "title": title,
        "subtitle": subtitle,
        "fps": float(fps),
        "frames": [base64.b64encode(picture).decode() for picture in pictures],
        "series": {name: np.asarray(values, float).round(3).tolist() for name, values in (series or {}).items()},
    }
    return filled_page("film.html", title, payload)


def encoded_frames(frames: Sequence[np.ndarray], side: int) -> tuple[str, list[str]]:
    """Pictures at most `side` pixels wide and high, as base64: of WebP if Pillow is installed, else of PNG."""
    try:
        from PIL import Image
    except ImportError:
        stride = max(1, -(-max(max(frame.shape[:2]) for frame in frames) // side))
        small = [png(np.ascontiguousarray(frame[::stride, ::stride])) for frame in frames]
        return "png", [base64.b64encode(picture).decode() for picture in small]
    found = []
    for frame in frames:
        image, file = Image.fromarray(np.ascontiguousarray(frame)), io.BytesIO()
        image.thumbnail((side, side))
        image.save(file, "WEBP", quality=70, method=2)
        found.append(base64.b64encode(file.getvalue()).decode())
    return "webp", found


def png(picture: np.ndarray) -> bytes:
    """A picture `[height, width, 3]` of uint8 as a PNG."""
    fits = picture.ndim == 3 and picture.shape[2] == 3 and picture.dtype == np.uint8 and picture.size
    require(bool(fits), _OWNER, "a picture", (picture.dtype, picture.shape), "uint8 [height, width, 3]")
    height, width, _ = picture.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), picture.reshape(height, -1)], 1)  # 0: rows as they are
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )
