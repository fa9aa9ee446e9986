"""Parts of pictures that show maps of numbers: colours, what is written into them, titles and labels."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shoal.viz.palette import BEND, INK, MUTED, SHADES, style_axes

WRITTEN = 8
"""Rows of the largest table whose entries are written out."""


def write_entries(axes: Any, image: Any, values: np.ndarray, text: Callable[[int, int], str]) -> None:
    """Writes into every known entry of a map, dark on light and light on dark."""
    for i, j in np.argwhere(np.isfinite(values)):
        light = np.dot(image.cmap(image.norm(values[i, j]))[:3], (0.3, 0.59, 0.11)) > 0.55
        words = text(i, j).replace("-", "−")
        axes.text(j, i, words, ha="center", va="center", fontsize=6.5, color=INK if light else "white")


def draw_bar(figure: Any, axes: Any, image: Any, ticks: Sequence[float], form: str) -> None:
    """The colour scale of a map, with numbers at some places."""
    bar = figure.colorbar(image, ax=axes, pad=0.02, ticks=ticks)
    bar.ax.set_yticklabels([form.format(tick).replace("-", "−") if tick else "0" for tick in ticks])
    bar.ax.tick_params(length=0, colors=MUTED, labelsize=8)
    bar.outline.set_visible(False)


def colour_scale(*names: str) -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("-".join(names), [SHADES["light"][name] for name in names])


def bent_norm(limit: float, least: float | None = None) -> Any:
    """Colours by the size of a number to the power of `BEND`, up to `limit`."""
    from matplotlib.colors import FuncNorm

    def power(exponent: float):
        return lambda values: np.sign(values) * np.abs(values) ** exponent

    return FuncNorm((power(BEND), power(1 / BEND)), vmin=-limit if least is None else least, vmax=limit)


def title_panel(axes: Any, title: str, detail: str) -> None:
    style_axes(axes, grid=False)
    text = {"ha": "left", "transform": axes.transAxes, "parse_math": False}
    axes.text(0, 1.12, title, fontsize=10.5, color=INK, **text)
    axes.text(0, 1.035, detail, fontsize=8, color=MUTED, **text)


def label_axes(axes: Any, across: str, up: str) -> None:
    axes.set_xlabel(across, fontsize=8.5, color=MUTED, parse_math=False)
    axes.set_ylabel(up, fontsize=8.5, color=MUTED, parse_math=False)
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_label_text().startswith(("policy", "iteration", "born")):
            axis.get_major_locator().set_params(integer=True, min_n_ticks=1)
