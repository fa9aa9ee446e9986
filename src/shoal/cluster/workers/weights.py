"""Weights between processes: pushed by a learner as bare arrays, pulled by actors and gradient workers."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.cluster.services.parameters import ParameterService
from shoal.cluster.transport.service import Service, ServiceUnavailable, Store
from shoal.core.types import PyTree
from shoal.training.fused import FusedProgram, policies_of

POLICIES = "policies"
"""The name of the weights of all policies of a training."""
WAIT = 1.0
"""Seconds that a call may wait inside a service, after which the worker checks whether to stop."""


class Layout(NamedTuple):
    """The structure of a tree, so that only its arrays have to be sent."""

    structure: Any

    @staticmethod
    def of(tree: PyTree) -> "Layout":
        return Layout(jax.tree.structure(tree))

    def pack(self, tree: PyTree) -> list[np.ndarray]:
        return [np.asarray(leaf) for leaf in jax.device_get(jax.tree.leaves(tree))]

    def unpack(self, leaves: Sequence[np.ndarray]) -> Any:
        return jax.tree.unflatten(self.structure, list(leaves))


def policy_layout(program: FusedProgram) -> Layout:
    """The layout of an experiment's policies."""
    return Layout.of(policies_of(program.shapes().learners))


class PulledWeights:
    """The newest weights of a name, as a worker has them. version, epoch: -1 before there are any."""

    def __init__(self, name: str, layout: Layout, parameters: Service[ParameterService], store: Store):
        self.name, self.layout, self.parameters, self.store = name, layout, parameters, store
        self.version, self.epoch = -1, -1
        self.value: Any = None

    def pull(self, least: int = 0, epoch: int = 0) -> bool:
        """Pulls the newest weights; False if none of version `least` and of that learner epoch exist yet."""
        wait = 0.0 if self._suffice(least, epoch) else WAIT
        found = self.parameters.retry.pull(self.name, self.version, least, wait, self.epoch)
        if found is not None:
            try:
                self.value = self.layout.unpack(self.store.get(found.ref))
            except ServiceUnavailable:  # the service died with them; the learner pushes them again
                return False
            self.version, self.epoch = found.version, found.epoch
        return self._suffice(least, epoch)

    def _suffice(self, least: int, epoch: int) -> bool:
        return self.version >= least and self.epoch >= epoch
