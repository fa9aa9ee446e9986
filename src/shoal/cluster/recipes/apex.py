"""Ape-X (Horgan et al. 2018): many actors fill a prioritised replay, one learner learns from it.

    actors --steps and priorities--> replay shards --windows--> learner --weights--> parameters --> actors
                                          ^-------priorities-------+

Every actor has its own degree of exploration and computes the initial priorities of its steps with the weights that it
acted with; the learner only corrects those of windows that it has learnt from.
"""

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from shoal.cluster.plan import ClusterPlan
from shoal.cluster.recipes._recipe import Recipe
from shoal.cluster.replay.actor import ReplayActor, replay_traits, replaying_learners, tables_of
from shoal.cluster.replay.learner import LEAD, ReplayLearner
from shoal.cluster.replay.service import ReplayService
from shoal.core.algorithm import Prioritises
from shoal.core.errors import OptionError
from shoal.training.experiment import Experiment
from shoal.training.fused import check_warm_up

if TYPE_CHECKING:
    from shoal.cluster.training import TrainingSupervisor


@dataclasses.dataclass(frozen=True)
class Replayed(Recipe):
    """Actors fill the shards of a replay. estimates: whether they set priorities and have a ladder of exploration."""

    estimates: ClassVar[bool] = True

    def check(self, experiment: Experiment, plan: ClusterPlan) -> None:
        super().check(experiment, plan)
        check_warm_up(experiment)
        for name, (algorithm, _) in replaying_learners(experiment.setup).items():
            if self.estimates and not replay_traits(algorithm).prioritised:
                raise OptionError(
                    f"cluster: the recipe {self.name} draws by priority, but learner {name!r} has prioritised=False. "
                    "Set it to True (--algo.prioritised), or choose --recipe gorila."
                )

    def start(self, supervisor: "TrainingSupervisor") -> None:
        self.services(supervisor)
        self.replay(supervisor)
        supervisor.learner(ReplayLearner)
        for number in range(supervisor.plan.actors):
            self.actor(supervisor, number)

    def replay(self, supervisor: "TrainingSupervisor") -> None:
        """The shards; each may take in its share of what actors may be ahead."""
        plan, experiment = supervisor.plan, supervisor.experiment
        tables = tables_of(experiment.setup)
        room = -(-LEAD * experiment.num_envs * experiment.num_steps // plan.shards)
        for number in range(plan.shards):
            folder, seconds = f"{supervisor.path}/replay/{number}", max(plan.commit_seconds, 5.0)
            seed = experiment.seed + number
            supervisor.service(f"replay-{number}", ReplayService, tables, room, folder, seconds, seed)

    def actor(self, supervisor: "TrainingSupervisor", number: int) -> None:
        supervisor.actor(ReplayActor, number, supervisor.plan.actors, self.estimates)


RECIPE = Replayed(
    "apex",
    "actors with priorities, one learner, a replay between them",
    "async",
    protocol=Prioritises,
    takes=("shards",),
)
