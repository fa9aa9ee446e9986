"""Networks along sequences of a group's observations: any module with `__call__(view, memory)` and `unroll`.

Shape letters: `T` steps in a row, `B` sequences, `n` agents of a group.
"""

from typing import Any

import jax
from jax import lax

from shoal.core import trees
from shoal.core.types import Observation, PyTree


def apply_each(network: Any, weights: PyTree, view: PyTree, memory: PyTree) -> jax.Array:
    """Outputs `[T, B, n, ...]` of observations one by one, given the memories `[T, B, n, ...]` before each."""
    lead = jax.tree.leaves(view)[0].shape[:3]
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), (view, memory))  # one axis: plain products
    values, _ = jax.vmap(lambda view, memory: network.apply(weights, view, memory))(*flat)
    return values.reshape(*lead, -1)


def unroll(
    network: Any, weights: PyTree, seen: Observation, first: jax.Array, memory: PyTree, burn_in: int = 0
) -> tuple[jax.Array, PyTree]:
    """Outputs `[T, B, n, ...]` along sequences, and the memories `[T, B, n, ...]` after each step.

    first: `[T, B]`, where an episode begins. memory: `[B, n, ...]`, before the first step. The first `burn_in` steps
    only update the memory: they are not among the `T`.
    """
    if not jax.tree.leaves(memory):
        return apply_each(network, weights, jax.tree.map(lambda leaf: leaf[burn_in:], seen.view), ()), ()

    def one(weights, view, memory, first, active):
        return network.apply(weights, view, memory, first, active, method="unroll")

    def all_agents(weights: PyTree, seen: Observation, first: jax.Array, memory: PyTree) -> Any:
        agents = jax.vmap(one, (None, 1, 0, None, 1), 1)
        return jax.vmap(agents, (None, 1, 0, 1, 1), 1)(weights, seen.view, memory, first, seen.active)

    if burn_in:
        before = jax.tree.map(lambda leaf: leaf[:burn_in], seen)
        memories = all_agents(lax.stop_gradient(weights), before, first[:burn_in], memory)[1]
        memory = lax.stop_gradient(trees.row(memories, -1))
    return all_agents(weights, jax.tree.map(lambda leaf: leaf[burn_in:], seen), first[burn_in:], memory)


def unroll_with_slow(
    network: Any,
    weights: PyTree,
    slow: PyTree,
    memory: PyTree,
    seen: Observation,
    following: Observation,
    first: jax.Array,
    burn_in: int,
) -> tuple[jax.Array, jax.Array]:
    """Outputs `[T, B, n, ...]` along sequences; and those of the target network for the successor of each step.

    seen, first: of the burn-in, of the `T` steps, and of one more, which is not read. following: without that one. It
    is evaluated with the memory that the target network has after the step.
    """
    steps = jax.tree.map(lambda leaf: leaf[:-1], seen), first[:-1], memory, burn_in
    out, memories = unroll(network, weights, *steps)
    if slow is not weights and jax.tree.leaves(memory):
        _, memories = unroll(network, slow, *steps)
    following = jax.tree.map(lambda leaf: leaf[burn_in:], following.view)
    return out, apply_each(network, lax.stop_gradient(slow), following, memories)
