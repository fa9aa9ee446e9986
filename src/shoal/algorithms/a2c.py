"""Advantage actor-critic: one gradient step on the whole batch, then the experience is thrown away.

Paper: Mnih et al. 2016 (the synchronous form). Departures: advantages by λ-returns over own decisions, Adam instead of
RMSProp. Shape letters: `T` time, `E` environments, `n` agents of a group.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from shoal.algorithms import _actor_critic as ac
from shoal.core.algorithm import Experience
from shoal.core.errors import require_positive
from shoal.core.types import PyTree


@dataclasses.dataclass(frozen=True)
class A2C(ac.ActorCriticLearner):
    """One full-batch step a rollout."""

    name: ClassVar[str] = "a2c"

    learning_rate: float = 1e-3  # Adam's step size
    gae_lambda: float = 1.0  # trace decay per own decision
    normalise_advantages: bool = False  # zero mean, unit variance over the batch
    chunks: int = 1  # the gradient is summed over this many parts of the batch, to save memory; must divide the copies

    def __post_init__(self):
        super().__post_init__()
        require_positive("A2C", chunks=self.chunks)

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
        totals = {}
        for name, batch in batches.items():
            if self.normalise_advantages:
                batches = batches | {name: batch.replace(advantage=ac.normalised_advantage(batch, axis))}
            actor = ac.total_weight(batch.actor_weight, batch.advantage, axis)
            totals[name] = actor, ac.total_weight(batch.critic_weight, batch.target, axis)

        def loss(weights, batches):
            parts = {name: self._loss(state, weights[name], name, b, totals[name]) for name, b in batches.items()}
            metrics = {f"{metric}/{name}": v for name, (_, m) in parts.items() for metric, v in m.items()}
            return sum(part for part, _ in parts.values()), metrics

        gradient = jax.grad(loss, has_aux=True)
        weights = ac.weights_of(state)
        if self.chunks == 1:
            return ac.combine(*gradient(weights, batches), axis)

        def add(total, chunk):
            return jax.tree.map(jnp.add, total, gradient(weights, chunk)), None

        chunks = _split_envs(batches, self.chunks)
        shapes = jax.eval_shape(gradient, weights, jax.tree.map(lambda leaf: leaf[0], chunks))
        total, _ = lax.scan(add, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes), chunks)
        return ac.combine(*total, axis)

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


def _split_envs(batches: dict[str, ac.Batch], chunks: int) -> dict[str, ac.Batch]:
    """Cuts the environments into chunks, along a new leading axis."""

    def cut(leaf: jax.Array, axis: int) -> jax.Array:
        parts = leaf.reshape(*leaf.shape[:axis], chunks, -1, *leaf.shape[axis + 1 :])
        return jnp.moveaxis(parts, axis, 0)

    def one(batch: ac.Batch) -> ac.Batch:
        timed = jax.tree.map(lambda leaf: cut(leaf, 1), batch.replace(memory=()))
        return timed.replace(memory=jax.tree.map(lambda leaf: cut(leaf, 0), batch.memory))

    return {name: one(batch) for name, batch in batches.items()}
