"""Population-based training: bad members become copies of good ones with slightly different hyper-parameters.

Paper: Jaderberg et al. 2017, truncation selection. Members i = 1 ... M have scores s_i; a score that is not finite is
that of a member that has failed. With n = max(1, ⌊fraction · M⌋),

    W = the n best of those that have not failed,    L = the n worst, and all that have failed;

    exploit: each i in L draws j from W, uniformly; source_i = j if i has failed or s_i < s_j, else i;
             every other member is its own source;

    explore: of a member with source_i = j ≠ i, each hyper-parameter h by itself becomes
             a draw from its range, uniform on the range's own scale,         with probability `resample`, else
             h_j · factor or h_j / factor                    in a logarithmic range, each half of the time,
             h_j ± (factor - 1) · (stop - start)             in a linear range, each half of the time,
             and is clipped to the range.

Departures: a member that is as good as its source stays, so that members with equal returns do not collapse into one;
and in a linear range the step is a share of the range (a factor would never leave 0, and would move a discount of 0.99
out of any sensible range). If all have failed, none is copied.
"""

import math
from collections.abc import Mapping
from typing import Protocol

import jax
import jax.numpy as jnp

from shoal.core.errors import require


class Interval(Protocol):
    """The range of a hyper-parameter: from `start` to `stop`, optionally on a logarithmic scale."""

    @property
    def start(self) -> float: ...

    @property
    def stop(self) -> float: ...

    @property
    def log(self) -> bool: ...


def exploit(
    key: jax.Array,
    scores: jax.Array,
    values: Mapping[str, jax.Array],
    ranges: Mapping[str, Interval],
    fraction: float = 0.2,
    factor: float | jax.Array = 1.2,
    resample: float | jax.Array = 0.25,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The source of each member, `[M]`, and the new values, `[M]` by name.

    scores `[M]`, values `[M]` by name; the fraction is static. The result depends on the key alone.
    """
    for_sources, for_values = jax.random.split(key)
    source = sources(for_sources, scores, fraction)
    copied = source != jnp.arange(scores.shape[0])
    found = {}
    for i, (name, old) in enumerate(values.items()):
        new = explore(jax.random.fold_in(for_values, i), old[source], ranges[name], factor, resample)
        found[name] = jnp.where(copied, new, old)
    return source, found


def sources(key: jax.Array, scores: jax.Array, fraction: float) -> jax.Array:
    """Exploit: the source of each member, itself if it stays, `[M]`."""
    require(0.0 < fraction <= 0.5, "pbt", "fraction", fraction, "greater than 0 and at most 0.5")
    count = scores.shape[0]
    share = max(1, math.floor(fraction * count + 1e-9))  # 0.29 * 100 is a little less than 29
    well = jnp.isfinite(scores)
    worth = jnp.where(well, scores, -jnp.inf)
    order = jnp.argsort(-worth, stable=True)
    rank = jnp.argsort(order)
    winners = jnp.minimum(share, jnp.sum(well))
    drawn = order[jax.random.randint(key, (count,), 0, jnp.maximum(winners, 1))]
    loses = ~well | ((rank >= count - share) & (worth < worth[drawn]))
    return jnp.where(loses & (winners > 0), drawn, jnp.arange(count)).astype(jnp.int32)


def explore(
    key: jax.Array, values: jax.Array, within: Interval, factor: float | jax.Array, resample: float | jax.Array
) -> jax.Array:
    """Values near the given ones or, with probability `resample`, anywhere in the range; `[M]`."""
    whether, where, which = jax.random.split(key, 3)
    place = jax.random.uniform(where, values.shape)
    up = jax.random.bernoulli(which, shape=values.shape)
    if within.log:
        low, high = math.log(within.start), math.log(within.stop)
        drawn = jnp.exp(low + place * (high - low))
        near = jnp.where(up, values * factor, values / factor)
    else:
        span = within.stop - within.start
        drawn = within.start + place * span
        near = values + jnp.where(up, 1.0, -1.0) * (factor - 1.0) * span
    new = jnp.where(jax.random.uniform(whether, values.shape) < resample, drawn, near)
    return jnp.clip(new, within.start, within.stop)
