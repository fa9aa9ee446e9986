"""Action values of one agent: a torso and a head with one number for each choice.

A `MultiDiscrete` action has one head for each of its parts (Tavakoli et al. 2018): the value of an action is the mean
of the values of its parts, so the greedy action is found part by part. `dueling` splits the head into the value of the
view and the advantage of each choice (Wang et al. 2016). No batch axes; the caller vmaps.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from shoal.core import trees
from shoal.core.spaces import Discrete, MultiDiscrete, num_logits, split_parts
from shoal.core.types import PyTree
from shoal.networks.torsos import Network, Torso, initial_carry
from shoal.ops.mlp import fuse

ILLEGAL = -1e9
"""Value of an illegal choice in the search for the best."""


class QNetwork(nn.Module):
    """The values of one agent's choices, `[num_logits]`, part after part."""

    config: Network
    action: Discrete | MultiDiscrete
    dueling: bool = False

    def setup(self):
        self.torso = Torso(self.config)
        self.head = nn.Dense(num_logits(self.action), kernel_init=nn.initializers.orthogonal(0.1), dtype=jnp.float32)
        if self.dueling:
            self.base = nn.Dense(1, kernel_init=nn.initializers.orthogonal(0.1), dtype=jnp.float32)

    def __call__(self, view: PyTree, memory: PyTree) -> tuple[jax.Array, PyTree]:
        """One step: (values, memory after it)."""
        heads = [self.head, self.base] if self.dueling else [self.head]
        if fused := fuse([self.torso.tower(view, heads)], self.config.activation, self.config.dtype):
            values, base = jnp.split(fused[0], [num_logits(self.action)])
            return self._combine(values, base if self.dueling else None), memory
        features, memory = self.torso(view, memory)
        return self._values(features), memory

    def unroll(
        self, view: PyTree, memory: PyTree, first: jax.Array, active: jax.Array | None = None
    ) -> tuple[jax.Array, PyTree]:
        """`T` steps in a row: (values `[T, num_logits]`, memory after each step, `[T, ...]`)."""
        features, memories = self.torso.unroll(view, memory, first, active, every=True)
        return self._values(features), memories

    @nn.nowrap
    def initial_memory(self) -> PyTree:
        """One agent's memory at the start of an episode. Needs no weights: call it on the module itself."""
        return initial_carry(self.config)

    def _values(self, features: jax.Array) -> jax.Array:
        return self._combine(self.head(features), self.base(features) if self.dueling else None)

    def _combine(self, values: jax.Array, base: jax.Array | None) -> jax.Array:
        """The values of choices, given the outputs of the heads."""
        if base is None:
            return values
        centred = [part - jnp.mean(part, axis=-1, keepdims=True) for part in split_parts(self.action, values)]
        return base + jnp.concatenate(centred, axis=-1)


def init_q_network(module: QNetwork, key: jax.Array, view_spec: PyTree) -> PyTree:
    """Fresh weights. view_spec: pytree of anything with a shape and a dtype, for one agent."""
    view = trees.zeros(view_spec)
    return module.init(key, view, module.initial_memory())


def best_action(space: Discrete | MultiDiscrete, values: jax.Array, legal: jax.Array | None) -> jax.Array:
    """The legal action of the highest value."""
    masked = values if legal is None else jnp.where(legal, values, ILLEGAL)
    best = [jnp.argmax(part).astype(jnp.int32) for part in split_parts(space, masked)]
    return best[0] if isinstance(space, Discrete) else jnp.stack(best)


def value_of(space: Discrete | MultiDiscrete, values: jax.Array, action: jax.Array) -> jax.Array:
    """The value of an action: the mean over its parts."""
    chosen = []
    for i, part in enumerate(split_parts(space, values)):
        choice = action if isinstance(space, Discrete) else action[i]
        # A comparison instead of a gather: its gradient needs no scatter.
        chosen.append(jnp.sum(jnp.where(jnp.arange(part.shape[-1]) == choice, part, 0.0)))
    return sum(chosen[1:], chosen[0]) / len(chosen)


def mean_value(space: Discrete | MultiDiscrete, values: jax.Array, legal: jax.Array | None) -> jax.Array:
    """The mean over legal choices (and over parts): the value of a view for an inactive agent."""
    allowed = jnp.ones(values.shape) if legal is None else legal.astype(jnp.float32)
    means = [
        jnp.sum(part * weight) / jnp.maximum(jnp.sum(weight), 1.0)
        for part, weight in zip(split_parts(space, values), split_parts(space, allowed), strict=True)
    ]
    return sum(means[1:], means[0]) / len(means)


def expected_value(space: Discrete | MultiDiscrete, values: jax.Array, probabilities: jax.Array) -> jax.Array:
    """E[Q(s, a)] `[...]` of independent parts, from values and probabilities of every choice, `[..., num_logits]`."""
    both = zip(split_parts(space, probabilities), split_parts(space, values), strict=True)
    means = [jnp.sum(value * chance, axis=-1) for chance, value in both]
    return sum(means[1:], means[0]) / len(means)
