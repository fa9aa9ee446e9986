"""Ranges of hyper-parameters: `shoal.sweep("ippo/simple_spread", learning_rate=shoal.log(1e-4, 1e-2, 8))`."""

from shoal.api.changes import as_whole
from shoal.training.sweep_plan import Range


def log(start: float, stop: float, count: int | None = None) -> Range:
    """Values from `start` to `stop`, both included, each the same multiple of the one before. count: for a grid."""
    return Range(start, stop, as_whole(int, count), log=True)


def lin(start: float, stop: float, count: int | None = None) -> Range:
    """Values from `start` to `stop`, both included, evenly spaced. count: for a grid."""
    return Range(start, stop, as_whole(int, count))
