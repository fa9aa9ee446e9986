"""The points of a sweep from its ranges and lists alone: needs neither the experiment nor JAX."""

import dataclasses
import itertools
import math
from collections.abc import Mapping

import numpy as np

from shoal.core.errors import OptionError, require

MAX_POINTS = 100_000
DIGITS = 6
"""Significant digits of a value: a displayed value can be typed in again."""
TAIL = 0.1
"""The last part of a run, whose returns count."""


@dataclasses.dataclass(frozen=True)
class Span:
    """Values from `start` to `stop`, both included, evenly spaced or with a constant ratio; not checked yet."""

    start: float
    stop: float
    count: int | None = None  # how many, for a grid; a random search draws between the ends
    log: bool = False  # a constant ratio instead of a constant difference

    def grid(self) -> tuple[float, ...]:
        """The values, the first and the last exactly."""
        require(self.count is not None, "range", "count", None, "given for a grid; only a random search needs none")
        return self._at(np.linspace(0.0, 1.0, self.count or 0))

    def draw(self, count: int, generator: np.random.Generator) -> tuple[float, ...]:
        """Values at random, uniformly on the range's own scale."""
        return self._at(generator.uniform(size=count))

    def check_ends(self) -> None:
        """Refuses ends that no values lie between."""
        for option, got in (("start", self.start), ("stop", self.stop)):
            require(math.isfinite(got), "range", option, got, "a finite number")
        require(self.start < self.stop, "range", "stop", self.stop, f"greater than its start, {self.start:g}")
        require(self.start > 0 or not self.log, "range", "start", self.start, "greater than 0 if it is logarithmic")
        require(self.count is None or self.count >= 2, "range", "count", self.count, "at least 2")

    def _at(self, places: np.ndarray) -> tuple[float, ...]:
        ends = np.array([self.start, self.stop], np.float64)
        low, high = np.log(ends) if self.log else ends
        values = low + places * (high - low)
        rounded = [float(f"{value:.{DIGITS}g}") for value in (np.exp(values) if self.log else values)]
        return tuple(min(max(value, self.start), self.stop) for value in rounded)


Lists = Mapping[str, Span | tuple[float, ...]]


def make_points(lists: Lists, random: int | None, seed: int) -> tuple[dict[str, float], ...]:
    """The value of each name, for every point: the whole grid, or so many drawn with the seed."""
    if random is None:
        return _product(lists)
    _check_count(random)
    generator = np.random.default_rng(seed)
    if not any(isinstance(values, Span) for values in lists.values()):  # so few that some would be drawn twice
        all_points = _product(lists)
        allowed = f"at most {len(all_points)}, all combinations that there are"
        require(random <= len(all_points), "sweep", "random", random, allowed)
        chosen = generator.choice(len(all_points), random, replace=False)
        return tuple(all_points[i] for i in sorted(chosen.tolist()))
    drawn = [
        values.draw(random, generator) if isinstance(values, Span) else tuple(generator.choice(values, random).tolist())
        for values in lists.values()
    ]
    return tuple(dict(zip(lists, point, strict=True)) for point in zip(*drawn, strict=True))


def _check_count(points: int) -> None:
    """Refuses too many points: they are listed and checked one by one."""
    require(points <= MAX_POINTS, "sweep", "points", points, f"at most {MAX_POINTS:,}, side by side in one program")


def _product(lists: Lists) -> tuple[dict[str, float], ...]:
    """All combinations."""
    for name, values in lists.items():
        if isinstance(values, Span) and values.count is None:
            raise OptionError(f"sweep: {name} must have a count for a grid; only a random search needs none")
    counts = [values.count or 0 if isinstance(values, Span) else len(values) for values in lists.values()]
    _check_count(math.prod(counts))
    grids = [values.grid() if isinstance(values, Span) else values for values in lists.values()]
    return tuple(dict(zip(lists, point, strict=True)) for point in itertools.product(*grids))
