"""What a recipe says."""

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

from shoal.cluster.plan import Plan
from shoal.cluster.services.coordinator import Coordinator
from shoal.cluster.services.dataset import Queue
from shoal.cluster.services.parameters import ParameterService
from shoal.cluster.workers.actor import Actor
from shoal.cluster.workers.learner import Learner
from shoal.core.algorithm import require_protocol
from shoal.core.errors import OptionError
from shoal.training.experiment import Experiment

if TYPE_CHECKING:
    from shoal.cluster.training import TrainingSupervisor


@dataclasses.dataclass(frozen=True)
class Recipe:
    """An architecture.

    sync: whether learners wait for all actors, for nobody, or within a bound. algorithms: names of those that it is
    for; empty: any. protocol: what an algorithm must have taken on (see `core.algorithm`); None: nothing. acts: whether
    there are workers that only act. takes: those options of a plan that it heeds, of all that some recipes do not. A
    recipe of another shape overrides `start` and `actor`.
    """

    name: str
    what: str
    sync: Literal["sync", "async", "stale"]
    algorithms: tuple[str, ...] = ()
    protocol: type[Any] | None = None
    acts: bool = True
    takes: tuple[str, ...] = ()

    def check(self, experiment: Experiment, plan: Plan) -> None:
        """Refuses an experiment that it is not for, or numbers that do not fit together."""
        self.share(experiment, plan)
        for name, learner in experiment.learners.items():
            if self.protocol is not None and not learner.frozen:
                who = f"cluster: learner {name!r}: the recipe {self.name}"
                require_protocol(learner.algorithm, self.protocol, who)
            algorithm = learner.algorithm.name
            if self.algorithms and algorithm not in self.algorithms and not learner.frozen:
                allowed = " or ".join(self.algorithms)
                raise OptionError(
                    f"cluster: the recipe {self.name} is for {allowed}, but learner {name!r} learns by {algorithm}. "
                    f"Choose --algo {self.algorithms[0]}, or another --recipe."
                )

    def share(self, experiment: Experiment, plan: Plan) -> int:
        """Copies of each worker that steps some."""
        return plan.share(experiment)

    def start(self, supervisor: "TrainingSupervisor") -> None:
        """Starts all services and workers. The run ends when the loop of the worker `learner-0` does."""
        self.services(supervisor)
        supervisor.service("dataset", Queue, supervisor.plan.capacity)
        supervisor.learner(Learner)
        for number in range(supervisor.plan.actors + supervisor.plan.backups):
            self.actor(supervisor, number)

    def services(self, supervisor: "TrainingSupervisor") -> None:
        """Those that every training needs."""
        total = supervisor.experiment.num_updates
        supervisor.service("coordinator", Coordinator, supervisor.path, supervisor.plan, total)
        supervisor.service("parameters", ParameterService, supervisor.launcher.store)

    def actor(self, supervisor: "TrainingSupervisor", number: int) -> None:
        """Starts one actor; more may be added while the run is on, where it waits for nobody."""
        supervisor.actor(Actor, number)
