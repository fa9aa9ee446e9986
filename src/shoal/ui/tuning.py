"""Sweeps and population-based training from what their folders record: points and results, schedules and lineage."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.errors import OptionError, RunError
from shoal.core.files import read_json
from shoal.core.schema import Maybe, Whole, check
from shoal.training.catalogue.lines import Line
from shoal.training.sweep_points import MAX_POINTS, TAIL, Span, make_points

RESULT = "sweep.json"
MOST_POINTS = 2000
"""Points of a sweep that are shown: the best."""
MOST_ROWS = 2000
"""Of a schedule, or of scores."""
MOST_COPIES = 5000
MOST_TRAININGS = 1_000_000
MOST_CELLS = 20_000_000
"""Values of a column that are looked at: of more, the last ones."""
LOG_RATIO = 50
"""A list of values is drawn on a logarithmic axis if the greatest is so many times the least."""
SPAN = {"start": float, "stop": float, "count?": Maybe(Whole(2, MAX_POINTS)), "log?": bool}
SWEEP = {"over": {str: Any}, "random?": Maybe(Whole(1, MAX_POINTS)), "measure?": Maybe(str)}
SEEDED = {"seed?": Whole(), "num_seeds?": Whole(1, MAX_POINTS)}
RESULTS = {"points": [{"failures": [Maybe(str)]}], "measure": [str]}


def is_wanted(column: str) -> bool:
    """Whether these screens show a column of the metrics."""
    return column in ("update", "env_steps", "seconds", "episodes") or column.startswith(("return", "pbt/"))


def read_sweep(folder: Path, settings: Mapping[str, Any], lines: Sequence[Line], measure: str | None) -> dict[str, Any]:
    """The points of a sweep with what each reached. measure: what is compared, if chosen."""
    where = str(folder / "config.json")
    try:
        check(settings, SWEEP, "sweep")
        check(settings.get("experiment"), SEEDED, "sweep.experiment")
    except ValueError as error:
        raise RunError(f"{where} is damaged: {error}") from error
    over = _read_over(settings["over"], where)
    experiment = settings["experiment"]
    points = make_points(over, settings.get("random"), experiment.get("seed", 0))
    seeds = experiment.get("num_seeds", 1)
    if len(points) * seeds > MOST_TRAININGS:
        raise RunError(f"this sweep has {len(points):,} points with {seeds:,} seeds each: too many for this page")
    lines = lines[-(MOST_CELLS // (len(points) * seeds)) :]
    failures, told, problem = _read_results(folder, len(points), seeds)
    known = sorted({name for line in lines for name in line if name.startswith("return/")})
    measure = str(measure or settings.get("measure") or (told[0] if len(told) == 1 else "return"))
    columns = [name for name in known if name == measure] if measure != "return" else known
    if lines and known and not columns:
        raise OptionError(f"address: measure must be one of return, {', '.join(known)[:200]}, got {measure[:80]!r}")
    scores = _scores(lines, columns, len(points) * seeds)
    scores[failures] = np.nan
    returns = scores.reshape(len(points), seeds)
    mean = returns.mean(axis=1)  # not a number unless every seed has a return
    order = np.argsort(-np.where(np.isfinite(mean), mean, -np.inf), kind="stable")[:MOST_POINTS]
    shown = [{"number": int(i), "values": points[i], "returns": returns[i], "mean": mean[i]} for i in order]
    axes = [{"name": name, **_axis(values)} for name, values in over.items()]
    return {
        "options": axes,
        "points": shown,
        "amount": len(points),
        "seeds": seeds,
        "measure": measure,
        "measures": ["return", *known] if len(known) > 1 else [measure],
        "problem": problem,
    }


def read_pbt(folder: Path, settings: Mapping[str, Any], lines: Sequence[Line]) -> dict[str, Any]:
    """Hyper-parameters by member over time, scores, and who became a copy of whom."""
    where = str(folder / "config.json")
    try:
        check(settings, {"over": {str: SPAN}, "members": Whole(1, MAX_POINTS)}, "pbt")
    except ValueError as error:
        raise RunError(f"{where} is damaged: {error}") from error
    over, members = _read_over(settings["over"], where), settings["members"]
    lines = lines[-(MOST_CELLS // members) :]
    steps = [line.get("env_steps") for line in lines]
    sound = [i for i, at in enumerate(steps) if isinstance(at, int) and 0 <= at < 2**53]
    lines, at = [lines[i] for i in sound], np.array([steps[i] for i in sound], np.int64)
    score = _table(lines, "pbt/score", members)
    source = _table(lines, "pbt/source", members)
    copies = _copies(at, source)
    known = np.isfinite(score).any(axis=1)
    last = score[known][-1] if known.any() else None
    return {
        "members": members,
        "options": [{"name": name, **_axis(values)} for name, values in over.items()],
        "schedules": {name: _schedule(at, _table(lines, f"pbt/{name}", members)) for name in over},
        "score": _curve(at[known], score[known]),
        "copies": copies[-MOST_COPIES:],
        "all_copies": len(copies),
        "best": int(np.nanargmax(last)) if last is not None else None,
    }


def _read_over(over: Mapping[str, Any], where: str) -> dict[str, Span | tuple[float, ...]]:
    """What is varied, by name: ranges and lists of numbers, checked."""
    found: dict[str, Span | tuple[float, ...]] = {}
    try:
        for name, values in over.items():
            if isinstance(values, Mapping):
                check(values, SPAN, f"over.{name}")
                span = Span(values["start"], values["stop"], values.get("count"), values.get("log", False))
                span.check_ends()
                found[name] = span
            else:
                check(values, [float], f"over.{name}")
                found[name] = tuple(map(float, values))
        if not found or not all(isinstance(values, Span) or values for values in found.values()):
            raise ValueError("over must name options with their values")
    except (ValueError, OptionError) as error:
        raise RunError(f"{where} is damaged: {error}") from error
    return found


def _axis(values: Span | tuple[float, ...]) -> dict[str, Any]:
    """The ends of an axis, and whether it is logarithmic."""
    if isinstance(values, Span):
        return {"low": values.start, "high": values.stop, "log": values.log}
    low, high = min(values), max(values)
    return {"low": low, "high": high, "log": low > 0 and high / low >= LOG_RATIO}


def _read_results(folder: Path, points: int, seeds: int) -> tuple[np.ndarray, list[str], str | None]:
    """Which trainings failed, what was compared, and why this is not known, from the table that a sweep ends with."""
    none = np.zeros(points * seeds, bool)
    try:
        found = read_json(folder / RESULT)
        check(found, RESULTS, RESULT)
        failed = [why is not None for point in found["points"] for why in point["failures"]]
        if len(failed) != points * seeds:
            raise ValueError("it has other points than the sweep")
    except FileNotFoundError:  # the sweep goes on
        return none, [], None
    except (OSError, RunError, ValueError) as error:
        return none, [], f"{RESULT} cannot be read, so failures are not shown: {error}"
    return np.array(failed), found["measure"], None


def _scores(lines: Sequence[Line], columns: Sequence[str], lanes: int) -> np.ndarray:
    """The mean return `[lanes]` of the episodes of the last tenth or, where none ended, of the last that did."""
    scores = np.full(lanes, np.nan)
    rows = [i for i, line in enumerate(lines) if isinstance(line.get("update"), int) and line["update"] < 2**53]
    if not rows or not columns:
        return scores
    lines = [lines[i] for i in rows]
    update = np.array([line["update"] for line in lines], np.float64)
    with np.errstate(all="ignore"):
        value = np.round(np.sum([_table(lines, name, lanes) for name in columns], axis=0), 6)
        episodes = _table(lines, "episodes", lanes)
        ended = np.isfinite(value) & np.isfinite(episodes)
        late = ended & (update > (1 - TAIL) * update[-1])[:, None]
        final = len(lines) - 1 - np.argmax(ended[::-1], axis=0)
        alone = ended & (np.arange(len(lines))[:, None] == final)
        chosen = np.where(late.any(axis=0), late, alone)
        weight = np.where(chosen, episodes, 0.0)
        return np.sum(np.where(chosen, value, 0.0) * weight, axis=0) / np.sum(weight, axis=0)


def _table(lines: Sequence[Line], column: str, width: int) -> np.ndarray:
    """A column `[lines, width]`; not a number where a line has none, or something else."""
    found = np.full((len(lines), width), np.nan)
    for i, line in enumerate(lines):
        value = line.get(column)
        if isinstance(value, np.ndarray):
            if len(value) == width:
                found[i] = value
            continue
        row = value if isinstance(value, list) else [value]
        if len(row) == width and all(each is None or type(each) in (int, float) for each in row):
            found[i] = [math.nan if each is None or abs(each) > 1e300 else each for each in row]
    return found


def _copies(at: np.ndarray, source: np.ndarray) -> list[dict[str, int]]:
    """When which member became a copy of which other."""
    width = source.shape[1]
    own = np.arange(width)
    sound = np.isfinite(source) & (source >= 0) & (source < width) & (source != own)
    return [{"at": int(at[i]), "member": int(m), "source": int(source[i, m])} for i, m in np.argwhere(sound)]


def _schedule(at: np.ndarray, values: np.ndarray) -> dict[str, Any]:
    """Values over time, only where they change: the lines before and after, the first and the last."""
    if not len(values):
        return _curve(at, values)
    changed = (np.nan_to_num(values[1:]) != np.nan_to_num(values[:-1])).any(axis=1)
    kept = np.zeros(len(values), bool)
    kept[[0, -1]] = True
    kept[1:] |= changed
    kept[:-1] |= changed
    return _curve(at[kept], values[kept])


def _curve(at: np.ndarray, values: np.ndarray) -> dict[str, Any]:
    """Rows of values and their env steps, thinned evenly if there are very many."""
    chosen = np.unique(np.linspace(0, max(0, len(at) - 1), min(len(at), MOST_ROWS)).astype(int))
    rows = [[float(f"{each:.6g}") for each in row] for row in values[chosen].tolist()]
    return {"env_steps": at[chosen].tolist(), "values": rows}
