"""The values of a learner: one per agent (`OwnValues`), or one for a whole team (`TeamValue`, VDAC).

Paper: Su et al. 2021, "Value-Decomposition Multi-Agent Actor-Critics" (VDAC-sum and VDAC-mix). The team is all agents
of all groups that a learner owns. Its value is the mix of its agents' critics (absent agents count 0), its reward the
mean over the agents present in that step; all agents' policy gradients use the team's advantage, and the value loss is
on the mixed value:

    A_t = R_t^λ - V_tot(t),    V_tot = mix(V_1, ..., V_n; s),    ∂V_tot / ∂V_i >= 0.

So a learner with a mixer has an additional batch, `TEAM`, with values and no actions, while those of the groups have
actions and no values; the loss of the learner (A2C, PPO, Impala) is computed on each.

Departures: λ-returns and the loss of the learner instead of n-step advantage actor-critic; the team decides at every
step at which one of its agents does; the optimiser and its step size are the same for actors, critics and mixer. The
global state of a truncated episode's final observation is not recorded, so the monotonic mixer mixes the values of that
observation with the state of the one before it.

Shape letters: `T` time, `E` environments, `n` agents of a group, `N` agents of the team, groups in alphabetical order.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from shoal.batching.agents import keep_where, pick
from shoal.core.algorithm import LearnerSpec, Trajectory
from shoal.core.types import PyTree
from shoal.networks.actor_critic import rescale_value_head
from shoal.networks.mixers import MixerKind, init_mixer, mix, rescale_mixer
from shoal.ops import normalisation

if TYPE_CHECKING:
    from shoal.algorithms.on_policy import Batch, Batches, Evaluations, LearnerState, Policy

TEAM = "<mixer>"
"""The team's name among the batches, and that of its mixer among the weights of the policies."""
STATS_DECAY = 0.99
"""Decay of the statistics of value targets per update."""

Estimate = Callable[[dict[str, Any]], tuple[jax.Array, jax.Array]]
"""Advantages and targets from the arguments of a function of `ops.returns`."""
Known = Mapping[str, dict[str, Any]]
"""By group, those of the arguments that are not in `Batch.inputs`: values, and log π/μ for V-trace."""


class OwnValues:
    """Every agent has a value of its own, and an advantage and a target by its own rewards."""

    individual = True

    def init(self, key: jax.Array, spec: LearnerSpec, normalise_values: bool) -> None:
        """Nothing is trained besides the policies."""

    def read_values(self, policy: "Policy", trajectory: Trajectory, batch: "Batch") -> jax.Array:
        """Values `[T, E, n]` of a group under the policy that acted, 0 for agents that wait in turn-based games."""
        del policy, batch
        return trajectory.extras["value"]

    def add_returns(self, estimate: Estimate, state: "LearnerState", batches: "Batches", known: Known) -> "Batches":
        """The batches with the advantages and targets that `estimate` gives, in units of reward.

        known: for each group, the arguments that are not in `batch.inputs`: `value`, `last_value` and, for V-trace,
        `log_ratio`.
        """
        del state
        filled = {}
        for name, batch in batches.items():
            found = estimate(batch.inputs | known[name])
            advantage, target = found if batch.movers is None else pick(found, batch.movers)
            filled[name] = batch.replace(advantage=advantage, target=target)
        return filled

    def update_stats(self, state: "LearnerState", batches: "Batches", axis: str | None) -> "LearnerState":
        """The state with statistics updated by the targets, and weights rescaled so that values are unchanged (PopArt).

        Without the latter (van Hasselt et al. 2016), values grow with the statistics of targets that are computed from
        them, and both diverge.
        """
        params = {}
        for name, policy in state.params.items():
            stats = _update_stats(policy.value_stats, batches[name], axis)
            weights = rescale_value_head(policy.weights, *normalisation.scale_and_shift(policy.value_stats, stats))
            params[name] = policy.replace(value_stats=stats, weights=weights)
        return state.replace(params=params)

    def normalise_targets(self, state: "LearnerState", batches: "Batches") -> "Batches":
        """The batches with targets in the units of the networks' values."""
        stats = {name: policy.value_stats for name, policy in state.params.items()}
        return {
            name: batch.replace(target=normalisation.normalise(stats[name], batch.target))
            for name, batch in batches.items()
        }

    def join_values(self, weights: dict[str, PyTree], new: "Evaluations", batches: "Batches") -> "Evaluations":
        """The inputs of the loss on each batch, given the outputs of `weights` on each group's."""
        del weights, batches
        return new

    def label(self, metrics: dict[str, dict[str, jax.Array]]) -> dict[str, jax.Array]:
        """The metrics of the losses under the names used in logs."""
        return {f"{metric}/{name}": value for name, found in metrics.items() for metric, value in found.items()}


class Team(struct.PyTreeNode):
    """The mixer's weights, and the statistics that the mixed value is normalised by."""

    weights: PyTree
    value_stats: PyTree


@dataclasses.dataclass(frozen=True)
class TeamValue:
    """One value, one reward, one advantage and one target for the whole team. The methods are those of `OwnValues`."""

    mixer: MixerKind

    individual = False

    def init(self, key: jax.Array, spec: LearnerSpec, normalise_values: bool) -> Team:
        """A fresh mixer for the agents of all groups of `spec`."""
        size = sum(group.size for group in spec.groups.values())
        stats = normalisation.init(()) if normalise_values else None
        return Team(init_mixer(self.mixer, key, size, spec.state), stats)

    def read_values(self, policy: "Policy", trajectory: Trajectory, batch: "Batch") -> jax.Array:
        """Values `[T, E, n]` of a group under the policy that acted.

        In turn-based games only moving agents recorded theirs: the others' are computed here.
        """
        if policy.movers is None or trajectory.observation.active is None:
            return trajectory.extras["value"]
        return batch.evaluate(policy.network, policy.weights).value

    def add_returns(self, estimate: Estimate, state: "LearnerState", batches: "Batches", known: Known) -> "Batches":
        """The groups' batches with the team's advantage, and the team's with its target.

        In V-trace the ratio is that of the joint action: the product over active agents.
        """
        groups = {name: batch for name, batch in batches.items() if name != TEAM}
        inputs = self.inputs(state.team, groups, known)
        if any("log_ratio" in found for found in known.values()):
            active = {name: batch.inputs["active"] for name, batch in groups.items()}
            acted = {name: keep_where(active[name], found["log_ratio"]) for name, found in known.items()}
            inputs["log_ratio"] = sum(jnp.sum(log_ratio, -1) for log_ratio in acted.values())
        advantage, target = estimate(inputs)
        filled = {}
        for name, batch in groups.items():
            shared = jnp.broadcast_to(advantage[..., None], batch.action.shape[:3])
            extras = batch.extras | {"value": shared[..., :0]}
            filled[name] = batch.replace(advantage=shared, target=shared[..., :0], extras=extras, present=None)
        team = batches[TEAM] if TEAM in batches else _make_team_batch(next(iter(groups.values())), inputs)
        return filled | {TEAM: team.replace(target=target[..., None])}

    def inputs(self, team: Any, groups: "Batches", known: Known) -> dict[str, Any]:
        """The team's reward, values and flags, `[T, E]`, as the functions of `ops.returns` take them.

        Where all agents have left, the value is 0: an absent agent's final or last value is exactly 0.
        """
        found = {name: batch.inputs for name, batch in groups.items()}
        one = next(iter(groups.values()))
        present = {name: own["present"] for name, own in found.items()}
        some_leave = any(mask is not None for mask in present.values())
        counted = {name: keep_where(present[name], jnp.ones_like(own["reward"])) for name, own in found.items()}
        count = sum(jnp.sum(weight, -1) for weight in counted.values())
        total = sum(jnp.sum(own["reward"] * counted[name], -1) for name, own in found.items())

        def ahead(values: dict[str, jax.Array], state: PyTree) -> jax.Array:
            value = normalisation.denormalise(team.value_stats, self.mix(team.weights, values, {}, state))
            return jnp.where(jnp.any(_concatenate(values) != 0.0, -1), value, 0.0) if some_leave else value

        values = {name: own["value"] for name, own in known.items()}
        state, last_state = one.observation.state, one.last_observation.state
        return {
            "reward": total / jnp.maximum(count, 1.0),
            "value": normalisation.denormalise(team.value_stats, self.mix(team.weights, values, present, state)),
            "final_value": ahead({name: own["final_value"] for name, own in found.items()}, state),
            "last_value": ahead({name: own["last_value"] for name, own in known.items()}, last_state),
            "terminated": one.inputs["terminated"][..., 0],
            "truncated": one.inputs["truncated"][..., 0],
            "active": _any_agent({name: own["active"] for name, own in found.items()}),
            "present": _any_agent(present),
        }

    def update_stats(self, state: "LearnerState", batches: "Batches", axis: str | None) -> "LearnerState":
        """As for own values; here the team's value is unchanged.

        A sum has no weights of its own: each agent's value is rescaled and takes its share of the shift, as if all
        agents were present.
        """
        team: Any = state.team
        stats = _update_stats(team.value_stats, batches[TEAM], axis)
        scale, shift = normalisation.scale_and_shift(team.value_stats, stats)
        team = team.replace(value_stats=stats)
        if self.mixer == "monotonic":
            return state.replace(team=team.replace(weights=rescale_mixer(team.weights, scale, shift)))
        share = shift / sum(batch.action.shape[2] for batch in batches.values())
        params = {
            name: policy.replace(weights=rescale_value_head(policy.weights, scale, share))
            for name, policy in state.params.items()
        }
        return state.replace(team=team, params=params)

    def normalise_targets(self, state: "LearnerState", batches: "Batches") -> "Batches":
        """The batches with the team's target in the units of the mixed value."""
        team: Any = state.team
        target = normalisation.normalise(team.value_stats, batches[TEAM].target)
        return batches | {TEAM: batches[TEAM].replace(target=target)}

    def join_values(self, weights: dict[str, PyTree], new: "Evaluations", batches: "Batches") -> "Evaluations":
        """The outputs of `weights` for each group's actions, and for the team's value."""
        one = next(iter(batches.values()))
        present = {name: batches[name].inputs["present"] for name in new}
        values = {name: own.value for name, own in new.items()}
        value = self.mix(weights.get(TEAM, ()), values, present, one.observation.state)
        groups = {name: own.replace(value=_drop_agents(own.value)) for name, own in new.items()}
        team = _drop_agents(next(iter(new.values())))
        return groups | {TEAM: team.replace(value=value[..., None])}

    def label(self, metrics: dict[str, dict[str, jax.Array]]) -> dict[str, jax.Array]:
        """As for own values; metrics named value_... (`value_loss`) are the team's, the others the groups'."""
        groups = sorted(name for name in metrics if name != TEAM)
        named = {}
        for name, found in metrics.items():
            owner = "+".join(groups) if name == TEAM else name
            named |= {f"{m}/{owner}": v for m, v in found.items() if m.startswith("value") == (name == TEAM)}
        return named

    def mix(
        self,
        weights: PyTree,
        values: Mapping[str, jax.Array],
        present: Mapping[str, jax.Array | None],
        state: PyTree,
    ) -> jax.Array:
        """The team's value `[...]` from its agents', `[..., n]` by group; absent agents count 0."""
        joint = _concatenate({name: keep_where(present.get(name), value) for name, value in values.items()})
        mixing = functools.partial(mix, self.mixer, weights)
        for _ in range(joint.ndim - 1):
            mixing = jax.vmap(mixing)
        return mixing(joint, state if self.mixer == "monotonic" else None)


def _update_stats(stats: Any, batch: "Batch", axis: str | None) -> Any:
    return normalisation.update(stats, batch.target, batch.present, axis=axis, decay=STATS_DECAY)


def _make_team_batch(batch: "Batch", inputs: dict[str, Any]) -> "Batch":
    """The team's batch: no actions, and a value wherever an agent is present."""
    nobody = jnp.zeros((*batch.first.shape, 0), jnp.int32)
    somebody = inputs["present"]
    team = batch.pick(nobody)
    extras = team.extras | {"value": inputs["value"][..., None]}
    return team.replace(extras=extras, present=None if somebody is None else somebody[..., None])


def _drop_agents(tree: PyTree) -> PyTree:
    """The leaves `[T, E, n, ...]` for zero agents; no gradient flows through them."""
    return lax.stop_gradient(jax.tree.map(lambda leaf: leaf[:, :, :0], tree))


def _any_agent(masks: Mapping[str, jax.Array | None]) -> jax.Array | None:
    """Where any group's mask is true for any agent; None if a group has no mask."""
    known = [jnp.any(mask, -1) for mask in masks.values() if mask is not None]
    return functools.reduce(jnp.logical_or, known) if len(known) == len(masks) else None


def _concatenate(values: Mapping[str, jax.Array]) -> jax.Array:
    return jnp.concatenate([values[name] for name in sorted(values)], axis=-1)
