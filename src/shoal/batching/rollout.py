"""The one rollout function: training, evaluation and benchmarks all step worlds through it.

An `Actor` (see `policies`) chooses actions; `rollout` scans it and the worlds for a number of steps.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from shoal.batching.masked import masked_map, worth_branching
from shoal.batching.packing import Packer
from shoal.batching.policies import Actor, ActorOutput
from shoal.batching.step_loop import scan_steps
from shoal.batching.vectorise import Ended, Vectorised, Worlds
from shoal.core import trees
from shoal.core.algorithm import Experience, Trajectory
from shoal.core.types import Observation, Outcome, PyTree


class Episodes(struct.PyTreeNode):
    """Sums over the episodes that ended, in one copy `[E]` or in all: their number, returns by group, lengths."""

    count: jax.Array
    returns: dict[str, jax.Array]
    length: jax.Array


class Step(struct.PyTreeNode):
    """The record of one step of all copies: leaves are `[E, ...]`."""

    observation: dict[str, Observation]
    action: dict[str, jax.Array]
    extras: dict[str, dict[str, jax.Array]]
    reward: dict[str, jax.Array]
    final_value: dict[str, jax.Array]
    first: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    metrics: dict[str, jax.Array]
    episodes: Episodes
    final_observation: dict[str, Observation] = struct.field(default_factory=dict)
    memory_before: dict[str, PyTree] = struct.field(default_factory=dict)


class Rollout(struct.PyTreeNode):
    """Steps `[T, E, ...]` of some copies, with the state before and after them.

    memory: before the first step; last_observation, last_memory: after the last one. clock: of the first step.
    """

    steps: Step
    memory: PyTree
    last_observation: dict[str, Observation]
    last_memory: PyTree
    clock: Any


def step(
    vectorised: Vectorised, actor: Actor, params: PyTree, worlds: Worlds, memory: PyTree
) -> tuple[Worlds, PyTree, Step]:
    """One step of all copies: act, step, value the final views of truncated episodes, begin new ones."""
    acts = actor.act(params, memory, worlds)
    following, record = step_envs(vectorised, actor, params, worlds, acts)
    return following, acts.memory, record


def step_envs(
    vectorised: Vectorised, actor: Actor, params: PyTree, worlds: Worlds, acts: ActorOutput
) -> tuple[Worlds, Step]:
    """Steps all copies with given actions, and records the step."""
    following, record = _step_envs(vectorised, actor, params, worlds, acts)
    return following, record.replace(episodes=jax.tree.map(jnp.sum, record.episodes))


def _step_envs(
    vectorised: Vectorised, actor: Actor, params: PyTree, worlds: Worlds, acts: ActorOutput
) -> tuple[Worlds, Step]:
    """A step whose record has the episodes of each copy. Without params, final observations are not valued yet."""
    following, outcome, ended = vectorised.step(worlds, acts.action)
    if params is None:
        seen = vectorised.observe(ended.params, ended.state, worlds.first.shape[0])
        final_value, final_observation = {}, {name: seen[name] for name in outcome.reward}
    else:
        final_value, final_observation = _value_final(vectorised, actor, params, worlds, acts, outcome, ended)
    weight = ended.mask.astype(jnp.float32)
    episodes = Episodes(
        count=weight,
        returns={name: value * weight for name, value in ended.returns.items()},
        length=ended.length * weight,
    )
    record = Step(
        observation=worlds.observation,
        action=acts.action,
        extras=acts.extras,
        reward=outcome.reward,
        final_value=final_value,
        first=worlds.first,
        terminated=outcome.terminated,
        truncated=outcome.truncated,
        metrics=outcome.metrics,
        episodes=episodes,
        final_observation=final_observation,
        memory_before=acts.memory_before,
    )
    return following, record


def _value_final(
    vectorised: Vectorised,
    actor: Actor,
    params: PyTree,
    worlds: Worlds,
    acts: ActorOutput,
    outcome: Outcome,
    ended: Ended,
) -> tuple[dict[str, jax.Array], dict[str, Observation]]:
    """The values of the final observations of truncated episodes, and those observations where they are recorded."""
    kept = {name: worlds.observation[name] for name in actor.recorded_groups}
    zeros = jax.tree.map(jnp.zeros_like, (outcome.reward, kept))
    cut = outcome.truncated & ~outcome.terminated

    def final(params: PyTree, rows: tuple[jax.Array, PyTree, PyTree, PyTree]) -> tuple[dict, dict]:
        first, settings, state, memory = rows
        observation = vectorised.observe(settings, state, first.shape[0])
        return actor.final_value(params, (observation, memory)), {name: observation[name] for name in kept}

    rows = (worlds.first, ended.params, ended.state, acts.memory)  # `first` only gives the number of rows
    return masked_map(final, cut, params, rows, zeros)


def rollout(
    vectorised: Vectorised,
    actor: Actor,
    params: PyTree,
    worlds: Worlds,
    memory: PyTree,
    num_steps: int,
    keep: Callable[[Step], Any] | None = None,
    add: bool = False,
) -> tuple[Worlds, PyTree, Any]:
    """Steps all copies `num_steps` times and stacks the results of `keep` for each step along a leading axis `[T]`.

    keep: of the record of a step; the whole record by default. add: add the results up, instead of stacking them.
    """
    if keep is None and jax.default_backend() != "cpu":
        return _packed_rollout(vectorised, actor, params, worlds, memory, num_steps)

    def body(worlds, memory):
        worlds, memory, record = step(vectorised, actor, params, worlds, memory)
        return worlds, memory, record if keep is None else keep(record)

    if not add:
        return scan_steps(body, vectorised, worlds, memory, num_steps)

    def add_up(worlds, carry):
        worlds, memory, result = body(worlds, carry[0])
        return worlds, (memory, jax.tree.map(jnp.add, carry[1], result)), None

    zeros = trees.zeros(jax.eval_shape(body, worlds, memory)[2])
    worlds, (memory, sums), _ = scan_steps(add_up, vectorised, worlds, (memory, zeros), num_steps)
    return worlds, memory, sums


def _packed_rollout(
    vectorised: Vectorised, actor: Actor, params: PyTree, worlds: Worlds, memory: PyTree, num_steps: int
) -> tuple[Worlds, PyTree, Step]:
    """A rollout that stores few arrays per step, for accelerators, where each is a kernel of its own.

    Episodes are added up per copy on the way, and stand in the first step; where episodes begin follows from where they
    end. Where that is cheaper, final observations are kept, and valued all at once after the last step.
    """
    packer, first = Packer(), worlds.first
    later = _keeps_finals(vectorised, actor, params, worlds, memory)

    def body(worlds, carry):
        memory, episodes = carry
        acts = actor.act(params, memory, worlds)
        worlds, record = _step_envs(vectorised, actor, None if later else params, worlds, acts)
        episodes = jax.tree.map(jnp.add, episodes, record.episodes)
        return worlds, (acts.memory, episodes), packer.pack(record.replace(first=None, episodes=None))

    zeros = Episodes(jnp.zeros(first.shape), jax.tree.map(jnp.zeros_like, worlds.returns), jnp.zeros(first.shape))
    worlds, (memory, episodes), packed = scan_steps(body, vectorised, worlds, (memory, zeros), num_steps)
    steps = packer.unpack(packed)
    if later:
        steps = _value_finals(actor, params, memory, steps)
    begins = jnp.concatenate([first[None], (steps.terminated | steps.truncated)[:-1]])
    totals = jax.tree.map(lambda leaf: jnp.pad(jnp.sum(leaf)[None], (0, num_steps - 1)), episodes)
    return worlds, memory, steps.replace(first=begins, episodes=totals)


def _keeps_finals(vectorised: Vectorised, actor: Actor, params: PyTree, worlds: Worlds, memory: PyTree) -> bool:
    """Whether all final observations are kept until the rollout is over, instead of being valued step by step.

    Not if they are never needed, if they are expensive, or if their values depend on memories.
    """
    if jax.tree.leaves(memory):
        return False
    actions = jax.eval_shape(actor.act, params, memory, worlds).action
    count = worlds.first.shape[0]
    expensive = worth_branching(
        lambda rows: vectorised.observe(rows[0], rows[1], count), (worlds.params, worlds.state), worlds.observation
    )
    return not expensive and vectorised.may_truncate(worlds, actions)


def _value_finals(actor: Actor, params: PyTree, memory: PyTree, steps: Step) -> Step:
    """Steps `[T, E, ...]` with the values of the final observations that they have of all groups."""
    rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (steps.final_observation, steps.reward))
    cut = (steps.truncated & ~steps.terminated).reshape(-1)
    zeros = jax.tree.map(jnp.zeros_like, rows[1])
    values = masked_map(lambda params, seen: actor.final_value(params, (seen, memory)), cut, params, rows[0], zeros)
    values = jax.tree.map(lambda value, like: value.reshape(like.shape), values, steps.reward)
    kept = {name: steps.final_observation[name] for name in actor.recorded_groups}
    return steps.replace(final_value=values, final_observation=kept)


def make_experience(
    steps: Step, memory: PyTree, last_observation: Mapping[str, Observation], last_memory: PyTree
) -> Experience:
    """Converts stacked steps to the experience that learners get.

    memory: before the first step; last_observation, last_memory: after the last one.
    """
    trajectories = {
        name: Trajectory(
            observation=steps.observation[name],
            action=steps.action[name],
            reward=steps.reward[name],
            extras=steps.extras[name],
            final_value=steps.final_value[name],
            memory=memory[name],
            last_observation=last_observation[name],
            last_memory=last_memory[name],
            final_observation=steps.final_observation.get(name),
            memories=steps.memory_before.get(name, ()),
        )
        for name in steps.reward
    }
    return Experience(trajectories, steps.first, steps.terminated, steps.truncated)
