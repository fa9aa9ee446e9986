"""Mixers: from the values of a team's agents to the team's value.

`sum` adds (Sunehag et al. 2018, VDN). `monotonic` is a small network whose weights are computed from the global state
and are never negative, so that each agent's best action is the team's (Rashid et al. 2018, QMIX):

    Q = |W2(s)| · elu(|W1(s)| q + b1(s)) + V(s)

Written for one team at one moment, without batch axes; the caller vmaps.
"""

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from shoal.core import trees
from shoal.core.types import PyTree
from shoal.ops.kernels.choices import report

MixerKind = Literal["none", "sum", "monotonic"]


class MonotonicMixer(nn.Module):
    """A team value that grows with each agent's. embed: width of the mixing layer. hyper: width of the hypernetwork."""

    embed: int = 32
    hyper: int = 64

    @nn.compact
    def __call__(self, values: jax.Array, state: PyTree) -> jax.Array:
        """values: `[n]`, those of absent agents 0. state: the global state, any pytree of arrays."""
        if not self.is_initializing():
            report("networks", "the mixer")
        seen = jnp.concatenate([leaf.astype(jnp.float32).reshape(-1) for leaf in jax.tree.leaves(state)])
        n = values.shape[0]
        hidden = nn.relu(_dense(self.hyper, 1.0, name="hidden")(seen))
        # The weights start near 1 / n and 1 / embed: the mixer starts as a plain mean, whatever the state's scale.
        first = _dense(n * self.embed, 0.05, 1.0 / n)(hidden)
        bias = _dense(self.embed, 0.05)(hidden)
        second = _dense(self.embed, 0.05, 1.0 / self.embed, name="second")(hidden)
        base = _dense(1, 0.05, name="base")(nn.relu(_dense(self.embed, 1.0)(seen)))[0]
        # Sums instead of products of a vector and a matrix: under vmap these would be many tiny products.
        mixed = nn.elu(jnp.sum(values[:, None] * jnp.abs(first.reshape(n, self.embed)), axis=0) + bias)
        return jnp.sum(mixed * jnp.abs(second)) + base


def init_mixer(kind: MixerKind, key: jax.Array, num_agents: int, state: PyTree, hyper: int = 64) -> PyTree:
    """Fresh weights for a team of that size; `()` for mixers without any. state: a pytree of shapes and dtypes."""
    if kind != "monotonic":
        return ()
    example = trees.zeros(state)
    return MonotonicMixer(hyper=hyper).init(key, jnp.zeros(num_agents), example)


def mix(kind: MixerKind, weights: PyTree, values: jax.Array, state: PyTree) -> jax.Array:
    """The value of a team whose agents have `values` `[n]` (0 where absent)."""
    if kind == "monotonic":
        hyper = weights["params"]["hidden"]["bias"].shape[0]
        return jnp.asarray(MonotonicMixer(hyper=hyper).apply(weights, values, state))
    return jnp.sum(values)


def rescale_mixer(weights: PyTree, scale: jax.Array, shift: jax.Array) -> PyTree:
    """Weights of a monotonic mixer whose output is `scale` (above 0) times that of the given weights, plus `shift`."""
    params = weights["params"]
    second = jax.tree.map(lambda leaf: leaf * scale, params["second"])
    base = {"kernel": params["base"]["kernel"] * scale, "bias": params["base"]["bias"] * scale + shift}
    return {**weights, "params": {**params, "second": second, "base": base}}


def _dense(width: int, scale: float, bias: float = 0.0, name: str | None = None) -> nn.Dense:
    constant = nn.initializers.constant(bias)
    return nn.Dense(width, kernel_init=nn.initializers.orthogonal(scale), bias_init=constant, name=name)
