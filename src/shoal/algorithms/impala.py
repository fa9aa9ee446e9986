"""Importance-weighted actor-learners: actor-critic whose returns are corrected for the policy that acted; also APPO.

Papers: Espeholt et al. 2018 (IMPALA, V-trace); the clipped variant is known as APPO (asynchronous PPO, of RLlib). The
learning weights evaluate the whole rollout, recurrent or not, and V-trace turns the returns of the acting policy
μ into targets for the learning policy π: with ρ = min(`rho_clip`, π / μ) and c = λ min(`c_clip`, π / μ),

    v_t = V_t + ρ_t (r_t + γ V_{t+1} - V_t) + γ c_t (v_{t+1} - V_{t+1}),    A_t = ρ_t (r_t + γ v_{t+1} - V_t),

so the actors may be some updates behind. Every step descends the mean of

    -A log π(a)  -  c_entropy H(π)  +  c_value / 2 (V - v)².

On fresh experience with `rho_clip` = `c_clip` = 1 a step is A2C's. `clipped` replaces -A log π by PPO's objective on
the ratio π / μ; the advantage then has no factor ρ, which the ratio replaces.

Departures: Adam instead of RMSProp; means instead of sums over the batch; returns over own decisions (`ops.returns`);
λ as in `ops.returns.vtrace`; several epochs of minibatches if wanted; APPO has no target network. The value of a
truncated episode's final observation is the one that the acting policy gave it, and the memory that the observation
after the rollout is valued with is the actor's. With a mixer (see `vdac`) the ratio is that of the joint action: the
product over the team.
Shape letters: `T` time, `E` environments, `n` agents of a group.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from shoal.algorithms.on_policy import Batch, Batches, Evaluations, LearnerState, Metrics, OnPolicy, take_envs
from shoal.batching.agents import place
from shoal.core.algorithm import Experience, Traits
from shoal.core.checks import check_positive
from shoal.core.errors import require_positive
from shoal.core.types import PyTree
from shoal.networks.actor_critic import Evaluation
from shoal.ops.gradients import shuffle_envs
from shoal.ops.losses import approx_kl, clipped_surrogate, policy_gradient
from shoal.ops.normalisation import denormalise
from shoal.ops.returns import vtrace
from shoal.ops.scan_metrics import pack_metrics


@dataclasses.dataclass(frozen=True)
class Impala(OnPolicy):
    """V-trace at every gradient step; one full-batch step per rollout, or epochs of minibatches."""

    name: ClassVar[str] = "impala"
    # Options without an effect unless the switch that they name is on.
    only_with: ClassVar[Mapping[str, str]] = {"clip_eps": "clipped"}

    learning_rate: float = 1e-3  # Adam's step size
    gae_lambda: float = 1.0  # trace decay per own decision, λ of V-trace
    normalise_advantages: bool = False  # zero mean, unit variance in each minibatch
    rho_clip: float = 1.0  # ceiling of the importance ratio that weights a decision
    c_clip: float = 1.0  # ceiling of the importance ratio that traces are cut by
    clipped: bool = False  # PPO's clipped objective against the policy that acted (APPO)
    clip_eps: float = 0.2  # how far the probability ratio may move, if clipped
    epochs: int = 1  # passes over the batch
    minibatches: int = 1  # parts each pass is cut into; must divide the number of copies

    def __post_init__(self):
        super().__post_init__()
        require_positive("Impala", epochs=self.epochs, minibatches=self.minibatches)
        check_positive(self, "rho_clip", "c_clip", "clip_eps")

    @property
    def traits(self) -> Traits:
        return dataclasses.replace(super().traits, minibatches=self.minibatches, corrects_lag=True)

    def update(
        self, state: LearnerState, experience: Experience, key: jax.Array, axis: str | None = None
    ) -> tuple[LearnerState, Metrics]:
        """Gradient steps, each with newly computed returns; metrics are means over all steps."""
        self = self.traced(state.hyper)
        state, batches = self.prepare(state, experience, axis)

        def minibatch(state, envs):
            state, metrics = self.step(state, take_envs(batches, envs), axis)
            return state, pack_metrics(metrics)

        if self.epochs == self.minibatches == 1:
            state, metrics = self.step(state, batches, axis)
            return self.count_update(state), metrics
        envs = shuffle_envs(key, experience.first.shape[1], self.epochs, self.minibatches, axis)
        state, metrics = lax.scan(minibatch, state, envs)
        return self.count_update(state), metrics.means()

    def gradients(self, state: LearnerState, batches: Batches, axis: str | None = None) -> tuple[PyTree, Metrics]:
        """Gradients of the loss on the batches, and metrics; summed over devices."""
        self = self.traced(state.hyper)
        if self.normalise_advantages:  # their mean is that of all chunks and devices, so V-trace must come first
            new, batches = super().evaluate(state, state.weights, batches)
            batches = self.correct_returns(state, new, batches)
        return super().gradients(state, batches, axis)

    def evaluate(self, state: LearnerState, weights: PyTree, batches: Batches) -> tuple[Evaluations, Batches]:
        """The outputs of `weights` on the batches, and the batches with V-trace's returns under `weights`."""
        new, batches = super().evaluate(state, weights, batches)
        if not self.normalise_advantages:
            batches = self.correct_returns(state.with_weights(weights), new, batches)
        return new, batches

    def correct_returns(self, state: LearnerState, new: Evaluations, batches: Batches) -> Batches:
        """The batches with V-trace's advantages and targets, which are constants to the gradient.

        new: outputs of the state's weights on the batches.
        """
        state, new = lax.stop_gradient((state, new))
        known = {}
        for name, evaluation in new.items():
            policy, batch = state.params[name], batches[name]
            found = {
                "log_ratio": evaluation.log_prob - batch.log_prob,
                "value": denormalise(policy.value_stats, evaluation.value),
            }
            if batch.movers is not None:  # V-trace does not read the values of waiting agents
                empty = jnp.zeros_like(batch.inputs["reward"])
                found = place(found, batch.movers, dict.fromkeys(found, empty))
            known[name] = found | {"last_value": self.last_value(policy, batch)}
        batches = self.values.add_returns(self.vtrace, state, batches, known)
        return self.values.normalise_targets(state, batches)

    def vtrace(self, inputs: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
        """Advantages and value targets."""
        advantage, target = vtrace(
            **inputs, gamma=self.gamma, lam=self.gae_lambda, rho_clip=self.rho_clip, c_clip=self.c_clip
        )
        if self.clipped:
            rho = jnp.minimum(jnp.exp(inputs["log_ratio"]), self.rho_clip)
            advantage = advantage / jnp.maximum(rho, jnp.finfo(rho.dtype).tiny)
        return advantage, target

    def loss(self, new: Evaluation, batch: Batch) -> tuple[jax.Array, Metrics]:
        """The policy gradient or the clipped surrogate, the entropy bonus and the squared error of the value."""
        log_ratio = new.log_prob - batch.log_prob
        if self.clipped:
            policy_loss = batch.mean_active(clipped_surrogate(jnp.exp(log_ratio), batch.advantage, self.clip_eps))
        else:
            policy_loss = batch.mean_active(policy_gradient(new.log_prob, batch.advantage))
        entropy = batch.mean_active(new.entropy)
        value_loss = batch.mean_present(jnp.square(new.value - batch.target))
        loss = policy_loss - self.entropy_coef * entropy + 0.5 * self.value_coef * value_loss
        metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "loss": loss}
        return loss, metrics | {"approx_kl": batch.mean_active(approx_kl(log_ratio))}
