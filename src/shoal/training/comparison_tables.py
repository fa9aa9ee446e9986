"""A comparison as text: CSV, LaTeX, Markdown, HTML, and the data that marl-eval reads."""

import csv
import html
import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shoal.core.errors import OptionError, require, unknown_name
from shoal.training.comparison_panels import common_steps, on_steps

if TYPE_CHECKING:
    from shoal.training.comparison import Comparison
    from shoal.training.comparison_panels import Panel, Sample

TABLES = ("final", "scores", "curves", "profile", "improvement")
"""The tables there are as CSV."""
NO_INTERVAL = "n/a"
"""Stands for the interval of a group with too few seeds."""
_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "–": "--",
    "…": r"\ldots{}",
}


Cells = tuple[Sequence[str], Sequence[Sequence[Any]]]
"""Names of columns, and rows."""


class Row(NamedTuple):
    """Final performance of one group, in words."""

    group: str
    seeds: str
    iqm: str
    interval: str
    mean: str
    median: str
    worst: str
    best: str
    better: str  # than the baseline; empty without one


def final_rows(comparison: "Comparison", panel: "Panel", digits: int | None = None) -> list[Row]:
    """A row for each group. digits: behind the point; by default three digits of the largest IQM."""
    digits = _digits(panel) if digits is None else digits
    require(isinstance(digits, int) and 0 <= digits <= 15, "compare", "digits", digits, "a whole number up to 15")
    rows = []
    for group, final in panel.final.items():
        low, high = final.low, final.high
        between = NO_INTERVAL if low is None or high is None else f"{low:.{digits}f} to {high:.{digits}f}"
        figures = (final.iqm, final.mean, final.median, final.worst, final.best)
        middle, *others = (f"{value:.{digits}f}" for value in figures)
        rows.append(Row._make([group, str(final.seeds), middle, between, *others, _better(comparison, panel, group)]))
    return rows


def headings(comparison: "Comparison") -> list[str]:
    """Of the columns of `final_rows`; the last one is there with a baseline only."""
    named = [comparison.by, "seeds", "IQM", "95 % interval", "mean", "median", "worst", "best"]
    return named + ([f"better than {comparison.baseline}"] if comparison.baseline else [])


def to_csv(comparison: "Comparison", what: str = "final") -> str:
    """One of `TABLES`. Numbers have all their digits; a cell is empty where there is no interval."""
    if what not in TABLES:
        raise unknown_name("table", str(what), TABLES)
    columns, rows = {
        "final": _final_cells,
        "scores": _score_cells,
        "curves": _curve_cells,
        "profile": _profile_cells,
        "improvement": _improvement_cells,
    }[what](comparison)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def to_markdown(comparison: "Comparison", digits: int | None = None) -> str:
    """Final performance, a table for each environment."""
    parts = []
    for panel in comparison.panels.values():
        names = headings(comparison)
        lines = [f"**{_markdown(panel.name)}**\n"] if len(comparison.panels) > 1 else []
        lines += [f"| {' | '.join(map(_markdown, names))} |", "|" + "---|" * len(names)]
        for row in final_rows(comparison, panel, digits):
            lines.append(f"| {' | '.join(map(_markdown, row[: len(names)]))} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def to_html(comparison: "Comparison") -> str:
    """Final performance, and the notes, for a notebook."""
    names = headings(comparison)
    parts = [f"<p>Final {html.escape(comparison.judged)}</p>"]
    for panel in comparison.panels.values():
        head = "".join(f"<th>{html.escape(name)}</th>" for name in names)
        rows = [
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row[: len(names)]) + "</tr>"
            for row in final_rows(comparison, panel)
        ]
        title = f"<caption>{html.escape(panel.name)}</caption>" if panel.name else ""
        parts.append(f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>")
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in comparison.notes)
    return "".join(parts) + (f"<ul>{notes}</ul>" if notes else "")


def to_latex(comparison: "Comparison", digits: int | None = None) -> str:
    """Final performance as a table of the package booktabs: IQM, interval, mean and median; the best IQM is bold."""
    several = len(comparison.panels) > 1
    lines = [rf"% {comparison.judged}".replace("\n", " "), r"\begin{tabular}{lrrcrr}", r"\toprule"]
    lines += [rf"{escape_latex(comparison.by)} & seeds & IQM & 95\,\% interval & mean & median \\"]
    for panel in comparison.panels.values():
        lines.append(r"\midrule")
        if several:
            lines.append(rf"\multicolumn{{6}}{{l}}{{{escape_latex(panel.name)}}} \\")
        most = max(final.iqm for final in panel.final.values())
        for row in final_rows(comparison, panel, digits):
            best = panel.final[row.group].iqm == most
            middle = rf"$\mathbf{{{row.iqm}}}$" if best else _latex_number(row.iqm)
            low, _, high = row.interval.partition(" to ")
            between = f"[{_latex_number(low)}, {_latex_number(high)}]" if high else "--"
            cells = (row.group, row.seeds, middle, between, _latex_number(row.mean), _latex_number(row.median))
            lines.append(" & ".join([escape_latex(cells[0]), *cells[1:]]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def escape_latex(text: str) -> str:
    """A text whose letters LaTeX prints, and does not obey."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


def to_marl_eval(comparison: "Comparison") -> dict[str, Any]:
    """Nested mappings: environment, task, algorithm, run, step.

    A step has its `step_count` and a list of values of the metric; after the last one, `absolute_metrics` has the
    final performance. marl-eval needs the same runs and steps of all algorithms in a task, so runs are numbered, and
    the curves are taken at steps that all groups have.
    """
    metric, found = comparison.metric.lower(), {}
    for panel in comparison.panels.values():
        for name, groups in _tasks(panel).items():
            counts = {group: len(samples) for group, samples in groups.items()}
            if len(set(counts.values())) > 1:
                told = ", ".join(f"{group} {count}" for group, count in counts.items())
                raise OptionError(f"marl-eval needs as many seeds of every group in {name}, and there are: {told}")
            steps = common_steps([sample for samples in groups.values() for sample in samples])
            if steps is None:
                raise OptionError(f"marl-eval needs steps that all groups have; those in {name} have none in common")
            family, _, task = name.lower().rpartition("/")
            tasks = found.setdefault(family or task, {})
            tasks[task] = {
                group: {
                    f"run_{i + 1}": _marl_eval_run(metric, steps, column, sample.score)
                    for i, (sample, column) in enumerate(zip(samples, on_steps(samples, steps).T, strict=True))
                }
                for group, samples in groups.items()
            }
    return found


def _marl_eval_run(metric: str, steps: np.ndarray, values: np.ndarray, score: float) -> dict[str, Any]:
    points = {
        f"step_{i + 1}": {"step_count": round(step), metric: [float(value)]}
        for i, (step, value) in enumerate(zip(steps.tolist(), values, strict=True))
    }
    return points | {"absolute_metrics": {metric: [score]}}


def _tasks(panel: "Panel") -> dict[str, dict[str, list["Sample"]]]:
    """Samples of a panel by environment and group."""
    found: dict[str, dict[str, list[Sample]]] = {}
    for group, strata in panel.groups.items():
        for sample in (sample for stratum in strata for sample in stratum):
            found.setdefault(sample.env or "all", {}).setdefault(group, []).append(sample)
    return found


def _final_cells(comparison: "Comparison") -> Cells:
    columns = ("env", "group", "runs", "seeds", "iqm", "low", "high", "mean", "median", "worst", "best")
    rows = [
        (name, group, *(getattr(final, column) for column in columns[2:]))
        for name, panel in comparison.panels.items()
        for group, final in panel.final.items()
    ]
    return columns, rows


def _score_cells(comparison: "Comparison") -> Cells:
    table = comparison.table
    return tuple(table), list(zip(*(column.tolist() for column in table.values()), strict=True))


def _curve_cells(comparison: "Comparison") -> Cells:
    rows = [
        (name, group, round(step), middle, *between)
        for name, panel in comparison.panels.items()
        for group, curve in panel.curves.items()
        for step, middle, *between in zip(
            curve.env_steps.tolist(), curve.iqm, *_columns(len(curve.iqm), curve.low, curve.high), strict=True
        )
    ]
    return ("env", "group", "env_steps", "iqm", "low", "high"), rows


def _profile_cells(comparison: "Comparison") -> Cells:
    rows = [
        (name, group, *point)
        for name, panel in comparison.panels.items()
        for group, found in panel.profiles.items()
        for point in zip(found.thresholds, found.part, *_columns(len(found.part), found.low, found.high), strict=True)
    ]
    return ("env", "group", "threshold", "part", "low", "high"), rows


def _improvement_cells(comparison: "Comparison") -> Cells:
    rows = []
    for name, panel in comparison.panels.items():
        found = panel.improvement
        for i, one in enumerate(found.groups):
            for j, other in enumerate(found.groups):
                if i != j:
                    rows.append((name, one, other, found.probability[i, j], found.low[i, j], found.high[i, j]))
    return ("env", "group", "other", "probability", "low", "high"), rows


def _columns(count: int, *columns: np.ndarray | None) -> list[Any]:
    return [[None] * count if column is None else column for column in columns]


def _cell(value: Any) -> Any:
    """A number with all its digits, a text as it is, nothing for what is not known."""
    if value is None or (isinstance(value, float | np.floating) and not math.isfinite(value)):
        return ""
    return repr(float(value)) if isinstance(value, float | np.floating) else value


def _better(comparison: "Comparison", panel: "Panel", group: str) -> str:
    """How likely a group is to do better than the baseline."""
    if comparison.baseline is None or group == comparison.baseline or comparison.baseline not in panel.groups:
        return ""
    found = panel.improvement
    i, j = found.groups.index(group), found.groups.index(comparison.baseline)
    low, high = found.low[i, j], found.high[i, j]
    between = f" ({low:.2f} to {high:.2f})" if math.isfinite(low) else ""
    return f"{found.probability[i, j]:.2f}{between}"


def _digits(panel: "Panel") -> int:
    """Digits behind the point that show three of the largest IQM."""
    largest = max(abs(final.iqm) for final in panel.final.values())
    return int(np.clip(2 - math.floor(math.log10(largest)), 0, 6)) if largest > 0 else 1


def _markdown(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|")


def _latex_number(text: str) -> str:
    return f"${text}$" if text.startswith("-") else text
