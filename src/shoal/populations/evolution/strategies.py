"""Evolution strategies by name: OpenAI-ES, augmented random search, a genetic algorithm, ERL, and those of evosax.

A strategy is a frozen dataclass, a plain description of a search; its methods are pure functions of its state, to be
compiled by a runner. Fitness is the return: more is better. Only `Evosax` needs the package evosax, and imports it on
first use.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax
from flax import struct

from shoal.core.checks import check_floats, check_types
from shoal.core.errors import OptionError, unknown_name
from shoal.populations.evolution.erl import ERL
from shoal.populations.evolution.evosax_strategy import Evosax
from shoal.populations.evolution.search import (
    Draw,
    Strategy,
    centred_ranks,
    check_size,
    hyper_of,
    sample_mirrored,
)
from shoal.populations.evolution.seed_chain import SeedChainGA
from shoal.training.serialise import register_family

__all__ = [
    "ARS",
    "ERL",
    "STRATEGIES",
    "Draw",
    "Evosax",
    "OpenES",
    "SeedChainGA",
    "Strategy",
    "make_strategy",
]


class ESState(struct.PyTreeNode):
    """A search around a mean `[D]`. optimiser: Adam's state, if used. hyper: the strategy's floats."""

    mean: jax.Array
    optimiser: Any
    hyper: dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class OpenES:
    """OpenAI-ES (Salimans et al. 2017): a gradient from members in mirrored pairs, by their ranks; Adam follows it."""

    name: ClassVar[str] = "open_es"

    learning_rate: float = 0.2  # Adam's step size
    std: float = 0.5  # standard deviation of members around the mean, per weight
    weight_decay: float = 0.0  # share of the mean that decays in a step of size 1
    ranks: bool = True  # use only the ranks of members; otherwise their returns, standardised

    def __post_init__(self):
        check_types(self)
        check_floats(self, learning_rate=(0.0, None), std=(1e-8, None), weight_decay=(0.0, None))

    def check(self, population: int) -> None:
        check_size("OpenES", population, even=True)

    def init(self, key: jax.Array, draw: Draw, population: int, generations: int) -> ESState:
        mean = draw(key)
        return ESState(mean, optax.scale_by_adam().init(mean), hyper_of(self))

    def ask(self, key: jax.Array, state: ESState, population: int) -> tuple[jax.Array, ESState]:
        return sample_mirrored(key, state.mean, state.hyper["std"], population), state

    def tell(self, key: jax.Array, members: jax.Array, fitness: jax.Array, state: ESState) -> ESState:
        shaped = centred_ranks(fitness) if self.ranks else jax.nn.standardize(fitness, epsilon=1e-8)
        gradient = self.gradient(state, members, shaped)
        step, optimiser = optax.scale_by_adam().update(gradient, state.optimiser)
        assert isinstance(step, jax.Array)
        step = step - state.hyper["weight_decay"] * state.mean
        return state.replace(mean=state.mean + state.hyper["learning_rate"] * step, optimiser=optimiser)

    def centre(self, state: ESState) -> jax.Array:
        return state.mean

    @staticmethod
    def gradient(state: ESState, members: jax.Array, fitness: jax.Array) -> jax.Array:
        """The estimate of the gradient of the mean fitness, Σ F(μ + σ ε) ε / (M σ), for members in mirrored pairs."""
        half = fitness.shape[0] // 2
        noise = (members[:half] - state.mean) / state.hyper["std"]
        return jnp.dot(fitness[:half] - fitness[half:], noise) / (2 * half * state.hyper["std"])


@dataclasses.dataclass(frozen=True)
class ARS:
    """Augmented random search (Mania et al. 2018): plain steps along the best pairs, scaled by the spread of returns.

    The paper's linear policies are a network without hidden layers; V2, its best version, normalises views.
    """

    name: ClassVar[str] = "ars"

    learning_rate: float = 0.2  # step size
    std: float = 0.3  # standard deviation of members around the mean, per weight
    elite_share: float = 0.5  # share of pairs that count: those with the best member

    def __post_init__(self):
        check_types(self)
        check_floats(self, learning_rate=(0.0, None), std=(1e-8, None), elite_share=(0.0, 1.0))

    def check(self, population: int) -> None:
        check_size("ARS", population, even=True)

    def init(self, key: jax.Array, draw: Draw, population: int, generations: int) -> ESState:
        return ESState(draw(key), (), hyper_of(self))

    def ask(self, key: jax.Array, state: ESState, population: int) -> tuple[jax.Array, ESState]:
        return sample_mirrored(key, state.mean, state.hyper["std"], population), state

    def tell(self, key: jax.Array, members: jax.Array, fitness: jax.Array, state: ESState) -> ESState:
        half = fitness.shape[0] // 2
        elites = max(1, int(self.elite_share * half))
        ahead, back = fitness[:half], fitness[half:]
        _, best = jax.lax.top_k(jnp.maximum(ahead, back), elites)
        spread = jnp.maximum(jnp.std(jnp.concatenate([ahead[best], back[best]])), 1e-8)
        noise = (members[best] - state.mean) / state.hyper["std"]
        step = jnp.dot(ahead[best] - back[best], noise) / (elites * spread)
        return state.replace(mean=state.mean + state.hyper["learning_rate"] * step)

    def centre(self, state: ESState) -> jax.Array:
        return state.mean


STRATEGIES: dict[str, Any] = {cls.name: cls for cls in (OpenES, ARS, SeedChainGA, ERL)}
"""Shoal's own strategies."""


def make_strategy(name: str, **options: Any) -> Strategy:
    """The strategy of that name: one of Shoal's or, by its name in any spelling, one of evosax's."""
    if name not in STRATEGIES:
        return Evosax(name, options)
    known = [field.name for field in dataclasses.fields(STRATEGIES[name])]
    for option in options:
        if option not in known:
            raise OptionError(f"{STRATEGIES[name].__name__}: {unknown_name('option', option, known)}")
    return STRATEGIES[name](**options)


register_family(Strategy, lambda name: STRATEGIES.get(name, Evosax))
