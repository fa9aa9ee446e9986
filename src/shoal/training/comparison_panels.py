"""One panel of a comparison: samples by group, and their statistics. `comparison` says what each of them is."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np

from shoal.core.errors import OptionError
from shoal.training import statistics

MOST_POINTS = 200
"""The most points of a curve whose runs had to be interpolated, or logged more."""
THRESHOLDS = 101
"""The points of a profile."""


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
        scores = {group: scores_of(strata) for group, strata in self.groups.items()}
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
        scores = [scores_of(strata) for strata in self.groups.values()]
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


def scores_of(strata: Sequence[Sequence[Sample]]) -> list[np.ndarray]:
    """Final performance of the samples of a group, by stratum."""
    return [np.array([sample.score for sample in stratum]) for stratum in strata]


def _final(strata: Sequence[Sequence[Sample]]) -> Final:
    scores = scores_of(strata)
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
