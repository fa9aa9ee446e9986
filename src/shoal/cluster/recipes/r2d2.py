"""R2D2 (Kapturowski et al. 2019): Ape-X with memory. What the network remembered is stored with every step.

    actors --steps, memories and priorities--> replay shards --sequences--> learner --weights--> parameters --> actors
                                                    ^----------priorities------+

Windows are sequences; the first `burn_in` steps of each bring the stored memory up to date with the weights that learn.
"""

import dataclasses

import jax

from shoal.cluster.plan import ClusterPlan
from shoal.cluster.recipes.apex import Replayed
from shoal.cluster.replay.actor import replaying_learners
from shoal.core.algorithm import Algorithm, LearnerSpec, Prioritises
from shoal.core.errors import OptionError
from shoal.core.types import PyTree
from shoal.training.experiment import Experiment


def has_memory(algorithm: Algorithm, spec: LearnerSpec) -> bool:
    """Whether the policies of an algorithm remember anything."""

    def memories() -> PyTree:
        policies = algorithm.init(jax.random.key(0), spec).params.values()
        return [algorithm.initial_memory(policy) for policy in policies]

    return bool(jax.tree.leaves(jax.eval_shape(memories)))


@dataclasses.dataclass(frozen=True)
class Sequences(Replayed):
    """A replay of sequences for networks with a memory."""

    def check(self, experiment: Experiment, plan: ClusterPlan) -> None:
        super().check(experiment, plan)
        for name, (algorithm, spec) in replaying_learners(experiment.setup).items():
            if not has_memory(algorithm, spec):
                raise OptionError(
                    f"cluster: the recipe r2d2 is for networks with a memory, but learner {name!r} has "
                    "network.recurrent='none'. Set it to 'gru' (--algo.network.recurrent gru), or choose --recipe apex."
                )


RECIPE = Sequences(
    "r2d2",
    "Ape-X with recurrent networks, stored memories and burn-in",
    "async",
    protocol=Prioritises,
    takes=("shards",),
)
