"""Episodes that a run kept along its learning curve, as files: `scenes/UPDATE-ENVSTEPS.json`. Reads without JAX.

    for update, env_steps, path in read_scenes("runs/mine"):
        point = read_scene(path)      # checked; point["data"] is what point["page"] plays

A point is `{"format": 1, "update", "env_steps", "label", "page", "data", "returns"}`: `label` says who plays, of many
that train side by side, such as `member 5 (best)`; `page` is the template that plays `data`, `replay.html` (see
`shoal.viz.replay`) or, of environments that draw themselves, `film.html`; `returns` are those of the episode, by group.
`scenes/points.json` says how many points the run keeps. All of it may come from anyone: names, sizes, types and the
lengths of arrays are checked before anything is handed on.
"""

import base64
import binascii
import json
import math
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

from shoal.core.errors import RunError
from shoal.core.files import check_folder, make_folder, parse_json, read_file, read_json, write_atomically
from shoal.core.schema import Maybe, Whole, check

FOLDER = "scenes"
PLAN = "points.json"
FORMAT = 1
MOST_POINTS = 200
"""The most points of a run that are read."""
MOST_BYTES = 1 << 21
"""The largest point."""
MOST_LETTERS = 200
"""The longest label."""
PAGES = ("replay.html", "film.html")
_NAME = re.compile(r"(\d{1,12})-(\d{1,18})\.json")
_BYTES = {"u16": 2, "u8": 1, "f32": 4}
_HEAD = {
    "format": Whole(FORMAT, FORMAT),
    "update": Whole(),
    "env_steps": Whole(),
    "label?": str,
    "page": str,
    "data": {"title": str, "subtitle": str, "fps": float},
    "returns": {str: float},
}
_ARRAY = {"type": str, "shape": [Whole(0, 1 << 24)], "data": str, "offset?": float, "scale?": float}
_REPLAY = {"length": Whole(1, 100_000), "bounds": [float], "ends": [Whole()]}
_AXES = {"points": 4, "visible": 2, "colour": 2, "radius": 2, "heading": 2}


class ScenePoint(NamedTuple):
    """A point along the learning curve, and the file that keeps it."""

    update: int
    env_steps: int
    path: Path


def read_scenes(folder: str | os.PathLike[str]) -> list[ScenePoint]:
    """The points that a run has kept, oldest first; files that are none are left alone."""
    place = Path(folder) / FOLDER
    if not check_folder(place):
        return []
    found = []
    for entry in os.scandir(place):
        name = _NAME.fullmatch(entry.name)
        if name and entry.is_file(follow_symlinks=False):
            found.append(ScenePoint(int(name[1]), int(name[2]), place / entry.name))
    return sorted(found)[:MOST_POINTS]


def read_scene(path: Path) -> dict[str, Any]:
    """A point, checked; one of an early version has no label. Raises `RunError` if no run has written such a file."""
    try:
        point = parse_json(read_file(path, MOST_BYTES), finite=True)
        _check_point(point, path)
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is no scene of a run: {error!s:.300}") from error
    return {"label": ""} | point


def write_scene(folder: Path, point: dict[str, Any], most: int) -> None:
    """Keeps a point in a run folder. Of more than `most` those go that lie closest between two others."""
    make_folder(folder / FOLDER)
    name = f"{point['update']:010d}-{point['env_steps']}.json"
    write_atomically(folder / FOLDER / name, encode(point))
    kept = read_scenes(folder)
    for old in crowded(kept, len(kept) - most):
        old.path.unlink(missing_ok=True)


def encode(point: dict[str, Any]) -> bytes:
    return json.dumps(point, separators=(",", ":"), allow_nan=False).encode()


def crowded(points: list[ScenePoint], number: int) -> list[ScenePoint]:
    """So many points whose neighbours are nearest to each other; never the first or the last."""
    left, gone = list(points), []
    while len(gone) < number and len(left) > 2:
        gaps = [left[i + 1].update - left[i - 1].update for i in range(1, len(left) - 1)]
        gone.append(left.pop(1 + gaps.index(min(gaps))))
    return gone


def drop_later(folder: Path, update: int) -> None:
    """Removes points of updates that are about to be made again."""
    for point in read_scenes(folder):
        if point.update > update:
            point.path.unlink(missing_ok=True)


def write_plan(folder: Path, points: int) -> None:
    """Notes how many points a run keeps, for when it is resumed."""
    make_folder(folder / FOLDER)
    write_atomically(folder / FOLDER / PLAN, json.dumps({"points": points}) + "\n")


def read_plan(folder: Path) -> int | None:
    """How many points a run keeps; None if it was never said."""
    path = folder / FOLDER / PLAN
    if not check_folder(folder / FOLDER) or not os.path.lexists(path):
        return None
    try:
        plan = read_json(path, 1 << 12)
        check(plan, {"points": Whole(0, MOST_POINTS)}, "plan")
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error!s:.200}): remove it, and say --scenes N") from error
    return plan["points"]


def _check_point(point: Any, path: Path) -> None:
    check(point, _HEAD, "point")
    name = _NAME.fullmatch(path.name)
    _require(
        bool(name) and (int(name[1]), int(name[2])) == (point["update"], point["env_steps"]), "it has another name"
    )
    label = point.get("label", "")
    _require(len(label) <= MOST_LETTERS and label.isprintable(), f"label must be at most {MOST_LETTERS} letters")
    _require(point["page"] in PAGES, f"page must be one of {', '.join(PAGES)}")
    _require(0 < point["data"]["fps"] <= 1000, "data.fps must be a number of frames")
    (_check_replay if point["page"] == "replay.html" else _check_film)(point["data"])


def _check_film(data: dict[str, Any]) -> None:
    check(data, {"frames": [str], "series": {str: [float]}, "kind?": str}, "data")
    _require(1 <= len(data["frames"]) <= 10_000, "data.frames must be at least one picture")
    _require(data.get("kind", "png") in ("png", "webp"), "data.kind must be png or webp")
    for frame in data["frames"]:
        _decoded(frame)
    for name, values in data["series"].items():
        _require(len(values) == len(data["frames"]), f"data.series.{name} must have a number for each frame")


def _check_replay(data: dict[str, Any]) -> None:
    check(data, _REPLAY, "data")
    length = data["length"]
    left, bottom, right, top = data["bounds"] if len(data["bounds"]) == 4 else (0, 0, 0, 0)
    _require(left < right and bottom < top, "data.bounds must be (left, bottom, right, top)")
    _require(all(end < length for end in data["ends"]), "data.ends must be frames")
    for kind in ("polygons", "lines", "circles", "labels"):
        check(data.get(kind), Maybe({"points": _ARRAY, "visible": _ARRAY}), f"data.{kind}")
        if data.get(kind) is not None:
            _check_shapes(kind, data[kind], length)
    check(data, {"series": [{"name": str, "values": _ARRAY}]}, "data")
    for entry in data["series"]:
        _check_array(entry["values"], "data.series", [length], ("f32",))


def _check_shapes(kind: str, shapes: dict[str, Any], length: int) -> None:
    where = f"data.{kind}"
    points = shapes["points"]["shape"]
    _require(len(points) == 4 and points[3] == 2 and points[2] >= 1, f"{where}.points must be [T, k, corners, 2]")
    count = points[1]
    wanted = [
        "points",
        "visible",
        *([] if kind == "labels" else ["colour"]),
        *(["radius"] if kind == "circles" else []),
    ]
    for name in wanted + (["heading"] if shapes.get("heading") is not None else []):
        check(shapes, {name: _ARRAY}, where)
        types = {"points": ("u16",), "visible": ("bits",), "colour": ("u8",)}.get(name, ("u16",))
        shape = [length, count, *points[2:]][: _AXES[name]]
        _check_array(shapes[name], f"{where}.{name}", shape, types)
    texts = {"circles": "names", "labels": "text"}.get(kind)
    if texts:
        check(shapes, {texts: [str]}, where)
        _require(len(shapes[texts]) == count, f"{where}.{texts} must have a text for each")


def _check_array(array: dict[str, Any], where: str, shape: list[int], types: tuple[str, ...]) -> None:
    """An array of that shape, or with a single frame, and as many bytes as it then has."""
    _require(array["type"] in types, f"{where}.type must be {' or '.join(types)}")
    _require(array["shape"] in (shape, [1, *shape[1:]]), f"{where}.shape must be {shape}, got {array['shape']!r:.60}")
    size = math.prod(array["shape"])
    bytes_ = -(-size // 8) if array["type"] == "bits" else size * _BYTES[array["type"]]
    _require(len(_decoded(array["data"])) == bytes_, f"{where}.data must have {bytes_} bytes")
    if array["type"] == "u16":
        _require("offset" in array and "scale" in array, f"{where} must have offset and scale")


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"it has data that is not base64: {error!s:.80}") from error


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)
