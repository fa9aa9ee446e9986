"""SEED (Espeholt et al. 2020): actors have no weights. One server decides for all of them, in large batches.

    actors --what they see--> inference --rollouts--> queue --first come--> learner
           <----actions------     ^                                            |
                                  +------- parameters <-------weights---------+

Where networks are large or actors have weak processors, central inference is cheaper; observations are sent at every
step instead of weights. V-trace corrects for weights that changed while a rollout was made.
"""

import dataclasses
from typing import TYPE_CHECKING

from shoal.cluster.recipes._recipe import Recipe
from shoal.cluster.services.dataset import Queue
from shoal.cluster.workers.inference import InferenceServer
from shoal.cluster.workers.learner import LearnerWorker
from shoal.cluster.workers.stepping import SteppingActor, num_slices

if TYPE_CHECKING:
    from shoal.cluster.training import TrainingSupervisor


@dataclasses.dataclass(frozen=True)
class Seed(Recipe):
    """An inference server between actors and queue."""

    def start(self, supervisor: "TrainingSupervisor") -> None:
        """The learner takes rollouts of half an actor's copies each, twice as many of them."""
        self.services(supervisor)
        parts = supervisor.plan.actors * num_slices(supervisor.plan.share(supervisor.experiment))
        plan = dataclasses.replace(supervisor.plan, actors=parts)
        supervisor.service("dataset", Queue, plan.capacity)
        others, store = dict(supervisor.services), supervisor.launcher.store
        supervisor.service("inference", InferenceServer, supervisor.experiment.to_dict(), others, store)
        supervisor.learner(LearnerWorker, plan=plan)
        for number in range(supervisor.plan.actors):
            self.actor(supervisor, number)

    def actor(self, supervisor: "TrainingSupervisor", number: int) -> None:
        supervisor.actor(SteppingActor, number)


RECIPE = Seed("seed", "one server decides for actors that have no weights; V-trace", sync="async", corrects_lag=True)
