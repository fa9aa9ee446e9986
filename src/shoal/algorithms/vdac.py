"""Value mixing on top of actor-critic learners: one value, one reward and one advantage for a whole team.

Paper: Su et al. 2021, "Value-Decomposition Multi-Agent Actor-Critics" (VDAC-sum and VDAC-mix). The team is all agents
of all groups that a learner owns. Its value is the mix of its agents' critics (absent agents count 0), its reward the
mean over the agents present in that step; everybody's policy gradient uses the team's advantage, and the value loss is
on the mixed value:

    A_t = R_t^λ - V_tot(t),    V_tot = mix(V_1, ..., V_n; s),    ∂V_tot / ∂V_i >= 0.

Departures: λ-returns and the loss of the learner (A2C, PPO, V-trace) instead of n-step advantage actor-critic; the team
decides at every step at which one of its agents does; the optimiser and its step size are the same for actors, critics
and mixer. The global state of a truncated episode's final view is not recorded, so the monotonic mixer mixes the values
of that view with the state of the view before it.

Shape letters: `T` time, `E` environments, `n` agents of a group, `N` agents of the team, groups in alphabetical order.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from shoal.algorithms._batch import Batch, Policy, Trail, natural_value, new_units, with_value_head
from shoal.core.algorithm import LearnerSpec
from shoal.core.types import PyTree
from shoal.networks.mixers import MixerKind, init_mixer, mix, rescaled
from shoal.ops import normalisation

MIXER = "<mixer>"
"""Where the mixer's weights are among those of the policies."""


class Team(struct.PyTreeNode):
    """The mixer's weights, and the statistics that the mixed value is normalised by."""

    weights: PyTree
    value_stats: PyTree


def init_team(kind: MixerKind, key: jax.Array, spec: LearnerSpec, normalise_values: bool) -> Team:
    """A fresh mixer for the agents of all groups of `spec`."""
    size = sum(group.size for group in spec.groups.values())
    return Team(init_mixer(kind, key, size, spec.state), normalisation.init(()) if normalise_values else None)


def mixed_value(
    kind: MixerKind, weights: PyTree, values: dict[str, jax.Array], present: dict[str, jax.Array | None], state: PyTree
) -> jax.Array:
    """The team's value `[...]` from its agents', `[..., n]` by group; absent agents count 0."""
    joint = _joined({name: _where_present(value, present.get(name)) for name, value in values.items()})
    mixing = functools.partial(mix, kind, weights)
    for _ in range(joint.ndim - 1):
        mixing = jax.vmap(mixing)
    return mixing(joint, state if kind == "monotonic" else None)


def team_steps(trails: dict[str, Trail]) -> dict[str, Any]:
    """Reward and flags of the team, `[T, E]`, as the functions of `ops.returns` take them."""
    one = next(iter(trails.values()))
    present = {name: trail.present for name, trail in trails.items()}
    counted = {name: _where_present(jnp.ones_like(trail.reward), trail.present) for name, trail in trails.items()}
    count = sum(jnp.sum(weight, -1) for weight in counted.values())
    total = sum(jnp.sum(trail.reward * counted[name], -1) for name, trail in trails.items())
    return {
        "reward": total / jnp.maximum(count, 1.0),
        "terminated": one.terminated,
        "truncated": one.truncated,
        "active": anybody({name: trail.active for name, trail in trails.items()}),
        "present": anybody(present),
    }


def team_values(
    kind: MixerKind,
    team: Team,
    trails: dict[str, Trail],
    values: dict[str, jax.Array],
    last_values: dict[str, jax.Array],
    states: tuple[PyTree, PyTree],
) -> dict[str, jax.Array]:
    """Values of the team in units of reward, as the functions of `ops.returns` take them.

    values, last_values: the agents', as their networks give them. states: the global ones at every step and after the
    last. Where everybody has left, nothing is to come: an absent agent's final or last value is exactly 0.
    """
    present = {name: trail.present for name, trail in trails.items()}
    some_leave = any(mask is not None for mask in present.values())

    def ahead(values: dict[str, jax.Array], state: PyTree) -> jax.Array:
        value = natural_value(team.value_stats, mixed_value(kind, team.weights, values, {}, state))
        return jnp.where(jnp.any(_joined(values) != 0.0, -1), value, 0.0) if some_leave else value

    now = mixed_value(kind, team.weights, values, present, states[0])
    return {
        "value": natural_value(team.value_stats, now),
        "final_value": ahead({name: trail.final_value for name, trail in trails.items()}, states[0]),
        "last_value": ahead(last_values, states[1]),
    }


def with_value_kept(
    kind: MixerKind, team: Team, params: dict[str, Policy], sizes: dict[str, int], stats: PyTree
) -> tuple[Team, dict[str, Policy]]:
    """The team under new statistics and its policies, rescaled so that the team's value means what it meant.

    A sum has no weights of its own: each agent's value is rescaled and takes its share of the shift, as if everybody
    were present. sizes: agents of each group.
    """
    scale, shift = new_units(team.value_stats, stats)
    team = team.replace(value_stats=stats)
    if kind == "monotonic":
        return team.replace(weights=rescaled(team.weights, scale, shift)), params
    share = shift / sum(sizes.values())
    policies = {name: p.replace(weights=with_value_head(p.weights, scale, share)) for name, p in params.items()}
    return team, policies


def everybodys(batches: dict[str, Batch], advantage: jax.Array, target: jax.Array) -> dict[str, Batch]:
    """The batches with the team's advantage and target `[T, E]` in place of each agent's own."""

    def one(batch: Batch) -> Batch:
        shape = batch.log_prob.shape
        return batch.replace(
            advantage=jnp.broadcast_to(advantage[..., None], shape), target=jnp.broadcast_to(target[..., None], shape)
        )

    return {name: one(batch) for name, batch in batches.items()}


def value_errors(
    kind: MixerKind, weights: PyTree, values: dict[str, jax.Array], batches: dict[str, Batch]
) -> tuple[jax.Array, jax.Array]:
    """Squared error of the mixed value at each step `[T, E]`, and how much each step counts."""
    one = next(iter(batches.values()))
    present = {name: batch.observation.present for name, batch in batches.items()}
    value = mixed_value(kind, weights, values, present, one.observation.state)
    return jnp.square(value - one.target[..., 0]), team_weight(batches)


def team_weight(batches: dict[str, Batch]) -> jax.Array:
    """1 at the steps `[T, E]` at which somebody is present."""
    somebody = anybody({name: batch.observation.present for name, batch in batches.items()})
    one = next(iter(batches.values()))
    return jnp.ones(one.first.shape) if somebody is None else somebody.astype(jnp.float32)


def anybody(masks: dict[str, jax.Array | None]) -> jax.Array | None:
    """Where a mask of any group holds for any agent; None if one of them always does."""
    known = [jnp.any(mask, -1) for mask in masks.values() if mask is not None]
    return functools.reduce(jnp.logical_or, known) if len(known) == len(masks) else None


def _joined(values: dict[str, jax.Array]) -> jax.Array:
    return jnp.concatenate([values[name] for name in sorted(values)], axis=-1)


def _where_present(values: jax.Array, present: jax.Array | None) -> jax.Array:
    return values if present is None else jnp.where(present, values, 0.0)
