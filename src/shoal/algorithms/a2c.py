"""Advantage actor-critic: one gradient step on the whole batch, then the experience is thrown away.

Paper: Mnih et al. 2016 (the synchronous form). Departures: advantages by λ-returns over own decisions, Adam instead of
RMSProp. Shape letters: `T` time, `E` environments, `n` agents of a group.
"""

import dataclasses
from typing import ClassVar

import jax

from shoal.algorithms import on_policy as ac
from shoal.core.algorithm import Experience, SplitsUpdate


@dataclasses.dataclass(frozen=True)
class A2C(ac.ActorCriticLearner, SplitsUpdate):
    """One full-batch step a rollout."""

    name: ClassVar[str] = "a2c"

    learning_rate: float = 1e-3  # Adam's step size
    gae_lambda: float = 1.0  # trace decay per own decision
    normalise_advantages: bool = False  # zero mean, unit variance over the batch

    def update(
        self, state: ac.LearnerState, experience: Experience, key: jax.Array, axis: str | None = None
    ) -> tuple[ac.LearnerState, dict[str, jax.Array]]:
        """Advantages, then one step along the gradient of the whole batch."""
        del key
        state, batches = self.prepare(state, experience, axis)
        gradients, metrics = self.gradients(state, batches, axis)
        return self.count_update(self.apply(state, gradients)), metrics

    def decision_losses(
        self, hyper: dict[str, jax.Array], log_prob: jax.Array, batch: ac.Batch
    ) -> dict[str, jax.Array]:
        """The plain policy gradient."""
        del hyper
        return {"policy_loss": -log_prob * batch.advantage}
