"""`replay.html`: one self-contained file that plays an episode in any browser, from disk, offline.

The page (`replay.html` beside this module) is a template with four slots: the title, the data, the hash of its own
script and, in that script, the text of `scene.js`, which other pages load as a module. The data is JSON, and its
arrays are base64 text:

    {"type": "u16", "shape": [...], "offset": o, "scale": s, "data": ...}   value = o + s * code, 65535 is "missing"
    {"type": "u8" | "f32", "shape": [...], "data": ...}                     little-endian
    {"type": "bits", "shape": [...], "data": ...}                           eight flags a byte, the first one highest

The first axis is time; an array that never changes is stored as a single frame. Circles, lines, polygons and labels
all store `points [T, k, corners, 2]`, with 1, 2, any number and 1 corners.
"""

import base64
import hashlib
import html
import importlib.resources
import json
import math
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from shoal.core.errors import OptionError, require
from shoal.core.files import write_file
from shoal.core.types import Circles, Labels, Lines, Polygons, Scene

_MISSING = 65535
_PALETTE_SIZE = 8
_FARTHEST = 16.0  # sizes of the world; a point beyond is drawn there, so that one runaway does not coarsen the rest
_OWNER = "write_replay"
_INCLUDE = re.compile(r"^@include ([\w.]+)@\n", re.MULTILINE)


def write_replay(path: str | os.PathLike[str], frames: Scene, **look: Any) -> None:
    """Writes the page that `replay_page` makes."""
    write_file(path, replay_page(frames, **look))


def replay_page(
    frames: Scene,
    *,
    title: str,
    subtitle: str = "",
    fps: float = 15.0,
    series: Mapping[str, ArrayLike] | None = None,
    episode_ends: ArrayLike | None = None,
) -> bytes:
    """A page that plays `frames`: a Scene whose arrays have a leading time axis `[T]`.

    fps: frames a second at normal speed. series: numbers `[T]` by name, drawn as small curves; one whose name contains
    a group's name gets that group's colour, any other a spare one. episode_ends: bool `[T]`, true where a frame is the
    last of its episode: nothing moves smoothly from there to the next frame. Palette indices beyond the palette start
    over.
    """
    data = replay_data(frames, title=title, subtitle=subtitle, fps=fps, series=series, episode_ends=episode_ends)
    return filled_page("replay.html", title, data)


def replay_data(
    frames: Scene,
    *,
    title: str,
    subtitle: str = "",
    fps: float = 15.0,
    series: Mapping[str, ArrayLike] | None = None,
    episode_ends: ArrayLike | None = None,
) -> dict[str, Any]:
    """What a replay page plays, as plain data; see `replay_page`."""
    require(math.isfinite(fps) and fps > 0, _OWNER, "fps", fps, "a number greater than 0")
    length = _length(frames)
    return {
        "title": title,
        "subtitle": subtitle,
        "fps": float(fps),
        "length": length,
        "bounds": _bounds(frames),
        "polygons": frames.polygons and _polygons(frames.polygons, frames, length),
        "lines": frames.lines and _lines(frames.lines, frames, length),
        "circles": frames.circles and _circles(frames.circles, frames, length),
        "labels": frames.labels and _labels(frames.labels, frames, length),
        "series": [
            {"name": name, "values": _floats(_array(f"series[{name!r}]", values, (length,)))}
            for name, values in (series or {}).items()
        ],
        "ends": [] if episode_ends is None else _ends(episode_ends, length),
    }


def filled_page(name: str, title: str, payload: dict[str, Any], more: Mapping[str, str] | None = None) -> bytes:
    """Fills a template's slots in one pass, so that text which looks like a slot stays text. more: other slots.

    `@include NAME@` on a line of its own is another file of this folder: parts that several pages have in common.
    """
    slots = {
        "@title@": html.escape(title),
        "@data@": _script_safe_json(payload),
        "@script-hash@": script_hash(name),
        "@page-hashes@": "",
        **(more or {}),
    }
    page = re.sub("|".join(slots), lambda slot: slots[slot[0]], read_template(name))
    return page.encode("utf-8", errors="replace")


def script_hash(name: str) -> str:
    """The hash of a template's script, by which a page allows that script alone."""
    script = re.search(r"<script>(.*?)</script>", read_template(name), re.DOTALL)
    assert script is not None
    return f"sha256-{base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()}"


def read_template(name: str) -> str:
    """A template with all that it includes; what is a module elsewhere is part of the script here."""
    return _INCLUDE.sub(lambda found: re.sub(r"(?m)^export ", "", _read(found[1])), _read(name))


def _read(name: str) -> str:
    return importlib.resources.files("shoal.viz").joinpath(name).read_text("utf-8")


def _script_safe_json(payload: dict[str, Any]) -> str:
    """JSON without `<`, `>` and `&`: no text in it can end the script element or begin another."""
    text = json.dumps(payload, separators=(",", ":"), allow_nan=False)
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _length(frames: Scene) -> int:
    """The number of frames, from the first kind of shape that the scene holds."""
    for kind in (frames.circles, frames.polygons, frames.lines, frames.labels):
        if kind is not None:
            shape = np.shape(kind.visible)
            require(len(shape) == 2 and shape[0] >= 1, _OWNER, "frames", shape, "a Scene with `visible` of [T, k]")
            return shape[0]
    raise OptionError(f"{_OWNER}: frames is an empty Scene; the world must define `scene(state, params)`")


def _bounds(frames: Scene) -> list[float]:
    left, bottom, right, top = bounds = [float(edge) for edge in frames.bounds]
    sound = all(map(math.isfinite, bounds)) and left < right and bottom < top
    require(sound, _OWNER, "frames.bounds", tuple(bounds), "(left, bottom, right, top), finite and not empty")
    return bounds


def _circles(circles: Circles, frames: Scene, length: int) -> dict[str, Any]:
    visible = _visible("circles", circles.visible, length)
    position = _array("frames.circles.position", circles.position, (*visible.shape, 2))
    radius = _array("frames.circles.radius", circles.radius, visible.shape)
    heading = None
    if circles.heading is not None:
        turn = np.remainder(_array("frames.circles.heading", circles.heading, visible.shape), 2 * np.pi)
        heading = _quantise(turn, visible)
    count = visible.shape[1]
    require(len(circles.names) <= count, _OWNER, "frames.circles.names", len(circles.names), f"at most {count} names")
    return {
        "points": _points(position[:, :, None], visible, frames),
        "visible": _bits(visible),
        "colour": _colours("circles", circles.colour, visible),
        "radius": _quantise(radius, visible),
        "heading": heading,
        "names": [*circles.names, *[""] * (count - len(circles.names))],
    }


def _polygons(polygons: Polygons, frames: Scene, length: int) -> dict[str, Any]:
    visible = _visible("polygons", polygons.visible, length)
    corners = np.shape(polygons.points)[2] if np.ndim(polygons.points) == 4 else 3
    points = _array("frames.polygons.points", polygons.points, (*visible.shape, corners, 2))
    return {
        "points": _points(points, visible, frames),
        "visible": _bits(visible),
        "colour": _colours("polygons", polygons.colour, visible),
    }


def _lines(lines: Lines, frames: Scene, length: int) -> dict[str, Any]:
    visible = _visible("lines", lines.visible, length)
    start = _array("frames.lines.start", lines.start, (*visible.shape, 2))
    end = _array("frames.lines.end", lines.end, (*visible.shape, 2))
    return {
        "points": _points(np.stack([start, end], axis=2), visible, frames),
        "visible": _bits(visible),
        "colour": _colours("lines", lines.colour, visible),
    }


def _labels(labels: Labels, frames: Scene, length: int) -> dict[str, Any]:
    visible = _visible("labels", labels.visible, length)
    position = _array("frames.labels.position", labels.position, (*visible.shape, 2))
    count = visible.shape[1]
    require(len(labels.text) == count, _OWNER, "frames.labels.text", len(labels.text), f"{count} texts, one a label")
    return {
        "points": _points(position[:, :, None], visible, frames),
        "visible": _bits(visible),
        "text": list(labels.text),
    }


def _array(name: str, values: ArrayLike, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    require(array.shape == shape, _OWNER, f"the shape of {name}", array.shape, f"{shape}")
    return array


def _visible(kind: str, values: ArrayLike, length: int) -> np.ndarray:
    shape = np.shape(values)
    sound = len(shape) == 2 and shape[0] == length
    require(sound, _OWNER, f"the shape of frames.{kind}.visible", shape, f"({length}, k)")
    return np.asarray(values, dtype=bool)


def _ends(values: ArrayLike, length: int) -> list[int]:
    flags = np.asarray(values)
    sound = flags.shape == (length,) and flags.dtype == bool
    require(sound, _OWNER, "episode_ends", f"{flags.dtype}{list(flags.shape)}", f"bool[{length}], one flag per frame")
    return np.flatnonzero(flags).tolist()


def _colours(kind: str, values: ArrayLike, visible: np.ndarray) -> dict[str, Any]:
    colour = _array(f"frames.{kind}.colour", values, visible.shape)
    return _encoded("u8", (colour.astype(np.int64) % _PALETTE_SIZE).astype(np.uint8))


def _points(points: np.ndarray, visible: np.ndarray, frames: Scene) -> dict[str, Any]:
    low, high = np.array(frames.bounds, dtype=np.float64).reshape(2, 2)
    reach = _FARTHEST * (high - low).max()
    return _quantise(np.clip(points, low - reach, high + reach), visible[:, :, None, None])


def _quantise(values: np.ndarray, used: np.ndarray) -> dict[str, Any]:
    """Numbers as 16-bit steps between the least and the greatest that are used; the others become "missing"."""
    known = np.isfinite(values) & used
    low, high = (values[known].min(), values[known].max()) if known.any() else (0.0, 0.0)
    scale = float(high - low) / (_MISSING - 1) or 1.0
    steps = np.rint((np.where(known, values, low) - low) / scale)
    codes = np.where(known, steps, _MISSING).astype("<u2")
    return {**_encoded("u16", codes), "offset": float(low), "scale": scale}


def _bits(flags: np.ndarray) -> dict[str, Any]:
    flags = _fold(flags)
    return {"type": "bits", "shape": list(flags.shape), "data": _base64(np.packbits(flags))}


def _floats(values: np.ndarray) -> dict[str, Any]:
    return {"type": "f32", "shape": list(values.shape), "data": _base64(values.astype("<f4"))}


def _encoded(kind: str, values: np.ndarray) -> dict[str, Any]:
    values = _fold(values)
    return {"type": kind, "shape": list(values.shape), "data": _base64(values)}


def _fold(values: np.ndarray) -> np.ndarray:
    """One frame of an array that is the same in all of them."""
    return values[:1] if (values == values[:1]).all() else values


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
