"""`sweep.png`: which hyper-parameters did best.

One swept option: the return against it, a dot for each seed and a line through the means. Two: a map of the means.
More, or points at random: a panel for each option. What failed is marked, not left out.
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.core.errors import require
from shoal.viz.curves import drawing
from shoal.viz.palette import INK, MUTED, PALETTE, style_axes

_BLUE, _RED = PALETTE[1], PALETTE[4]
_COLUMNS = 3
_PANEL_WIDTH, _PANEL_HEIGHT, _HEAD_HEIGHT = 3.6, 2.7, 0.85  # inches
_LOG_RATIO = 30
"""Values listed one by one are drawn on a logarithmic axis if the greatest is this many times the least."""


def draw_sweep(path: str | os.PathLike[str], table: Mapping[str, Any], *, title: str) -> None:
    """Draws the result of a sweep as a PNG. `table` is what `sweep.json` holds: `over`, `points`, `measure`."""
    require(bool(table["points"]), "draw_sweep", "points", [], "at least one point")
    names = list(table["over"])
    with drawing(path, dpi=144, facecolor="white") as figure:
        if len(names) == 2 and table.get("random") is None:
            axes = _layout(figure, 1, table, title, width=6.2, height=4.2)
            _draw_map(figure, axes[0], names, table["points"])
            return
        wide = len(names) == 1
        axes = _layout(figure, len(names), table, title, width=7.0 if wide else None, height=3.6 if wide else None)
        for panel, name in zip(axes, names, strict=True):
            _draw_panel(panel, name, table)


def _layout(
    figure: Any, count: int, table: Mapping[str, Any], title: str, width: float | None, height: float | None
) -> list[Any]:
    """Panels in rows below a title; lengths in inches."""
    columns = min(count, _COLUMNS)
    rows = -(-count // columns)
    wide, tall = width or _PANEL_WIDTH, height or _PANEL_HEIGHT
    whole = (columns * wide, rows * tall + _HEAD_HEIGHT)
    figure.set_size_inches(*whole)
    seeds = len(table["points"][0]["returns"])
    detail = f"{' + '.join(table['measure'])}, mean of the last tenth of training; {len(table['points'])} points"
    detail += f" x {seeds} seeds" if seeds > 1 else ""
    style = {"ha": "left", "parse_math": False}
    figure.text(0.3 / whole[0], 1 - 0.38 / whole[1], title, fontsize=13, fontweight="bold", color=INK, **style)
    figure.text(0.3 / whole[0], 1 - 0.62 / whole[1], detail, fontsize=8.5, color=MUTED, **style)
    panels = []
    for i in range(count):
        left = (i % columns) * wide + 0.72
        low = (rows - 1 - i // columns) * tall + 0.55
        place = (left / whole[0], low / whole[1], (wide - 0.95) / whole[0], (tall - 0.7) / whole[1])
        panels.append(figure.add_axes(place))
    return panels


def _draw_panel(axes: Any, name: str, table: Mapping[str, Any]) -> None:
    """The return of all points against one option; with others swept too, the line is the mean over these."""
    points = table["points"]
    _style(axes, name)
    if _is_log(table["over"][name]):
        axes.set_xscale("log")
    lined = table.get("random") is None or len(table["over"]) == 1
    places = [(point["values"][name], value) for point in points for value in point["returns"] if value is not None]
    if places:
        axes.plot(*zip(*places, strict=True), "o", color=_BLUE, alpha=0.45, markersize=4, markeredgewidth=0)
    means = {value: _mean([p["mean"] for p in points if p["values"][name] == value]) for value in _values(points, name)}
    line = [(value, mean) for value, mean in means.items() if math.isfinite(mean)]
    if lined and line:
        axes.plot(*zip(*line, strict=True), color=_BLUE, linewidth=1.8)
    failed = sorted({point["values"][name] for point in points if point["mean"] is None})
    if failed:
        axes.plot(failed, [0.03] * len(failed), "x", color=_RED, transform=axes.get_xaxis_transform(), clip_on=False)
        axes.text(0.99, 0.97, "x  failed", color=_RED, fontsize=8, ha="right", va="top", transform=axes.transAxes)


def _draw_map(figure: Any, axes: Any, names: Sequence[str], points: Sequence[Mapping[str, Any]]) -> None:
    """Means of a grid over two options as coloured cells, the best one framed, failed ones crossed out."""
    across, up = (_values(points, name) for name in names)
    means = np.full((len(up), len(across)), np.nan)
    for point in points:
        place = up.index(point["values"][names[1]]), across.index(point["values"][names[0]])
        means[place] = math.nan if point["mean"] is None else point["mean"]
    image = axes.imshow(np.ma.masked_invalid(means), origin="lower", aspect="auto", cmap="viridis")
    figure.colorbar(image, ax=axes, pad=0.02).ax.tick_params(length=0, colors=MUTED, labelsize=8)
    _style(axes, names[0])
    axes.set_ylabel(names[1], fontsize=9, color=INK)
    for axis, values in ((axes.xaxis, across), (axes.yaxis, up)):
        shown = range(0, len(values), -(-len(values) // 8))
        axis.set_ticks(list(shown), [f"{values[i]:.3g}" for i in shown])
    for row, column in np.argwhere(np.isnan(means)):
        axes.plot(column, row, "x", color=_RED)
    if not np.isnan(means).all():
        row, column = np.unravel_index(np.nanargmax(means), means.shape)
        axes.plot(column, row, "s", markersize=13, markerfacecolor="none", markeredgecolor="white", markeredgewidth=2)


def _style(axes: Any, label: str) -> None:
    style_axes(axes, grid=not axes.images)
    axes.set_xlabel(label, fontsize=9, color=INK)


def _values(points: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return sorted({point["values"][name] for point in points})


def _is_log(values: Any) -> bool:
    if isinstance(values, Mapping):
        return bool(values["log"])
    return min(values) > 0 and max(values) >= _LOG_RATIO * min(values)


def _mean(values: Sequence[float | None]) -> float:
    got = [value for value in values if value is not None]
    return sum(got) / len(got) if got else math.nan
