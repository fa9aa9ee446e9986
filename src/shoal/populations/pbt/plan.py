"""Population-based training (Jaderberg et al. 2017) around any algorithm: what is tuned, how members are compared.

Members learn side by side in one program, in which bad ones become copies of good ones with slightly different
hyper-parameters (see `program`). A run of it is a run folder like any other, with one more entry in `config.json`;
its checkpoints store the policies of the best member where other runs store theirs, so that `shoal eval` and
`shoal watch` play them. From Python:

    from shoal import presets
    from shoal.populations.pbt.plan import PBT, Range
    from shoal.training.runner import run

    plan = PBT(presets.get("mpe/simple_spread"), {"learning_rate": Range(1e-4, 1e-2, log=True)}, members=16)
    best = run(plan, "runs/mine").standing
    print(best["member"], best["scores"][best["member"]], best["values"]["learning_rate"][best["member"]])
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from shoal.core.checks import check_types
from shoal.core.errors import OptionError, require
from shoal.training.experiment import Composed, Experiment
from shoal.training.sweep_plan import Range, Sweep

if TYPE_CHECKING:
    from shoal.populations.pbt.program import PBTProgram


__all__ = ["PBT", "Range", "as_pbt"]


@dataclasses.dataclass(frozen=True)
class PBT(Composed):
    """Everything needed to reproduce a population-based training.

    over: ranges by option, as `option` for all learners that have it and learn, or as `learner.option`; the first
    values are drawn from them with the experiment's seed. measure: `return` or `return/GROUP`, by which members are
    compared; by default the return of the groups that tuned learners play.
    """

    kind: ClassVar[str] = "pbt"

    experiment: Experiment
    over: Mapping[str, Range]
    members: int = 32  # trainings side by side
    interval: int = 20  # updates between two comparisons
    fraction: float = 0.2  # of the members: so many of the worst become copies of so many of the best
    factor: float = 1.2  # by which a copy's values differ; in a linear range, 1 + the share of the range
    resample: float = 0.25  # how often a value is redrawn instead
    measure: str | None = None
    """what is compared: return or return/GROUP; by default that of the groups whose learners are tuned"""

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
        require(seeds == 1, "pbt", "num_seeds", seeds, "1: each member has its own seed")
        with as_pbt():
            Sweep(self.experiment, {name: (found.start, found.stop) for name, found in self.over.items()})  # the ends

    @functools.cached_property
    def start(self) -> Sweep:
        """The members before the first comparison."""
        with as_pbt():
            return Sweep(self.experiment, self.over, random=self.members, measure=self.measure)

    @property
    def trainings(self) -> int:
        return self.members

    def program(self, devices: int | None = None) -> "PBTProgram":
        from shoal.populations.pbt.program import make_pbt_program  # which imports this module

        return make_pbt_program(self, devices)


@contextlib.contextmanager
def as_pbt() -> Iterator[None]:
    """Attributes errors raised by checks of `Sweep` to population-based training."""
    try:
        yield
    except OptionError as error:
        raise OptionError(f"pbt: {str(error).removeprefix('sweep: ')}") from None


def _whole(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)
