"""Advantage actor-critic: one gradient step on the whole batch, then the experience is thrown away.

Paper: Mnih et al. 2016 (the synchronous form). Departures: advantages by λ-returns over own decisions, Adam instead of
RMSProp. Shape letters: `T` time, `E` environments, `n` agents of a group.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from shoal.algorithms import _actor_critic as ac
from shoal.core.algorithm import Experience
from shoal.core.types import PyTree


@dataclasses.dataclass(frozen=True)
class A2C(ac.ActorCriticLearner):
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
        state = self.apply(state, gradients)
        return state.replace(updates=state.updates + 1), metrics

    def gradients(
        self, state: ac.LearnerState, batches: dict[str, ac.Batch], axis: str | None = None
    ) -> tuple[PyTree, dict[str, jax.Array]]:
        """Gradients of the loss on the batch, by group, and metrics; summed over devices."""
        if self.normalise_advantages:
            batches = {name: ac.normalise_advantage(batch, axis) for name, batch in batches.items()}
        totals = {name: ac.total_weights(batch, axis) for name, batch in batches.items()}

        def loss(weights, batches):
            parts = {name: self._loss(state, weights[name], name, b, totals[name]) for name, b in batches.items()}
            metrics = {f"{metric}/{name}": v for name, (_, m) in parts.items() for metric, v in m.items()}
            return sum(part for part, _ in parts.values()), metrics

        gradients, metrics = ac.chunked_gradient(loss, ac.weights_of(state), batches, self.chunk_samples)
        return ac.combine(gradients, metrics, axis)

    def _loss(self, state, weights, name, batch, totals):
        log_prob, entropy, value = ac.evaluate(state.params[name], weights, batch)
        actor_total, critic_total = totals
        metrics = {
            "policy_loss": -ac.weighted_sum(log_prob * batch.advantage, batch.actor_weight) / actor_total,
            "value_loss": ac.weighted_sum(jnp.square(value - batch.target), batch.critic_weight) / critic_total,
            "entropy": ac.weighted_sum(entropy, batch.actor_weight) / actor_total,
        }
        loss = (
            metrics["policy_loss"]
            + 0.5 * state.hyper["value_coef"] * metrics["value_loss"]
            - state.hyper["entropy_coef"] * metrics["entropy"]
        )
        return loss, metrics | {"loss": loss}
