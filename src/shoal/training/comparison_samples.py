"""From runs to the panels of a comparison: where seeds are judged, how they are grouped, and notes for the reader."""

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.errors import OptionError, require, unknown_name
from shoal.training import statistics
from shoal.training.compared_runs import MISSING, SPECIAL, ComparedRun, show_value
from shoal.training.comparison_panels import Panel, Sample, scores_of

END = "end"
"""`at`: each run is judged where it ends."""
LAST_PART = 0.1
"""The part of the env steps, up to where a run is judged, that final performance is the mean of."""
TOGETHER = "all environments"
OWNER = "compare"
UNLIKE = ("seed", "num_seeds", "total_env_steps", "preset", "eval_every", "eval_episodes", "keep_checkpoints")
"""Settings that may differ between runs of one group without a word."""


def check_at(at: Any) -> int | str:
    """Where runs are judged: `end`, or a number of env steps."""
    if at == END:
        return END
    sound = isinstance(at, int | float) and not isinstance(at, bool) and math.isfinite(at) and at >= 1
    require(sound and at == int(at), OWNER, "at", at, f"{END!r} or a whole number of env steps")
    return int(at)


def shorten_names(runs: list[ComparedRun]) -> list[ComparedRun]:
    """Runs by the last part of their path, where no other has the same; refuses a run that is there twice."""
    whole = [run.name for run in runs]
    known = {str(Path(name).absolute()): name for name in whole if Path(name).exists()}
    if len(known) < sum(Path(name).exists() for name in whole):
        twice = next(name for name in whole if whole.count(name) > 1 or name not in known.values())
        raise OptionError(f"compare: {twice} is there twice; its seeds would count twice. Name each run once.")
    short = [Path(name).name if Path(name).exists() else name for name in whole]
    names = [one if short.count(one) == 1 else name for one, name in zip(short, whole, strict=True)]
    seen: dict[str, int] = {}
    for i, name in enumerate(names):
        seen[name] = seen.get(name, 0) + 1
        names[i] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return [dataclasses.replace(run, name=show_value(name)) for run, name in zip(runs, names, strict=True)]


def check_by(by: Any, runs: Sequence[ComparedRun]) -> list[str]:
    """The settings that runs are grouped by; each must be one that some run has."""
    names = [name.strip() for name in by.split(",")] if isinstance(by, str) else []
    require(bool(names) and all(names), OWNER, "by", by, "a setting, or several with commas between them")
    for name in (name for name in names if name not in SPECIAL):
        if all(run.setting(name, 0) == MISSING for run in runs):
            known = {*SPECIAL, *(setting for run in runs for setting in run.settings)}
            inside = [setting for setting in sorted(known) if setting.startswith(f"{name}.")]
            if inside:
                raise OptionError(f"compare: {name!r} holds several settings; choose one: {', '.join(inside[:12])}")
            ends = {setting.rpartition(".")[2] for setting in known}
            raise unknown_name("setting", name, ends if "." not in name else known)
    return names


def samples_of(run: ComparedRun, metric: str, by: Sequence[str], at: int | str, notes: list[str]) -> Iterable[Sample]:
    """The seeds of a run that have a value where they are judged; of others there is a note."""
    series = run.series(metric)
    end = int(series.env_steps[-1]) if at == END else int(at)
    if series.env_steps[-1] < end:
        raise OptionError(
            f"compare: {run.name} has a {metric} up to {series.env_steps[-1]:,.0f} env steps, and cannot be judged at "
            f"{end:,}. Choose a smaller number, or leave it out."
        )
    window = (series.env_steps > (1 - LAST_PART) * end) & (series.env_steps <= end)
    earlier = series.env_steps[series.env_steps <= end]
    if not window.any() and len(earlier):
        window = series.env_steps == earlier[-1]
        notes.append(
            f"{run.name} has no {metric} in the last tenth before {end:,} env steps: that at {earlier[-1]:,.0f} counts."
        )
    width = series.values.shape[1]
    seeds = run.seeds if len(run.seeds) == width else tuple(range(width)) if width > 1 else (*run.seeds, 0)[:1]
    task = " ".join(part for name, part in run.task.items() if not any(f".{name}".endswith(f".{key}") for key in by))
    for column, seed in enumerate(seeds):
        known = np.isfinite(series.values[:, column])
        if not (known & window).any():
            notes.append(
                f"seed {seed} of {run.name} is left out: it has no {metric} between {(1 - LAST_PART) * end:,.0f} and "
                f"{end:,} env steps."
            )
            continue
        group = ", ".join(show_value(run.setting(name, seed)) for name in by)
        values = series.values[known, column]
        score = float(np.mean(series.values[known & window, column]))
        yield Sample(group, task, run.name, seed, series.env_steps[known], values, score, end)


def order_groups(samples: list[Sample], by: Sequence[str]) -> list[Sample]:
    """Groups by their numbers, if they are numbers, else in the order of the runs; samples of a group together."""
    names = list(dict.fromkeys(sample.group for sample in samples))
    if len(by) == 1:
        with contextlib.suppress(ValueError):
            names.sort(key=float)
    return sorted(samples, key=lambda sample: names.index(sample.group))


def label_groups(samples: list[Sample], labels: Mapping[str, str]) -> list[Sample]:
    """Samples whose groups have the names that `labels` gives them; no two groups may get the same."""
    names = list(dict.fromkeys(sample.group for sample in samples))
    for group, label in labels.items():
        if group not in names:
            raise unknown_name("group", str(group), names)
        require(isinstance(label, str) and bool(label.strip()), OWNER, f"labels[{group!r}]", label, "a text")
    shown = [show_value(labels.get(name, name)) for name in names]
    twice = next((label for label in shown if shown.count(label) > 1), None)
    if twice is not None:
        raise OptionError(f"compare: two groups would be called {twice!r}; give each a label of its own")
    return [dataclasses.replace(one, group=shown[names.index(one.group)]) for one in samples]


def panel_per_environment(samples: Sequence[Sample]) -> dict[str, Panel]:
    """A panel for each environment."""
    panels = {}
    for env in dict.fromkeys(sample.env for sample in samples):
        own = [sample for sample in samples if sample.env == env]
        names = dict.fromkeys(sample.group for sample in own)
        groups = {name: (tuple(sample for sample in own if sample.group == name),) for name in names}
        panels[env] = Panel(env, groups)
    return panels


def panel_of_all(samples: Sequence[Sample], notes: list[str]) -> dict[str, Panel]:
    """One panel: samples are normalised by environment, which are the strata of each group."""
    envs = {env: {s.group for s in samples if s.env == env} for env in dict.fromkeys(s.env for s in samples)}
    names = list(dict.fromkeys(sample.group for sample in samples))
    shared = [env for env, groups in envs.items() if len(groups) == len(names)]
    if not shared:
        raise OptionError(
            f"compare: there is no environment that all of {', '.join(names)} have runs in, so they cannot be compared "
            "together: leave out normalise, or some runs"
        )
    for env in envs.keys() - set(shared):
        lacking = ", ".join(name for name in names if name not in envs[env])
        notes.append(f"{env} is left out, as it has no runs of {lacking}.")
    scaled = [sample for env in shared for sample in _normalised([s for s in samples if s.env == env], notes)]
    groups = {
        name: tuple(tuple(s for s in scaled if s.group == name and s.env == env) for env in shared) for name in names
    }
    if any(len({len(stratum) for stratum in strata}) > 1 for strata in groups.values()):
        notes.append("Environments have different numbers of seeds: those with more count for more.")
    name = TOGETHER if len(shared) > 1 else shared[0]
    return {name: Panel(name, groups)}


def _normalised(samples: Sequence[Sample], notes: list[str]) -> list[Sample]:
    """Samples of one environment with its least value at 0 and its greatest at 1."""
    every = np.concatenate([sample.values for sample in samples])
    low, size = float(np.min(every)), float(np.max(every) - np.min(every))
    if size == 0:
        notes.append(f"All values of {samples[0].env} are {low:g}: normalised, they are 0.")
    size = size or 1.0
    return [
        dataclasses.replace(sample, values=(sample.values - low) / size, score=(sample.score - low) / size)
        for sample in samples
    ]


def notes_on_runs(runs: Sequence[ComparedRun], metric: str) -> list[str]:
    """What a reader should know of the runs themselves."""
    notes = []
    for run in runs:
        total, made = run.settings.get("total_env_steps"), run.lines[-1]["env_steps"] if run.lines else 0
        if isinstance(total, int) and made < 0.95 * total:
            notes.append(f"{run.name} is not finished: {made:,} of {total:,} env steps.")
        if run.members:
            notes.append(f"{run.name} is one training of a population: the mean over its members counts as one seed.")
    seen: dict[tuple[Any, ...], str] = {}
    for run in runs:
        for seed in run.seeds:
            varying = ("seed", "num_seeds", "total_env_steps", "preset")
            settings = sorted((name, repr(value)) for name, value in run.settings.items() if name not in varying)
            one = seen.setdefault((tuple(settings), seed, repr(run.settings.get("total_env_steps"))), run.name)
            if one != run.name:
                notes.append(f"{one} and {run.name} have the same settings and the seed {seed}: one training twice.")
                break
    parts = max((run.parts(metric) for run in runs), key=len)
    if len(parts) > 1:
        notes.append(
            f"{metric} is the sum over {len(parts)} groups of agents; --metric {parts[0]} compares one of them."
        )
    return notes


def note_settings(runs: Sequence[ComparedRun], samples: Sequence[Sample], by: Sequence[str], notes: list[str]) -> None:
    """Runs of one algorithm that were trained with different settings; who chose other groups knows what is in them."""
    if list(by) != ["algorithm"]:
        return
    known = {run.name: run.settings for run in runs}
    for group, env in dict.fromkeys((sample.group, sample.env) for sample in samples):
        names = dict.fromkeys(sample.run for sample in samples if (sample.group, sample.env) == (group, env))
        every = [known[name] for name in names]
        differing = [
            setting
            for setting in dict.fromkeys(setting for settings in every for setting in settings)
            if setting not in UNLIKE and len({repr(settings.get(setting, MISSING)) for settings in every}) > 1
        ]
        if differing:
            short = [setting.rpartition(".")[2] for setting in differing]
            shown = ", ".join(short[:4]) + (f" and {len(short) - 4} more settings" if len(short) > 4 else "")
            notes.append(f"runs of {group} differ in {shown}: their seeds count together; --by {short[0]} or --by run.")


def note_lengths(samples: Sequence[Sample], at: int | str, by: Sequence[str], notes: list[str]) -> None:
    """Runs of one environment that end at different steps are not judged alike, unless that is what is compared."""
    if at != END or "total_env_steps" in by:
        return
    for env in dict.fromkeys(sample.env for sample in samples):
        ends = {sample.judged_at for sample in samples if sample.env == env}
        if max(ends) > 1.05 * min(ends):
            notes.append(
                f"Runs in {env or TOGETHER} end at {min(ends):,} to {max(ends):,} env steps, each is judged where it "
                f"ends; --at {min(ends)} judges all at the same step."
            )


def note_few_seeds(panels: Mapping[str, Panel], notes: list[str]) -> None:
    """Groups without an interval."""
    for panel in panels.values():
        few = [name for name, strata in panel.groups.items() if not statistics.can_resample(scores_of(strata))]
        if few:
            where = f" in {panel.name}" if len(panels) > 1 else ""
            notes.append(f"No interval for {', '.join(few)}{where}: one seed only. Train several, as --num-seeds 5.")
