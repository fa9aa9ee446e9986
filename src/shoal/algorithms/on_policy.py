"""What A2C, PPO and Impala share: policies with an actor and a critic, advantages, losses, gradient steps.

Shape letters: `T` time, `E` environments, `n` agents of a group. The critic sees the agent's own view (independent
learners, IPPO) or the global state beside it (centralised critic, MAPPO); recurrence is a choice of the network. With a
mixer, the critics of all agents together value the team (VDAC, see `vdac`).
"""

import abc
import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax import lax

from shoal.algorithms import vdac
from shoal.algorithms._batch import (
    Batch,
    Policy,
    apply_network,
    as_weight,
    chunked_gradient,
    combine,
    evaluate,
    mover_rows,
    natural_value,
    normalise_advantage,
    normalised_view,
    pick_rows,
    scaled_target,
    take_envs,
    total_weights,
    trail_of,
    weighted_sum,
    with_value_head_kept,
)
from shoal.batching.agents import over_agents
from shoal.core.algorithm import ActOutput, Algorithm, Experience, LearnerSpec, Stochastic, Traits, Trajectory
from shoal.core.checks import check_floats, check_whole
from shoal.core.options import check_types
from shoal.core.types import Group, Observation, PyTree
from shoal.networks.actor_critic import init_weights, make_actor_critic
from shoal.networks.mixers import MixerKind
from shoal.networks.torsos import Network
from shoal.ops import normalisation
from shoal.ops.distributions import MASKED, distribution
from shoal.ops.returns import advantages

__all__ = ["ActorCriticLearner", "Batch", "LearnerState", "Policy", "evaluate", "take_envs", "weights_of"]

VALUE_STATS_DECAY = 0.99
ADAM_EPS = 1e-5


class LearnerState(struct.PyTreeNode):
    """Everything a learner carries from update to update. `hyper` holds its float hyper-parameters, traced.

    team: what mixes the agents' values; None without a mixer.
    """

    params: dict[str, Policy]
    optimiser: PyTree
    hyper: dict[str, jax.Array]
    updates: jax.Array
    team: vdac.Team | None = None


@dataclasses.dataclass(frozen=True)
class ActorCriticLearner(Algorithm, Stochastic):
    """Options and methods common to all (abstract: the policy's loss and the schedule of steps are not)."""

    learning_rate: float = 3e-4  # Adam's step size
    gamma: float = 0.99  # discount per environment step
    gae_lambda: float = 0.95  # trace decay per own decision
    value_coef: float = 0.5  # weight of the value loss
    entropy_coef: float = 0.01  # weight of the entropy bonus
    max_grad_norm: float = 0.5  # gradients are scaled down to this norm
    anneal: bool = False  # learning rate falls linearly to 0
    critic: Literal["own", "global"] = "own"  # what the critic sees: own view, or the global state too
    mixer: MixerKind = "none"  # how the agents' values make up the team's (VDAC); none: everybody for itself
    normalise_views: bool = False  # running mean and variance of the views
    normalise_values: bool = False  # running mean and variance of the value targets
    normalise_advantages: bool = True  # zero mean, unit variance in each minibatch
    chunk_samples: int = 0  # samples whose gradient is computed at once; 0: as many as suits the device
    network: Network = dataclasses.field(default_factory=Network)  # torsos of actor and critic

    def __post_init__(self):
        check_types(self)
        check_floats(self, gamma=(0, 1), gae_lambda=(0, 1), learning_rate=(0, None), value_coef=(0, None))
        check_floats(self, entropy_coef=(0, None), max_grad_norm=(0, None))
        check_whole(self, chunk_samples=0)

    @property
    def traits(self) -> Traits:
        return Traits(needs_global_state=self.critic == "global" or self.mixer == "monotonic")

    def init(self, key: jax.Array, spec: LearnerSpec) -> LearnerState:
        """Fresh policies for the groups of `spec`."""
        keys = jax.random.split(key, len(spec.groups))
        params = {
            name: self._new_policy(k, group, spec) for k, (name, group) in zip(keys, spec.groups.items(), strict=True)
        }
        hyper = self.hyper(spec)
        team = None
        if self.mixer != "none":
            team = vdac.init_team(self.mixer, jax.random.fold_in(key, len(keys)), spec, self.normalise_values)
        optimiser = _optimiser(hyper).init(_weights(params, team))
        return LearnerState(params, optimiser, hyper, jnp.int32(0), team)

    def initial_memory(self, params: Policy) -> PyTree:
        return params.network.initial_memory()

    def act(self, params: Policy, observation: Observation, memory: PyTree, key: jax.Array, explore: bool) -> ActOutput:
        """One agent's action, with its log-probability and value. Greedy if not `explore`."""
        view = normalised_view(params, observation.view)
        parameters, value, memory = apply_network(params.network, params.weights, view, observation.state, memory)
        dist = distribution(params.network.action, parameters, observation.legal)
        action = dist.sample(key) if explore else dist.mode()
        extras = {"log_prob": dist.log_prob(action), "value": natural_value(params.value_stats, value)}
        return ActOutput(action, memory, extras)

    def action_probabilities(
        self, params: Policy, observation: Observation, memory: PyTree
    ) -> tuple[jax.Array, PyTree]:
        """How likely one agent takes each action of a discrete space, and its memory after."""
        view = normalised_view(params, observation.view)
        logits, _, memory = apply_network(params.network, params.weights, view, observation.state, memory)
        legal = True if observation.legal is None else observation.legal
        return jax.nn.softmax(jnp.where(legal, logits, MASKED)), memory

    def value(self, params: Policy, observation: Observation, memory: PyTree) -> jax.Array:
        """What one agent can expect from here on."""
        view = normalised_view(params, observation.view)
        value, _ = apply_network(params.network, params.weights, view, observation.state, memory, method="critic")
        return natural_value(params.value_stats, value)

    def prepare(
        self, state: LearnerState, experience: Experience, axis: str | None = None
    ) -> tuple[LearnerState, dict[str, Batch]]:
        """Advantages and targets for each group; running statistics are brought up to date."""
        params = dict(state.params)
        tracks = experience.trajectories
        batches = {name: self._batch(params[name], track, experience, state.hyper) for name, track in tracks.items()}
        if state.team is not None:
            team, params, returns = self._team_returns(state, state.team, experience, batches, axis)
            state, batches = state.replace(team=team), vdac.everybodys(batches, *returns)
        for name, track in tracks.items():
            policy, batch = params[name], batches[name]
            if policy.value_stats is not None:
                stats = self._new_value_stats(policy.value_stats, batch.target, batch.critic_weight, axis)
                weights = with_value_head_kept(policy.weights, policy.value_stats, stats)
                policy = policy.replace(value_stats=stats, weights=weights)
                batch = batch.replace(target=normalisation.normalise(stats, batch.target))
            batches[name] = batch.replace(
                observation=batch.observation.replace(view=normalised_view(policy, batch.observation.view))
            )
            if self.normalise_views:  # the statistics that acted normalise this batch; the new ones act next
                stats = normalisation.update_tree(
                    policy.view_stats, track.observation.view, track.observation.present, axis=axis
                )
                policy = policy.replace(view_stats=stats)
            params[name] = policy
        return state.replace(params=params), batches

    @abc.abstractmethod
    def decision_losses(self, hyper: dict[str, jax.Array], log_prob: jax.Array, batch: Batch) -> dict[str, jax.Array]:
        """`policy_loss` of each decision `[T, E, n]`, and whatever else is to be averaged over them and logged."""

    def revised(
        self, state: LearnerState, weights: PyTree, batches: dict[str, Batch], judged: dict[str, Any]
    ) -> dict[str, Batch]:
        """The batches with advantages and targets as `weights` see them; as they were prepared, unless overridden."""
        del state, weights, judged
        return batches

    def gradients(
        self, state: LearnerState, batches: dict[str, Batch], axis: str | None = None
    ) -> tuple[PyTree, dict[str, jax.Array]]:
        """Gradients of the loss on a batch, by group, and metrics; summed over devices."""
        if self.normalise_advantages:
            batches = {name: normalise_advantage(batch, axis) for name, batch in batches.items()}
        totals = {name: total_weights(batch, axis) for name, batch in batches.items()}
        team_total = self._team_total(batches, axis)

        def loss(weights, batches):
            judged = {name: evaluate(state.params[name], weights[name], batch) for name, batch in batches.items()}
            batches = self.revised(state, weights, batches, judged)
            parts = [self._loss(state.hyper, name, b, judged[name], totals[name]) for name, b in batches.items()]
            if team_total is not None:
                parts.append(self._team_loss(state.hyper, weights, batches, judged, team_total))
            return sum(part for part, _ in parts), {name: v for _, metrics in parts for name, v in metrics.items()}

        gradients, metrics = chunked_gradient(loss, weights_of(state), batches, self.chunk_samples)
        return combine(gradients, metrics, axis)

    def apply(self, state: LearnerState, gradients: PyTree) -> LearnerState:
        """One optimiser step along gradients of the weights, by group."""
        weights = weights_of(state)
        direction, optimiser = _optimiser(state.hyper).update(gradients, state.optimiser, weights)
        rate = state.hyper["learning_rate"]
        if self.anneal:
            rate = rate * jnp.maximum(0.0, 1.0 - state.updates / state.hyper["total_updates"])
        weights = jax.tree.map(lambda old, step: old - rate * step, weights, direction)
        params = {name: policy.replace(weights=weights[name]) for name, policy in state.params.items()}
        team = state.team and state.team.replace(weights=weights.get(vdac.MIXER, ()))
        return state.replace(params=params, optimiser=optimiser, team=team)

    def count_update(self, state: LearnerState) -> LearnerState:
        """The state one update older."""
        return state.replace(updates=state.updates + 1)

    def _new_policy(self, key: jax.Array, group: Group, spec: LearnerSpec) -> Policy:
        network = make_actor_critic(self.network, group.action, self.critic == "global")
        weights = init_weights(network, key, group.observation, spec.state if network.uses_state else None)
        view_stats = normalisation.init_tree(group.observation) if self.normalise_views else None
        own_stats = self.normalise_values and self.mixer == "none"  # with a mixer they are the team's
        return Policy(weights, view_stats, normalisation.init(()) if own_stats else None, network, group.movers)

    def _batch(self, policy: Policy, track: Trajectory, experience: Experience, hyper: dict[str, jax.Array]) -> Batch:
        observation = track.observation
        advantage, target = advantages(
            reward=track.reward,
            value=track.extras["value"],
            final_value=track.final_value,
            last_value=self.last_value(policy, track.last_observation, track.last_memory),
            terminated=experience.terminated[..., None],
            truncated=experience.truncated[..., None],
            active=observation.active,
            present=observation.present,
            gamma=hyper["gamma"],
            lam=hyper["gae_lambda"],
        )
        batch = Batch(
            observation=observation,
            action=track.action,
            log_prob=track.extras["log_prob"],
            advantage=advantage,
            target=target,
            memory=track.memory,
            first=experience.first,
            actor_weight=as_weight(observation.active),
            critic_weight=as_weight(observation.present),
        )
        return pick_rows(batch, self._movers(policy, track))

    def _movers(self, policy: Policy, track: Trajectory) -> jax.Array | None:
        """Whose rows an update is cut down to; a team needs the values of those who wait, too."""
        return mover_rows(policy, track.observation, track.memory) if self.mixer == "none" else None

    def last_value(self, policy: Policy, observation: Observation, memory: PyTree) -> jax.Array:
        """Values `[E, n]` of the views after the last step, 0 for those who have left."""
        value = over_agents(self.value)(policy, observation, memory)
        return value if observation.present is None else jnp.where(observation.present, value, 0.0)

    def _loss(self, hyper, name, batch, judged, totals):
        log_prob, entropy, value = judged
        actor_total, critic_total = totals
        losses = {**self.decision_losses(hyper, log_prob, batch), "entropy": entropy}
        metrics = {metric: weighted_sum(each, batch.actor_weight) / actor_total for metric, each in losses.items()}
        loss = metrics["policy_loss"] - hyper["entropy_coef"] * metrics["entropy"]
        if self.mixer == "none":
            error = weighted_sum(jnp.square(value - batch.target), batch.critic_weight) / critic_total
            metrics["value_loss"] = error
            loss = loss + 0.5 * hyper["value_coef"] * error
        metrics["loss"] = loss
        return loss, {f"{metric}/{name}": value for metric, value in metrics.items()}

    def _team_loss(self, hyper, weights, batches, judged, total):
        values = {name: value for name, (_, _, value) in judged.items()}
        errors, weight = vdac.value_errors(self.mixer, weights.get(vdac.MIXER, ()), values, batches)
        error = weighted_sum(errors, weight) / total
        return 0.5 * hyper["value_coef"] * error, {f"value_loss/{'+'.join(sorted(batches))}": error}

    def _team_total(self, batches: dict[str, Batch], axis: str | None) -> jax.Array | None:
        """Steps that count for the team's value, over all devices; None without a mixer."""
        if self.mixer == "none":
            return None
        total = jnp.sum(vdac.team_weight(batches))
        return jnp.maximum(lax.psum(total, axis) if axis else total, 1.0)

    def _team_returns(
        self,
        state: LearnerState,
        team: vdac.Team,
        experience: Experience,
        batches: dict[str, Batch],
        axis: str | None,
    ) -> tuple[vdac.Team, dict[str, Policy], tuple[jax.Array, jax.Array]]:
        """The team and its policies with statistics brought up to date; the team's advantage and target `[T, E]`."""
        tracks, params = experience.trajectories, dict(state.params)
        trails = {name: trail_of(track, experience) for name, track in tracks.items()}
        one = next(iter(tracks.values()))
        last_values = {
            name: self.last_value(state.params[name], track.last_observation, track.last_memory)
            for name, track in tracks.items()
        }
        values = {name: self._values(state.params[name], tracks[name], batch) for name, batch in batches.items()}
        states = one.observation.state, one.last_observation.state
        worth = vdac.team_values(self.mixer, team, trails, values, last_values, states)
        steps = vdac.team_steps(trails)
        advantage, target = advantages(**steps, **worth, gamma=state.hyper["gamma"], lam=state.hyper["gae_lambda"])
        if team.value_stats is not None:
            weight = as_weight(steps["present"])
            stats = self._new_value_stats(team.value_stats, target, weight, axis)
            sizes = {name: trail.reward.shape[-1] for name, trail in trails.items()}
            team, params = vdac.with_value_kept(self.mixer, team, params, sizes, stats)
        return team, params, (advantage, scaled_target(team.value_stats, target))

    def _values(self, policy: Policy, track: Trajectory, batch: Batch) -> jax.Array:
        """Everybody's value at every step: as recorded, but in turn-based games only those who moved were asked."""
        if policy.movers is None or track.observation.active is None:
            return track.extras["value"]
        seen = batch.observation.replace(view=normalised_view(policy, batch.observation.view))
        return evaluate(policy, policy.weights, batch.replace(observation=seen))[2]

    def _new_value_stats(self, stats: PyTree, target: jax.Array, weight: jax.Array | None, axis: str | None) -> PyTree:
        return normalisation.update(stats, target, weight, axis=axis, decay=VALUE_STATS_DECAY)


def weights_of(state: LearnerState) -> dict[str, PyTree]:
    """The trainable weights, by group; those of a mixer are among them."""
    return _weights(state.params, state.team)


def _weights(params: dict[str, Policy], team: vdac.Team | None) -> dict[str, PyTree]:
    weights = {name: policy.weights for name, policy in params.items()}
    if team is None or not jax.tree.leaves(team.weights):
        return weights
    return weights | {vdac.MIXER: team.weights}


def _optimiser(hyper: dict[str, Any]) -> optax.GradientTransformation:
    return optax.chain(optax.clip_by_global_norm(hyper["max_grad_norm"]), optax.scale_by_adam(eps=ADAM_EPS))
