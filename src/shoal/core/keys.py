"""Random keys: one chain per copy, so that results do not depend on how copies are spread over devices or actors.

A copy's key is `fold_in(run key, global copy id)` and never changes; the key of one use at one step is a single
`fold_in` of the copy's key with a counter. Nothing is carried along, and unused keys are never computed.
"""

import enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct


class Use(enum.IntEnum):
    """Uses of a key of one copy at one step."""

    RESET = 0
    STEP = 1
    ACT = 2
    DRAW = 3  # opponents, seats and other draws of an episode


class RunKeys(NamedTuple):
    """The keys of a run: of its environments, of its learners' first weights, and of its updates."""

    world: jax.Array
    learner: jax.Array
    update: jax.Array


def run_keys(seed: int | jax.Array) -> RunKeys:
    """The keys that every runner derives from the seed of a run."""
    return RunKeys(*jax.random.split(jax.random.key(seed), 3))


class StepKeys(struct.PyTreeNode):
    """The keys of one step: of each copy's agents, `[E, N]`, over all groups, of its step and of its reset, `[E]`."""

    agents: jax.Array
    step: jax.Array
    reset: jax.Array


def copy_keys(key: jax.Array, copy_ids: jax.Array) -> jax.Array:
    """The keys `[E]` of the copies with these global ids."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, copy_ids)


def use_key(copy_key: jax.Array, clock: jax.Array, use: Use) -> jax.Array:
    """One copy's key for one use at one step. `clock` (uint32) counts the steps since the run began."""
    return jax.random.fold_in(copy_key, clock * jnp.uint32(len(Use)) + jnp.uint32(use))


def agent_keys(key: jax.Array, start: int, size: int) -> jax.Array:
    """The keys `[size]` of one copy's agents whose numbers, over all groups, begin at `start`."""
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(start, start + size))


def derive_ahead(copy_keys: jax.Array, clock: jax.Array, num_steps: int, num_agents: int) -> StepKeys:
    """The keys of the steps from `clock` on, `[T, E, ...]`: the same as those that are derived step by step.

    On an accelerator every derivation inside a loop is a kernel of its own.
    """

    def one(key: jax.Array, clock: jax.Array) -> StepKeys:
        agents = agent_keys(use_key(key, clock, Use.ACT), 0, num_agents)
        return StepKeys(agents, use_key(key, clock, Use.STEP), use_key(key, clock, Use.RESET))

    clocks = clock + jnp.arange(num_steps, dtype=jnp.uint32)
    return jax.vmap(jax.vmap(one, (0, None)), (None, 0))(copy_keys, clocks)


def is_key(leaf: Any) -> bool:
    """Whether a leaf is an array of typed PRNG keys."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
