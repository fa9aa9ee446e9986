"""Action probabilities of policies in every information set of a small game, for the exact tables of `envs.tabular`.

A player's information sets are evaluated stage by stage, in the order in which they are reached, so that a recurrent
policy has in each the memory after its own past decisions. `differences` measures how differently policies act, in such
tables or in situations sampled by playing.
"""

import warnings
from collections.abc import Mapping
from typing import TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.algorithm import Algorithm, Stochastic, supports
from shoal.core.types import Observation, PyTree
from shoal.envs.tabular import InformationSets


def samples_actions(algorithm: Algorithm, explore: bool) -> TypeGuard[Stochastic]:
    """Whether policies draw their actions: if they are to explore, and have action probabilities to draw by."""
    return explore and supports(algorithm, Stochastic)


def warn_of_greedy_play(
    who: str, algorithms: Mapping[str, Algorithm], does: str = "play their best action instead of sampling"
) -> None:
    """Names the policies that are to draw their actions and cannot. does: what they do instead."""
    greedy = {name: algorithm for name, algorithm in algorithms.items() if not samples_actions(algorithm, True)}
    if greedy:
        names = ", ".join(f"{name!r} ({type(algorithm).__name__})" for name, algorithm in greedy.items())
        warnings.warn(
            f"{who}: policies of {names} {does}, as their algorithm has no action probabilities "
            "(shoal.core.algorithm.Stochastic)",
            stacklevel=3,
        )


def behaviour(algorithm: Algorithm, policy: PyTree, sets: InformationSets, explore: bool) -> jax.Array:
    """One policy's action probabilities `[I, A]`. explore: as in training; else greedy."""
    actions = sets.legal.shape[1]
    memories: PyTree = None
    rows = []
    for stage in sets.stages:
        seen = Observation(
            jax.tree.map(lambda leaf, s=stage: jnp.asarray(leaf[s]), sets.views), jnp.asarray(sets.legal[stage])
        )
        memory = _memory(algorithm, policy, sets, stage, memories)
        probabilities, after = jax.vmap(
            lambda seen, memory: action_probabilities(algorithm, policy, seen, memory, explore, actions)
        )(seen, memory)
        rows.append(probabilities)
        memories = after if memories is None else jax.tree.map(lambda a, b: jnp.concatenate([a, b]), memories, after)
    return jnp.concatenate(rows)


def differences(probabilities: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """Distances `[n, n]` of `n` policies by their actions: 0 for the same policy, 1 for never the same action.

    probabilities[n, I, A]: of actions, by policy and situation; reach[n, I]: probability that a policy's own decisions
    lead there.

    In a situation, the distance of two policies P and Q is their total variation, 1/2 Σ |P(a) - Q(a)|. It is averaged
    over situations, weighted by the smaller of their reaches. So consequences of a difference are not counted again,
    nor is behaviour where a policy never gets.
    """
    rows = []
    for own, reached in zip(probabilities, reach, strict=True):
        apart = np.abs(probabilities - own).sum(axis=-1) / 2
        both = np.minimum(reach, reached)
        rows.append((both * apart).sum(axis=-1) / np.maximum(both.sum(axis=-1), 1e-12))
    return np.array(rows)


def action_probabilities(
    algorithm: Algorithm, policy: PyTree, seen: Observation, memory: PyTree, explore: bool, actions: int
) -> tuple[jax.Array, PyTree]:
    """Probabilities `[A]` of one agent's actions, and its memory after."""
    if samples_actions(algorithm, explore):
        return algorithm.action_probabilities(policy, seen, memory)
    out = algorithm.act(policy, seen, memory, jax.random.key(0), False)
    return jax.nn.one_hot(out.action, actions), out.memory


def _memory(algorithm: Algorithm, policy: PyTree, sets: InformationSets, stage: slice, memories: PyTree) -> PyTree:
    """The memory in each information set of a stage: that after the previous one."""
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
