"""Evolutionary reinforcement learning: a population and a gradient learner that help each other (Khadka & Tumer 2018).

The population evolves by a genetic algorithm. All experience of its members goes into the replay of an off-policy
learner, and every `period` generations the learner's actor replaces a member: if it is good it will have children,
otherwise it is dropped a generation later. This file has the population's side, over vectors; the runner plays the
episodes, trains the learner and calls `inject`.

Departure: crossover exchanges a segment of the whole vector, where the paper exchanges rows of weight matrices.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from shoal.core import trees
from shoal.core.checks import check_floats, check_types, check_whole
from shoal.core.errors import require
from shoal.populations.evolution.search import Draw, check_size, hyper_of


class ERLState(struct.PyTreeNode):
    """Members `[M, D]` of the next generation, best first as far as they are elites."""

    members: jax.Array
    generation: jax.Array
    hyper: dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class ERL:
    """A genetic algorithm with periodic injection of a gradient learner's actor."""

    name: ClassVar[str] = "erl"

    elite_share: float = 0.2  # share of members that survive unchanged
    tournament: int = 3  # size of the random tournaments that select the other parents
    crossover_share: float = 0.5  # share of children that get a segment of an elite's weights
    mutated_share: float = 0.9  # share of children that are mutated
    gene_share: float = 0.1  # share of a child's weights that a mutation changes
    mutation_std: float = 0.1  # standard deviation of a mutation, relative to the weight
    super_share: float = 0.05  # share of mutated weights that change by ten times as much
    reset_share: float = 0.05  # share of mutated weights that are redrawn
    period: int = 1  # generations between two injections of the learner's actor
    piece: int = 16  # steps of each copy between two updates of the learner

    def __post_init__(self):
        check_types(self)
        shares = ("elite_share", "crossover_share", "mutated_share", "gene_share", "super_share", "reset_share")
        check_floats(self, mutation_std=(0.0, None), **dict.fromkeys(shares, (0.0, 1.0)))
        check_whole(self, tournament=1, period=1, piece=1)
        total = self.super_share + self.reset_share
        require(total <= 1.0, "ERL", "super_share + reset_share", total, "at most 1")

    def check(self, population: int) -> None:
        check_size("ERL", population)

    def init(self, key: jax.Array, draw: Draw, population: int, generations: int) -> ERLState:
        members = trees.map_in_turn(draw, jax.random.split(key, population))
        return ERLState(members, jnp.int32(0), hyper_of(self))

    def ask(self, key: jax.Array, state: ERLState, population: int) -> tuple[jax.Array, ERLState]:
        return state.members, state

    def tell(self, key: jax.Array, members: jax.Array, fitness: jax.Array, state: ERLState) -> ERLState:
        """Elites, then children of tournament winners, crossed with elites and mutated."""
        population = members.shape[0]
        elites = min(max(1, round(self.elite_share * population)), population - 1)
        for_fight, for_mate, for_mutation = jax.random.split(key, 3)
        ranked = members[jnp.argsort(-fitness)]
        fighters = jax.random.randint(for_fight, (population - elites, self.tournament), 0, population)
        children = ranked[jnp.min(fighters, axis=1)]  # members are ranked best first
        mates = jax.random.split(for_mate, population - elites)
        children = jax.vmap(lambda k, child: _cross(k, child, ranked[:elites], state.hyper))(mates, children)
        keys = jax.random.split(for_mutation, population - elites)
        children = jax.vmap(lambda k, child: _mutate(k, child, state.hyper))(keys, children)
        grown = jnp.concatenate([ranked[:elites], children])
        return state.replace(members=grown, generation=state.generation + 1)

    def inject(self, state: ERLState, actor: jax.Array) -> ERLState:
        """The learner's actor in place of the last child, every `period` generations."""
        due = state.generation % self.period == 0
        return state.replace(members=state.members.at[-1].set(jnp.where(due, actor, state.members[-1])))

    def centre(self, state: ERLState) -> jax.Array:
        return state.members[0]


def _cross(key: jax.Array, child: jax.Array, elites: jax.Array, hyper: dict[str, jax.Array]) -> jax.Array:
    """The child with a segment of some elite's weights, or unchanged."""
    whether, who, where = jax.random.split(key, 3)
    elite = elites[jax.random.randint(who, (), 0, elites.shape[0])]
    start, stop = jnp.sort(jax.random.randint(where, (2,), 0, child.shape[0] + 1))
    place = jnp.arange(child.shape[0])
    taken = (place >= start) & (place < stop) & (jax.random.uniform(whether) < hyper["crossover_share"])
    return jnp.where(taken, elite, child)


def _mutate(key: jax.Array, child: jax.Array, hyper: dict[str, jax.Array]) -> jax.Array:
    """The child with some weights changed slightly, strongly or redrawn; or unchanged."""
    whether, which, how, noise = jax.random.split(key, 4)
    touched = jax.random.uniform(which, child.shape) < hyper["gene_share"]
    touched &= jax.random.uniform(whether) < hyper["mutated_share"]
    kind = jax.random.uniform(how, child.shape)
    drawn = jax.random.normal(noise, child.shape)
    strength = jnp.where(kind < hyper["super_share"], 10.0, 1.0) * hyper["mutation_std"]
    reset = kind > 1.0 - hyper["reset_share"]
    return jnp.where(touched, jnp.where(reset, drawn, child + strength * child * drawn), child)
