"""SEED (Espeholt et al. 2020): actors have no weights. One server decides for all of them, in large batches.

    actors --what they see--> inference --rollouts--> queue --first come--> learner
           <----actions------     ^                                            |
                                  +------- parameters <-------weights---------+

Where networks are large or actors have weak processors, decisions are cheaper in one place; what travels is what is
seen, at every step, and not weights. V-trace corrects for weights that changed while a rollout was made.
"""

import dataclasses
from typing import TYPE_CHECKING

from shoal.cluster.recipes._recipe import Recipe
from shoal.cluster.services.dataset import Queue
from shoal.cluster.workers.inference import InferenceServer
from shoal.cluster.workers.learner import Learner
from shoal.cluster.workers.stepping import SteppingActor, num_halves

if TYPE_CHECKING:
    from shoal.cluster.supervisor import Supervisor


@dataclasses.dataclass(frozen=True)
class Seed(Recipe):
    """An inference server between actors and queue."""

    def start(self, site: "Supervisor") -> None:
        """The learner takes rollouts of half an actor's copies each, twice as many of them."""
        self.services(site)
        parts = site.plan.actors * num_halves(site.plan.share(site.experiment))
        plan, experiment = dataclasses.replace(site.plan, actors=parts), site.experiment.to_dict()
        site.service("dataset", Queue, plan.capacity)
        site.service("inference", InferenceServer, experiment, dict(site.services), site.fabric.store)
        site.learner(Learner, experiment, site.path, plan, site.services, site.fabric.store)
        for number in range(site.plan.actors):
            self.actor(site, number)

    def actor(self, site: "Supervisor", number: int) -> None:
        share = site.plan.share(site.experiment)
        site.actor(number, SteppingActor, site.experiment.to_dict(), number, share, site.services, site.fabric.store)


RECIPE = Seed(
    "seed", "one server decides for actors that have no weights; V-trace", sync="async", algorithms=("impala",)
)
