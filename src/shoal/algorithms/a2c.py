"""Advantage actor-critic: one gradient step on the whole batch, after which the experience is discarded.

Paper: Mnih et al. 2016 (the synchronous form). With advantages A and value targets G, the step descends the mean of

    -A log π(a)  -  c_entropy H(π)  +  c_value / 2 (V - G)².

Departures: advantages by λ-returns over own decisions, Adam instead of RMSProp. Shape letters: `T` time, `E`
environments, `n` agents of a group.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from shoal.algorithms.on_policy import Batch, LearnerState, Metrics, OnPolicy
from shoal.core.algorithm import Experience, SplitsUpdate
from shoal.networks.actor_critic import Evaluation
from shoal.ops.losses import policy_gradient


@dataclasses.dataclass(frozen=True)
class A2C(OnPolicy, SplitsUpdate):
    """One full-batch step per rollout."""

    name: ClassVar[str] = "a2c"

    learning_rate: float = 1e-3  # Adam's step size
    gae_lambda: float = 1.0  # trace decay per own decision
    normalise_advantages: bool = False  # zero mean, unit variance over the batch

    def update(
        self, state: LearnerState, experience: Experience, key: jax.Array, axis: str | None = None
    ) -> tuple[LearnerState, Metrics]:
        """Advantages, then one step along the gradient of the whole batch."""
        del key
        self = self.traced(state.hyper)
        state, batches = self.prepare(state, experience, axis)
        state, metrics = self.step(state, batches, axis)
        return self.count_update(state), metrics

    def loss(self, new: Evaluation, batch: Batch) -> tuple[jax.Array, Metrics]:
        """The policy gradient, the entropy bonus and the squared error of the value."""
        policy_loss = batch.mean_active(policy_gradient(new.log_prob, batch.advantage))
        entropy = batch.mean_active(new.entropy)
        value_loss = batch.mean_present(jnp.square(new.value - batch.target))
        loss = policy_loss - self.entropy_coef * entropy + 0.5 * self.value_coef * value_loss
        return loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "loss": loss}
