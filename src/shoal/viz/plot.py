"""Curves of metrics in axes of matplotlib, to go on with: titles, limits and further lines are the caller's."""

import io
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from shoal.viz.curves import TRUE_TYPE, matplotlib_classes
from shoal.viz.palette import PALETTE


class Band(NamedTuple):
    """A curve over env steps `[rows]`: a line, and the interval around it, if there is one."""

    steps: np.ndarray
    middle: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def plot_curves(
    curves: Mapping[str, Band],
    *,
    title: str = "",
    label: str = "",
    over: str = "environment steps",
    axes: Any = None,
) -> Any:
    """Draws curves by name into new axes, or into those given; pyplot is not touched. over: what their steps are.

    New axes show themselves in a notebook; `axes.figure.savefig(path)` keeps them. In axes that have curves already,
    colours go on; a figure of one's own is saved with one's own settings, so set `pdf.fonttype` to 42 for a publisher.
    """
    axes = shown_axes(1, 1, 1, (7.0, 4.0))[0] if axes is None else axes
    for number, (name, curve) in enumerate(curves.items(), start=len(axes.lines)):
        colour = PALETTE[(number + 1) % len(PALETTE)]
        mark = "o" if len(curve.steps) == 1 else None
        axes.plot(curve.steps, curve.middle, color=colour, label=name, linewidth=1.8, marker=mark)
        if curve.low is not None and curve.high is not None:
            axes.fill_between(curve.steps, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)
    axes.set_title(title, loc="left", fontsize=11, parse_math=False)
    axes.set_xlabel(over)
    axes.set_ylabel(label, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    if len(axes.lines) > 1:
        axes.legend(frameon=False)
    return axes


def shown_axes(rows: int, columns: int, count: int, size: tuple[float, float]) -> list[Any]:
    """New axes in a grid, the first `count` of it, in a figure of this size in inches; pyplot is not touched.

    A notebook shows their whole figure for each of them. A PDF of it has the fonts that publishers take.
    """
    figure_class, canvas_class = matplotlib_classes()
    from matplotlib import rc_context
    from matplotlib.axes import Axes

    class PublishedFigure(figure_class):
        """A figure that is saved without fonts of type 3."""

        def savefig(self, *args: Any, **options: Any) -> None:
            with rc_context(TRUE_TYPE):
                super().savefig(*args, **options)

    figure = PublishedFigure(figsize=size, dpi=110, layout="constrained", facecolor="white")
    canvas_class(figure)

    class ShownAxes(Axes):
        """Axes that a notebook shows as a picture, without pyplot."""

        def _repr_png_(self) -> bytes:
            image = io.BytesIO()
            figure.savefig(image, format="png")
            return image.getvalue()

    return [figure.add_subplot(rows, columns, i + 1, axes_class=ShownAxes) for i in range(count)]
