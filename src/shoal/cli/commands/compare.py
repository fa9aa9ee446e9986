"""`shoal compare RUN...`: runs side by side, as figures with intervals, tables and pictures."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table
from tyro.conf import DisallowNone, Positional, UseAppendAction, arg

from shoal.cli.arguments import Count, Flag, parse, whole_number
from shoal.cli.terminal import console, display_path, emit, resolve_path, say
from shoal.core.errors import OptionError, unknown_name
from shoal.training.comparison import END, KINDS, Comparison, Panel, compare
from shoal.training.comparison_files import check_suffix
from shoal.training.comparison_tables import final_rows, headings

PROG = "shoal compare"
Name = Annotated[DisallowNone[str | None], arg(metavar="GROUP")]
Output = Annotated[DisallowNone[str | None], arg(metavar="FILE|DIR")]
Picture = Annotated[DisallowNone[str | None], arg(metavar="|".join(KINDS))]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """Compare runs: interquartile means with 95 % intervals, curves, profiles, how likely one does better.

    A run's final performance is the mean of its metric over the last tenth of its env steps, for each seed.
    """

    runs: Annotated[Positional[tuple[str, ...]], arg(metavar="RUN...")]  # folders of runs
    by: Annotated[str, arg(metavar="SETTING")] = "algorithm"
    """what makes a group: algorithm, env, run, seed, any setting of the config, or several with commas"""
    metric: Annotated[str, arg(metavar="NAME")] = "return"
    """any that all runs have, as metrics.jsonl names it; eval/return: greedy evaluations"""
    at: Annotated[str, arg(metavar="end|STEPS")] = END  # env steps at which all are judged; end: each where it ends
    baseline: Name = None  # say how likely each group is to do better than this one; by default not said
    normalise: Flag = False  # compare in all environments together, each from 0 to 1
    label: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="GROUP=TEXT")] = ()
    """what a group is called in tables and pictures, as in ppo=IPPO"""
    digits: Count = None  # decimals; by default as many as give the largest IQM three digits
    out: Output = None
    """write a picture (.png, .svg, .pdf), a table (.csv, .md, .tex), marl-eval's .json, or all into DIR; by default
    no file"""
    picture: Picture = None  # which one goes to FILE; by default what it is named after, or else curves
    json: Flag = False  # one JSON object on stdout, everything else on stderr


def run(args: Sequence[str]) -> int:
    """Compares runs."""
    options = parse(CompareOptions, args, PROG)
    if not options.runs:
        raise OptionError(f"{PROG}: no run was named, as in `{PROG} runs/a runs/b`")
    if options.picture is not None and options.out is None:
        raise OptionError("--picture is for the file of --out: add --out, or leave it out")
    if options.out is not None:
        check_suffix(resolve_path(options.out))
    if options.picture is not None and options.picture not in KINDS:
        raise unknown_name("picture", options.picture, KINDS)
    at, labels = parse_end(options.at), parse_labels(options.label)
    found = compare(options.runs, options.metric, options.by, options.baseline, at, options.normalise, labels)
    out = console(options.json)
    _show(out, found, options.digits)
    files = found.save(resolve_path(options.out), options.picture, options.digits) if options.out else []  # pyright: ignore[reportArgumentType]  # save checks it
    for path in files:
        say(out, display_path(path))
    if len(files) > 1 and found.without_marl_eval:
        say(out, f"no marl_eval.json: {found.without_marl_eval}")
    if options.json:
        emit(_plain(found) | {"files": [str(path) for path in files]})
    return 0


def parse_end(text: str) -> int | str:
    """Where all are judged: `end`, or env steps."""
    try:
        return text if text == END else whole_number(text)
    except ValueError:
        raise OptionError(f"--at must be {END!r} or a number of env steps, such as 1e6 or 500k, got {text!r}") from None


def parse_labels(given: Sequence[str]) -> dict[str, str]:
    """What groups are called, from `GROUP=TEXT` each."""
    labels = {}
    for entry in given:
        group, sign, text = entry.partition("=")
        if not sign or not group or group in labels:
            raise OptionError(f"--label must be GROUP=TEXT, once for a group, as in ppo=IPPO, got {entry!r}")
        labels[group] = text
    return labels


def _show(out: Console, found: Comparison, digits: int | None) -> None:
    say(out, found.judged)
    names = headings(found)
    for panel in found.panels.values():
        rows = [row[: len(names)] for row in final_rows(found, panel, digits)]
        shown = _fitting(names, rows, out.width)
        table = Table(title=panel.name or None, title_justify="left")
        for i in shown:
            table.add_column(names[i], justify="right" if i else "left", overflow="fold", no_wrap=i > 0)
        for row in rows:
            table.add_row(*(row[i] for i in shown))
        out.print(table)
    for note in found.notes:
        say(out, f"note: {note}")


def _fitting(names: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """The columns that a terminal has room for: on a narrow one, the least telling figures are left out."""
    shown = list(range(len(names)))
    for spare in ("best", "mean", "median", "worst"):
        needed = sum(max(len(row[i]) for row in [names, *rows]) + 3 for i in shown) + 1
        if needed > width:
            shown.remove(names.index(spare, 1))
    return shown


def _plain(found: Comparison) -> dict[str, Any]:
    """The comparison for programs: settings, final performance, improvement and notes."""
    return {
        "metric": found.metric,
        "by": found.by,
        "at": found.at,
        "baseline": found.baseline,
        "normalised": found.normalised,
        "judged": found.judged,
        "panels": {name: _plain_panel(panel) for name, panel in found.panels.items()},
        "scores": {name: column.tolist() for name, column in found.table.items()},
        "notes": list(found.notes),
    }


def _plain_panel(panel: Panel) -> dict[str, Any]:
    better = panel.improvement
    parts = {"probability": better.probability, "low": better.low, "high": better.high}
    shown = {name: [[v if math.isfinite(v) else None for v in row] for row in m.tolist()] for name, m in parts.items()}
    return {
        "final": {group: dataclasses.asdict(final) for group, final in panel.final.items()},
        "improvement": {"groups": list(better.groups)} | shown,
    }
