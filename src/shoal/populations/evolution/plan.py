"""The config of an evolution as plain data: an experiment, a strategy, and the sizes of the search.

A run of an evolution is a run folder like any other, with one more entry in `config.json`, so that `shoal eval` and
`shoal watch` play the evolved policies. An update of it is a generation. From Python:

    from shoal import presets
    from shoal.populations.evolution.plan import Evolution
    from shoal.populations.evolution.strategies import OpenES
    from shoal.training.runner import run

    result = run(Evolution(presets.get("control/cartpole"), OpenES(), population=4096, generations=20))
"""

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, ClassVar

from shoal.core.algorithm import NormalisesViews, supports
from shoal.core.checks import check_types
from shoal.core.errors import require, require_positive
from shoal.populations.evolution.strategies import ERL, OpenES, Strategy
from shoal.training.experiment import Composed, Experiment, Learner

if TYPE_CHECKING:
    from shoal.populations.evolution.program import EvolutionProgram


@dataclasses.dataclass(frozen=True)
class Evolution(Composed):
    """Everything needed to reproduce an evolution.

    The experiment gives the world and the networks: the policies of its learners evolve, except frozen ones, which play
    with their own weights. Its numbers of copies, steps and env steps are not used.
    """

    kind: ClassVar[str] = "evolution"

    experiment: Experiment
    strategy: Strategy = dataclasses.field(default_factory=OpenES)  # pyright: ignore[reportAssignmentType]
    population: int = 4096  # members of a generation
    generations: int = 100  # generations that are bred
    episodes: int = 1  # episodes that each member plays in each generation
    evolve: tuple[str, ...] = ()  # the policies that evolve, while the others play at random; by default all evolve
    common_starts: bool = True  # all members of a generation meet the same start states and chances
    normalise_views: bool = True  # normalise views by running statistics over all generations, where policies can
    max_steps: int = 10_000  # episodes are cut off after so many steps

    def __post_init__(self):
        check_types(self, "evolution")
        counts = {"generations": self.generations, "episodes": self.episodes, "max_steps": self.max_steps}
        require_positive("evolution", **counts)
        for option, got in counts.items():  # the program counts in int32
            require(got < 2**31, "evolution", option, got, "less than 2^31")
        self.strategy.check(self.population)
        copies = self.population * self.episodes
        require(copies < 2**31, "evolution", "population", self.population, "less than 2^31, as all of its episodes")
        seeds = self.experiment.num_seeds
        require(seeds == 1, "evolution", "num_seeds", seeds, "1: a population is one run; start it once for each seed")

    @functools.cached_property
    def played(self) -> Experiment:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The experiment as its world is played: the copies are the members' episodes."""
        hybrid = isinstance(self.strategy, ERL)
        copies = (self.population + hybrid) * self.episodes
        steps = self.strategy.piece if isinstance(self.strategy, ERL) else 1

        def adapted(learner: Learner) -> Learner:
            if learner.frozen or not supports(learner.algorithm, NormalisesViews):
                return learner
            algorithm: Any = learner.algorithm
            algorithm = dataclasses.replace(algorithm, normalise_views=self.normalise_views)
            return dataclasses.replace(learner, algorithm=algorithm)

        return self.experiment.replace(
            learners={name: adapted(learner) for name, learner in self.experiment.learners.items()},
            num_envs=copies,
            num_steps=steps,
            total_env_steps=copies * steps * self.generations,
        )

    def program(self, devices: int | None = None) -> "EvolutionProgram":
        from shoal.populations.evolution.program import make_evolution_program  # which imports this module

        return make_evolution_program(self, devices)
