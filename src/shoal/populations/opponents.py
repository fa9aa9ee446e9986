"""Opponents from a bank: each copy, when an episode begins, draws the policy that plays a seat for that episode.

`Opponents` takes the place of a frozen algorithm, so that code for training or evaluation against fixed policies works
against mixtures of many. It plays whole batches (see `batching.grouped`); which policy plays in a copy is
part of its memory.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from shoal.batching.agents import over_agents
from shoal.batching.grouped import apply_grouped_by_policy
from shoal.batching.policies import PlaysBatches, Situation
from shoal.core import trees
from shoal.core.algorithm import ActOutput, Algorithm, Experience, LearnerSpec
from shoal.core.keys import Use, use_key
from shoal.core.types import Observation, PyTree
from shoal.populations.behaviour import samples_actions


class OpponentBank(struct.PyTreeNode):
    """Policies `[K, ...]` of a player, and either their probabilities `[K]` or the fixed policy of each copy, `[E]`."""

    policies: PyTree
    mixture: jax.Array | None = None
    seated: jax.Array | None = None


class OpponentState(struct.PyTreeNode):
    """Replaces a learner's state: the bank that plays each group."""

    params: dict[str, OpponentBank]


class OpponentMemory(struct.PyTreeNode):
    """Memory of an agent: the index of its policy in this episode, and that policy's own memory."""

    index: jax.Array
    carry: PyTree


@dataclasses.dataclass(frozen=True)
class Opponents(Algorithm, PlaysBatches):
    """Plays each of its groups with policies drawn from a bank. Never learns.

    algorithm: of the policies. capacity: of the banks. explore: whether they play as in training.
    """

    algorithm: Algorithm
    capacity: int = 1
    explore: bool = True
    name: ClassVar[str] = "opponents"

    @property
    def _samples(self) -> bool:
        return samples_actions(self.algorithm, self.explore)

    def init(self, key: jax.Array, spec: LearnerSpec) -> OpponentState:
        """Banks full of the same fresh policy; the first is always drawn."""
        fresh = self.algorithm.init(key, spec).params
        first = jnp.zeros(self.capacity).at[0].set(1.0)
        return OpponentState(
            {name: OpponentBank(_repeat(policy, self.capacity), first) for name, policy in fresh.items()}
        )

    def initial_memory(self, params: OpponentBank) -> OpponentMemory:
        return OpponentMemory(jnp.int32(0), self.algorithm.initial_memory(trees.row(params.policies)))

    def act(
        self, params: OpponentBank, observation: Observation, memory: OpponentMemory, key: jax.Array, explore: bool
    ) -> ActOutput:
        """One agent's action: weights are gathered for it."""
        policy = jax.tree.map(lambda leaf: leaf[memory.index], params.policies)
        out = self.algorithm.act(policy, observation, memory.carry, key, self._samples)
        return ActOutput(out.action, memory.replace(carry=out.memory))

    def act_batch(
        self,
        params: OpponentBank,
        observation: Observation,
        memory: OpponentMemory,
        keys: jax.Array,
        worlds: Situation,
        seat: int,
    ) -> tuple[jax.Array, OpponentMemory]:
        """Actions of all copies `[E, n, ...]`. All agents of a group are played by the same policy.

        seat: the number of the group, so that draws of different groups are independent.
        """
        index = params.seated
        if index is None:
            assert params.mixture is not None, "a bank has a mixture, or fixed policies for the copies"
            index = jnp.where(worlds.first, self._draw(params.mixture, worlds, seat), memory.index[:, 0])

        def one(policy, seen, carry, key):
            return self.algorithm.act(policy, seen, carry, key, self._samples)

        def act(policy, rows):
            seen, carry, keys = rows
            out = over_agents(one)(policy, seen, carry, keys)
            return out.action, out.memory

        action, carry = apply_grouped_by_policy(act, params.policies, index, (observation, memory.carry, keys))
        return action, OpponentMemory(jnp.broadcast_to(index[:, None], memory.index.shape), carry)

    def _draw(self, mixture: jax.Array, worlds: Situation, seat: int) -> jax.Array:
        keys = jax.vmap(lambda key: use_key(key, worlds.clock, Use.DRAW))(worlds.key)
        if seat:
            keys = jax.vmap(lambda key: jax.random.fold_in(key, seat))(keys)
        return draw(mixture, jax.vmap(jax.random.uniform)(keys))

    def value(self, params: OpponentBank, observation: Observation, memory: OpponentMemory) -> jax.Array:
        return jnp.float32(0.0)

    def update(self, state: OpponentState, experience: Experience, key: jax.Array, axis: str | None = None) -> Any:
        return state, {}


def draw(mixture: jax.Array, uniform: jax.Array) -> jax.Array:
    """Indices drawn with the probabilities `mixture` `[K]` by uniform numbers from 0 to 1, `[E]`; never one of 0."""
    ends = jnp.cumsum(mixture)
    last = jnp.max(jnp.where(mixture > 0, jnp.arange(len(mixture)), 0))  # rounding must not lead beyond it
    return jnp.minimum(jnp.searchsorted(ends, uniform * ends[-1], side="right"), last).astype(jnp.int32)


def _repeat(tree: PyTree, times: int) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (times, *jnp.shape(leaf))), tree)
