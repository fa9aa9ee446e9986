"""What policies do in every situation of a small game: from networks to the exact tables of `envs.tabular`.

A player's information sets are evaluated stage by stage, in the order in which they are met, so that a recurrent policy
has in each the memory that its own past decisions left it with.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.algorithm import Algorithm
from shoal.core.types import Observation, PyTree
from shoal.envs.tabular import InformationSets


def behaviour(algorithm: Algorithm, policy: PyTree, sets: InformationSets, explore: bool) -> jax.Array:
    """The probabilities `[I, A]` of one policy's actions. explore: as it plays in training; else greedy."""
    actions = sets.legal.shape[1]
    memories: PyTree = None
    rows = []
    for stage in sets.stages:
        seen = Observation(
            jax.tree.map(lambda leaf, s=stage: jnp.asarray(leaf[s]), sets.views), jnp.asarray(sets.legal[stage])
        )
        memory = _memory(algorithm, policy, sets, stage, memories)
        chances, after = jax.vmap(lambda seen, memory: _chances(algorithm, policy, seen, memory, explore, actions))(
            seen, memory
        )
        rows.append(chances)
        memories = after if memories is None else jax.tree.map(lambda a, b: jnp.concatenate([a, b]), memories, after)
    return jnp.concatenate(rows)


def _chances(
    algorithm: Any, policy: PyTree, seen: Observation, memory: PyTree, explore: bool, actions: int
) -> tuple[jax.Array, PyTree]:
    """Probabilities `[A]` of one agent's actions, and its memory after."""
    if explore and hasattr(algorithm, "chances"):
        return algorithm.chances(policy, seen, memory)
    out = algorithm.act(policy, seen, memory, jax.random.key(0), False)
    return jax.nn.one_hot(out.action, actions), out.memory


def _memory(algorithm: Algorithm, policy: PyTree, sets: InformationSets, stage: slice, memories: PyTree) -> PyTree:
    """The memory with which each information set of a stage is met: that after the one that led there."""
    fresh = algorithm.initial_memory(policy)
    count = stage.stop - stage.start
    if memories is None:
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf))), fresh)
    before = sequence_owner(sets)[sets.parent[stage]]
    return jax.tree.map(lambda leaf: leaf[before], memories)


def sequence_owner(sets: InformationSets) -> np.ndarray:
    """The information set `[S]` that each sequence is an action of; 0 for the empty one."""
    owner = np.zeros(sets.num_sequences + 1, np.int64)
    owner[sets.sequence] = np.arange(len(sets))[:, None]
    owner[0] = 0
    return owner[:-1]
