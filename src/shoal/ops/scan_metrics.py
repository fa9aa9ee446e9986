"""Metrics of the steps of a scan, such as those of gradient steps, kept as one array."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from shoal.core.types import PyTree


class PackedMetrics(struct.PyTreeNode):
    """Scalar metrics as one array: on an accelerator every array that a loop stores is a kernel of its own."""

    values: jax.Array
    structure: Any = struct.field(pytree_node=False)

    def means(self) -> PyTree:
        """The means over all steps of a scan, metric by metric."""
        return jax.tree.unflatten(self.structure, [jnp.mean(column) for column in self.values.T])


def pack_metrics(metrics: PyTree) -> PackedMetrics:
    """The metrics of one step of a scan."""
    leaves, structure = jax.tree.flatten(metrics)
    return PackedMetrics(jnp.stack(leaves) if leaves else jnp.zeros(0), structure)
