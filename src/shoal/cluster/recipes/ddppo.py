r"""DD-PPO (Wijmans et al. 2020): no centre. Every learner steps its own copies; gradients are averaged among them.

    learner-0 <--gradients, averaged--> learner-1 <--gradients, averaged--> learner-2 ...
       \________________________ meeting: who is there, who has finished ________/

No rollouts and no weights travel: all learners begin with the same weights and make the same updates. It gives the
weights of one learner on the same copies, however many there are. With `backups`, an update does not wait for the
slowest so many (the paper's preemption: 2 of 5 learners are its 60 %): they stop early, see `group`.
"""

import dataclasses
import math
from typing import TYPE_CHECKING

from shoal.cluster.plan import ClusterPlan
from shoal.cluster.recipes._recipe import Recipe
from shoal.cluster.services.coordinator import Coordinator
from shoal.cluster.workers.group import GroupLearner, Rendezvous
from shoal.core.algorithm import Algorithm
from shoal.core.errors import OptionError
from shoal.training.experiment import Experiment

if TYPE_CHECKING:
    from shoal.cluster.training import TrainingSupervisor


@dataclasses.dataclass(frozen=True)
class DDPPO(Recipe):
    """Learners and a rendezvous."""

    def share(self, experiment: Experiment, plan: ClusterPlan) -> int:
        return experiment.num_envs // plan.learners

    def lacks(self, algorithm: Algorithm) -> str | None:
        """A rollout that ends early has the value of what is seen last, and nothing that a replay would need."""
        if algorithm.traits.replay is not None or algorithm.traits.records_final_observations:
            return "learns from rollouts alone, without a replay or final observations (traits.replay, ...)"
        return super().lacks(algorithm)

    def check(self, experiment: Experiment, plan: ClusterPlan) -> None:
        super().check(experiment, plan)
        parts = math.lcm(*(learner.algorithm.traits.minibatches for learner in experiment.learners.values()))
        if experiment.num_envs % (plan.learners * parts):
            least = -(-experiment.num_envs // (plan.learners * parts)) * plan.learners * parts
            raise OptionError(
                f"cluster: num_envs must be a multiple of {plan.learners * parts} ({plan.learners} learners x {parts} "
                f"minibatches), got {experiment.num_envs}. Try {least}."
            )
        if experiment.eval_every:
            raise OptionError(
                "cluster: learners of the recipe ddppo wait for each other in every update, also for one that "
                f"evaluates, got eval_every {experiment.eval_every}: leave it out, or choose the recipe sync"
            )
        if plan.backups >= plan.learners:
            raise OptionError(
                f"cluster: backups must be less than the number of learners, {plan.learners}, got {plan.backups}"
            )

    def start(self, supervisor: "TrainingSupervisor") -> None:
        """Starts equal learners, of which the first writes checkpoints and metrics."""
        plan = supervisor.plan
        supervisor.service("coordinator", Coordinator, supervisor.path, plan, supervisor.experiment.num_updates)
        supervisor.service("meeting", Rendezvous, plan.learners)
        for rank in range(plan.learners):
            supervisor.learner(GroupLearner, rank, supervisor.launcher.private, number=rank)


RECIPE = DDPPO(
    "ddppo",
    "learners that step their own copies and average gradients",
    "sync",
    acts=False,
    takes=("learners", "backups"),
)
