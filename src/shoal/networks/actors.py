"""A separate actor: a torso and a head, for learners with critics of actions."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from shoal.core.types import PyTree
from shoal.networks.torsos import Network, Torso, initial_carry
from shoal.ops.mlp import fuse


class ActorNetwork(nn.Module):
    """From one agent's view to `width` numbers, which determine its action. No batch axes; the caller vmaps."""

    config: Network
    width: int

    def setup(self):
        self.torso = Torso(self.config)
        self.head = nn.Dense(self.width, kernel_init=nn.initializers.orthogonal(0.01), dtype=jnp.float32)

    def __call__(self, view: PyTree, memory: PyTree) -> tuple[jax.Array, PyTree]:
        """One step: (numbers, memory after it)."""
        if fused := fuse([self.torso.tower(view, [self.head])], self.config.activation, self.config.dtype):
            return fused[0], memory
        features, memory = self.torso(view, memory)
        return self.head(features), memory

    def unroll(
        self, view: PyTree, memory: PyTree, first: jax.Array, active: jax.Array | None = None
    ) -> tuple[jax.Array, PyTree]:
        """`T` steps in a row: (numbers `[T, width]`, memory after each step, `[T, ...]`)."""
        features, memories = self.torso.unroll(view, memory, first, active, every=True)
        return self.head(features), memories

    @nn.nowrap
    def initial_memory(self) -> PyTree:
        """One agent's memory at the start of an episode. Needs no weights: call it on the module itself."""
        return initial_carry(self.config)
