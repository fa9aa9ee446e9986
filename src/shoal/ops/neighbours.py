"""Nearest neighbours in the plane, exact, in plain JAX. This form defines the right answer for any faster one."""

import jax
import jax.numpy as jnp
from jax import lax

from shoal.core.errors import require_positive


def k_nearest(position: jax.Array, alive: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The `k` nearest living others of each agent of one world.

    position: `[n, 2]`. alive: bool `[n]`. Returns (index `[n, k]` int32, valid `[n, k]` bool), nearest first, equal
    distances by lower index. An agent is never its own neighbour; a dead one is nobody's, though its own row is
    filled like any other. Where fewer than `k` others live, the rest of the row has valid False and index 0.
    """
    require_positive("k_nearest", k=k)
    n = position.shape[0]
    row = lax.broadcasted_iota(jnp.int32, (n, n), 0)
    column = lax.broadcasted_iota(jnp.int32, (n, n), 1)
    candidate = alive[:, None] & (row != column)
    distance = jnp.where(candidate, _squared_distances(position), jnp.inf)

    # k rounds of "take the least away", candidates along axis 0 so that the reductions vectorise over the agents.
    # On 2 CPU cores, 100 copies x 110 agents, k=10, under vmap: 4 ms; the same along axis 1 40 ms; rounds of argmin
    # 31 ms; insertion into a sorted list 19 ms; lax.top_k 12 ms; lax.sort and argsort 119 ms.
    def take_nearest(left: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        nearest = jnp.min(left, axis=0)
        index = jnp.min(jnp.where(left == nearest, row, n), axis=0)
        return jnp.where(row == index, jnp.inf, left), index

    rounds = min(k, n)
    _, index = lax.scan(take_nearest, distance, length=rounds, unroll=min(rounds, 16))
    index = jnp.pad(index, ((0, k - rounds), (0, 0))).T
    valid = jnp.arange(k) < jnp.sum(candidate, axis=0)[:, None]
    return jnp.where(valid, index, 0), valid


def _squared_distances(position: jax.Array) -> jax.Array:
    """All pairs, from differences (the shorter route over a matrix product cancels, and is not exact)."""
    x, y = position[:, 0], position[:, 1]
    squared = (x[:, None] - x[None, :]) ** 2 + (y[:, None] - y[None, :]) ** 2
    return jnp.minimum(squared, jnp.finfo(position.dtype).max)  # infinity is kept for those who do not count
