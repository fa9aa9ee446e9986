"""Runs as a comparison reads them: settings by dotted name, seeds, and metrics over env steps. Needs no JAX.

A run is a folder that `shoal train`, `shoal pbt` or `shoal evolve` made, a run in memory, or a JSON file of
`benchmarks/algorithms_learn.py`. Of a folder, `config.json` and `metrics.jsonl` are read, through `core.files`, and
nothing that they name is imported.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.errors import OptionError, RunError, UnknownNameError, shell_command, unknown_name
from shoal.core.files import read_json
from shoal.core.schema import Maybe, Whole, check
from shoal.training.catalogue.facts import algorithm_name
from shoal.training.metrics import LINE, read_metrics
from shoal.training.run_kinds import CONFIG, EVOLUTION, KINDS, PBT, SWEEP, TRAINING, read_entry, read_kind

SPECIAL = ("algorithm", "env", "run", "seed")
"""What runs can be grouped by, besides their settings."""
MISSING = "–"
"""Stands for a setting that a run does not have."""
EVALUATED = "eval/return"
COMPARED = (TRAINING, PBT, EVOLUTION)
_SHOWN = 60
"""Letters of a setting's value in a label."""
_KEPT = {
    "preset": str,
    "experiment": {"env": str, "total_env_steps": Whole()},
    "greedy": {str: {"seeds": [float]}},
    "curve": {"env_steps": [Whole()]},
}
"""What is read of a JSON file of `benchmarks/algorithms_learn.py`."""
_ALSO = ", others "
"""In its sides, what follows the name of a side that played against others than it was trained with."""


@dataclasses.dataclass(frozen=True)
class Series:
    """One metric of a run: env steps `[rows]`, increasing, and values `[rows, seeds]`, NaN where there is none."""

    env_steps: np.ndarray
    values: np.ndarray


@dataclasses.dataclass(frozen=True)
class ComparedRun:
    """A run to be compared. settings: by dotted name, `learners.agent.algorithm.gamma`. lines: as in `metrics.jsonl`.

    members: metrics have one number per member of a population, which is one training, not several.
    """

    name: str
    settings: Mapping[str, Any]
    seeds: tuple[int, ...]
    lines: Sequence[Mapping[str, Any]]
    members: bool = False

    @property
    def metrics(self) -> list[str]:
        return list(dict.fromkeys(name for line in self.lines for name in line if name not in LINE))

    def parts(self, metric: str) -> list[str]:
        """The returns by group of agents that a return is the sum of."""
        total = metric in ("return", EVALUATED)
        return [name for name in self.metrics if total and name.startswith(f"{metric}/") and _ALSO not in name]

    @property
    def algorithm(self) -> str:
        """The names of its learners' algorithms, as the field knows them; of an evolution, that of its strategy."""
        kind = self.settings.get("kind")
        if kind == EVOLUTION:
            return show_value(self.settings.get("evolution.strategy.name", EVOLUTION))
        learners = {name.split(".")[1] for name in self.settings if name.startswith("learners.")}
        found = {self._algorithm(f"learners.{learner}.algorithm.") for learner in learners}
        names = "+".join(sorted(found)) or MISSING
        return f"{names} by pbt" if kind == PBT else names

    @property
    def task(self) -> dict[str, str]:
        """What makes up its environment: the id, options and wrappers, by setting."""
        parts = {"env": show_value(self.settings.get("env", MISSING))}
        options = [name for name in self.settings if name.startswith("env_options.")]
        parts |= {name: f"{name.partition('.')[2]}={show_value(self.settings[name])}" for name in options}
        wrappers = self.settings.get("wrappers", "")
        return parts | ({"wrappers": f"in {show_value(wrappers)}"} if wrappers else {})

    def series(self, metric: str) -> Series:
        """A metric over env steps, in the lines where any seed has it. Raises if there is none, naming the nearest."""
        rows = [(line["env_steps"], line[metric]) for line in self.lines if line.get(metric) is not None]
        cells = [(step, cell if isinstance(cell, list | tuple) else [cell]) for step, cell in rows]
        cells = [(step, cell) for step, cell in cells if any(_is_finite(value) for value in cell)]
        if not cells:
            raise self._no_metric(metric)
        values = np.full((len(cells), max(len(cell) for _, cell in cells)), np.nan)
        for row, (_, cell) in zip(values, cells, strict=True):
            row[: len(cell)] = [value if _is_finite(value) else np.nan for value in cell]
        steps = np.array([step for step, _ in cells], np.float64)
        if np.any(np.diff(steps) <= 0):
            raise RunError(f"the metrics of {self.name} are damaged: env_steps must increase from line to line")
        if self.members:
            values = np.nanmean(values, axis=1, keepdims=True)
        return Series(steps, values)

    def setting(self, name: str, seed: int) -> Any:
        """A setting by its dotted name or the end of it, such as `learning_rate`; `MISSING` if there is none.

        seed: the one that `seed` stands for.
        """
        if name in SPECIAL:
            found = {"algorithm": self.algorithm, "run": self.name, "seed": seed}
            return found[name] if name in found else self.settings.get("env", MISSING)
        if name in self.settings:
            return self.settings[name]
        ends = [key for key in self.settings if key.endswith(f".{name}")]
        values = {key: self.settings[key] for key in ends}
        if len(set(map(repr, values.values()))) > 1:
            several = ", ".join(f"{key} is {show_value(value)}" for key, value in values.items())
            raise OptionError(f"{self.name} has several settings that end in {name!r}: {several}. Name one in full.")
        return values[ends[0]] if ends else MISSING

    def _no_metric(self, metric: str) -> UnknownNameError:
        known = self.metrics
        if metric in known:
            return UnknownNameError(f"{self.name} has no finite value of the metric {metric!r}", "metric", metric)
        if not known:
            return UnknownNameError(f"{self.name} has no metrics yet: no line was written", "metric", metric)
        return UnknownNameError(f"{self.name}: {unknown_name('metric', metric, known)}", "metric", metric)

    def _algorithm(self, prefix: str) -> str:
        options = {name.removeprefix(prefix): value for name, value in self.settings.items() if name.startswith(prefix)}
        return show_value(algorithm_name({"name": MISSING, **options}))


def read_compared(source: Any) -> ComparedRun:
    """A run to be compared: from a run folder, a JSON file of `benchmarks/algorithms_learn.py`, or a run in memory."""
    if isinstance(source, ComparedRun):
        return source
    if not isinstance(source, str | Path):
        return _from_memory(source)
    path = Path(source)
    if path.suffix == ".json" and not path.is_dir():
        return _read_kept(path)
    return read_folder(path)


def show_value(value: Any) -> str:
    """A setting's value in a label: short, and in letters that can be printed."""
    plain = f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in plain)
    return shown if len(shown) <= _SHOWN else f"{shown[: _SHOWN - 1]}…"


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name. Lists of numbers and texts are texts, `64,64`, and None is `none`."""
    flat: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            flat[f"{prefix}{name}"] = ",".join(_listed(entry) for entry in value)
        else:
            flat[f"{prefix}{name}"] = "none" if value is None else value
    return flat


def _listed(entry: Any) -> str:
    """An entry of a list: a wrapper by its name, anything else as it is."""
    return str(entry.get("name", "?")) if isinstance(entry, Mapping) else show_value(entry)


def read_folder(path: Path, lines: Sequence[Mapping[str, Any]] | None = None) -> ComparedRun:
    """A run folder. lines: its metrics, if they are at hand: reading them takes long."""
    inside = sorted(config.parent for config in path.glob(f"*/{CONFIG}")) if path.is_dir() else []
    if inside and not (path / CONFIG).exists():
        some = shell_command("compare", *inside[:2])
        raise RunError(f"{path} is not a run folder, but has {len(inside)} in it: name them, as in `{some}`")
    kind = read_kind(path)
    if kind not in COMPARED:
        shown = "its points differ in settings: sweep.json and sweep.png compare them" if kind == SWEEP else ""
        why = shown or "a population has no learning curve; `shoal population` shows it"
        raise RunError(f"{path} is {KINDS[kind].what}, which is not compared with others: {why}")
    experiment = read_entry(path, "experiment")
    own = {} if kind == TRAINING else {kind: read_entry(path, kind)}
    if not isinstance(experiment, Mapping) or not all(isinstance(entry, Mapping) for entry in own.values()):
        raise RunError(f"{path / CONFIG} is damaged: its settings must be a mapping")
    metrics = path / "metrics.jsonl"
    if lines is None:
        lines = read_metrics(metrics) if metrics.is_file() else []
    settings = flatten(experiment) | flatten(own) | {"kind": kind}
    return ComparedRun(str(path), settings, _seeds(settings), lines, members=kind == PBT)


def _from_memory(run: Any) -> ComparedRun:
    """A `Run`, known by what it has: its class would import JAX."""
    experiment, lines = getattr(run, "experiment", None), getattr(run, "lines", None)
    if experiment is None or lines is None:
        raise OptionError(
            f"shoal.compare: runs must be run folders, or runs as shoal.train and shoal.load return, got {run!r:.80}"
        )
    if run.path:
        return read_folder(Path(run.path), lines)
    kind = PBT if "scores" in run.standing else EVOLUTION if any("fitness/mean" in line for line in lines) else TRAINING
    settings = flatten(experiment.to_dict()) | {"kind": kind}
    name = f"{experiment.env} in memory"
    return ComparedRun(name, settings, _seeds(settings), lines, members=kind == PBT)


def _seeds(settings: Mapping[str, Any]) -> tuple[int, ...]:
    first, count = settings.get("seed", 0), settings.get("num_seeds", 1)
    sound = all(type(number) is int and 0 <= number < 2**62 for number in (first, count)) and count <= 1 << 20
    return tuple(range(first, first + count)) if sound else ()


def _read_kept(path: Path) -> ComparedRun:
    """A result that a benchmark kept: the curve, and greedy returns at its end as `eval/return/SIDE`."""
    try:
        data = read_json(path)
        check(data, _KEPT, "result")
        curve = {name: column for name, column in data["curve"].items() if name != "env_steps"}
        steps = data["curve"]["env_steps"]
        for name, column in curve.items():
            check(column, [[Maybe(float)]], f"result.curve.{name}")
            if len(column) != len(steps):
                raise ValueError(
                    f"result.curve.{name} must have {len(steps)} rows, as its env_steps, got {len(column)}"
                )
    except FileNotFoundError as error:
        raise RunError(f"{path} is not a run: no such file or folder") from error
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is not a result of benchmarks/algorithms_learn.py ({error!s:.200})") from error
    lines = [{"env_steps": step} | {name: curve[name][i] for name in curve} for i, step in enumerate(steps)]
    played = {side: found["seeds"] for side, found in data["greedy"].items()}
    teams = [seeds for side, seeds in played.items() if _ALSO not in side]
    greedy = {f"{EVALUATED}/{side}": seeds for side, seeds in played.items()}
    greedy |= {EVALUATED: np.sum(teams, axis=0).tolist()} if len({len(seeds) for seeds in teams}) == 1 else {}
    lines.append({"env_steps": data["experiment"]["total_env_steps"]} | greedy)
    settings = flatten(data["experiment"]) | {"preset": data["preset"], "kind": TRAINING}
    return ComparedRun(str(path), settings, _seeds(settings), sorted(lines, key=lambda line: line["env_steps"]))


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
