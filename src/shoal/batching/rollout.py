"""The one rollout function: training, evaluation and benchmarks all step worlds through it.

An `Actor` (see `policies`) chooses actions; `rollout` scans it and the worlds for a number of steps.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

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
    final_state: PyTree = ()
    """Params and state that final observations are made of, in a rollout that values them when it is over."""


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
    following, outcome, ended = vectorised.step(worlds, acts.action)
    final_value, final_observation = _value_final(vectorised, actor, params, worlds, acts, outcome, ended)
    record = _record(worlds, acts, outcome, ended)
    record = record.replace(final_value=final_value, final_observation=final_observation)
    return following, record.replace(episodes=jax.tree.map(jnp.sum, record.episodes))


def _record(worlds: Worlds, acts: ActorOutput, outcome: Outcome, ended: Ended) -> Step:
    """The record of a step, with the episodes of each copy and without final observations and their values."""
    weight = ended.mask.astype(jnp.float32)
    episodes = Episodes(
        count=weight,
        returns={name: value * weight for name, value in ended.returns.items()},
        length=ended.length * weight,
    )
    return Step(
        observation=worlds.observation,
        action=acts.action,
        extras=acts.extras,
        reward=outcome.reward,
        final_value={},
        first=worlds.first,
        terminated=outcome.terminated,
        truncated=outcome.truncated,
        metrics=outcome.metrics,
        episodes=episodes,
        memory_before=acts.memory_before,
    )


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
    end. Where that is cheaper, final observations are valued all at once after the last step. Actions and states are
    computed before they are packed: joined to it, they would be worked out anew for every word.
    """
    packer, first = Packer(), worlds.first
    later = _plan_finals(vectorised, actor, params, worlds, memory)

    def body(worlds, carry):
        memory, episodes = carry
        acts = actor.act(params, memory, worlds)
        acts = acts.replace(action=trees.compute_once(acts.action))
        following, outcome, ended = vectorised.step(worlds, acts.action, keep_state=True)
        record = _record(worlds, acts, outcome, ended)
        if later == "states":
            record = record.replace(final_state=(ended.params, ended.state))
        elif later == "observations":
            record = record.replace(final_observation=vectorised.observe(ended.params, ended.state, first.shape[0]))
        else:
            values, seen = _value_final(vectorised, actor, params, worlds, acts, outcome, ended)
            record = record.replace(final_value=values, final_observation=seen)
        episodes = jax.tree.map(jnp.add, episodes, record.episodes)
        return following, (acts.memory, episodes), packer.pack(record.replace(first=None, episodes=None))

    zeros = Episodes(jnp.zeros(first.shape), jax.tree.map(jnp.zeros_like, worlds.returns), jnp.zeros(first.shape))
    worlds, (memory, episodes), packed = scan_steps(body, vectorised, worlds, (memory, zeros), num_steps)
    steps = packer.unpack(packed)
    if later:
        steps = _value_finals(vectorised, actor, params, memory, steps)
    begins = jnp.concatenate([first[None], (steps.terminated | steps.truncated)[:-1]])
    totals = jax.tree.map(lambda leaf: jnp.pad(jnp.sum(leaf)[None], (0, num_steps - 1)), episodes)
    return worlds, memory, steps.replace(first=begins, episodes=totals)


def _plan_finals(
    vectorised: Vectorised, actor: Actor, params: PyTree, worlds: Worlds, memory: PyTree
) -> Literal["states", "observations"] | None:
    """What is kept until the rollout is over, so that all final observations are valued then; None: each in its step.

    That is so if they are never needed, if they are expensive, or if their values depend on memories.
    """
    if jax.tree.leaves(memory):
        return None
    actions = jax.eval_shape(actor.act, params, memory, worlds).action
    count = worlds.first.shape[0]
    expensive = worth_branching(
        lambda rows: vectorised.observe(rows[0], rows[1], count), (worlds.params, worlds.state), worlds.observation
    )
    if expensive or not vectorised.may_truncate(worlds, actions):
        return None
    state, seen = (_num_bytes(tree) for tree in ((worlds.params, worlds.state), worlds.observation))
    return "observations" if actor.recorded_groups or seen <= state else "states"


def _num_bytes(tree: PyTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _value_finals(vectorised: Vectorised, actor: Actor, params: PyTree, memory: PyTree, steps: Step) -> Step:
    """Steps `[T, E, ...]` with the values of the final observations of all groups, which they have or are made of."""
    kept = (steps.final_state, steps.final_observation)
    rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (kept, steps.reward))
    cut = (steps.truncated & ~steps.terminated).reshape(-1)
    zeros = jax.tree.map(jnp.zeros_like, rows[1])

    def value(params, rows):
        (state, seen), reward = rows
        if state:
            settings, world = state
            seen = vectorised.observe(settings, world, jax.tree.leaves(reward)[0].shape[0])
        return actor.final_value(params, (seen, memory))

    values = masked_map(value, cut, params, rows, zeros)
    values = jax.tree.map(lambda value, like: value.reshape(like.shape), values, steps.reward)
    seen = {name: steps.final_observation[name] for name in actor.recorded_groups}
    return steps.replace(final_value=values, final_observation=seen, final_state=())


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
