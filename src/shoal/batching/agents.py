"""Lifts functions of one agent to `[E, n]` agents, and selects the moving agents."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from shoal.core.types import Observation, PyTree

AGENT_AXES = Observation(view=0, legal=0, active=0, present=0, state=None)  # pyright: ignore[reportArgumentType]
"""`in_axes` over the agents of a group: the global state is one per copy, not one per agent."""

_BLOCK, _MANY_ROWS = 1 << 13, 1 << 17
"""Samples of a block, and how many there are at least before they are filled up to whole blocks."""


def over_agents(function: Callable[..., Any]) -> Callable[..., Any]:
    """Lifts `function(params, observation, *rest)` of one agent to leaves `[E, n, ...]`, params being shared."""

    def lifted(params: PyTree, observation: Observation, *rest: PyTree) -> Any:
        agents = jax.vmap(function, (None, AGENT_AXES, *(0 for _ in rest)))
        return jax.vmap(agents, (None, 0, *(0 for _ in rest)))(params, observation, *rest)

    return lifted


def over_samples(function: Callable[[Observation], Any], observation: Observation, in_blocks: bool = False) -> Any:
    """`function(observation)` of one agent for leaves `[T, E, n, ...]`.

    Uses one flat axis where possible, for the best matrix products: the global state is not repeated per agent.
    in_blocks: many samples are filled up with zeros to whole blocks. On a GPU, XLA splits sums over samples, the
    gradients of weights, into equal parts: if these do not come out even, it copies all activations to fill them up.
    """
    shape = jax.tree.leaves(observation.view)[0].shape[:3]
    kept = 3 if observation.state is None else 2
    rows = math.prod(shape[:kept])
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[kept:]), observation.replace(state=None))
    state = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), observation.state)
    lifted = jax.vmap(function if kept == 3 else jax.vmap(function, (AGENT_AXES,)))
    missing = -rows % _BLOCK if in_blocks and rows >= _MANY_ROWS else 0
    found = lifted(_fill_up(flat.replace(state=state), missing))
    return jax.tree.map(lambda leaf: leaf[:rows].reshape(*shape, *leaf.shape[4 - kept :]), found)


def _fill_up(tree: PyTree, missing: int) -> PyTree:
    """Leaves with so many more rows of zeros."""
    if not missing:
        return tree
    return jax.tree.map(lambda leaf: jnp.pad(leaf, [(0, missing)] + [(0, 0)] * (leaf.ndim - 1)), tree)


def over_axes(function: Callable[..., Any], axes: int) -> Callable[..., Any]:
    """`function` of one agent, mapped over that many leading axes of all arguments."""
    for _ in range(axes):
        function = jax.vmap(function)
    return function


def as_weight(mask: jax.Array | None, like: jax.Array) -> jax.Array:
    """A mask as numbers; ones if it is None."""
    return jnp.ones_like(like) if mask is None else mask.astype(like.dtype)


def keep_where(mask: jax.Array | None, values: jax.Array) -> jax.Array:
    """Values where a mask (of their leading axes) is true, else 0; all of them if it is None."""
    return (
        values if mask is None else jnp.where(mask.reshape(mask.shape + (1,) * (values.ndim - mask.ndim)), values, 0.0)
    )


def mean_where(values: Mapping[str, jax.Array], masks: Mapping[str, jax.Array | None]) -> jax.Array:
    """The mean over all agents of all groups where a mask is true; 0 if there are none."""
    total, count = jnp.float32(0.0), jnp.float32(0.0)
    for name, value in values.items():
        weight = as_weight(masks[name], value)
        total, count = total + jnp.sum(weight * value), count + jnp.sum(weight)
    return total / jnp.maximum(count, 1.0)


def with_state(observation: Observation, state: PyTree) -> Observation:
    """Observations `[T, E, n, ...]` with the global state, `[T, E, ...]`, added to the view; None: unchanged."""
    if state is None:
        return observation
    lead = jax.tree.leaves(observation.view)[0].shape[:3]
    tiled = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:, :, None], (*lead, *leaf.shape[2:])), state)
    return observation.replace(view=(tiled, observation.view))


def mover_index(active: jax.Array, movers: int) -> jax.Array:
    """Indices `[..., movers]` of the active agents in `[..., n]`, lowest first, filled up with inactive ones."""
    order = jnp.argsort(~active, axis=-1, stable=True) if movers > 1 else jnp.argmax(active, axis=-1)[..., None]
    return order[..., :movers]


def pick(tree: PyTree, index: jax.Array) -> PyTree:
    """Takes the agents `index` `[..., m]` out of leaves `[..., n, rest]`."""
    lead = index.ndim

    def one(leaf: jax.Array) -> jax.Array:
        return jnp.take_along_axis(leaf, index.reshape(index.shape + (1,) * (leaf.ndim - lead)), axis=lead - 1)

    return jax.tree.map(one, tree)


def place(tree: PyTree, index: jax.Array, default: PyTree) -> PyTree:
    """Puts leaves `[..., m, rest]` back at the agents `index` of `default` `[..., n, rest]`."""
    lead = index.ndim

    def one(leaf: jax.Array, into: jax.Array) -> jax.Array:
        where = index.reshape(index.shape + (1,) * (leaf.ndim - lead))
        return jnp.put_along_axis(into, jnp.broadcast_to(where, leaf.shape), leaf, axis=lead - 1, inplace=False)

    return jax.tree.map(one, tree, default)


def pick_observation(observation: Observation, index: jax.Array) -> Observation:
    """`pick` for observations, whose global state has no agent axis."""
    return pick(observation.replace(state=None), index).replace(state=observation.state)
