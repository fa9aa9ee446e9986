"""Scenes that can be drawn: the right shapes, finite where visible, colours of the palette."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from shoal.core.types import Scene
from shoal.testing._trees import check_finite, show
from shoal.testing.report import Findings

_NUM_COLOURS = 8
_SCENE_TYPES = {"colour": "integers", "visible": "booleans"}  # everything else is floats


def check_scene(findings: Findings, scene: Any) -> bool:
    """Checks the spec of a scene. Returns whether its values can be looked at."""
    if not isinstance(scene, Scene):
        findings.add("scene", "scene", f"it returned {type(scene).__name__}", "Return a `shoal.Scene`")
        return False
    edges = tuple(scene.bounds)
    finite = len(edges) == 4 and all(math.isfinite(edge) for edge in edges)
    if not finite or edges[0] >= edges[2] or edges[1] >= edges[3]:
        fix = "They are (left, bottom, right, top) in world units, left < right and bottom < top"
        findings.add("scene", "scene", f"bounds are {edges}", fix)
    layers = {
        "circles": {"position": ("k", 2), "radius": ("k",), "colour": ("k",), "visible": ("k",), "heading": ("k",)},
        "polygons": {"points": ("k", "corners", 2), "colour": ("k",), "visible": ("k",)},
        "lines": {"start": ("k", 2), "end": ("k", 2), "colour": ("k",), "visible": ("k",)},
        "labels": {"position": ("k", 2), "visible": ("k",)},
    }
    checks = [_check_layer(findings, scene, layer, fields) for layer, fields in layers.items()]
    return all(checks)


def _check_layer(findings: Findings, scene: Scene, layer: str, fields: dict[str, tuple]) -> bool:
    shapes = getattr(scene, layer)
    if shapes is None:
        return True
    where = f"scene, {layer}"
    count = np.shape(shapes.visible)[0] if np.shape(shapes.visible) else 0
    good = True
    for field, axes in fields.items():
        leaf = getattr(shapes, field)
        optional = field == "heading" and leaf is None
        if not optional and not _fits(leaf, field, axes, count):
            what = f"{field} is {show(leaf) if hasattr(leaf, 'dtype') else leaf}"
            fix = f"Return {_SCENE_TYPES.get(field, 'floats')} of shape {_axes(axes)}, k = {count} as in `visible`"
            findings.add("scene", where, what, fix)
            good = False
    words = getattr(shapes, "names", None) or getattr(shapes, "text", ())
    if words and len(words) != count:
        findings.add("scene", where, f"there are {len(words)} names for {count} shapes", "Give one for each")
    return good


def _fits(leaf: Any, field: str, axes: tuple, count: int) -> bool:
    if not hasattr(leaf, "dtype") or leaf.ndim != len(axes) or leaf.shape[0] != count:
        return False
    family = {"integers": np.integer, "booleans": np.bool_, "floats": np.floating}[_SCENE_TYPES.get(field, "floats")]
    sizes_fit = all(isinstance(axis, str) or axis == size for axis, size in zip(axes, leaf.shape, strict=True))
    return sizes_fit and jnp.issubdtype(leaf.dtype, family)


def _axes(axes: tuple) -> str:
    return f"[{', '.join(map(str, axes))}]"


def check_scene_values(findings: Findings, scene: Any, when: str) -> None:
    """Checks a batch of scenes on the host; what is not visible may be anywhere."""
    for layer in ("polygons", "lines", "circles", "labels"):
        shapes = getattr(scene, layer)
        if shapes is None:
            continue
        visible = np.asarray(shapes.visible, bool)
        for field in ("points", "start", "end", "position", "radius"):
            leaf = getattr(shapes, field, np.zeros_like(visible))
            shown = np.where(visible.reshape(visible.shape + (1,) * (leaf.ndim - visible.ndim)), leaf, 0)
            check_finite(findings, f"scene, {layer}", field, shown, when, "copy", "shape")
        colour = getattr(shapes, "colour", np.zeros(1, np.int32))
        if ((colour < 0) | (colour >= _NUM_COLOURS)).any():
            what = f"a colour is {int(colour.max()) if colour.max() > 0 else int(colour.min())}"
            findings.add("scene", f"scene, {layer}", what, f"Colours are 0 to {_NUM_COLOURS - 1}, see `shoal.Scene`")
