"""Who acts: `Policies` plays each group of agents by its algorithm's policy, for all copies of a world at once.

An `Actor` chooses actions; the rollout steps the worlds with them. Memory (recurrent carries, or whatever an actor
keeps per copy) is reset where an episode begins and kept while an agent is inactive.
"""

import abc
import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
from flax import struct

from shoal.batching.agents import mover_index, over_agents, pick, pick_observation, place
from shoal.batching.vectorise import Worlds
from shoal.core import trees
from shoal.core.algorithm import ActOutput, Algorithm, Experience, LearnerSpec, supports
from shoal.core.errors import OptionError
from shoal.core.keys import StepKeys, Use, agent_keys, use_key
from shoal.core.spaces import ActionSpace, Box
from shoal.core.types import Group, Observation, PyTree
from shoal.ops.distributions import distribution, num_parameters


class ActorOutput(struct.PyTreeNode):
    """What an actor returns for one step, by group: actions `[E, n, ...]`, new memory, and extras to be recorded."""

    action: dict[str, jax.Array]
    memory: PyTree
    extras: dict[str, dict[str, jax.Array]]
    memory_before: dict[str, PyTree] = struct.field(default_factory=dict)
    """The memory before the step, of groups whose learners have a replay."""


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


def _keep_inactive(active: jax.Array | None, old: PyTree, new: PyTree) -> PyTree:
    return new if active is None else trees.where(active, new, old)
