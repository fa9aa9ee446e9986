"""Figures over seeds: interquartile means, profiles, probabilities of improvement, and their intervals by bootstrap.

They follow Agarwal et al. 2021 (arXiv:2108.13264). A stratum holds the values of one environment, one per seed: a
bootstrap sample draws seeds with replacement within each stratum, so that every environment keeps its share. With a
single seed in a stratum there is nothing to draw from, and no interval: None, not one of zero width.
"""

from collections.abc import Callable, Sequence

import numpy as np

DRAWS = 2000
"""Number of bootstrap samples."""
PERCENTILES = (2.5, 97.5)
"""Ends of a 95 % interval."""
MOST_AT_ONCE = 1 << 22
"""Numbers of bootstrap samples that are held at once; curves are worked through in parts."""

Interval = tuple[np.ndarray, np.ndarray]
Strata = Sequence[np.ndarray]
"""Arrays `[..., seeds]`, one per environment, alike but for the number of seeds."""


def iqm(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """The mean of the middle half along an axis; values at its edges count in part."""
    ordered = np.sort(np.moveaxis(values, axis, -1))
    count = ordered.shape[-1]
    upper = np.minimum(np.arange(1, count + 1), 0.75 * count) - np.maximum(np.arange(count), 0.25 * count)
    weight = np.maximum(upper, 0.0)
    return np.sum(ordered * weight, axis=-1) / np.sum(weight)


def interval(values: np.ndarray, figure: Callable[..., np.ndarray] = iqm) -> Interval:
    """The 95 % bootstrap interval of a figure; values are resampled along the last axis."""
    low, high = np.percentile(figure(resample([values]), axis=-1), PERCENTILES, axis=-1)
    return low, high


def resample(strata: Strata) -> np.ndarray:
    """Bootstrap samples `[..., draws, seeds]`: seeds drawn with replacement within each stratum, strata in a row."""
    drawn = [values[..., picks] for values, picks in zip(strata, _picks(strata), strict=True)]
    return np.concatenate(drawn, axis=-1)


def stratified_interval(strata: Strata, figure: Callable[..., np.ndarray] = iqm) -> Interval | None:
    """The 95 % interval of a figure of all strata together, `[seeds]` or, along a curve, `[points, seeds]` each."""
    if not can_resample(strata):
        return None
    numbers = DRAWS * sum(values.shape[-1] for values in strata)
    rows = max(1, MOST_AT_ONCE // numbers)
    if strata[0].ndim == 1 or len(strata[0]) <= rows:
        low, high = np.percentile(figure(resample(strata), axis=-1), PERCENTILES, axis=-1)
        return low, high
    parts = [[values[i : i + rows] for values in strata] for i in range(0, len(strata[0]), rows)]
    found = [np.percentile(figure(resample(part), axis=-1), PERCENTILES, axis=-1) for part in parts]
    low, high = np.concatenate(found, axis=-1)
    return low, high


def can_resample(strata: Strata) -> bool:
    """Whether there are several seeds to draw from in every stratum."""
    return bool(strata) and all(values.shape[-1] > 1 for values in strata)


def profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """A performance profile: for each threshold, the part of the scores `[seeds]` that is greater."""
    return np.mean(scores[:, None] > thresholds, axis=0)


def profile_interval(strata: Strata, thresholds: np.ndarray) -> Interval | None:
    """The 95 % interval of the profile of all strata together, at each threshold."""
    if not can_resample(strata):
        return None
    scores = np.concatenate(strata)
    counts = np.concatenate(_counts(strata, np.random.default_rng(0)), axis=1)
    parts = counts @ (scores[:, None] > thresholds).astype(np.float64) / len(scores)
    low, high = np.percentile(parts, PERCENTILES, axis=0)
    return low, high


def improvement(first: Strata, second: Strata) -> float:
    """The probability that a seed of `first` beats one of `second`, ties counting half; the mean over the strata."""
    return float(np.mean([_wins(one, other).mean() for one, other in zip(first, second, strict=True)]))


def improvement_interval(first: Strata, second: Strata) -> tuple[float, float] | None:
    """The 95 % interval of the probability of improvement; seeds of either side are resampled."""
    if not (can_resample(first) and can_resample(second)):
        return None
    numbers = np.random.default_rng(0)
    ours, theirs = _counts(first, numbers), _counts(second, numbers)
    found = np.zeros(DRAWS)
    for one, other, mine, others in zip(first, second, ours, theirs, strict=True):
        wins = np.sum((mine @ _wins(one, other)) * others, axis=1)
        found += wins / (len(one) * len(other) * len(first))
    low, high = np.percentile(found, PERCENTILES)
    return float(low), float(high)


def _wins(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """`[seeds, seeds]`: 1 where the first is greater, 1/2 where they are equal."""
    return (one[:, None] > other) + 0.5 * (one[:, None] == other)


def _picks(strata: Strata, numbers: np.random.Generator | None = None) -> list[np.ndarray]:
    """For each stratum the seeds of every bootstrap sample, `[draws, seeds]`."""
    numbers = numbers or np.random.default_rng(0)
    counts = [values.shape[-1] for values in strata]
    return [numbers.integers(0, count, (DRAWS, count)) for count in counts]


def _counts(strata: Strata, numbers: np.random.Generator) -> list[np.ndarray]:
    """For each stratum how often every bootstrap sample has each seed, `[draws, seeds]`."""
    found = []
    for picks in _picks(strata, numbers):
        count = picks.shape[1]
        flat = (picks + count * np.arange(DRAWS)[:, None]).ravel()
        found.append(np.bincount(flat, minlength=DRAWS * count).reshape(DRAWS, count).astype(np.float64))
    return found
