"""Gorila (Nair et al. 2015): actors fill a replay, workers compute gradients from it, one learner applies them.

    actors --steps--> replay shards --windows--> workers --gradients--> queue --one by one--> learner
       ^                                            ^                                            |
       +-------------------- parameters ------------+<-------------------weights-----------------+

`learners` counts the workers (`learner-1`, `learner-2`, ...); the one that applies, `learner-0`, comes on top, computes
next to nothing and asks for no processor. Gradients more than `max_staleness` updates behind are dropped. Actors
explore as the learner's schedule says; windows are drawn uniformly, or by priority if the learner is `prioritised`.
"""

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from shoal.cluster.plan import ClusterPlan
from shoal.cluster.recipes.apex import Replayed
from shoal.cluster.replay.actor import replay_traits, replaying_learners
from shoal.cluster.workers.gradient_workers import GradientWorker
from shoal.cluster.workers.gradients import Gradients, ReplayGradientLearner
from shoal.core.algorithm import Prioritises
from shoal.core.errors import OptionError
from shoal.training.experiment import Experiment

if TYPE_CHECKING:
    from shoal.cluster.training import TrainingSupervisor


@dataclasses.dataclass(frozen=True)
class WindowGradients(Replayed):
    """Workers between the replay and the learner."""

    estimates: ClassVar[bool] = False

    def check(self, experiment: Experiment, plan: ClusterPlan) -> None:
        super().check(experiment, plan)
        steps = {
            name: replay_traits(pair[0]).gradient_steps for name, pair in replaying_learners(experiment.setup).items()
        }
        if len(set(steps.values())) > 1:
            raise OptionError(
                f"cluster: with the recipe gorila all learners make as many gradient_steps, got {steps}. Choose one "
                "number for all of them."
            )

    def start(self, supervisor: "TrainingSupervisor") -> None:
        self.services(supervisor)
        self.replay(supervisor)
        supervisor.service("dataset", Gradients, supervisor.plan.queue or supervisor.plan.learners)
        supervisor.learner(ReplayGradientLearner, computes=False)
        for number in range(1, supervisor.plan.learners + 1):
            supervisor.learner(GradientWorker, number, number=number)
        for number in range(supervisor.plan.actors):
            self.actor(supervisor, number)


RECIPE = WindowGradients(
    "gorila",
    "actors fill a replay, workers send gradients of it",
    "async",
    protocol=Prioritises,
    takes=("learners", "shards", "max_staleness"),
)
