"""The colours of all pictures and pages, so that a group has the same one wherever it is drawn, and the look of axes.

Worlds choose colours by index (`Circles.colour` and its like). The pages know the same indices as `--c0` to `--c7`, in
a light and a dark tone; pictures are drawn in the light ones.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from shoal.core.env import Env
from shoal.core.types import Scene

INK, MUTED, FAINT, EDGE = "#1b1f26", "#667080", "#e7eaef", "#c9cfd8"
PALETTE = ("#8b94a1", "#2f6fde", "#ec7a2c", "#2e9f5c", "#d93f4c", "#8157d1", "#149b9b", "#dba510")
"""By index: grey, blue, orange, green, red, violet, teal, yellow."""
SHADES = {
    "light": {"none": "#f7f8fa", "more": "#205cc8", "less": "#c83a2c", "weight": "#781c6d", "apart": "#0d6068"},
    "dark": {"none": "#1b212a", "more": "#5c9dff", "less": "#ff7a5c", "weight": "#ffbe5c", "apart": "#40c4b4"},
}
"""Ends of the colour scales of maps: from `none` to what is earned (`more`) or lost (`less`), to weights, to distances.
"""
BEND = 0.7
"""Exponent of payoffs in their colour scale: the greatest has full colour, and small ones can still be
distinguished."""
_ORDER = (1, 2, 3, 4, 5, 6, 7, 0)
"""Indices in the order in which those are served who have no colour of their own: grey last."""


def style_axes(axes: Any, size: float = 8, grid: bool = True) -> None:
    """Axes with a line below and no ticks, and faint lines behind at the marks of y. size: of the numbers."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(EDGE)
    if grid:
        axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, colors=MUTED, labelsize=size, pad=4, which="both")


def colours_of(names: Sequence[str], known: Mapping[str, int] | None = None) -> dict[str, int]:
    """A palette index for each name: the `known` one, else the first that no other name has.

    With more names than colours, colours repeat.
    """
    known = known or {}
    chosen = {name: known[name] % len(PALETTE) for name in names if name in known}
    free = [index for index in _ORDER if index not in chosen.values()] or list(_ORDER)
    others = [name for name in names if name not in chosen]
    chosen |= {name: free[i % len(free)] for i, name in enumerate(others)}
    return {name: chosen[name] for name in names}


def scene_colours(world: Env) -> dict[str, int]:
    """Palette indices by group, as far as a world draws its agents as circles named `group_0`, `group_1`, ..."""
    params = world.default_params()
    key = jax.random.key(0)

    def drawn(key: jax.Array) -> Scene:
        return world.scene(world.reset(key, params), params)

    circles = jax.eval_shape(drawn, key).circles
    if circles is None:
        return {}
    # Colours rarely depend on anything: compiled, hardly anything of the world is computed for them.
    colour = np.asarray(jax.jit(lambda key: drawn(key).circles.colour)(key))  # pyright: ignore[reportOptionalMemberAccess]
    found = {}
    for group in world.groups:
        own = [index for name, index in zip(circles.names, colour, strict=False) if _is_member(name, group)]
        if own:
            found[group] = int(Counter(own).most_common(1)[0][0])
    return found


def _is_member(name: str, group: str) -> bool:
    return re.fullmatch(re.escape(group) + r"(_\d+)?", name) is not None
