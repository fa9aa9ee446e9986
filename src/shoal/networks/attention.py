"""Attention of agents to each other, in critics (Iqbal and Sha 2019, MAAC)."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.types import PyTree
from shoal.networks.torsos import ACTIVATIONS, Network
from shoal.ops.distributions import MASKED

HEADS = 4


def attend_to_others(
    config: Network, features: dict[str, jax.Array], actions: dict[str, jax.Array], present: PyTree
) -> dict[str, jax.Array]:
    """Attention of each agent to the features and actions of the others, concatenated with its query, `[..., n,
    width]`.

    All by group. Queries, keys and values are shared by all groups. Called in the compact method of a module, it
    becomes part of that module.
    """
    width = config.hidden[-1] if config.hidden else 64
    size = max(1, width // HEADS)
    activation = ACTIVATIONS[config.activation]
    asking, sources, here = [], [], []
    for name, seen in features.items():
        source = jnp.concatenate([seen, actions[name]], -1)
        asking.append(activation(dense(width, math.sqrt(2), f"{name}_view")(seen)))
        sources.append(activation(dense(width, math.sqrt(2), f"{name}_told")(source)))
        here.append(jnp.ones(seen.shape[:-1], bool) if present[name] is None else present[name])
    asking, sources, here = jnp.concatenate(asking, -2), jnp.concatenate(sources, -2), jnp.concatenate(here, -1)

    def by_head(x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:-1], HEADS, size)

    queries = by_head(dense(HEADS * size, 1.0, "query", bias=False)(asking))
    keys = by_head(dense(HEADS * size, 1.0, "key", bias=False)(sources))
    values = by_head(activation(dense(HEADS * size, 1.0, "value")(sources)))
    scores = jnp.einsum("...ihd,...jhd->...hij", queries, keys) / math.sqrt(size)
    attended = here[..., None, None, :] & ~jnp.eye(here.shape[-1], dtype=bool)
    # A lone agent attends to nothing: the weights are masked once more, so that they may sum to 0.
    weights = jax.nn.softmax(jnp.where(attended, scores, MASKED), axis=-1) * attended
    context = jnp.einsum("...hij,...jhd->...ihd", weights, values)
    context = jnp.concatenate([asking, context.reshape(*asking.shape[:-1], HEADS * size)], -1)
    ends = np.cumsum([seen.shape[-2] for seen in features.values()])[:-1]
    return dict(zip(features, jnp.split(context, ends, axis=-2), strict=True))


def dense(width: int, scale: float, name: str, bias: bool = True) -> nn.Dense:
    """A layer with orthogonal weights."""
    return nn.Dense(width, use_bias=bias, kernel_init=nn.initializers.orthogonal(scale), name=name)
