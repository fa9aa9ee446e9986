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
    from shoal.cluster.supervisor import Supervisor


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

    def start(self, site: "Supervisor") -> None:
        """Starts all services and workers. The run ends when the loop of the worker `learner-0` does."""
        self.services(site)
        site.service("dataset", Queue, site.plan.capacity)
        site.learner(Learner, site.experiment.to_dict(), site.path, site.plan, site.services, site.fabric.store)
        for number in range(site.plan.actors + site.plan.backups):
            self.actor(site, number)

    def services(self, site: "Supervisor") -> None:
        """Those that every training needs."""
        site.service("coordinator", Coordinator, site.path, site.plan, site.experiment.num_updates)
        site.service("parameters", ParameterService, site.fabric.store)

    def actor(self, site: "Supervisor", number: int) -> None:
        """Starts one actor; more may be added while the run is on, where it waits for nobody."""
        share = site.plan.share(site.experiment)
        site.actor(number, Actor, site.experiment.to_dict(), number, share, site.services, site.fabric.store)
