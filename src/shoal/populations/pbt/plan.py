"""What population-based training is, as plain data: an experiment, what is tuned, and how members are compared."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

from shoal.core.errors import OptionError, require, unknown_name
from shoal.core.options import check_types
from shoal.training.experiment import Experiment
from shoal.training.sweep_plan import Range, Sweep


@dataclasses.dataclass(frozen=True)
class PBT:
    """All that is needed to reproduce a population-based training.

    over: ranges by option, as `option` for all learners that have it and learn, or as `learner.option`; the first
    values are drawn from them with the experiment's seed. measure: `return` or `return/GROUP`, what members are
    compared by; by default the return of those that tuned learners play.
    """

    experiment: Experiment
    over: Mapping[str, Range]
    members: int = 32  # trainings side by side
    interval: int = 20  # updates between two comparisons
    fraction: float = 0.2  # of the members: so many of the worst become copies of so many of the best
    factor: float = 1.2  # by which a copy's values differ; in a linear range, 1 + the share of the range
    resample: float = 0.25  # how often a value is drawn anew instead
    measure: str | None = None  # what members are compared by

    def __post_init__(self):
        check_types(self, "pbt")
        updates, seeds = self.experiment.num_updates, self.experiment.num_seeds
        require(bool(self.over), "pbt", "over", dict(self.over), "at least one option with its range")
        for name, found in self.over.items():
            require(isinstance(found, Range), "pbt", name, found, "a range, such as Range(1e-4, 1e-2, log=True)")
        require(_whole(self.members) and self.members >= 2, "pbt", "members", self.members, "a whole number, 2 or more")
        allowed = f"a whole number, at least 1 and less than the updates of the run, {updates}"
        require(_whole(self.interval) and 1 <= self.interval < updates, "pbt", "interval", self.interval, allowed)
        require(0.0 < self.fraction <= 0.5, "pbt", "fraction", self.fraction, "greater than 0 and at most 0.5")
        require(1.0 < self.factor < math.inf, "pbt", "factor", self.factor, "greater than 1 and finite")
        require(0.0 <= self.resample <= 1.0, "pbt", "resample", self.resample, "at least 0 and at most 1")
        require(seeds == 1, "pbt", "num_seeds", seeds, "1: the members have seeds of their own")
        with as_pbt():
            Sweep(self.experiment, {name: (found.start, found.stop) for name, found in self.over.items()})  # the ends

    @functools.cached_property
    def start(self) -> Sweep:
        """The members before the first comparison."""
        with as_pbt():
            return Sweep(self.experiment, self.over, random=self.members, measure=self.measure)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, the experiment apart."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del fields["experiment"]
        return fields | {"over": {name: dataclasses.asdict(found) for name, found in self.over.items()}}

    @staticmethod
    def from_dict(experiment: Experiment, data: Mapping[str, Any]) -> "PBT":
        """The inverse of `to_dict`; unknown entries are named."""
        known = [field.name for field in dataclasses.fields(PBT)]
        for key in data:
            if key not in known:
                raise OptionError(f"pbt: {unknown_name('entry', key, known)}")
        return PBT(experiment, **{**data, "over": {name: Range(**found) for name, found in data["over"].items()}})


@contextlib.contextmanager
def as_pbt() -> Iterator[None]:
    """Says of errors in what a sweep checks that they are about population-based training."""
    try:
        yield
    except OptionError as error:
        raise OptionError(f"pbt: {str(error).removeprefix('sweep: ')}") from None


def _whole(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)
