"""Proximal policy optimisation: IPPO with the critic on the agent's own observation, MAPPO with it on the global state.

Papers: Schulman et al. 2017 (PPO), de Witt et al. 2020 (IPPO), Yu et al. 2022 (MAPPO). With r = π(a) / π_old(a), GAE
advantages A and value targets G, every minibatch step descends the mean of

    -min(r A, clip(r, 1 - ε, 1 + ε) A)  -  c_entropy H(π)  +  c_value / 2 (V - G)².

Departures: minibatches are made of whole environments, not single samples (the copies are independent, and gathering
whole ones is several times cheaper); the value loss is not clipped; returns run over an agent's own decisions
(`ops.returns`). Shape letters: `T` time, `E` environments, `n` agents of a group.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from shoal.algorithms.on_policy import Batch, LearnerState, Metrics, OnPolicy, take_envs
from shoal.core.algorithm import Experience, Traits
from shoal.core.checks import check_positive
from shoal.core.errors import require_positive
from shoal.networks.actor_critic import Evaluation
from shoal.ops.gradients import shuffle_envs
from shoal.ops.losses import approx_kl, clipped_surrogate
from shoal.ops.scan_metrics import pack_metrics


@dataclasses.dataclass(frozen=True)
class PPO(OnPolicy):
    """Several epochs of minibatch steps on the clipped objective."""

    name: ClassVar[str] = "ppo"

    clip_eps: float = 0.2  # how far the probability ratio may move
    epochs: int = 4  # passes over the batch
    minibatches: int = 4  # parts each pass is cut into; must divide the number of copies

    def __post_init__(self):
        super().__post_init__()
        require_positive("PPO", epochs=self.epochs, minibatches=self.minibatches)
        check_positive(self, "clip_eps")

    @property
    def traits(self) -> Traits:
        return dataclasses.replace(super().traits, minibatches=self.minibatches)

    def update(
        self, state: LearnerState, experience: Experience, key: jax.Array, axis: str | None = None
    ) -> tuple[LearnerState, Metrics]:
        """Advantages, then epochs of minibatch steps; metrics are means over all steps."""
        self = self.traced(state.hyper)
        state, batches = self.prepare(state, experience, axis)

        def minibatch(state, envs):
            gradients, metrics = self.gradients(state, take_envs(batches, envs), axis)
            return self.apply(state, gradients), pack_metrics(metrics)

        envs = shuffle_envs(key, experience.first.shape[1], self.epochs, self.minibatches, axis)
        state, metrics = lax.scan(minibatch, state, envs)
        return self.count_update(state), metrics.means()

    def loss(self, new: Evaluation, batch: Batch) -> tuple[jax.Array, Metrics]:
        """The clipped surrogate, the entropy bonus and the squared error of the value."""
        log_ratio = new.log_prob - batch.log_prob
        surrogate = clipped_surrogate(jnp.exp(log_ratio), batch.advantage, self.clip_eps)
        policy_loss = batch.mean_active(surrogate)
        entropy = batch.mean_active(new.entropy)
        value_loss = batch.mean_present(jnp.square(new.value - batch.target))
        loss = policy_loss - self.entropy_coef * entropy + 0.5 * self.value_coef * value_loss
        metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "loss": loss}
        return loss, metrics | {"approx_kl": batch.mean_active(approx_kl(log_ratio))}
