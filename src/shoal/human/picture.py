"""A scene as plain data for the page: only what is visible, in as many digits as a screen can show."""

import math
from typing import Any

import numpy as np

from shoal.core.types import Scene


def plain_scene(scene: Scene) -> dict[str, Any]:
    """Shapes as lists that begin with their number in the scene, by which the page knows them again.

    polygons and lines: `[i, colour, x0, y0, x1, y1, ...]`; circles: `[i, colour, x, y, radius, heading or null, name]`;
    labels: `[i, x, y, text]`.
    """
    left, bottom, right, top = bounds = [float(edge) for edge in scene.bounds]
    digits = max(0, 4 - int(np.floor(np.log10(max(right - left, top - bottom)))))

    def numbers(values: Any) -> list[float]:
        return np.round(np.asarray(values, np.float64), digits).ravel().tolist()

    found: dict[str, Any] = {"bounds": bounds, "polygons": [], "lines": [], "circles": [], "labels": []}
    shapes: Any = scene  # any kind may be None, and then none is seen
    polygons, lines, circles, labels = shapes.polygons, shapes.lines, shapes.circles, shapes.labels
    for i in _seen(polygons, "points"):
        found["polygons"].append([i, int(polygons.colour[i]) % 8, *numbers(polygons.points[i])])
    for i in _seen(lines, "start", "end"):
        ends = [*numbers(lines.start[i]), *numbers(lines.end[i])]
        found["lines"].append([i, int(lines.colour[i]) % 8, *ends])
    for i in _seen(circles, "position", "radius"):
        heading = math.nan if circles.heading is None else float(circles.heading[i])
        name = circles.names[i] if i < len(circles.names) else ""
        place = [*numbers(circles.position[i]), *numbers(circles.radius[i])]
        found["circles"].append(
            [i, int(circles.colour[i]) % 8, *place, round(heading, 3) if math.isfinite(heading) else None, name]
        )
    for i in _seen(labels, "position"):
        found["labels"].append([i, *numbers(labels.position[i]), labels.text[i]])
    return found


def _seen(shapes: Any, *parts: str) -> list[int]:
    """Numbers of the shapes that are visible and somewhere."""
    if shapes is None:
        return []
    seen = np.asarray(shapes.visible, bool)
    for part in parts:
        values = np.asarray(getattr(shapes, part))
        seen = seen & np.isfinite(values).reshape(len(seen), -1).all(axis=1)
    return np.flatnonzero(seen).tolist()
