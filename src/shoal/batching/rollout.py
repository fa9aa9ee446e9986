"""The one rollout function: training, evaluation and benchmarks all step worlds through it.

An `Actor` chooses actions; `rollout` scans it and the worlds for a number of steps. Memory (recurrent carries,
or whatever an actor keeps per copy) is reset where an episode begins and kept while an agent is inactive.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
from flax import struct

from shoal.batching.agents import mover_index, over_agents, pick, pick_observation, place
from shoal.batching.masked import masked_map, worth_branching
from shoal.batching.packing import Packer
from shoal.batching.step_loop import scan_steps
from shoal.batching.vectorise import Ended, Vectorised, Worlds
from shoal.core import trees
from shoal.core.algorithm import ActOutput, Algorithm, Experience, LearnerSpec, Trajectory, supports
from shoal.core.errors import OptionError
from shoal.core.keys import StepKeys, Use, agent_keys, use_key
from shoal.core.spaces import ActionSpace, Box
from shoal.core.types import Group, Observation, Outcome, PyTree
from shoal.ops.distributions import distribution, num_parameters


class ActorOutput(struct.PyTreeNode):
    """What an actor returns for one step, by group: actions `[E, n, ...]`, new memory, and extras to be recorded."""

    action: dict[str, jax.Array]
    memory: PyTree
    extras: dict[str, dict[str, jax.Array]]
    memory_before: dict[str, PyTree] = struct.field(default_factory=dict)
    """The memory before the step, of groups whose learners have a replay."""


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


class Situation(Protocol):
    """The inputs of actions besides policies and memory: `Worlds`, or anything else with these attributes."""

    @property
    def key(self) -> jax.Array: ...  # of each copy, [E]

    @property
    def clock(self) -> jax.Array: ...

    @property
    def observation(self) -> dict[str, Observation]: ...

    @property
    def first(self) -> jax.Array: ...  # which copies begin an episode, [E]

    @property
    def keys(self) -> StepKeys | None: ...  # of the step, if they were derived ahead


class Actor(Protocol):
    """Chooses the agents' actions. Static; whatever changes is in `params` and `memory`."""

    def initial_memory(self, params: PyTree, num_envs: int) -> PyTree: ...

    def act(self, params: PyTree, memory: PyTree, worlds: Worlds) -> ActorOutput: ...

    def final_value(self, params: PyTree, rows: tuple[dict[str, Observation], PyTree]) -> dict[str, jax.Array]:
        """Values `[K, n]` by group of final observations, given them and the memory after the last step."""
        ...

    @property
    def recorded_groups(self) -> tuple[str, ...]:
        """The groups whose final observations and memories are recorded."""
        ...


class PlaysBatches(abc.ABC):
    """An algorithm that plays all copies at once, such as `opponents.Opponents`. Its memory has a `carry`."""

    @abc.abstractmethod
    def act_batch(
        self, params: PyTree, observation: Observation, memory: Any, keys: jax.Array, worlds: Situation, seat: int
    ) -> tuple[jax.Array, Any]: ...


@dataclasses.dataclass(frozen=True)
class Policies:
    """The usual actor: each group is played by its algorithm's policy, groups without one by another actor.

    `params` are the policies by group.
    """

    algorithms: Mapping[str, Algorithm]
    groups: Mapping[str, Group]
    explore: bool = True

    @property
    def recorded_groups(self) -> tuple[str, ...]:
        return tuple(name for name, algorithm in self.algorithms.items() if algorithm.traits.records_final_observations)

    def initial_memory(self, params: dict[str, PyTree], num_envs: int) -> PyTree:
        memory = {}
        for name, algorithm in self.algorithms.items():
            shape = (num_envs, self.groups[name].size)
            one = algorithm.initial_memory(params[name])
            memory[name] = jax.tree.map(lambda leaf, s=shape: jnp.broadcast_to(leaf, s + jnp.shape(leaf)), one)
        return memory

    def act(self, params: dict[str, PyTree], memory: PyTree, worlds: Situation) -> ActorOutput:
        keys = self._agent_keys(worlds)
        fresh = self.initial_memory(params, worlds.first.shape[0])
        memory = trees.where(worlds.first, fresh, memory)
        acts = ActorOutput({}, {}, {}, {name: memory[name] for name in self.recorded_groups})
        for number, name in enumerate(self.groups):
            if name not in self.algorithms:
                continue
            observation, algorithm, own = worlds.observation[name], self.algorithms[name], keys[name]
            if supports(algorithm, PlaysBatches):
                action, after = algorithm.act_batch(params[name], observation, memory[name], own, worlds, number)
                acts.action[name], acts.extras[name] = action, {}
                carry = _keep_inactive(observation.active, memory[name].carry, after.carry)
                acts.memory[name] = after.replace(carry=carry)
            else:
                acts.action[name], acts.memory[name], acts.extras[name] = self._act(
                    name, params[name], observation, memory[name], own
                )
        return acts

    def _agent_keys(self, worlds: Situation) -> dict[str, jax.Array]:
        """The keys `[E, n]` of each group's agents."""
        keys = jax.vmap(lambda key: use_key(key, worlds.clock, Use.ACT))(worlds.key)
        found, start = {}, 0
        for name, group in self.groups.items():
            if worlds.keys is None:
                found[name] = jax.vmap(lambda key, s=start, n=group.size: agent_keys(key, s, n))(keys)
            else:
                found[name] = worlds.keys.agents[:, start : start + group.size]
            start += group.size
        return found

    def final_value(
        self, params: dict[str, PyTree], rows: tuple[dict[str, Observation], PyTree]
    ) -> dict[str, jax.Array]:
        observation, memory = rows
        values = {}
        for name, algorithm in self.algorithms.items():
            value = over_agents(algorithm.value)(params[name], observation[name], memory[name])
            present = observation[name].present
            values[name] = value if present is None else jnp.where(present, value, 0.0)
        return values

    def _act(self, name, params, observation, memory, keys):
        algorithm, movers = self.algorithms[name], self.groups[name].movers

        def act(params, observation, memory, key):
            return algorithm.act(params, observation, memory, key, self.explore)

        if movers is None or observation.active is None:
            out = over_agents(act)(params, observation, memory, keys)
            return out.action, _keep_inactive(observation.active, memory, out.memory), out.extras
        index = mover_index(observation.active, movers)
        chosen = pick_observation(observation, index)
        held = pick(memory, index)
        out = over_agents(act)(params, chosen, held, pick(keys, index))
        memory = place(_keep_inactive(chosen.active, held, out.memory), index, memory)
        size = observation.active.shape

        def spread(leaf):
            return place(leaf, index, jnp.zeros(size + leaf.shape[2:], leaf.dtype))

        return spread(out.action), memory, jax.tree.map(spread, out.extras)


@dataclasses.dataclass(frozen=True)
class Uniform(Algorithm):
    """Uniformly random legal actions, as an algorithm that never learns: the baseline, also used by `bench`."""

    action: ActionSpace
    name: ClassVar[str] = "uniform"

    def init(self, key: jax.Array, spec: LearnerSpec) -> Any:
        raise OptionError("uniformly random play cannot be trained; choose an algorithm")

    def initial_memory(self, params: PyTree) -> PyTree:
        return ()

    def act(self, params: PyTree, observation: Observation, memory: PyTree, key: jax.Array, explore: bool) -> ActOutput:
        if observation.legal is None or isinstance(self.action, Box):
            return ActOutput(self.action.sample(key), memory)
        logits = jnp.zeros(num_parameters(self.action))
        return ActOutput(distribution(self.action, logits, observation.legal).sample(key), memory)

    def value(self, params: PyTree, observation: Observation, memory: PyTree) -> jax.Array:
        return jnp.float32(0.0)

    def update(self, state: Any, experience: Experience, key: jax.Array, axis: str | None = None) -> Any:
        return state, {}


def random_policies(groups: Mapping[str, Group]) -> Policies:
    """The actor that plays every group at random; its params are empty, by group."""
    return Policies({name: Uniform(group.action) for name, group in groups.items()}, groups)


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


def _keep_inactive(active: jax.Array | None, old: PyTree, new: PyTree) -> PyTree:
    return new if active is None else trees.where(active, new, old)
