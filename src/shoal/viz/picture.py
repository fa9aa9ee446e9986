"""A scene as a PNG: what the documentation shows of a world."""

import math
import os
from typing import Any

import numpy as np

from shoal.core.errors import require
from shoal.core.types import Circles, Labels, Lines, Polygons, Scene
from shoal.viz.curves import drawing
from shoal.viz.palette import INK, PALETTE

_ARENA, _EDGE = "#ffffff", "#d5d9e0"


def draw_scene(path: str | os.PathLike[str], scene: Scene, *, height: float = 2.4, dpi: int = 150) -> None:
    """Draws one scene (arrays without a time axis) as a PNG `height` inches high, as wide as the scene's bounds ask."""
    wanted = "a shoal.Scene, as env.scene(state, params) returns it"
    require(isinstance(scene, Scene), "draw_scene", "scene", scene, wanted)
    for option, got in {"height": height, "dpi": dpi}.items():
        sound = isinstance(got, int | float) and math.isfinite(got) and got > 0
        require(sound, "draw_scene", option, got, "a finite number greater than 0")
    left, bottom, right, top = scene.bounds
    width = float(np.clip(height * (right - left) / (top - bottom), height / 2, 3 * height))
    with drawing(path, figsize=(width, height), dpi=dpi, facecolor=_ARENA) as figure:
        axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
        axes.set(xlim=(left, right), ylim=(bottom, top), aspect="equal", xticks=[], yticks=[], facecolor=_ARENA)
        for spine in axes.spines.values():
            spine.set_edgecolor(_EDGE)
        layers = {_polygons: scene.polygons, _lines: scene.lines, _circles: scene.circles, _labels: scene.labels}
        for draw, shapes in layers.items():
            if shapes is not None:
                draw(axes, shapes)


def _polygons(axes: Any, polygons: Polygons) -> None:
    from matplotlib.collections import PolyCollection

    points, colours = _shown(polygons, polygons.points)
    axes.add_collection(PolyCollection(list(points), facecolors=colours, edgecolors="none", alpha=0.85))


def _lines(axes: Any, lines: Lines) -> None:
    from matplotlib.collections import LineCollection

    points, colours = _shown(lines, np.stack([np.asarray(lines.start), np.asarray(lines.end)], axis=1))
    axes.add_collection(LineCollection(list(points), colors=colours, linewidths=1.2))


def _circles(axes: Any, circles: Circles) -> None:
    from matplotlib.collections import EllipseCollection, LineCollection

    centre, colours = _shown(circles, circles.position)
    radius = np.asarray(circles.radius)[np.asarray(circles.visible)]
    round_ones = EllipseCollection(
        *(2 * radius, 2 * radius, np.zeros_like(radius)),
        units="xy",
        offsets=centre,
        transOffset=axes.transData,
        facecolors=colours,
        edgecolors="white",
        linewidths=0.5,
    )
    axes.add_collection(round_ones)
    if circles.heading is None:
        return
    heading = np.asarray(circles.heading)[np.asarray(circles.visible)]
    tip = centre + (radius * np.stack([np.cos(heading), np.sin(heading)])).T
    noses = np.stack([centre, tip], axis=1)[np.isfinite(heading)]
    axes.add_collection(LineCollection(list(noses), colors="white", linewidths=1.0))


def _labels(axes: Any, labels: Labels) -> None:
    for place, visible, text in zip(np.asarray(labels.position), np.asarray(labels.visible), labels.text, strict=True):
        if visible:
            axes.text(*place, text, color=INK, fontsize=8, ha="center", va="center")


def _shown(shapes: Any, points: Any) -> tuple[np.ndarray, list[str]]:
    """Points and colours of the shapes that are visible."""
    visible = np.asarray(shapes.visible)
    colours = np.asarray(shapes.colour)[visible] % len(PALETTE)
    return np.asarray(points)[visible], [PALETTE[colour] for colour in colours]
