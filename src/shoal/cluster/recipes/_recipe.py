"""The base class of recipes: what one declares and starts."""

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from shoal.algorithms import ALGORITHMS
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.services.coordinator import Coordinator
from shoal.cluster.services.dataset import Queue
from shoal.cluster.services.parameters import ParameterService
from shoal.cluster.workers.actor import ActorWorker
from shoal.cluster.workers.learner import LearnerWorker
from shoal.core.algorithm import Algorithm, supports
from shoal.core.errors import OptionError
from shoal.training.experiment import Experiment

if TYPE_CHECKING:
    from shoal.cluster.training import TrainingSupervisor


@dataclasses.dataclass(frozen=True)
class Recipe:
    """An architecture.

    sync: whether learners wait for all actors, for nobody, or within a bound. protocol: which one an algorithm must
    implement (see `core.algorithm`), if any. corrects_lag: whether it must correct for experience that is some updates
    old. acts: whether there are workers that only act. takes: the options of a plan that it uses, of those that not all
    recipes use. A recipe of another shape overrides `start` and `actor`; one with other requirements, `lacks`.
    """

    name: str
    what: str
    sync: Literal["sync", "async", "stale"]
    protocol: type[Any] | None = None
    corrects_lag: bool = False
    acts: bool = True
    takes: tuple[str, ...] = ()

    def check(self, experiment: Experiment, plan: ClusterPlan) -> None:
        """Refuses an experiment that it is not for, or numbers that do not fit together."""
        self.share(experiment, plan)
        for name, learner in experiment.learners.items():
            lacks = None if learner.frozen else self.lacks(learner.algorithm)
            if lacks is not None:
                fitting = [other for other, cls in ALGORITHMS.table.items() if self._suits(cls)]
                choose = f"Choose --algo {' or '.join(fitting)}, or" if fitting else "Choose"
                raise OptionError(
                    f"cluster: learner {name!r}: the recipe {self.name} needs an algorithm that {lacks}, but "
                    f"{learner.algorithm.name} does not. {choose} another --recipe."
                )

    def _suits(self, algorithm: type[Algorithm]) -> bool:
        try:
            return self.lacks(algorithm()) is None
        except TypeError:  # somebody's own, with options that have no default
            return False

    def lacks(self, algorithm: Algorithm) -> str | None:
        """What an algorithm would have to do for this recipe, but does not; None if it is fit for it."""
        if self.protocol is not None and not supports(algorithm, self.protocol):
            members = ", ".join(sorted(getattr(self.protocol, "__abstractmethods__", ())))
            return f"implements {self.protocol.__module__}.{self.protocol.__name__} ({members})"
        if self.corrects_lag and not algorithm.traits.corrects_lag:
            return "corrects for experience that is some updates old (traits.corrects_lag)"
        return None

    def share(self, experiment: Experiment, plan: ClusterPlan) -> int:
        """Copies per worker that steps environments."""
        return plan.share(experiment)

    def start(self, supervisor: "TrainingSupervisor") -> None:
        """Starts all services and workers. The run ends when the loop of the worker `learner-0` does."""
        self.services(supervisor)
        supervisor.service("dataset", Queue, supervisor.plan.capacity)
        supervisor.learner(LearnerWorker)
        for number in range(supervisor.plan.actors + supervisor.plan.backups):
            self.actor(supervisor, number)

    def services(self, supervisor: "TrainingSupervisor") -> None:
        """Those that every training needs."""
        total = supervisor.experiment.num_updates
        supervisor.service("coordinator", Coordinator, supervisor.path, supervisor.plan, total)
        supervisor.service("parameters", ParameterService, supervisor.launcher.store)

    def actor(self, supervisor: "TrainingSupervisor", number: int) -> None:
        """Starts one actor; more may be added while the run is on, where it waits for nobody."""
        supervisor.actor(ActorWorker, number)
