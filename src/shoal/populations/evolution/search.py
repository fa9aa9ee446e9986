"""The interface of evolution strategies: `init`, `ask`, `tell`, `centre`, over vectors. No worlds, no networks."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from shoal.core.errors import OptionError, require
from shoal.core.types import PyTree

Draw = Callable[[jax.Array], jax.Array]
"""Fresh weights of the networks that evolve, `key -> [D]`."""


@runtime_checkable
class Strategy(Protocol):
    """A search for the vector of the highest fitness.

    A frozen dataclass whose floats `init` copies into its state. Shape letters: `M` members, `D` numbers of a vector.
    """

    @property
    def name(self) -> str: ...

    def check(self, population: int) -> None:
        """Refuses an unsuitable population size."""
        ...

    def init(self, key: jax.Array, draw: Draw, population: int, generations: int) -> PyTree:
        """The state before the first generation; at most `generations` will follow."""
        ...

    def ask(self, key: jax.Array, state: PyTree, population: int) -> tuple[jax.Array, PyTree]:
        """The vectors `[M, D]` to try next."""
        ...

    def tell(self, key: jax.Array, members: jax.Array, fitness: jax.Array, state: PyTree) -> PyTree:
        """The state updated with the fitness of these members, `[M]`; more is better."""
        ...

    def centre(self, state: PyTree) -> jax.Array:
        """The current result of the search, `[D]`: its mean, or its best."""
        ...


def check_size(owner: str, population: int, even: bool = False) -> None:
    """Refuses fewer than two members, and an odd number of members if they come in pairs."""
    whole = isinstance(population, int) and not isinstance(population, bool)
    require(whole and population >= 2, owner, "population", population, "a whole number, at least 2")
    if even and population % 2:
        raise OptionError(
            f"{owner}: population must be even, as each step is tried in both directions (antithetic sampling), "
            f"got {population}. Try {population + 1}."
        )


def hyper_of(strategy: Any) -> dict[str, jax.Array]:
    """The floats of a strategy as arrays, so that other values need no recompilation."""
    floats = [field.name for field in dataclasses.fields(strategy) if field.type in (float, "float")]
    return {name: jnp.asarray(getattr(strategy, name), jnp.float32) for name in floats}


def centred_ranks(fitness: jax.Array) -> jax.Array:
    """Ranks of `[M]` from -1/2, the worst, to 1/2, the best; ties share theirs. So only the order counts."""
    ranks = jax.scipy.stats.rankdata(fitness) - 1.0
    return ranks / (fitness.shape[0] - 1) - 0.5


def sample_mirrored(key: jax.Array, mean: jax.Array, std: jax.Array, population: int) -> jax.Array:
    """Members `[M, D]` around a mean, the second half of them opposite to the first (antithetic sampling)."""
    noise = std * jax.random.normal(key, (population // 2, mean.shape[0]))
    return jnp.concatenate([mean + noise, mean - noise])
