"""A genetic algorithm whose individuals are chains of seeds (Such et al. 2017).

Truncation selection, Gaussian mutation, no crossover, and the best member survives unchanged. An individual is

    θ = draw(seed_0) + σ ε(seed_1) + σ ε(seed_2) + ...

so a few integers describe it completely, however large its network: `decode` computes the weights from them. Here the
weights of the parents are kept with their chains, so that a generation costs one mutation per member and not its whole
ancestry.

Departures: the first generation consists of mutants of `parents` fresh networks; the elite is selected by the same
episodes as all others, without additional ones.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from shoal.core import trees
from shoal.core.checks import check_floats, check_types, check_whole
from shoal.populations.evolution.search import Draw, check_size, hyper_of


class GAState(struct.PyTreeNode):
    """The parents `[P]`, best first: vectors `[P, D]`, chains of seeds `[P, L]`, of which `length` `[P]` are in use.

    parent, seed: how each of the `M` members of the current generation was made.
    """

    parents: jax.Array
    chains: jax.Array
    length: jax.Array
    parent: jax.Array
    seed: jax.Array
    hyper: dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class SeedChainGA:
    """A genetic algorithm with truncation selection and mutation only, its individuals encoded as chains of seeds."""

    name: ClassVar[str] = "ga"

    parents: int = 20  # members of a generation that have children
    std: float = 0.05  # standard deviation of a mutation, per weight

    def __post_init__(self):
        check_types(self)
        check_whole(self, parents=1)
        check_floats(self, std=(0.0, None))

    def check(self, population: int) -> None:
        check_size("SeedChainGA", population)

    def init(self, key: jax.Array, draw: Draw, population: int, generations: int) -> GAState:
        count = min(self.parents, population)
        seeds = _new_seeds(key, count)
        chains = jnp.zeros((count, generations + 1), jnp.uint32).at[:, 0].set(seeds)
        parents = trees.map_in_turn(lambda seed: draw(jax.random.key(seed)), seeds)
        made = jnp.zeros(population, jnp.int32), jnp.zeros(population, jnp.uint32)
        return GAState(parents, chains, jnp.ones(count, jnp.int32), *made, hyper_of(self))

    def ask(self, key: jax.Array, state: GAState, population: int) -> tuple[jax.Array, GAState]:
        """Children of parents drawn at random; the first member is the best parent itself."""
        for_parent, for_seed = jax.random.split(key)
        parent = jax.random.randint(for_parent, (population,), 0, state.parents.shape[0]).at[0].set(0)
        seed = _new_seeds(for_seed, population)
        noise = jax.vmap(lambda one: mutation(one, state.parents.shape[1]))(seed)
        children = state.parents[parent] + state.hyper["std"] * noise
        return children.at[0].set(state.parents[0]), state.replace(parent=parent, seed=seed)

    def tell(self, key: jax.Array, members: jax.Array, fitness: jax.Array, state: GAState) -> GAState:
        _, best = lax.top_k(fitness, state.parents.shape[0])
        chains, length = state.chains[state.parent[best]], state.length[state.parent[best]]
        mutated = best > 0
        slot = jnp.arange(chains.shape[1]) == length[:, None]
        chains = jnp.where(slot & mutated[:, None], state.seed[best][:, None], chains)
        return state.replace(parents=members[best], chains=chains, length=length + mutated)

    def centre(self, state: GAState) -> jax.Array:
        return state.parents[0]


def mutation(seed: jax.Array, size: int) -> jax.Array:
    """The noise `[size]` that a seed stands for."""
    return jax.random.normal(jax.random.key(seed), (size,))


def decode(chain: jax.Array, length: jax.Array | int, std: jax.Array | float, draw: Draw) -> jax.Array:
    """The vector `[D]` that the first `length` seeds of a chain stand for."""
    start = draw(jax.random.key(chain[0]))
    return lax.fori_loop(1, length, lambda i, vector: vector + std * mutation(chain[i], vector.shape[0]), start)


def _new_seeds(key: jax.Array, count: int) -> jax.Array:
    return jax.random.bits(key, (count,), jnp.uint32)
