"""Any strategy of the package evosax, by name: its `ask` and `tell` behind the interface of Shoal's strategies.

evosax minimises, so fitness is minus the return. It is imported on first use.
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax import lax

from shoal.core import trees
from shoal.core.errors import OptionError, ShoalError, install_command, require_positive, unknown_name
from shoal.core.types import PyTree
from shoal.populations.evolution.search import Draw, check_size

PREFIX = "evosax:"
LEARNING_RATE, STD = 0.1, 0.3
"""Replacements of evosax's defaults, which suit problems of unit scale; weights of networks are smaller."""


class MissingEvosaxError(ShoalError, ImportError):
    """A strategy of evosax was requested, but evosax is not installed."""


class EvosaxState(struct.PyTreeNode):
    """The state of evosax, and the generation: the first of a population-based one is its population."""

    inner: PyTree
    generation: jax.Array


@dataclasses.dataclass(frozen=True)
class Evosax:
    """A strategy of evosax. options: `learning_rate`, `std`, and any parameter of that strategy, by evosax's names.

    The name may be written in any way: `CMA_ES`, `cma_es`, `evosax:CMA_ES`.
    """

    name: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        find(self.name)
        for option in ("learning_rate", "std"):
            if option in self.options:
                require_positive(f"Evosax {self.name}", **{option: self.options[option]})

    def check(self, population: int) -> None:
        check_size(f"Evosax {self.name}", population)
        self._built(population, 2)

    def init(self, key: jax.Array, draw: Draw, population: int, generations: int) -> EvosaxState:
        size = jax.eval_shape(draw, key).shape[0]
        algorithm, params = self._built(population, size)
        for_start, for_init = jax.random.split(key)
        if _is_population_based(algorithm):
            members = trees.map_in_turn(draw, jax.random.split(for_start, population))
            inner = algorithm.init(for_init, members, jnp.zeros(population), params)
        elif hasattr(algorithm, "num_populations"):
            means = lax.map(draw, jax.random.split(for_start, algorithm.num_populations))
            inner = algorithm.init(for_init, means, params)
        else:
            inner = algorithm.init(for_init, draw(for_start), params)
        return EvosaxState(_strong(inner), jnp.int32(0))

    def ask(self, key: jax.Array, state: EvosaxState, population: int) -> tuple[jax.Array, EvosaxState]:
        algorithm, params = self._built(population, self._size(state))
        if not _is_population_based(algorithm):
            members, inner = algorithm.ask(key, state.inner, params)
            return members, state.replace(inner=_strong(inner))

        def first(inner: PyTree) -> tuple[jax.Array, PyTree]:
            return inner.population, inner

        def later(inner: PyTree) -> tuple[jax.Array, PyTree]:
            members, inner = algorithm.ask(key, inner, params)
            return members, _strong(inner)

        members, inner = lax.cond(state.generation == 0, first, later, state.inner)
        return members, state.replace(inner=inner)

    def tell(self, key: jax.Array, members: jax.Array, fitness: jax.Array, state: EvosaxState) -> EvosaxState:
        algorithm, params = self._built(members.shape[0], members.shape[1])

        def later(inner: PyTree) -> PyTree:
            return _strong(algorithm.tell(key, members, -fitness, inner, params)[0])

        if not _is_population_based(algorithm):
            return EvosaxState(later(state.inner), state.generation + 1)

        def first(inner: PyTree) -> PyTree:
            del inner
            return _strong(algorithm.init(key, members, -fitness, params))

        inner = lax.cond(state.generation == 0, first, later, state.inner)
        return EvosaxState(inner, state.generation + 1)

    def centre(self, state: EvosaxState) -> jax.Array:
        """The mean of a distribution; the best member of a population."""
        inner = state.inner
        if hasattr(inner, "population"):
            return inner.population[jnp.argmin(inner.fitness)]
        if inner.mean.ndim > 1:  # several means: the one around which the best was found
            return inner.mean[jnp.argmin(inner.best_fitness)]
        return inner.mean

    def _size(self, state: EvosaxState) -> int:
        inner = state.inner
        return (inner.population if hasattr(inner, "population") else inner.mean).shape[-1]

    def _built(self, population: int, size: int) -> tuple[Any, Any]:
        with jax.ensure_compile_time_eval():  # cached values must not belong to a program being traced
            return _build(self.name, tuple(sorted(self.options.items())), population, size)


def find(name: str) -> type:
    """The class of evosax that a name refers to."""
    known = _algorithms(name)
    spelt = {_plain(text): cls for key, cls in known.items() for text in (key, cls.__name__)}
    found = spelt.get(_plain(name.removeprefix(PREFIX)))
    if found is None:
        raise unknown_name("strategy", name.lower(), {*map(str.lower, known), "open_es", "ars", "ga", "erl"})
    return found


def _algorithms(wanted: str = "") -> dict[str, type]:
    try:
        from evosax.algorithms import algorithms
    except ImportError as error:
        what = (
            f"the strategy {wanted!r} is not one of Shoal's own (open_es, ars, ga, erl)"
            if wanted
            else "those of evosax"
        )
        raise MissingEvosaxError(f"{what}; evosax has more: {install_command('evolution')}") from error
    return algorithms


def _plain(text: str) -> str:
    return re.sub(r"[\W_]", "", text).lower()


@functools.lru_cache(maxsize=8)  # evosax recompiles its methods for each object
def _build(name: str, options: tuple[tuple[str, Any], ...], population: int, size: int) -> tuple[Any, Any]:
    """The algorithm of evosax and its parameters."""
    cls, given = find(name), dict(options)
    accepted = inspect.signature(cls.__init__).parameters
    arguments: dict[str, Any] = {}
    rate, std = given.pop("learning_rate", LEARNING_RATE), given.pop("std", STD)
    if "optimizer" in accepted:
        arguments["optimizer"] = optax.adam(rate)
    if "std_schedule" in accepted:
        arguments["std_schedule"] = optax.constant_schedule(std)
    if "sampling_fn" in accepted:  # of random search: anywhere around 0
        arguments["sampling_fn"] = lambda key: std * jax.random.normal(key, (size,))
    sizes = [key for key, entry in accepted.items() if isinstance(entry.default, int | float)]
    arguments |= {key: given.pop(key) for key in sizes if key in given}
    parts = 1
    if "num_populations" in accepted:
        parts = arguments["num_populations"] = int(given.pop("num_populations", 2))
    if population % parts:
        raise OptionError(f"Evosax {name}: population must be a multiple of num_populations, {parts}, got {population}")
    try:
        algorithm = cls(population_size=population // parts, solution=jnp.zeros(size), **arguments)
    except AssertionError as error:
        raise OptionError(f"Evosax {name}: {error} (population {population})") from error
    params = algorithm.default_params
    known = [field.name for field in dataclasses.fields(params)]
    if "std_init" in known:
        params = params.replace(std_init=std)
    for key in given:
        if key not in known:
            raise OptionError(f"Evosax {name}: {unknown_name('option', key, ['learning_rate', 'std', *sizes, *known])}")
    return algorithm, params.replace(**given)


def _is_population_based(algorithm: Any) -> bool:
    from evosax.algorithms.population_based.base import PopulationBasedAlgorithm

    return isinstance(algorithm, PopulationBasedAlgorithm)


def _strong(tree: PyTree) -> PyTree:
    """The tree with plain types: a weak type would trigger a recompilation in the second call."""
    return jax.tree.map(lambda leaf: lax.convert_element_type(leaf, jnp.asarray(leaf).dtype), tree)
