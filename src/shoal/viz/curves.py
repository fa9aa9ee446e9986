"""`curves.png`: how a run learnt. Returns on top, everything else that was logged as small panels below.

A thick line is a centred moving average. Behind it, one seed's measurements are a thin line; of several seeds, the band
reaches from the least to the greatest of their averages, so that the line never leaves it.
"""

import contextlib
import dataclasses
import functools
import io
import math
import os
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shoal.core.errors import OptionError, ShoalError, install_command, require
from shoal.viz.palette import INK, MUTED, PALETTE, colours_of, style_axes
from shoal.viz.replay import write_file

_COUNTERS = frozenset({"env_steps", "update", "updates", "episodes", "seconds", "pbt/source"})
"""They only count, or name members: there is nothing to see."""
TRUE_TYPE: dict[Any, Any] = {"pdf.fonttype": 42, "ps.fonttype": 42}
"""Settings of matplotlib with which a figure is saved: publishers refuse fonts of type 3."""
_COLUMNS = 4
_WIDTH, _RETURNS_HEIGHT, _PANEL_HEIGHT, _HEAD_HEIGHT = 11.0, 3.5, 1.65, 0.95  # inches
_MOST_CURVES = 512  # metrics in a picture
_SMOOTHING = 24  # an average reaches this part of the curve to either side


class MissingMatplotlibError(ShoalError, ImportError):
    """Curves were asked for, but matplotlib is not installed."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """One metric: env steps `[rows]` and values `[rows, seeds]`; NaN where a seed has none, but some seed has."""

    name: str
    steps: np.ndarray
    values: np.ndarray

    @functools.cached_property
    def smooth(self) -> np.ndarray:
        """Each seed's moving average, `[rows, seeds]`."""
        return _smooth(self.values)

    @property
    def mean(self) -> np.ndarray:
        """The mean of the seeds' averages, `[rows]`."""
        return np.nanmean(self.smooth, axis=1)


def draw_curves(
    path: str | os.PathLike[str],
    rows: Sequence[Mapping[str, Any]],
    *,
    title: str,
    each: str = "seeds",
    colours: Mapping[str, int] | None = None,
    opposed: bool = False,
    log: Collection[str] = (),
) -> None:
    """Draws the learning curves of a run as a PNG.

    rows: the lines of `metrics.jsonl`, each with `env_steps` and flat names: `return` (of all groups), `return/GROUP`,
    `length`, `loss/...`. A value is a number, a list with one number per seed, or None where there is none. What is not
    a number is left out, and so are counters.
    each: what a list has one number for, in the plural.
    colours: palette indices of groups, as their world draws them; the others get free ones.
    opposed: groups play against each other, so what they earn together means nothing and is left out.
    log: metrics with a logarithmic axis, where they are positive.
    """
    curves = read_curves(rows)
    if not curves:
        raise OptionError("draw_curves: rows must hold at least one row with `env_steps` and a finite metric, got none")
    returns = _shown_returns(curves, opposed)
    others = [curve for curve in curves if not _is_return(curve.name)]
    with drawing(path, dpi=144, facecolor="white") as figure:
        _draw(figure, returns, others, title, each, colours or {}, log)


@contextlib.contextmanager
def drawing(path: str | os.PathLike[str], **options: Any) -> Iterator[Any]:
    """A figure, which is written once it has been drawn: as a PDF if the name ends so, else as a PNG."""
    figure_class, canvas_class = matplotlib_classes()
    figure = figure_class(**options)
    canvas, image = canvas_class(figure), io.BytesIO()
    yield figure
    with warnings.catch_warnings():  # a title in a script that the font lacks is drawn with boxes
        warnings.simplefilter("ignore")
        if os.fspath(path).endswith(".pdf"):
            from matplotlib import rc_context

            with rc_context(TRUE_TYPE):
                figure.savefig(image, format="pdf", metadata={"CreationDate": None})
        else:
            canvas.print_png(image)
    write_file(path, image.getvalue())


def matplotlib_classes() -> tuple[Any, Any]:
    """Figure and canvas, used without the parts of matplotlib that keep global state."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingMatplotlibError(f"drawing needs matplotlib: {install_command('plot')}") from error
    return Figure, FigureCanvasAgg


def _is_return(name: str) -> bool:
    return name == "return" or name.startswith("return/")


def read_curves(rows: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """The metrics in the order in which they first appear, each over the rows in which it is finite.

    Not every row has a return: lines go on to the next row in which an episode ended.
    """
    for row in rows:
        require("env_steps" in row, "draw_curves", "rows", sorted(row), "rows that each have `env_steps`")
    names = dict.fromkeys(name for row in rows for name in row if name not in _COUNTERS)
    require(len(names) <= _MOST_CURVES, "draw_curves", "rows", len(names), f"of at most {_MOST_CURVES} metrics")
    steps = np.array([row["env_steps"] for row in rows], np.float64)
    tables = {name: _table([row.get(name) for row in rows]) for name in names}
    known = {name: np.isfinite(table).any(1) for name, table in tables.items()}
    return [Curve(name, steps[known[name]], table[known[name]]) for name, table in tables.items() if known[name].any()]


def _table(column: list[Any]) -> np.ndarray:
    """One metric as `[rows, seeds]`."""
    cells = [cell if isinstance(cell, list | tuple) else [cell] for cell in column]
    table = np.full((len(cells), max(map(len, cells), default=1)), np.nan)
    for row, cell in zip(table, cells, strict=True):
        row[: len(cell)] = [_number(value) for value in cell]
    return table


def _number(value: Any) -> float:
    numeric = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if numeric else math.nan


def _shown_returns(curves: Sequence[Curve], opposed: bool) -> list[Curve]:
    """Returns by group, and that of all groups where there are several and they pull together."""
    returns = [curve for curve in curves if _is_return(curve.name)]
    groups = [curve for curve in returns if curve.name != "return"]
    return groups if len(groups) == 1 or (groups and opposed) else returns


def _smooth(values: np.ndarray) -> np.ndarray:
    """A centred moving average of each column of `[rows, seeds]`; what is NaN does not count.

    Towards the ends the window narrows on both sides alike. If only one side were cut off, a curve that rises would be
    drawn too high where it begins and too low where it ends; so its ends are what was measured there.
    """
    rows = len(values)
    reach = np.minimum(rows // _SMOOTHING, np.minimum(np.arange(rows), np.arange(rows)[::-1]))
    first, after = np.arange(rows) - reach, np.arange(rows) + reach + 1

    def windows(numbers: np.ndarray) -> np.ndarray:
        sums = np.concatenate([np.zeros((1, numbers.shape[1])), np.cumsum(numbers, axis=0)])
        return sums[after] - sums[first]

    known = np.isfinite(values)
    centre = np.nanmean(values) if known.any() else 0.0  # sums of large numbers would lose the small differences
    count = windows(known.astype(np.float64))
    total = windows(np.where(known, values - centre, 0.0))
    return np.where(count > 0, centre + total / np.maximum(count, 1.0), np.nan)


def _draw(
    figure: Any,
    returns: list[Curve],
    others: list[Curve],
    title: str,
    each: str,
    colours: Mapping[str, int],
    log: Collection[str],
) -> None:
    small_rows = [others[i : i + _COLUMNS] for i in range(0, len(others), _COLUMNS)]
    top = total = _HEAD_HEIGHT + _RETURNS_HEIGHT * bool(returns) + _PANEL_HEIGHT * len(small_rows)
    figure.set_size_inches(_WIDTH, total)
    _head(figure, [*returns, *others], title, each, total)
    top -= _HEAD_HEIGHT
    chosen = colours_of([curve.name.removeprefix("return/") for curve in returns if curve.name != "return"], colours)
    last_step = max(curve.steps[-1] for curve in [*returns, *others])
    if returns:
        longest = max(len(curve.name.removeprefix("return/")) for curve in returns)
        margin = min(0.85 + 0.075 * longest, _WIDTH / 3)
        _draw_returns(_panel(figure, 0, 1, top, total, last_step, margin), returns, chosen)
        top -= _RETURNS_HEIGHT
    for row in small_rows:
        for column, curve in enumerate(row):
            axes = _panel(figure, column, _COLUMNS, top, total, last_step, margin=0.15)
            _draw_small(axes, curve, PALETTE[chosen.get(curve.name.rpartition("/")[2], 1)], curve.name in log)
        top -= _PANEL_HEIGHT


def _head(figure: Any, curves: list[Curve], title: str, each: str, total: float) -> None:
    steps, many = max(curve.steps[-1] for curve in curves), max(curve.values.shape[1] for curve in curves)
    detail = f"{short_number(steps)} environment steps" + (f", mean and range of {many} {each}" if many > 1 else "")
    options = {"ha": "left", "parse_math": False}
    figure.text(0.3 / _WIDTH, 1 - 0.42 / total, title, fontsize=14, fontweight="bold", color=INK, **options)
    figure.text(0.3 / _WIDTH, 1 - 0.68 / total, detail, fontsize=9.5, color=MUTED, **options)


def _panel(figure: Any, column: int, columns: int, top: float, total: float, last_step: float, margin: float) -> Any:
    """Axes in one cell of a row; lengths in inches, so that text has the same room whatever the figure's height."""
    height = _RETURNS_HEIGHT if columns == 1 else _PANEL_HEIGHT
    cell = (_WIDTH - 0.3) / columns
    left, low = 0.3 + column * cell + 0.5, top - height + 0.4
    width, tall = cell - 0.5 - margin, height - 0.4 - 0.32
    axes = figure.add_axes((left / _WIDTH, low / total, width / _WIDTH, tall / total))
    axes.set_xlim(0, last_step or 1)
    style_axes(axes)
    axes.xaxis.set_major_formatter(lambda value, _: short_number(value))
    axes.yaxis.set_major_formatter(lambda value, _: short_number(value))
    axes.locator_params(axis="x", nbins=8 if columns == 1 else 3)
    axes.locator_params(axis="y", nbins=5 if columns == 1 else 3)
    axes.margins(y=0.1)
    return axes


def _draw_returns(axes: Any, returns: list[Curve], chosen: Mapping[str, int]) -> None:
    """Every group's return, and that of all groups in black; each line is named at its end."""
    ends = []
    for curve in sorted(returns, key=lambda curve: curve.name == "return"):
        group = curve.name.removeprefix("return/") if curve.name != "return" else None
        colour = INK if group is None else PALETTE[chosen[group]]
        _draw_curve(axes, curve, colour, width=2.0)
        ends.append((float(curve.mean[-1]), group or ("all" if chosen else "return"), colour))
    axes.set_title("Mean episode return", loc="left", fontsize=10.5, color=INK, pad=8)
    axes.set_xlabel("environment steps", fontsize=8.5, color=MUTED, loc="right", labelpad=2)
    _name_ends(axes, ends)


def _draw_small(axes: Any, curve: Curve, colour: str, log: bool) -> None:
    _draw_curve(axes, curve, colour, width=1.5)
    axes.set_title(curve.name, loc="left", fontsize=9, color=INK, pad=5, parse_math=False)
    if log and np.nanmin(curve.values) > 0:
        axes.set_yscale("log")
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda value, _: short_number(value))


def _draw_curve(axes: Any, curve: Curve, colour: str, width: float) -> None:
    if curve.values.shape[1] > 1:
        low, high = np.nanmin(curve.smooth, axis=1), np.nanmax(curve.smooth, axis=1)
        axes.fill_between(curve.steps, low, high, color=colour, alpha=0.16, linewidth=0)
    else:
        axes.plot(curve.steps, curve.values[:, 0], color=colour, alpha=0.28, linewidth=0.9)
    alone = len(curve.steps) == 1
    axes.plot(curve.steps, curve.mean, color=colour, linewidth=width, marker="o" if alone else None, clip_on=not alone)


def _name_ends(axes: Any, ends: list[tuple[float, str, str]]) -> None:
    """Names and last values to the right of the lines, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    room = 0.085 * (high - low)
    ends = sorted(ends)
    heights = [end for end, _, _ in ends]
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + room)
    surplus = max(0.0, heights[-1] - high)
    heights = [height - surplus for height in heights]
    transform = axes.get_yaxis_transform()
    for height, (end, name, colour) in zip(heights, ends, strict=True):
        text = f"{name}  {short_number(end)}"
        axes.text(1.012, height, text, color=colour, fontsize=9.5, va="center", transform=transform, parse_math=False)


def short_number(value: float) -> str:
    """`1234567` as `1.23M`: three digits and a suffix."""
    for size, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g}{suffix}".replace("-", "−")
    return f"{value:.3g}".replace("-", "−")
