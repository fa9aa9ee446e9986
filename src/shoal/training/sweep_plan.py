"""The plan of a sweep: ranges, points, and which options of which learners can be swept at all.

Only floats of algorithms can: they are data of the program. Sizes, switches and networks are its structure.
"""

import dataclasses
import functools
import math
import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from shoal.core.checks import check_types
from shoal.core.errors import OptionError, require, require_positive, unknown_name
from shoal.training.experiment import Composed, Experiment
from shoal.training.fused import Overrides
from shoal.training.sweep_points import Span, make_points

if TYPE_CHECKING:
    from shoal.training.program import Program


@dataclasses.dataclass(frozen=True)
class Range(Span):
    """Values from `start` to `stop`, both included, evenly spaced or with a constant ratio."""

    def __post_init__(self):
        check_types(self, "range")
        self.check_ends()


@dataclasses.dataclass(frozen=True)
class Sweep(Composed):
    """What is varied, and how.

    over: values by option, as `option` for all learners that have it and learn, or as `learner.option`. A grid is their
    product; with `random`, that many points are drawn with the experiment's seed, between the ends of ranges whatever
    their counts, and without repetition if there are only lists. Every point is trained with each of the experiment's
    seeds. measure: `return` or `return/GROUP`; by default of the groups that swept learners play.
    """

    kind: ClassVar[str] = "sweep"

    experiment: Experiment
    over: Mapping[str, Range | Sequence[float]]
    random: int | None = None  # draw so many points instead of the whole grid
    measure: str | None = None
    """what is compared: return or return/GROUP; by default that of the groups whose learners are swept"""

    def __post_init__(self):
        check_types(self, "sweep")
        require(bool(self.over), "sweep", "over", dict(self.over), "at least one option with its values")
        if self.random is not None:
            require_positive("sweep", random=self.random)
        taken: dict[tuple[str, str], str] = {}
        for name, places in self.places.items():
            for place in places:
                if place in taken:
                    raise OptionError(f"sweep: {taken[place]!r} and {name!r} both set {'.'.join(place)}; leave one out")
                taken[place] = name
        for values in self.points:  # runs each learner's own checks, which traced values skip
            for learner, options in self._options(values).items():
                dataclasses.replace(self.experiment.learners[learner].algorithm, **options)  # pyright: ignore[reportArgumentType]

    def program(self, devices: int | None = None) -> "Program[Any]":
        from shoal.training.sweep import build_sweep  # which imports this module

        return build_sweep(self, devices)

    @property
    def trainings(self) -> int:
        return len(self.points) * self.experiment.num_seeds

    @functools.cached_property
    def places(self) -> dict[str, list[tuple[str, str]]]:
        """The learners and their options that each name of `over` stands for."""
        return {name: _places(self.experiment, name) for name in self.over}

    @functools.cached_property
    def points(self) -> tuple[dict[str, float], ...]:
        """The value of each name of `over`, for every point."""
        lists = {name: _check(name, values) for name, values in self.over.items()}
        return make_points(lists, self.random, self.experiment.seed)

    @property
    def overrides(self) -> Overrides:
        """The points as the fused runner takes them."""
        each = [self._options(values) for values in self.points]
        return {
            learner: {option: np.array([options[learner][option] for options in each], np.float32) for option in names}
            for learner, names in each[0].items()
        }

    def _options(self, values: Mapping[str, float]) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for name, value in values.items():
            for learner, option in self.places[name]:
                found.setdefault(learner, {})[option] = value
        return found


def _places(experiment: Experiment, name: str) -> list[tuple[str, str]]:
    """The learners and options that a name stands for; raises if it cannot be swept, with the reason."""
    where, _, option = name.removeprefix("algo.").rpartition(".")
    option = option.replace("-", "_")
    learning = {key: learner for key, learner in experiment.learners.items() if not learner.frozen}
    algorithms = {key: learner.algorithm for key, learner in learning.items()}
    if where:
        structure = {field.name for algorithm in algorithms.values() for field in dataclasses.fields(algorithm)}  # pyright: ignore[reportArgumentType]
        if where.partition(".")[0] in structure:
            raise _static(name, f"a part of {where!r}", algorithms)
        if where not in experiment.learners:
            raise OptionError(f"sweep over {name}: {unknown_name('learner', where, experiment.learners)}")
        require(where in learning, f"sweep over {name}", "learner", where, "one that learns; it is frozen")
        algorithms = {where: algorithms[where]}
    kinds = {key: typing.get_type_hints(type(algorithm)) for key, algorithm in algorithms.items()}
    fields = {key: [field.name for field in dataclasses.fields(algorithms[key])] for key in kinds}  # pyright: ignore[reportArgumentType]
    having = [key for key in kinds if option in fields[key]]
    if not having:
        if option in {field.name for field in dataclasses.fields(experiment)}:
            raise _static(name, "an option of the experiment", algorithms)
        unknown = str(unknown_name("option", option, _floats(algorithms)))
        raise OptionError(f"sweep: {unknown}" + ("" if "Known: " in unknown else f" {_can(algorithms)}"))
    for key in having:
        switch = algorithms[key].only_with.get(option)
        if switch and not getattr(algorithms[key], switch):
            raise OptionError(f"sweep: {name} has no effect on learner {key!r}, as its {switch} is off. Switch it on.")
        if kinds[key][option] is not float:
            kind = getattr(kinds[key][option], "__name__", kinds[key][option])
            raise _static(name, f"of type {kind}", algorithms)
    return [(key, option) for key in having]


def _static(name: str, what: str, algorithms: Mapping[str, Any]) -> OptionError:
    return OptionError(
        f"sweep: {name} cannot be swept: it is {what}, so another value needs another program; only floats of an "
        f"algorithm are data of the program. {_can(algorithms)}"
    )


def _floats(algorithms: Mapping[str, Any]) -> list[str]:
    hints = (typing.get_type_hints(type(algorithm)) for algorithm in algorithms.values())
    return list(dict.fromkeys(name for kinds in hints for name, kind in kinds.items() if kind is float))


def _can(algorithms: Mapping[str, Any]) -> str:
    return f"These can be swept: {', '.join(sorted(_floats(algorithms)))}."


def _check(name: str, values: Range | Sequence[float]) -> Range | tuple[float, ...]:
    if isinstance(values, Range):
        return values
    got = tuple(values)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in got)
    fits = bool(got) and numbers and all(math.isfinite(value) for value in got) and len(set(got)) == len(got)
    require(fits, "sweep", name, got, "a range, or finite numbers that differ")
    return tuple(float(value) for value in got)
