"""Ape-X (Horgan et al. 2018): many actors fill a prioritised replay, one learner learns from it.

    actors --steps and priorities--> replay shards --windows--> learner --weights--> parameters --> actors
                                          ^-------priorities-------+

Every actor explores to its own degree, and values what it did with the weights that it did it with, so that new steps
come with priorities; the learner only corrects those of windows that it has learnt from.
"""

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from shoal.cluster.plan import Plan
from shoal.cluster.recipes._recipe import Recipe
from shoal.cluster.replay.actor import ReplayActor, replay_traits, replaying, tables_of
from shoal.cluster.replay.learner import LEAD, ReplayLearner
from shoal.cluster.replay.service import ReplayService
from shoal.core.algorithm import Prioritises
from shoal.core.errors import OptionError
from shoal.training.experiment import Experiment, cast
from shoal.training.fused import check_warm_up

if TYPE_CHECKING:
    from shoal.cluster.supervisor import Supervisor


@dataclasses.dataclass(frozen=True)
class Replayed(Recipe):
    """Actors fill the shards of a replay. estimates: whether they set priorities and have a ladder of exploration."""

    estimates: ClassVar[bool] = True

    def check(self, experiment: Experiment, plan: Plan) -> None:
        super().check(experiment, plan)
        check_warm_up(experiment)
        for name, (algorithm, _) in replaying(cast(experiment)).items():
            if self.estimates and not replay_traits(algorithm).prioritised:
                raise OptionError(
                    f"cluster: the recipe {self.name} draws by priority, but learner {name!r} has prioritised=False. "
                    "Set it to True (--algo.prioritised), or choose --recipe gorila."
                )

    def start(self, site: "Supervisor") -> None:
        self.services(site)
        self.replay(site)
        site.learner(ReplayLearner, site.experiment.to_dict(), site.path, site.plan, site.services, site.fabric.store)
        for number in range(site.plan.actors):
            self.actor(site, number)

    def replay(self, site: "Supervisor") -> None:
        """The shards; each may take in its share of what actors may be ahead."""
        tables, shards = tables_of(cast(site.experiment)), site.plan.shards
        room = -(-LEAD * site.experiment.num_envs * site.experiment.num_steps // shards)
        for number in range(shards):
            folder, seconds = f"{site.path}/replay/{number}", max(site.plan.commit_seconds, 5.0)
            seed = site.experiment.seed + number
            site.service(f"replay-{number}", ReplayService, tables, room, folder, seconds, seed)

    def actor(self, site: "Supervisor", number: int) -> None:
        plan, experiment = site.plan, site.experiment
        made = (experiment.to_dict(), number, plan.share(experiment), site.services, site.fabric.store)
        site.actor(number, ReplayActor, *made, plan.actors, self.estimates)


RECIPE = Replayed(
    "apex",
    "actors with priorities, one learner, a replay between them",
    "async",
    protocol=Prioritises,
    takes=("shards",),
)
