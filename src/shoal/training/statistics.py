"""Figures over seeds: the interquartile mean, and intervals by bootstrap (Agarwal et al. 2021, arXiv:2108.13264)."""

from collections.abc import Callable

import numpy as np

DRAWS = 1000
"""Number of bootstrap samples."""


def iqm(values: np.ndarray, axis: int = -1) -> np.ndarray:
    """The mean of the middle half along an axis; values at its edges count in part."""
    ordered = np.sort(np.moveaxis(values, axis, -1))
    count = ordered.shape[-1]
    upper = np.minimum(np.arange(1, count + 1), 0.75 * count) - np.maximum(np.arange(count), 0.25 * count)
    weight = np.maximum(upper, 0.0)
    return np.sum(ordered * weight, axis=-1) / np.sum(weight)


def interval(values: np.ndarray, figure: Callable[..., np.ndarray] = iqm) -> tuple[np.ndarray, np.ndarray]:
    """The 95 % bootstrap interval of a figure; values are resampled along the last axis."""
    count = values.shape[-1]
    picks = np.random.default_rng(0).integers(0, count, (DRAWS, count))
    low, high = np.percentile(figure(values[..., picks], axis=-1), [2.5, 97.5], axis=-1)
    return low, high
