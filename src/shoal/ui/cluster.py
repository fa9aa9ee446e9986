"""A run on a cluster: what its driver says now, and what its lines of metrics tell of the time before."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.cluster.history import MOST_QUEUES
from shoal.training.catalogue.lines import Line

COLUMNS = frozenset({"update", "env_steps", "seconds", "staleness", "staleness_max", "nan_resets"})
MOST_ROWS = 400
"""Of a curve over time."""
MOST_TEXT = 300
SHOWN_PLAN = ("recipe", "actors", "learners", "backups", "max_staleness", "shards", "queue", "workers", "retries")


def describe_status(status: Mapping[str, Any]) -> dict[str, Any]:
    """The present state: the plan, the learner, queues, workers, restarts and events. status: checked already."""
    grown = "team" in status
    plan = status["team"] if grown else status["plan"]
    restarts = status.get("restarts", {})
    steps = status.get("copies", 0) * status.get("steps", 0)
    workers = [_worker(name, told, restarts, steps) for name, told in sorted(status.get("workers", {}).items())]
    absent = [{"name": name, "notes": "starts, or waits for free resources"} for name in status.get("absent", ())]
    return {
        "running": status["running"],
        "grown": grown,
        "plan": {name: plan[name] for name in SHOWN_PLAN if isinstance(plan.get(name), str | int | float)},
        "total": status.get("total"),
        "staleness": status.get("staleness"),
        "learner": {name: status.get("learner", {}).get(name) for name in ("update", "made", "spent")},
        "queues": _queues(status.get("services", {})),
        "workers": workers + absent,
        "restarts": sum(restarts.values()),
        "events": [event | {"what": event["what"][:MOST_TEXT]} for event in status.get("events", ())],
    }


def history_of(lines: Sequence[Line]) -> dict[str, np.ndarray]:
    """Env steps per second and staleness over the seconds of a run; empty if its lines do not tell."""
    names = ("seconds", "env_steps", "staleness", "staleness_max")
    table = np.array([[_number(line.get(name)) for name in names] for line in lines], np.float64).reshape(-1, 4)
    table = table[np.isfinite(table[:, :2]).all(axis=1)]
    if not len(table):
        return dict.fromkeys(("seconds", "rate", "staleness", "staleness_max"), table[:, 0])
    table = table[table[:, 0] >= np.maximum.accumulate(table[:, 0])]  # a clock that went back says nothing of rates
    starts = np.unique(np.linspace(0, len(table), min(len(table), MOST_ROWS) + 1).astype(int))[:-1]
    seconds, steps = table[np.append(starts[1:], len(table)) - 1, :2].T
    with np.errstate(all="ignore"):
        rate = np.diff(steps, prepend=np.nan) / np.diff(seconds, prepend=np.nan)
    rate[~(rate >= 0)] = np.nan
    mean, peak = _means(table[:, 2], starts), np.fmax.reduceat(table[:, 3], starts)
    return {"seconds": seconds, "rate": rate, "staleness": mean, "staleness_max": peak}


def describe_history(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the driver noted over time, as columns; a queue that is not there yet has None. lines: checked already."""
    names = sorted({name for line in lines for name in line["queues"]})
    return {
        **{key: [line[key] for line in lines] for key in ("seconds", "restarts", "rate")},
        "queues": {name: [line["queues"].get(name) for line in lines] for name in names[:MOST_QUEUES]},
    }


def _worker(name: str, told: Mapping[str, Any], restarts: Mapping[str, int], steps: int) -> dict[str, Any]:
    """One worker, of a training (rollouts) or of a population (tasks)."""
    begun = restarts.get(name, told.get("restarts", 0))
    shared = {"name": name, "task": told["task"][:MOST_TEXT], "restarts": begun}
    if "done" in told:
        notes = f"for {told['busy_s']:.0f} s" if told["task"] else ""
        return shared | {"done": told["done"], "rate": None, "notes": notes}
    spent = sum(told["seconds"].values())
    notes = ["slow"] if told["slow"] else []
    notes += [f"{told['nan_resets']} x NaN"] if told.get("nan_resets") else []
    notes += [f"{len(told['quarantined'])} copies left out"] if told["quarantined"] else []
    rate = steps / spent if spent > 0 else None
    return shared | {"done": told["rounds"], "rate": rate, "notes": ", ".join(notes)}


def _queues(services: Mapping[str, Mapping[str, int]]) -> list[dict[str, Any]]:
    """What waits: rollouts in queues, tasks on boards."""
    found = []
    for name, told in services.items():
        if "capacity" in told:
            found.append({"name": name, **{key: told[key] for key in ("length", "capacity", "dropped")}})
        elif "open" in told:
            found.append({"name": name, "length": told["open"], "leased": told.get("leased", 0)})
    return found


def _number(value: Any) -> float:
    return float(value) if type(value) in (int, float) and abs(value) < 1e15 else np.nan


def _means(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The mean of the known values from each start to the next."""
    known = np.isfinite(values)
    with np.errstate(all="ignore"):
        return np.add.reduceat(np.where(known, values, 0.0), starts) / np.add.reduceat(known, starts, dtype=float)
