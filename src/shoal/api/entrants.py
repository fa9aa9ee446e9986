"""Who may play in a match or a tournament, and how they are named.

`runs/a` is a run with its newest checkpoint, `runs/a@best` with the best in evaluation, `runs/a@40` with that of an
update; `runs/a:1` is its seed number 1, and of a population its policy number 1, -1 the newest. `random` plays at
random. A folder whose own name looks like that is found first.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal.api.population import Population
from shoal.api.run import Run
from shoal.api.seats import RANDOM, Side
from shoal.api.stored_runs import load
from shoal.api.words import for_command_line
from shoal.core.errors import OptionError, RunError, require
from shoal.populations.crossplay import Contender
from shoal.training.experiment import Experiment, Setup
from shoal.training.records import check_finite

Given = str | Path | Run | Population | tuple[Any, int]
"""What a user may name."""
KINDS = "a run, a population, the folder of either, (one of these, a number) or 'random'"
_REFERENCE = re.compile(r"(?P<path>.+?)(@(?P<checkpoint>best|\d+))?(:(?P<number>-?\d+))?")


@dataclasses.dataclass(frozen=True, eq=False)
class Entrant:
    """Someone who plays. source: None for random play. number: a seed of a run, or a policy of a population."""

    name: str
    source: Run | Population | None
    number: int | None = None
    checkpoint: str | int | None = None

    @property
    def experiment(self) -> Experiment | None:
        if self.source is None:
            return None
        return self.source.config.experiment if isinstance(self.source, Population) else self.source.experiment

    @property
    def setup(self) -> Setup | None:
        """The roles of the run; of a population, of one policy per player."""
        if isinstance(self.source, Population):
            return self.source.setup
        return self.source.experiment.setup if self.source is not None else None

    @property
    def seeds(self) -> int:
        """How many seeds it has that could play."""
        return self.source.experiment.num_seeds if isinstance(self.source, Run) and self.number is None else 1

    def side(self, seed_index: int = 0) -> Side:
        """What plays for it in a match. seed_index: which of its seeds, if it has several."""
        if self.source is None:
            return Side(None, {})
        if isinstance(self.source, Population):
            return self.source.side(self.number)
        chosen = seed_index if self.number is None else self.number
        return Side(self.source.experiment.setup, self.source.of_seed(chosen))

    def each_seed(self) -> list["Entrant"]:
        """The seeds as entrants of their own."""
        if self.seeds == 1:
            return [self]
        return [dataclasses.replace(self, name=f"{self.name}:{i}", number=i) for i in range(self.seeds)]

    def contender(self, explore: bool) -> Contender:
        """What plays for it in a tournament: all seeds that are meant, or the policies of a population."""
        if self.source is None:
            return Contender(self.name, None)
        if isinstance(self.source, Population):
            return self.source.contender(self.name, self.number)
        setup, run = self.source.experiment.setup, self.source
        several = self.seeds > 1
        policies = run.policies if several else run.of_seed(self.number or 0)
        rows = policies if several else jax.tree.map(lambda leaf: np.asarray(leaf)[None], policies)
        return Contender(self.name, setup, dict(rows), samples=explore)

    def to_dict(self) -> dict[str, Any]:
        """What it is, as plain data."""
        if self.source is None:
            return {"name": self.name, "kind": RANDOM}
        folder = None if self.source.path is None else str(self.source.path)
        if isinstance(self.source, Population):
            about = {"kind": "population", "iteration": self.source.state.iteration, "policy": self.number}
        else:
            numbers = range(self.seeds) if self.number is None else [self.number]
            first = self.source.experiment.seed
            about = {
                "kind": "run",
                "updates": self.source.update,
                "finished": not self.source.interrupted,
                "checkpoint": self.checkpoint,
                "seeds": [first + i for i in numbers],
            }
        return {"name": self.name, "run": folder} | about


def find_entrant(owner: str, option: str, given: Any, name: str | None = None) -> Entrant:
    """Who is meant by what a user named. owner, option: for errors. name: what it is called, if not as it was named."""
    if isinstance(given, str) and given == RANDOM:
        return Entrant(name or RANDOM, None)
    number = checkpoint = None
    source = given
    if isinstance(given, tuple) and len(given) == 2 and type(given[1]) is int:
        source, number = given
    if isinstance(source, str) and not Path(source).exists():
        path, checkpoint, text = _take_apart(source)
        require(text is None or number is None, owner, option, given, "with one number")
        source, number = path, number if text is None else int(text)
    require(isinstance(source, str | Path | Run | Population), owner, option, given, KINDS)
    found = for_command_line(load)(source, checkpoint) if isinstance(source, str | Path) else source
    label = name or (str(given) if isinstance(given, str | Path) else _describe(found, number))
    if isinstance(found, Run):
        _check_run(found, owner, option, number, label)
    elif number is not None:
        _check_number(found, owner, option, number)
    return Entrant(label, found, number, checkpoint)


def _take_apart(text: str) -> tuple[str, str | None, str | None]:
    parts = _REFERENCE.fullmatch(text)
    return (text, None, None) if parts is None else (parts["path"], parts["checkpoint"], parts["number"])


def _describe(found: Run | Population, number: int | None) -> str:
    name = found.path.name if found.path else ("population" if isinstance(found, Population) else "run")
    return name if number is None else f"{name}:{number}"


def _check_run(run: Run, owner: str, option: str, number: int | None, label: str) -> None:
    if not run.policies:
        raise RunError(f"{owner}: {label} has no policies to play with")
    last = run.experiment.num_seeds - 1
    fits = number is None or 0 <= number <= last
    require(fits, owner, f"the seed of {option}", number, f"between 0 and {last}")
    check_finite(run.path or Path(label), run.policies)


def _check_number(population: Population, owner: str, option: str, number: int) -> None:
    size = min(len(bank) for bank in population.state.banks.values())
    require(-size <= number < size, owner, f"the policy of {option}", number, f"between {-size} and {size - 1}")


def check_same_world(entrants: list[Entrant], owner: str) -> Experiment:
    """The experiment of the first that has one; refuses others of another world, and names what differs."""
    known = [one for one in entrants if one.experiment is not None]
    if not known:
        raise OptionError(f"{owner}: everybody plays at random. Name a run for at least one side.")
    first = known[0].experiment
    assert first is not None
    for other in known[1:]:
        assert other.experiment is not None
        if said := difference(first, other.experiment):
            raise OptionError(
                f"{owner}: {other.name} was trained in another world than {known[0].name}: {said}. All must play the "
                "same world with the same options."
            )
    return first


def difference(one: Experiment, other: Experiment) -> str:
    """What differs in the worlds of two experiments, in words; nothing if they are the same."""
    if one.env != other.env:
        return f"{other.env!r}, not {one.env!r}"
    told = []
    for name in sorted({*one.env_options, *other.env_options}):
        values = [
            experiment.env_options.get(name, getattr(_innermost(experiment), name, None)) for experiment in (other, one)
        ]
        if values[0] != values[1]:
            told.append(f"{name} is {values[0]!r}, not {values[1]!r}")
    if one.wrappers != other.wrappers:
        names = [", ".join(repr(wrapper) for wrapper in experiment.wrappers) or "none" for experiment in (other, one)]
        told.append(f"its wrappers are {names[0]}, not {names[1]}")
    if one.randomise != other.randomise:
        told.append(f"its params are {'' if other.randomise else 'not '}randomised")
    return "; ".join(told)


def _innermost(experiment: Experiment) -> Any:
    """The world without its wrappers: an option that was not given has the value it has there."""
    world: Any = experiment.world
    for _ in experiment.wrappers:
        world = world.env
    return world
