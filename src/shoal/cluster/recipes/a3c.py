"""A3C (Mnih et al. 2016): every actor learns from what it did; only gradients travel.

    actors --gradients--> queue --one after the other--> learner --weights--> parameters --> actors

Each actor computes the gradient of its own rollout with the weights that it acted with. The learner applies gradients
as they come, and so to weights that others have moved on meanwhile; what is more than `max_staleness` updates behind is
dropped. Running statistics of views and values would have to travel too: they are refused.
"""

import dataclasses
from typing import TYPE_CHECKING

from shoal.cluster.plan import ClusterPlan
from shoal.cluster.recipes._recipe import Recipe
from shoal.cluster.workers.gradient_workers import GradientActor
from shoal.cluster.workers.gradients import Gradients, RolloutGradientLearner
from shoal.core.algorithm import SplitsUpdate
from shoal.core.errors import OptionError
from shoal.training.experiment import Experiment

if TYPE_CHECKING:
    from shoal.cluster.training import TrainingSupervisor


@dataclasses.dataclass(frozen=True)
class RolloutGradients(Recipe):
    """Actors push gradients instead of rollouts."""

    def check(self, experiment: Experiment, plan: ClusterPlan) -> None:
        super().check(experiment, plan)
        for name, learner in experiment.learners.items():
            statistics = () if learner.frozen else learner.algorithm.traits.running_statistics
            if statistics:
                without = " ".join(f"--algo.no-{option.replace('_', '-')}" for option in statistics)
                raise OptionError(
                    f"cluster: the recipe {self.name} sends gradients only, but learner {name!r} keeps running "
                    f"statistics ({' and '.join(f'{option}=True' for option in statistics)}). Add {without}."
                )

    def start(self, supervisor: "TrainingSupervisor") -> None:
        self.services(supervisor)
        supervisor.service("dataset", Gradients, supervisor.plan.queue or 1)  # who waits in line grows stale
        supervisor.learner(RolloutGradientLearner)
        for number in range(supervisor.plan.actors):
            self.actor(supervisor, number)

    def actor(self, supervisor: "TrainingSupervisor", number: int) -> None:
        supervisor.actor(GradientActor, number)


RECIPE = RolloutGradients(
    "a3c", "actors send gradients of their own rollouts", "async", SplitsUpdate, takes=("max_staleness",)
)
