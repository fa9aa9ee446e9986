"""Policies as vectors: which of their weights evolve, and the conversion in both directions.

The weights that determine play evolve (`core.algorithm.Evolves`): the actor of an actor-critic, all weights of a
policy with action values. Critics, statistics and the like do not change. Several policies (one per group) make up one
vector.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.flatten_util import ravel_pytree

from shoal.core import trees
from shoal.core.algorithm import Algorithm, Evolves, NormalisesViews, require_protocol, supports
from shoal.core.types import PyTree


@dataclasses.dataclass(frozen=True)
class Genome:
    """The vector form of policies.

    shapes: the evolving weights by policy, anything with shapes and dtypes. algorithms: those of the same policies.
    """

    shapes: Mapping[str, PyTree]
    algorithms: Mapping[str, Any]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.shapes)

    @property
    def normalised(self) -> tuple[str, ...]:
        """The policies that normalise views."""
        return tuple(
            name
            for name in self.names
            if supports(own := self.algorithms[name], NormalisesViews) and own.normalise_views
        )

    @functools.cached_property
    def size(self) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(dict(self.shapes)))

    @functools.cached_property
    def _unravel(self) -> Callable[[jax.Array], PyTree]:
        zeros = trees.zeros(dict(self.shapes))
        return ravel_pytree(zeros)[1]

    def vector(self, policies: Mapping[str, Any]) -> jax.Array:
        """The evolving weights of the policies, `[D]`."""
        return ravel_pytree({name: self.algorithms[name].acting_weights(policies[name]) for name in self.names})[0]

    def express(self, vector: jax.Array, policies: Mapping[str, Any]) -> dict[str, Any]:
        """The policies with the weights of a vector; those that do not evolve are unchanged."""
        parts = self._unravel(vector)
        evolved = {
            name: self.algorithms[name].with_acting_weights(policies[name], part) for name, part in parts.items()
        }
        return dict(policies) | evolved


def genome_of(policies: Mapping[str, Any], algorithms: Mapping[str, Algorithm]) -> Genome:
    """The genome of the policies (or shapes) whose algorithms are given."""
    known = {name: require_protocol(algorithm, Evolves, "evolution") for name, algorithm in algorithms.items()}
    return Genome({name: one.acting_weights(policies[name]) for name, one in known.items()}, known)
