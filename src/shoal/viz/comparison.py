"""Pictures of a comparison of runs: learning curves, final performance, performance profiles, improvement.

A panel is an environment. What is drawn comes as plain data, `training.comparison` makes it: `kind`, `label` (of the
metric), `judged` (what final performance is), `by`, `groups`, `baseline`, `panels` and `scores` by environment.
A group has the same colour in all panels; with more groups than colours, lines are dashed from the second round on.
"""

import io
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from shoal.core.errors import require
from shoal.viz.curves import short_number
from shoal.viz.palette import FAINT, INK, MUTED, PALETTE, colours_of, style_axes
from shoal.viz.plot import shown_axes

_DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))
_COLUMNS = 3
_WIDTH, _HEIGHT = 5.0, 3.5  # inches of a panel
_ROW, _CELL = 0.3, 0.62  # inches of a group in the picture of final performance, and in the map of improvement
_LETTER = 0.078  # inches of a letter in a label


def plot_comparison(drawing: Mapping[str, Any], axes: Any = None) -> Any:
    """Draws a comparison into new axes, one per environment, or into those given; pyplot is not touched.

    Returns the axes, or a list of them if there are several environments.
    """
    panels = drawing["panels"]
    if axes is None:
        every = _new_axes(drawing)
    else:
        every = list(np.ravel(np.array(axes, dtype=object)))
        require(len(every) == len(panels), "plot", "axes", len(every), f"one for each environment, {len(panels)}")
    draw = _DRAW[drawing["kind"]]
    for panel, (name, found) in zip(every, panels.items(), strict=True):
        draw(panel, drawing, name, found)
        panel.set_title(name, loc="left", fontsize=10.5, color=INK, pad=8, parse_math=False)
    _add_legend(drawing, every, own=axes is None)
    return every[0] if len(every) == 1 else every


def comparison_pictures(drawing: Mapping[str, Any], suffixes: Sequence[str]) -> dict[str, bytes]:
    """A comparison as files by suffix: png, svg, pdf. The same data gives the same bytes."""
    every = plot_comparison(drawing)
    from matplotlib import rc_context

    figure = (every if isinstance(every, list) else [every])[0].figure
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    made = {}
    with warnings.catch_warnings(), rc_context({"svg.hashsalt": "shoal", "svg.fonttype": "none"}):
        warnings.simplefilter("ignore")  # a name in a script that the font lacks is drawn with boxes
        for suffix in suffixes:
            image = io.BytesIO()
            figure.savefig(image, format=suffix, dpi=144, metadata=undated.get(suffix))
            made[suffix] = image.getvalue()
    return made


def _new_axes(drawing: Mapping[str, Any]) -> list[Any]:
    panels, groups = drawing["panels"], drawing["groups"]
    columns = min(len(panels), _COLUMNS)
    rows = math.ceil(len(panels) / columns)
    longest = max(map(len, groups)) * _LETTER
    width, height = _WIDTH, _HEIGHT
    if drawing["kind"] == "final":
        height = 1.3 + _ROW * len(groups)
    if drawing["kind"] == "improvement":
        width, height = 1.6 + longest + _CELL * len(groups), 1.3 + 0.7 * longest + 0.75 * _CELL * len(groups)
    legend = 0.6 + longest if _has_legend(drawing) else 0.0
    return shown_axes(rows, columns, len(panels), (columns * width + legend, max(rows * height, 2.2)))


def _has_legend(drawing: Mapping[str, Any]) -> bool:
    return drawing["kind"] in ("curves", "profile") and len(drawing["groups"]) > 1


def _add_legend(drawing: Mapping[str, Any], every: Sequence[Any], own: bool) -> None:
    """One for all panels, to the right of them; in axes of the caller's, inside."""
    if not _has_legend(drawing):
        return
    from matplotlib.lines import Line2D

    styles = _styles(drawing["groups"])
    lines = [Line2D([], [], linewidth=2.0, **styles[group]) for group in drawing["groups"]]
    place = {"loc": "outside right upper"} if own else {}
    owner = every[0].figure if own else every[0]
    numbers = [str(i) for i in range(len(lines))]  # a label that begins with "_" would be left out
    legend = owner.legend(lines, numbers, frameon=False, fontsize=9, title=drawing["by"], alignment="left", **place)
    legend.get_title().set(fontsize=9, color=MUTED, parse_math=False)
    for text, group in zip(legend.get_texts(), drawing["groups"], strict=True):
        text.set(text=group, color=INK, parse_math=False)


def _styles(groups: Sequence[str]) -> dict[str, dict[str, Any]]:
    chosen = colours_of(groups)
    rounds = {group: i // len(PALETTE) % len(_DASHES) for i, group in enumerate(groups)}
    return {group: {"color": PALETTE[chosen[group]], "linestyle": _DASHES[rounds[group]]} for group in groups}


def _draw_curves(axes: Any, drawing: Mapping[str, Any], name: str, curves: Mapping[str, Any]) -> None:
    styles = _styles(drawing["groups"])
    for group, curve in curves.items():
        _draw_band(axes, curve.env_steps, curve.iqm, curve.low, curve.high, styles[group])
    _style(axes, "environment steps", drawing["label"])
    axes.xaxis.set_major_formatter(lambda value, _: short_number(value))
    axes.locator_params(axis="x", nbins=6)


def _draw_profiles(axes: Any, drawing: Mapping[str, Any], name: str, profiles: Mapping[str, Any]) -> None:
    styles = _styles(drawing["groups"])
    for group, found in profiles.items():
        _draw_band(axes, found.thresholds, found.part, found.low, found.high, styles[group], stepped=True)
        axes.set_xlim(found.thresholds[0], found.thresholds[-1])  # the same for all
    _style(axes, f"final {drawing['label']}, τ", "part of seeds with more than τ")
    axes.set_ylim(-0.02, 1.02)


def _draw_band(
    axes: Any, x: Any, middle: Any, low: Any, high: Any, style: Mapping[str, Any], stepped: bool = False
) -> None:
    """A line with its interval, if there is one. stepped: from one point to the next nothing changes."""
    alone = len(x) == 1
    drawstyle = "steps-post" if stepped else "default"
    axes.plot(x, middle, linewidth=1.8, marker="o" if alone else None, markersize=5, drawstyle=drawstyle, **style)
    if low is None or high is None:
        return
    if alone:  # a band of one point is a bar
        axes.plot([x[0], x[0]], [low[0], high[0]], color=style["color"], alpha=0.5, linewidth=3.0)
    step = "post" if stepped else None
    axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0, step=step)


def _draw_final(axes: Any, drawing: Mapping[str, Any], name: str, final: Mapping[str, Any]) -> None:
    """A row for each group: its interval as a bar, the IQM as a line across it, each seed as a dot."""
    styles = _styles(drawing["groups"])
    axes.use_sticky_edges = False  # where a bar begins, a dot would be cut in half
    for row, (group, found) in enumerate(final.items()):
        colour = styles[group]["color"]
        if found.low is not None:
            axes.barh(row, found.high - found.low, left=found.low, height=0.6, color=colour, alpha=0.3, linewidth=0)
        axes.plot([found.iqm, found.iqm], [row - 0.3, row + 0.3], color=colour, linewidth=2.5)
        scores = drawing["scores"][name][group]
        axes.plot(scores, [row] * len(scores), "o", color=colour, markersize=3.5, alpha=0.7, markeredgewidth=0)
    if drawing["baseline"] in final:
        axes.axvline(final[drawing["baseline"]].iqm, color=MUTED, linewidth=1.0, linestyle=(0, (2, 2)), zorder=0)
    _style(axes, f"final {drawing['label']}", "")
    axes.grid(axis="x", color=FAINT, linewidth=0.8)
    axes.grid(visible=False, axis="y")
    axes.set_ylim(len(final) - 0.5, -0.5)
    _name_ticks(axes, axes.yaxis, list(final))


def _draw_improvement(axes: Any, drawing: Mapping[str, Any], name: str, found: Any) -> None:
    """A map: how likely the group of a row is to do better than that of a column, and the 95 % interval of that."""
    from matplotlib.colors import LinearSegmentedColormap

    count = len(found.groups)
    shown = np.where(np.eye(count, dtype=bool), np.nan, found.probability)
    colours = LinearSegmentedColormap.from_list("improvement", [PALETTE[4], "#f7f8fa", PALETTE[1]])
    axes.imshow(np.ma.masked_invalid(shown), cmap=colours, vmin=0.0, vmax=1.0, aspect="auto")
    for i, j in np.argwhere(~np.isnan(shown)):
        low, high = found.low[i, j], found.high[i, j]
        between = f"\n{low:.2f}–{high:.2f}" if math.isfinite(low) else ""
        strong = abs(shown[i, j] - 0.5) > 0.35
        axes.text(
            j, i, f"{shown[i, j]:.2f}{between}", ha="center", va="center", fontsize=7, color="white" if strong else INK
        )
    _style(axes, "", "")
    axes.grid(visible=False)
    axes.spines[["bottom"]].set_visible(False)
    axes.set_xlabel("how likely a row is to do better than a column", fontsize=8.5, color=MUTED)
    _name_ticks(axes, axes.yaxis, list(found.groups))
    _name_ticks(axes, axes.xaxis, list(found.groups))
    for label in axes.get_xticklabels():
        label.set(rotation=40, ha="right", rotation_mode="anchor")


def _name_ticks(axes: Any, axis: Any, names: Sequence[str]) -> None:
    axis.set_ticks(range(len(names)), names)
    for label in axis.get_ticklabels():
        label.set(parse_math=False, color=INK, fontsize=9)


def _style(axes: Any, x: str, y: str) -> None:
    style_axes(axes, size=8.5)
    axes.set_xlabel(x, fontsize=9, color=MUTED, parse_math=False)
    axes.set_ylabel(y, fontsize=9, color=MUTED, parse_math=False)


_DRAW: dict[str, Callable[..., None]] = {
    "curves": _draw_curves,
    "final": _draw_final,
    "profile": _draw_profiles,
    "improvement": _draw_improvement,
}
