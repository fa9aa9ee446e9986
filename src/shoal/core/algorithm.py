"""The algorithm contract: `init`, `act`, `value`, `update`. An algorithm never steps a world.

`act` and `value` are written for one agent and vmapped by the runner over `[E, n]`. A learner owns one or more
groups: `state.params` and experience are dicts by group, so that a joint critic or a mixer sees them all. A policy
(the params of one group) is a pytree that carries its own network definition as static metadata, so a bank of
policies is the same pytree with one more leading axis.
"""

import dataclasses
from typing import Any, ClassVar, Protocol

import jax
from flax import struct

from shoal.core.types import Group, Observation, PyTree


@dataclasses.dataclass(frozen=True)
class LearnerSpec:
    """What a learner must know to build its networks.

    groups: the groups it owns, observations filled in. state: spec of the global state. total_updates: how many
    updates the experiment will make, for schedules. observations: what `observe` returns for its groups, as shapes, and
    num_envs and num_steps: copies and steps of the experience of an update; a learner with a replay needs these.
    """

    groups: dict[str, Group]
    state: PyTree
    total_updates: int = 1
    observations: dict[str, Observation] = dataclasses.field(default_factory=dict)
    num_envs: int = 1
    num_steps: int = 1


class ActOutput(struct.PyTreeNode):
    """action: one agent's action. memory: its new recurrent carry. extras: what `update` wants recorded."""

    action: jax.Array
    memory: PyTree
    extras: dict[str, jax.Array] = struct.field(default_factory=dict)


class Track(struct.PyTreeNode):
    """Experience of one group; leaves are `[T, E, n, ...]`.

    final_value: the value of an episode's final view where the step ended an episode, else 0. memory: the carry
    before the first step, `[E, n, ...]`. last_observation, last_memory: after the last step, `[E, n, ...]`.

    For learners with a replay (`Algorithm.replays`) also final_observation: an episode's final view where the step cut
    one short, else zeros; and memories: the carry before each step, reset where an episode begins.
    """

    observation: Observation
    action: jax.Array
    reward: jax.Array
    extras: dict[str, jax.Array]
    final_value: jax.Array
    memory: PyTree
    last_observation: Observation
    last_memory: PyTree
    final_observation: Observation | None = None
    memories: PyTree = ()


class Experience(struct.PyTreeNode):
    """What happened in `T` steps of `E` copies. `first`: this step begins an episode. Flags are `[T, E]`."""

    tracks: dict[str, Track]
    first: jax.Array
    terminated: jax.Array
    truncated: jax.Array


class LearnerState(Protocol):
    """Anything with the policies by group, a pytree."""

    params: dict[str, PyTree]


class Algorithm(Protocol):
    """What learns.

    A frozen dataclass: static choices are its fields; its floats are copied into the learner state by `init`,
    as float32 arrays, and read from there, so that they can be vmapped over and changed without compiling anew.
    """

    name: ClassVar[str]

    @property
    def needs_state(self) -> bool:
        """Whether `Observation.state` must be filled in."""
        ...

    @property
    def replays(self) -> bool:
        """Whether it learns from old experience: tracks then have `final_observation` and `memories`."""
        ...

    def init(self, key: jax.Array, spec: LearnerSpec) -> Any: ...

    def initial_memory(self, params: PyTree) -> PyTree:
        """One agent's memory at the start of an episode; empty for feed-forward networks."""
        ...

    def act(
        self, params: PyTree, observation: Observation, memory: PyTree, key: jax.Array, explore: bool
    ) -> ActOutput: ...

    def value(self, params: PyTree, observation: Observation, memory: PyTree) -> jax.Array: ...

    def update(
        self, state: Any, experience: Experience, key: jax.Array, axis: str | None = None
    ) -> tuple[Any, dict[str, jax.Array]]:
        """One update from one batch. `axis` names the mesh axis over which the copies are spread, if any."""
        ...
