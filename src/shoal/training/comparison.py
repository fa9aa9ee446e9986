"""Runs side by side: final performance, learning curves, performance profiles, probabilities of improvement.

A *sample* is one seed of one run. Samples are put into groups by settings (`by`), and within a group into strata by
environment. What is compared:

- **Final performance** of a sample: the mean of its metric over the last tenth of the env steps, those greater than
  0.9 N and at most N. N is where the run ends, or the same number for all runs, if one is asked for (`at`).
- Of a group: the interquartile mean (IQM) of its samples with a 95 % interval by stratified bootstrap.
- **Curves**: the IQM at each step. Runs of one group that logged at the same steps are taken as they are; others are
  interpolated, within the steps that all of them have and never beyond.
- **Profiles**: for each value, the part of a group's samples whose final performance is greater.
- **Improvement**: how likely a sample of one group is to do better than one of another; ties count half.

Environments are kept apart, each in a panel of its own, unless values are normalised: then the least value that any of
the runs has in an environment becomes 0, the greatest 1, and all environments are compared together.

Numbers only, by numpy: JAX is not imported, and matplotlib only to draw.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shoal.core.errors import OptionError, require, unknown_name
from shoal.training import comparison_tables, statistics
from shoal.training.compared_runs import MISSING, SPECIAL, ComparedRun, read_compared, show_value

Kind = Literal["curves", "final", "profile", "improvement"]
KINDS: tuple[Kind, ...] = ("curves", "final", "profile", "improvement")
"""The pictures of a comparison."""
END = "end"
"""`at`: each run is judged where it ends."""
LAST_PART = 0.1
"""The part of the env steps, up to where a run is judged, that final performance is the mean of."""
MOST_POINTS = 200
"""The most points of a curve whose runs had to be interpolated, or logged more."""
THRESHOLDS = 101
"""The points of a profile."""
TOGETHER = "all environments"
_OWNER = "compare"


@dataclasses.dataclass(frozen=True)
class Sample:
    """One seed of one run: its metric over env steps (both `[rows]`, finite), and its final performance."""

    group: str
    env: str
    run: str
    seed: int
    env_steps: np.ndarray
    values: np.ndarray
    score: float
    judged_at: int


@dataclasses.dataclass(frozen=True)
class Final:
    """Final performance of a group. low, high: the 95 % interval of the IQM; None if there are too few seeds."""

    runs: int
    seeds: int
    iqm: float
    low: float | None
    high: float | None
    mean: float
    median: float
    worst: float
    best: float


@dataclasses.dataclass(frozen=True)
class GroupCurve:
    """The IQM of a group over env steps, all `[points]`. low, high: its 95 % interval, None with too few seeds."""

    env_steps: np.ndarray
    iqm: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Profile:
    """The part of a group's samples whose score is greater than each threshold, all `[thresholds]`; as above."""

    thresholds: np.ndarray
    part: np.ndarray
    low: np.ndarray | None
    high: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Improvement:
    """`probability[i, j]`: that a sample of group i does better than one of group j. low, high: NaN where unknown."""

    groups: tuple[str, ...]
    probability: np.ndarray
    low: np.ndarray
    high: np.ndarray


@dataclasses.dataclass(frozen=True)
class Panel:
    """The comparison in one environment, or in all together. groups: their samples, by environment."""

    name: str
    groups: Mapping[str, tuple[tuple[Sample, ...], ...]]

    @functools.cached_property
    def final(self) -> dict[str, Final]:
        """Final performance by group."""
        return {group: _final(strata) for group, strata in self.groups.items()}

    @functools.cached_property
    def curves(self) -> dict[str, GroupCurve]:
        """Learning curves by group. Raises if the runs of a group have no steps in common."""
        return {group: _curve(group, strata) for group, strata in self.groups.items()}

    @functools.cached_property
    def profiles(self) -> dict[str, Profile]:
        """Performance profiles by group, at the same thresholds."""
        scores = {group: _scores(strata) for group, strata in self.groups.items()}
        every = np.concatenate([stratum for strata in scores.values() for stratum in strata])
        low, high = float(np.min(every)), float(np.max(every))
        margin = 0.02 * (high - low) or 0.5
        thresholds = np.linspace(low - margin, high + margin, THRESHOLDS)
        return {
            group: Profile(
                thresholds,
                statistics.profile(np.concatenate(strata), thresholds),
                *(statistics.profile_interval(strata, thresholds) or (None, None)),
            )
            for group, strata in scores.items()
        }

    @functools.cached_property
    def improvement(self) -> Improvement:
        """Probabilities of improvement between all groups."""
        names = tuple(self.groups)
        scores = [_scores(strata) for strata in self.groups.values()]
        probability = np.full((len(names), len(names)), 0.5)
        low, high = np.full_like(probability, np.nan), np.full_like(probability, np.nan)
        for i, first in enumerate(scores):
            for j, second in list(enumerate(scores))[i + 1 :]:
                probability[i, j] = statistics.improvement(first, second)
                probability[j, i] = 1.0 - probability[i, j]
                found = statistics.improvement_interval(first, second)
                if found is not None:
                    low[i, j], high[i, j] = found
                    low[j, i], high[j, i] = 1.0 - found[1], 1.0 - found[0]
        return Improvement(names, probability, low, high)


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison:
    """Runs that were compared: figures, pictures and tables.

    `final`, `curves`, `profiles` and `improvement` are those of the only panel; with several environments,
    `panels[env]` has them. notes: what a reader should know, such as seeds that were left out.
    """

    metric: str
    by: str
    at: int | str
    baseline: str | None
    normalised: bool
    panels: Mapping[str, Panel]
    notes: tuple[str, ...]

    @property
    def final(self) -> dict[str, Final]:
        return self._only.final

    @property
    def curves(self) -> dict[str, GroupCurve]:
        return self._only.curves

    @property
    def profiles(self) -> dict[str, Profile]:
        return self._only.profiles

    @property
    def improvement(self) -> Improvement:
        return self._only.improvement

    @property
    def samples(self) -> list[Sample]:
        """Every seed of every run, panel by panel and group by group."""
        strata = [stratum for panel in self.panels.values() for found in panel.groups.values() for stratum in found]
        return [sample for stratum in strata for sample in stratum]

    @property
    def table(self) -> dict[str, np.ndarray]:
        """Final performance of every seed of every run, a tidy table: `pandas.DataFrame(comparison.table)`."""
        rows = [(s.env, s.group, s.run, s.seed, s.judged_at, s.score) for s in self.samples]
        kinds = {"env": object, "group": object, "run": object, "seed": np.int64, "env_steps": np.int64}
        kinds |= {"score": np.float64}
        return {name: np.array([row[i] for row in rows], kind) for i, (name, kind) in enumerate(kinds.items())}

    @property
    def judged(self) -> str:
        """What final performance is, in words."""
        where = "of each run" if self.at == END else f"up to {int(self.at):,}"
        scale = ", normalised by environment" if self.normalised else ""
        return f"{self.metric}{scale}: mean over the last tenth of the env steps {where}"

    def plot(self, kind: Kind = "curves", axes: Any = None) -> Any:
        """Draws one of the pictures, and returns matplotlib's axes: one, or a list with one per environment.

        axes: where to draw, one for each panel; by default new ones, which show themselves in a notebook.
        """
        self._check_kind(kind)
        from shoal.viz.comparison import plot_comparison

        return plot_comparison(self._drawing(kind), axes=axes)

    def save(self, path: str | Path, kind: Kind | None = None, digits: int | None = None) -> list[Path]:
        """Writes the comparison, and returns the files. digits: behind the point, in tables to be read.

        The suffix says what: `.png`, `.svg` and `.pdf` one picture (its `kind`; by default the file's name, if it is
        one, else curves), `.csv` and `.md` final performance, `.tex` the same as a LaTeX table, `.json` all curves in
        marl-eval's format. A path without a suffix is a folder, which gets all of these.
        """
        from shoal.training.comparison_files import save

        if kind is not None:
            self._check_kind(kind)
        return save(self, Path(path), kind, digits)

    def pictures(self, kind: Kind, *suffixes: str) -> dict[str, bytes]:
        """One of the pictures as files, by suffix: png, svg or pdf."""
        self._check_kind(kind)
        from shoal.viz.comparison import comparison_pictures

        return comparison_pictures(self._drawing(kind), suffixes)

    def to_csv(self, what: str = "final") -> str:
        """A table as CSV: `final`, `scores` (of every seed), `curves`, `profile` or `improvement`."""
        return comparison_tables.to_csv(self, what)

    def to_latex(self, digits: int | None = None) -> str:
        """Final performance as a LaTeX table, for the package booktabs; the best IQM of an environment is bold."""
        return comparison_tables.to_latex(self, digits)

    def to_markdown(self, digits: int | None = None) -> str:
        """Final performance as a table in Markdown."""
        return comparison_tables.to_markdown(self, digits)

    def to_marl_eval(self) -> dict[str, Any]:
        """All curves and final performances in the format that marl-eval reads, as plain data for JSON."""
        return comparison_tables.to_marl_eval(self)

    @functools.cached_property
    def without_marl_eval(self) -> str | None:
        """Why there is nothing for marl-eval: it needs the same runs and steps of all groups. None if there is."""
        try:
            self.to_marl_eval()
        except OptionError as error:
            return str(error)
        return None

    def __repr__(self) -> str:
        best = {name: max(panel.final, key=lambda g: panel.final[g].iqm) for name, panel in self.panels.items()}
        groups = list(dict.fromkeys(group for panel in self.panels.values() for group in panel.groups))
        counts = len(groups), len(self.samples)
        ends = ["" if count == 1 else "s" for count in counts]
        parts = [f"{counts[0]} group{ends[0]} by {self.by}", f"{counts[1]} seed{ends[1]}"]
        finals = {name: self.panels[name].final[group] for name, group in best.items()}
        parts += [f"{name}: {group} is best, IQM {finals[name].iqm:.4g}" for name, group in best.items()]
        return f"Comparison({self.metric}; {'; '.join(parts[:5])}{'; ...' if len(parts) > 5 else ''})"

    def _repr_html_(self) -> str:
        return comparison_tables.to_html(self)

    @property
    def _only(self) -> Panel:
        if len(self.panels) == 1:
            return next(iter(self.panels.values()))
        raise OptionError(
            f"this comparison has {len(self.panels)} environments, {', '.join(self.panels)}: use "
            f"comparison.panels[{next(iter(self.panels))!r}], or normalise=True to compare in all of them together"
        )

    def _check_kind(self, kind: str) -> None:
        if kind not in KINDS:
            raise unknown_name("picture", str(kind), KINDS)

    def _drawing(self, kind: Kind) -> dict[str, Any]:
        """What is drawn, as plain data: the layer that draws knows nothing of runs."""
        attribute = "profiles" if kind == "profile" else kind
        groups = list(dict.fromkeys(group for panel in self.panels.values() for group in panel.groups))
        scores = {
            name: {group: np.concatenate(_scores(strata)) for group, strata in panel.groups.items()}
            for name, panel in self.panels.items()
        }
        return {
            "kind": kind,
            "label": f"{self.metric}, normalised" if self.normalised else self.metric,
            "judged": self.judged,
            "by": self.by,
            "groups": groups,
            "baseline": self.baseline,
            "panels": {name: getattr(panel, attribute) for name, panel in self.panels.items()},
            "scores": scores,
        }


def compare(
    runs: Iterable[Any],
    metric: str = "return",
    by: str = "algorithm",
    baseline: str | None = None,
    at: int | float | str = END,
    normalise: bool = False,
) -> Comparison:
    """Compares runs, each a folder, a run as `shoal.train` and `shoal.load` return it, or a JSON file of
    `benchmarks/algorithms_learn.py`, by groups of settings.

    metric: any that all of them have, as `metrics.jsonl` names it: `return`, `return/agent`, or `eval/return` for the
    greedy evaluations of `eval_every`. by: a setting by its dotted name, or several with commas between them:
    `algorithm`, `env`, `run`, `seed`, `learners.agent.algorithm.gamma` or, where that is clear, `gamma`. baseline: the
    group that tables compare the others with. at: env steps at which runs are judged, by the mean over the tenth
    before; by default each where it ends. normalise: compare in all environments together, each from 0 to 1 between
    the least and the greatest value of these runs.

    The result has `final`, `curves`, `profiles`, `improvement`, `table` and `notes`; `plot` draws it, `save` writes it.
    """
    given = [runs] if isinstance(runs, str | Path) else list(runs)
    require(bool(given), _OWNER, "runs", given, "at least one run")
    require(isinstance(metric, str) and bool(metric), _OWNER, "metric", metric, "a metric's name, such as 'return'")
    read = _renamed([read_compared(run) for run in given])
    notes = _notes_on_runs(read, metric)
    steps = check_at(at)
    settings = _check_by(by, read)
    samples = [sample for run in read for sample in _samples(run, metric, settings, steps, notes)]
    if not samples:
        raise OptionError(f"compare: none of the seeds has a {metric} where it is judged. {' '.join(notes)}")
    samples = _ordered(samples, settings)
    _note_lengths(samples, steps, settings, notes)
    panels = _together(samples, notes) if normalise else _apart(samples)
    groups = dict.fromkeys(group for panel in panels.values() for group in panel.groups)
    if baseline is not None and baseline not in groups:
        raise unknown_name("baseline", str(baseline), groups)
    _note_few_seeds(panels, notes)
    return Comparison(metric, by, steps, baseline, normalise, panels, tuple(notes))


def check_at(at: Any) -> int | str:
    """Where runs are judged: `end`, or a number of env steps."""
    if at == END:
        return END
    sound = isinstance(at, int | float) and not isinstance(at, bool) and math.isfinite(at) and at >= 1
    require(sound and at == int(at), _OWNER, "at", at, f"{END!r} or a whole number of env steps")
    return int(at)


def common_steps(samples: Sequence[Sample]) -> np.ndarray | None:
    """Steps at which all samples are known: their own if they are the same, else between the ends that all have.

    None if there are no such steps.
    """
    first = samples[0].env_steps
    if all(np.array_equal(sample.env_steps, first) for sample in samples):
        return _thinned(first)
    begin = max(sample.env_steps[0] for sample in samples)
    end = min(sample.env_steps[-1] for sample in samples)
    steps = np.unique(np.concatenate([sample.env_steps for sample in samples]))
    inside = steps[(steps >= begin) & (steps <= end)]
    return _thinned(inside) if len(inside) else None


def on_steps(samples: Sequence[Sample], steps: np.ndarray) -> np.ndarray:
    """Values of samples at steps within their ends, `[steps, samples]`; linear between what was measured."""
    return np.stack([np.interp(steps, sample.env_steps, sample.values) for sample in samples], axis=1)


def _thinned(steps: np.ndarray) -> np.ndarray:
    if len(steps) <= MOST_POINTS:
        return steps
    return steps[np.round(np.linspace(0, len(steps) - 1, MOST_POINTS)).astype(int)]


def _scores(strata: Sequence[Sequence[Sample]]) -> list[np.ndarray]:
    return [np.array([sample.score for sample in stratum]) for stratum in strata]


def _final(strata: Sequence[Sequence[Sample]]) -> Final:
    scores = _scores(strata)
    every = np.concatenate(scores)
    found = statistics.stratified_interval(scores)
    low, high = (None, None) if found is None else map(float, found)
    runs = len({sample.run for stratum in strata for sample in stratum})
    middle = float(statistics.iqm(every)), low, high
    return Final(runs, len(every), *middle, *(float(f(every)) for f in (np.mean, np.median, np.min, np.max)))


def _curve(group: str, strata: Sequence[Sequence[Sample]]) -> GroupCurve:
    every = [sample for stratum in strata for sample in stratum]
    steps = common_steps(every)
    if steps is None:
        ends = {sample.run: (sample.env_steps[0], sample.env_steps[-1]) for sample in every}
        told = ", ".join(f"{run} from {first:,.0f} to {last:,.0f}" for run, (first, last) in ends.items())
        raise OptionError(
            f"the runs of {group!r} have no env steps in common, so there is no curve of all of them: {told}. "
            "Group them apart, as by=run, or leave some out."
        )
    values = [on_steps(stratum, steps) for stratum in strata]
    middle = statistics.iqm(np.concatenate(values, axis=1))
    return GroupCurve(steps, middle, *(statistics.stratified_interval(values) or (None, None)))


def _renamed(runs: list[ComparedRun]) -> list[ComparedRun]:
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


def _check_by(by: Any, runs: Sequence[ComparedRun]) -> list[str]:
    """The settings that runs are grouped by; each must be one that some run has."""
    names = [name.strip() for name in by.split(",")] if isinstance(by, str) else []
    require(bool(names) and all(names), _OWNER, "by", by, "a setting, or several with commas between them")
    for name in (name for name in names if name not in SPECIAL):
        if all(run.setting(name, 0) == MISSING for run in runs):
            known = {*SPECIAL, *(setting for run in runs for setting in run.settings)}
            inside = [setting for setting in sorted(known) if setting.startswith(f"{name}.")]
            if inside:
                raise OptionError(f"compare: {name!r} holds several settings; choose one: {', '.join(inside[:12])}")
            ends = {setting.rpartition(".")[2] for setting in known}
            raise unknown_name("setting", name, ends if "." not in name else known)
    return names


def _samples(run: ComparedRun, metric: str, by: Sequence[str], at: int | str, notes: list[str]) -> Iterable[Sample]:
    """The seeds of a run that have a value where they are judged; of others there is a note."""
    series = run.series(metric)
    end = int(series.env_steps[-1]) if at == END else int(at)
    if series.env_steps[-1] < end:
        raise OptionError(
            f"compare: {run.name} has a {metric} up to {series.env_steps[-1]:,.0f} env steps, and cannot be judged at "
            f"{end:,}. Choose a smaller number, or leave it out."
        )
    window = (series.env_steps > (1 - LAST_PART) * end) & (series.env_steps <= end)
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


def _ordered(samples: list[Sample], by: Sequence[str]) -> list[Sample]:
    """Groups by their numbers, if they are numbers, else in the order of the runs; samples of a group together."""
    names = list(dict.fromkeys(sample.group for sample in samples))
    if len(by) == 1:
        with contextlib.suppress(ValueError):
            names.sort(key=float)
    return sorted(samples, key=lambda sample: names.index(sample.group))


def _apart(samples: Sequence[Sample]) -> dict[str, Panel]:
    """A panel for each environment."""
    panels = {}
    for env in dict.fromkeys(sample.env for sample in samples):
        own = [sample for sample in samples if sample.env == env]
        names = dict.fromkeys(sample.group for sample in own)
        groups = {name: (tuple(sample for sample in own if sample.group == name),) for name in names}
        panels[env] = Panel(env, groups)
    return panels


def _together(samples: Sequence[Sample], notes: list[str]) -> dict[str, Panel]:
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


def _notes_on_runs(runs: Sequence[ComparedRun], metric: str) -> list[str]:
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


def _note_lengths(samples: Sequence[Sample], at: int | str, by: Sequence[str], notes: list[str]) -> None:
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


def _note_few_seeds(panels: Mapping[str, Panel], notes: list[str]) -> None:
    """Groups without an interval."""
    for panel in panels.values():
        few = [name for name, strata in panel.groups.items() if not statistics.can_resample(_scores(strata))]
        if few:
            where = f" in {panel.name}" if len(panels) > 1 else ""
            notes.append(f"No interval for {', '.join(few)}{where}: one seed only. Train several, as --num-seeds 5.")
