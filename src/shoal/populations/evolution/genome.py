"""Policies as vectors: which of their weights evolve, and the way there and back.

What evolves is what decides how a policy plays: the actor of an actor-critic, all weights of a policy that acts on its
action values. Critics, statistics and the like stay as they are. Several policies (one a group) make up one vector.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.flatten_util import ravel_pytree

from shoal.core import trees
from shoal.core.types import PyTree

PLAYING = ("actor_torso", "shared_torso", "policy_head")
"""Parts of an `ActorCritic` that its play depends on; the deviation of continuous actions is for exploring only."""


@dataclasses.dataclass(frozen=True)
class Genome:
    """The vector form of policies. shapes: the evolving weights by policy, anything with shapes and dtypes."""

    shapes: Mapping[str, PyTree]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.shapes)

    @functools.cached_property
    def size(self) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(dict(self.shapes)))

    @functools.cached_property
    def _unravel(self) -> Callable[[jax.Array], PyTree]:
        zeros = trees.zeros(dict(self.shapes))
        return ravel_pytree(zeros)[1]

    def vector(self, policies: Mapping[str, Any]) -> jax.Array:
        """The evolving weights of the policies, `[D]`."""
        return ravel_pytree({name: playing(policies[name]) for name in self.names})[0]

    def express(self, vector: jax.Array, policies: Mapping[str, Any]) -> dict[str, Any]:
        """The policies, playing as the vector says; those that do not evolve are as they were."""
        parts = self._unravel(vector)
        return dict(policies) | {name: with_playing(policies[name], part) for name, part in parts.items()}


def genome_of(policies: Mapping[str, Any], names: tuple[str, ...]) -> Genome:
    """The genome of the named ones among policies, or among their shapes."""
    return Genome({name: playing(policies[name]) for name in names})


def playing(policy: Any) -> PyTree:
    """The weights that a policy's play depends on."""
    weights = policy.weights
    if "actor" in weights:
        return weights["actor"]
    layers = weights.get("params", {})
    if "policy_head" in layers:
        return {name: layers[name] for name in PLAYING if name in layers}
    return weights


def with_playing(policy: Any, part: PyTree) -> Any:
    """The policy with other weights that its play depends on."""
    weights = policy.weights
    if "actor" in weights:
        return policy.replace(weights={**weights, "actor": part})
    layers = weights.get("params", {})
    if "policy_head" in layers:
        return policy.replace(weights={**weights, "params": {**layers, **part}})
    return policy.replace(weights=part)
