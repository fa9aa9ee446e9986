"""Importance-weighted actor-learners: actor-critic whose returns are corrected for who really acted; also APPO.

Papers: Espeholt et al. 2018 (IMPALA, V-trace); the clipped variant is known as APPO (asynchronous PPO, of RLlib). The
weights that learn evaluate the whole rollout, recurrent or not, and V-trace turns what the acting policy μ got into
targets for the learning policy π: with ρ = min(`rho_clip`, π / μ) and c = λ min(`c_clip`, π / μ),

    v_t = V_t + ρ_t (r_t + γ V_{t+1} - V_t) + γ c_t (v_{t+1} - V_{t+1}),    A_t = ρ_t (r_t + γ v_{t+1} - V_t),

so the actors may be some updates behind. On fresh experience with `rho_clip` = `c_clip` = 1 a step is A2C's. `clipped`
replaces -A log π by PPO's objective on the ratio π / μ; the advantage then goes without ρ, which the ratio stands for.

Departures: Adam instead of RMSProp; means instead of sums over the batch; returns over own decisions (`ops.returns`);
λ as in `ops.returns.vtrace`; several epochs of minibatches if wanted; APPO has no target network. The value of a
truncated episode's final view is the one that the acting policy gave it, and the carry that the view after the rollout
is valued with is the actor's. With a mixer (see `vdac`) the ratio is that of the joint action: the product over the
team.
Shape letters: `T` time, `E` environments, `n` agents of a group.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax

from shoal.algorithms import on_policy as ac
from shoal.algorithms import vdac
from shoal.algorithms._batch import (
    Batch,
    Last,
    Policy,
    Trail,
    natural_value,
    normalised_view,
    scaled_target,
    trail_of,
)
from shoal.algorithms.ppo import approx_kl, clipped_objective, minibatch_epochs
from shoal.batching.agents import pick, place
from shoal.core.algorithm import Experience, Traits, Trajectory
from shoal.core.checks import check_positive
from shoal.core.errors import require_positive
from shoal.core.types import PyTree
from shoal.ops.returns import vtrace


@dataclasses.dataclass(frozen=True)
class Impala(ac.ActorCriticLearner):
    """V-trace at every gradient step; one full-batch step a rollout unless `epochs` and `minibatches` say otherwise."""

    name: ClassVar[str] = "impala"
    # Options without an effect unless the switch that they name is on.
    only_with: ClassVar[Mapping[str, str]] = {"clip_eps": "clipped"}

    learning_rate: float = 1e-3  # Adam's step size
    gae_lambda: float = 1.0  # trace decay per own decision, λ of V-trace
    normalise_advantages: bool = False  # zero mean, unit variance in each minibatch
    rho_clip: float = 1.0  # ceiling of the importance ratio that weighs a decision
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
        self, state: ac.LearnerState, experience: Experience, key: jax.Array, axis: str | None = None
    ) -> tuple[ac.LearnerState, dict[str, jax.Array]]:
        """Gradient steps, each with returns of its own; metrics are means over all steps."""
        state, batches = self.prepare(state, experience, axis)
        if self.epochs > 1 or self.minibatches > 1:
            return minibatch_epochs(self, state, batches, key, axis)
        gradients, metrics = self.gradients(state, batches, axis)
        state = self.apply(state, gradients)
        return state.replace(updates=state.updates + 1), metrics

    def gradients(
        self, state: ac.LearnerState, batches: dict[str, Batch], axis: str | None = None
    ) -> tuple[PyTree, dict[str, jax.Array]]:
        """Gradients of the loss on a batch, by group, and metrics; summed over devices."""
        if self.normalise_advantages:  # their mean is that of all chunks and devices, so V-trace must come first
            weights = ac.weights_of(state)
            judged = {name: ac.evaluate(state.params[name], weights[name], batch) for name, batch in batches.items()}
            traced = self.revised(state, weights, batches, judged)
            batches = {name: batch.replace(trail=None, last=None) for name, batch in traced.items()}
        return super().gradients(state, batches, axis)

    def decision_losses(self, hyper: dict[str, jax.Array], log_prob: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """The policy gradient or the clipped objective, and how far the policy is from the one that acted."""
        log_ratio = log_prob - batch.log_prob
        if self.clipped:
            loss = clipped_objective(log_ratio, batch.advantage, hyper["clip_eps"])
        else:
            loss = -log_prob * batch.advantage
        return {"policy_loss": loss, "approx_kl": approx_kl(log_ratio)}

    def revised(
        self, state: ac.LearnerState, weights: PyTree, batches: dict[str, Batch], judged: dict[str, Any]
    ) -> dict[str, Batch]:
        """The batches with V-trace's advantages and targets under `weights`, which they are constants to."""
        if any(batch.trail is None for batch in batches.values()):
            return batches
        weights, judged = lax.stop_gradient((weights, judged))
        policies = {name: state.params[name].replace(weights=weights[name]) for name in batches}
        if state.team is not None:
            team = state.team.replace(weights=weights.get(vdac.MIXER, ()))
            return self._team_traced(state.hyper, team, policies, batches, judged)
        return {name: self._traced(state.hyper, policies[name], b, judged[name]) for name, b in batches.items()}

    def _batch(self, policy: Policy, track: Trajectory, experience: Experience, hyper: dict[str, jax.Array]) -> Batch:
        """As for all, where only the statistics of values use the targets; and what V-trace needs to make others."""
        batch = super()._batch(policy, track, experience, hyper)
        seen = track.last_observation.replace(view=normalised_view(policy, track.last_observation.view))
        trail = trail_of(track, experience, self._movers(policy, track))
        return batch.replace(trail=trail, last=Last(seen, track.last_memory))

    def _traced(self, hyper: dict[str, jax.Array], policy: Policy, batch: Batch, judged: Any) -> Batch:
        trail = _present(batch.trail)
        log_prob, _, value = judged
        log_ratio, value = log_prob - batch.log_prob, natural_value(policy.value_stats, value)
        if trail.movers is not None:  # V-trace does not read what those who wait would have given
            empty = jnp.zeros_like(trail.reward)
            log_ratio, value = place((log_ratio, value), trail.movers, (empty, empty))
        steps = {
            "reward": trail.reward,
            "terminated": trail.terminated[..., None],
            "truncated": trail.truncated[..., None],
            "active": trail.active,
            "present": trail.present,
        }
        values = {"value": value, "final_value": trail.final_value, "last_value": self._value_after(policy, batch)}
        advantage, target = self._vtrace(hyper, log_ratio, steps, values)
        if trail.movers is not None:
            advantage, target = pick((advantage, target), trail.movers)
        return batch.replace(advantage=advantage, target=scaled_target(policy.value_stats, target))

    def _team_traced(
        self,
        hyper: dict[str, jax.Array],
        team: vdac.Team,
        policies: dict[str, Policy],
        batches: dict[str, Batch],
        judged: dict[str, Any],
    ) -> dict[str, Batch]:
        trails = {name: _present(batch.trail) for name, batch in batches.items()}
        one = next(iter(batches.values()))
        states = one.observation.state, one.last.observation.state if one.last else None
        values = {name: value for name, (_, _, value) in judged.items()}
        last_values = {name: self._value_after(policies[name], batch) for name, batch in batches.items()}
        worth = vdac.team_values(self.mixer, team, trails, values, last_values, states)
        ratios = {name: judged[name][0] - batch.log_prob for name, batch in batches.items()}
        joint = sum(jnp.sum(_where(trails[name].active, ratio), -1) for name, ratio in ratios.items())
        advantage, target = self._vtrace(hyper, jnp.asarray(joint), vdac.team_steps(trails), worth)
        return vdac.everybodys(batches, advantage, scaled_target(team.value_stats, target))

    def _vtrace(
        self, hyper: dict[str, jax.Array], log_ratio: jax.Array, steps: dict[str, Any], values: dict[str, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        clips = {"rho_clip": hyper["rho_clip"], "c_clip": hyper["c_clip"]}
        advantage, target = vtrace(log_ratio, **steps, **values, gamma=hyper["gamma"], lam=hyper["gae_lambda"], **clips)
        if self.clipped:
            rho = jnp.minimum(jnp.exp(log_ratio), hyper["rho_clip"])
            advantage = advantage / jnp.maximum(rho, jnp.finfo(rho.dtype).tiny)
        return advantage, target

    def _value_after(self, policy: Policy, batch: Batch) -> jax.Array:
        """Values of the views after the last step, which are normalised already."""
        last = batch.last
        assert last is not None
        return self.last_value(policy.replace(view_stats=None), last.observation, last.memory)


def _present(trail: Trail | None) -> Trail:
    assert trail is not None
    return trail


def _where(mask: jax.Array | None, values: jax.Array) -> jax.Array:
    return values if mask is None else jnp.where(mask, values, 0.0)
