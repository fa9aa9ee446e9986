"""Evolution as one compiled program: generation by generation, thousands of policies are sampled, played and evaluated.

Every member of the population plays `episodes` copies of the world, all at once; the strategy's update from their
returns is part of the same program, whose carry is donated. On several devices (on a CPU, cores) each plays a
share of the members.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jax.sharding import PartitionSpec as P

from shoal.batching.policies import Policies, Uniform
from shoal.core.checks import require_counts
from shoal.core.errors import OptionError, require, unknown_name
from shoal.core.types import PyTree
from shoal.ops.devices import after, join_over_devices, sum_over_devices
from shoal.ops.kernels.choices import record_choices
from shoal.populations.evolution.genome import Genome, genome_of
from shoal.populations.evolution.hybrid import Hybrid
from shoal.populations.evolution.members import EpisodeStats, PopulationActor, copy_ids, play, with_stats
from shoal.populations.evolution.plan import Evolution
from shoal.populations.evolution.strategies import ERL
from shoal.training import records
from shoal.training.devices import make_mesh
from shoal.training.experiment import Experiment, Setup
from shoal.training.fused import check_compiled, policies_of
from shoal.training.kernel_use import describe_kernels
from shoal.training.memory import SMALLER, Need, largest, need_of, on_host, require_room
from shoal.training.program import CompiledProgram, Tally
from shoal.training.run import check_weights, weights_from
from shoal.training.stored_replays import load_with_replays

__all__ = ["Evolution", "EvolutionCarry", "EvolutionProgram", "make_evolution_program"]


class Saved(struct.PyTreeNode):
    """The policies of one learner as a run saves them: the current result of the search."""

    params: dict[str, Any]


class EvolutionCarry(struct.PyTreeNode):
    """The whole state of an evolution, on the device. learners: policies to play. gradient: ERL's, else empty."""

    learners: dict[str, Saved]
    search: PyTree
    gradient: dict[str, Any]
    key: jax.Array
    generation: jax.Array


@dataclasses.dataclass(frozen=True)
class EvolutionProgram(CompiledProgram[EvolutionCarry]):
    """An evolution, compiled: `init` makes the carry, `advance` makes generations. Built by `make_evolution_program`.

    start: policies with given initial weights; see `begin`.
    """

    plan: Evolution
    setup: Setup
    mesh: jax.sharding.Mesh
    start: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def num_updates(self) -> int:
        return self.plan.generations

    @property
    def experiment(self) -> Experiment:
        return self.setup.experiment

    @functools.cached_property
    def genome(self) -> Genome:
        """The genome of the evolving policies."""
        shapes = jax.eval_shape(lambda: policies_of(self._fresh(jax.random.key(0))))
        return genome_of(shapes, {name: self.setup.algorithms[name] for name in self.evolving})

    @property
    def evolving(self) -> tuple[str, ...]:
        """The names of the policies that evolve."""
        return self.plan.evolve or _unfrozen(self.setup)

    @functools.cached_property
    def playing_at_random(self) -> set[str]:
        """The names of the policies that could learn but do not evolve."""
        return set(_unfrozen(self.setup)) - set(self.evolving)

    @functools.cached_property
    def actor(self) -> PopulationActor:
        """The actor: members play their own policies, frozen learners theirs, all others at random."""
        groups = self.setup.spec.groups
        algorithms = {
            name: Uniform(groups[name].action) if name in self.playing_at_random else algorithm
            for name, algorithm in self.setup.algorithms.items()
        }
        return PopulationActor(Policies(algorithms, groups, explore=False), self.genome, self.plan.episodes)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return tuple(self._traced[1])

    @functools.cached_property
    def _traced(self) -> tuple[Any, dict[str, Any], str]:
        """One generation as a jaxpr, its metrics' shapes, and the parts that run as kernels; nothing is computed."""
        generation = functools.partial(self._generation, axis=None)
        with record_choices() as choices:
            jaxpr, (_, metrics) = jax.make_jaxpr(generation, return_shape=True)(self.shapes())
        return jaxpr, metrics, describe_kernels(jaxpr, choices)

    @property
    def kernels(self) -> str:
        return self._traced[2]

    @functools.cached_property
    def need(self) -> Need:
        """The memory it needs, from its trace; the carry is on every device."""
        carry = self.shapes()
        one = need_of(carry, self._traced[0], carry)
        return dataclasses.replace(one, held=one.held * self.mesh.size) if on_host() else one

    def check(self) -> None:
        """Refuses a population that does not fit into memory."""
        _check_memory(self)

    def init(self) -> EvolutionCarry:
        """The carry before the first generation, the same on all devices."""
        return jax.device_put(jax.jit(self._init)(), self.shardings)

    def begin(self) -> EvolutionCarry:
        return dataclasses.replace(self, start=start_of(self.setup)).init()

    def shapes(self) -> EvolutionCarry:
        return jax.eval_shape(self._init)

    def specs(self) -> EvolutionCarry:
        return jax.tree.map(lambda _: P(), self.shapes())

    def step(self, carry: EvolutionCarry, axis: str | None) -> tuple[EvolutionCarry, jax.Array]:
        carry, metrics = self._generation(carry, axis)
        return carry, self.row(metrics)

    def tally(self) -> "GenerationTally":
        return GenerationTally(self)

    def policies(self, carry: EvolutionCarry) -> dict[str, Any]:
        return jax.device_get(policies_of(carry.learners))

    def fault(self, carry: EvolutionCarry, tally: Tally) -> str | None:
        if not tally.failed:
            return None
        assert isinstance(tally, GenerationTally)
        return (
            f"the return of a member or the weights became NaN or infinite in generation {tally.faulty} of world "
            f"{self.experiment.env!r}. Try a smaller step (learning_rate, std), and check the world's rewards "
            "with shoal.testing.check_env."
        )

    def stored(self, carry: EvolutionCarry) -> tuple[PyTree, dict[str, Any]]:
        return carry, {}

    def restore(self, path: Path, meta: dict[str, Any]) -> EvolutionCarry:
        stored = load_with_replays(path, self.shapes())
        if int(stored.generation) != meta["update"]:
            raise records.forged(path, "its arrays are not from the generation that its meta data gives")
        records.check_finite(path, {name: saved.params for name, saved in stored.learners.items()})
        return jax.device_put(stored, self.shardings)

    def _fresh(self, key: jax.Array) -> dict[str, Saved]:
        learners = {}
        for i, (name, (algorithm, spec)) in enumerate(self.setup.learners.items()):
            state = algorithm.init(jax.random.fold_in(key, i), spec)
            learners[name] = Saved({policy: self.start.get(policy, own) for policy, own in state.params.items()})
        return learners

    def draw(self, key: jax.Array) -> jax.Array:
        """Fresh weights of the policies that evolve, `[D]`."""
        return self.genome.vector(policies_of(self._fresh(key)))

    def _init(self) -> EvolutionCarry:
        for_policies, for_search, for_gradient, key = jax.random.split(jax.random.key(self.experiment.seed), 4)
        learners = self._fresh(for_policies)
        plan = self.plan
        search = plan.strategy.init(for_search, self.draw, plan.population, plan.generations)
        gradient = self._hybrid.init(for_gradient) if self._hybrid else {}
        vector = plan.strategy.centre(search)
        return EvolutionCarry(
            self.with_vector(learners, policies_of(learners), vector), search, gradient, key, jnp.int32(0)
        )

    @functools.cached_property
    def _hybrid(self) -> Hybrid | None:
        if not isinstance(self.plan.strategy, ERL):
            return None
        return Hybrid(self.setup, self.actor, self.plan.common_starts, self.plan.max_steps)

    def with_vector(self, learners: dict[str, Saved], policies: dict[str, Any], vector: jax.Array) -> dict[str, Saved]:
        """The learners with the given policies, those that evolve with the weights of a vector."""
        policies = self.genome.express(vector, policies)
        return {name: Saved({policy: policies[policy] for policy in saved.params}) for name, saved in learners.items()}

    def _generation(self, carry: EvolutionCarry, axis: str | None) -> tuple[EvolutionCarry, dict[str, jax.Array]]:
        """Samples members, plays them, and updates the search with their fitness."""
        strategy = self.plan.strategy
        keys = jax.random.split(jax.random.fold_in(carry.key, carry.generation), 4)
        vectors, search = strategy.ask(keys[0], carry.search, self.plan.population)
        policies = {
            name: () if name in self.playing_at_random else p for name, p in policies_of(carry.learners).items()
        }
        gradient, losses = carry.gradient, {}
        if isinstance(strategy, ERL) and self._hybrid:
            episode_stats, gradient, losses = self._hybrid.play((vectors, policies), gradient, keys[1], keys[2])
            fitness, metrics = self._scores(episode_stats, self.plan.population, None, None)
        else:
            episode_stats, fitness, metrics = self._evaluate(vectors, policies, keys[1], strategy.centre(search), axis)
        search = strategy.tell(keys[3], vectors, fitness, search)
        if isinstance(strategy, ERL):
            search = strategy.inject(search, self.genome.vector(policies_of(gradient)))
        with after(metrics, axis):
            updated = with_stats(policies_of(carry.learners), episode_stats.stats, axis)
        learners = self.with_vector(carry.learners, updated, strategy.centre(search))
        finite = jnp.all(jnp.isfinite(fitness)) & jnp.all(jnp.isfinite(strategy.centre(search)))
        metrics |= losses | {"fault": 1.0 - finite}
        return EvolutionCarry(learners, search, gradient, carry.key, carry.generation + 1), metrics

    def _evaluate(
        self, vectors: jax.Array, policies: dict[str, Any], key: jax.Array, centre: jax.Array, axis: str | None
    ) -> tuple[EpisodeStats, jax.Array, dict[str, jax.Array]]:
        """The fitness of all members, split over the devices; each device also evaluates the centre."""
        plan = self.plan
        share = plan.population // self.mesh.size if axis else plan.population
        first = lax.axis_index(axis) * share if axis else 0
        own = jnp.concatenate([lax.dynamic_slice_in_dim(vectors, first, share), centre[None]])
        ids = copy_ids(first, share, plan.episodes, plan.common_starts)
        ids = jnp.concatenate([ids, copy_ids(0, 1, plan.episodes, True)])
        vectorised = self.setup.vectorised(ids.shape[0])
        episode_stats = play(vectorised, self.actor, (own, policies), key, ids, plan.max_steps)
        fitness, metrics = self._scores(episode_stats, share, axis, share)
        return episode_stats, fitness, metrics

    def _scores(
        self, episode_stats: EpisodeStats, share: int, axis: str | None, centre: int | None
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Fitness `[M]`, a mean over episodes, and metrics. centre: index of the extra row, the mean of the search."""
        episodes = self.plan.episodes
        rows = share * episodes
        each = jnp.mean(episode_stats.fitness.reshape(-1, episodes), axis=1)
        sums = {"episodes": jnp.float32(rows), "length": jnp.sum(episode_stats.length[:rows])}
        sums |= {f"return/{group}": jnp.sum(value[:rows]) for group, value in episode_stats.returns.items()}
        fitness = each[:share]
        fitness = join_over_devices(fitness, axis)
        with after(fitness, axis):
            sums = sum_over_devices(sums, axis)
        best, mean, spread = jnp.max(fitness), jnp.mean(fitness), jnp.std(fitness)
        metrics = sums | {"fitness/best": best, "fitness/mean": mean, "fitness/std": spread}
        if centre is not None:
            metrics["fitness/policy"] = each[centre]
        return fitness, metrics


class GenerationTally(Tally):
    """A tally of generations, whose number of env steps depends on the lengths of episodes."""

    def __init__(self, program: EvolutionProgram):
        super().__init__(program)
        self.steps = self.faulty = 0

    @property
    def env_steps(self) -> int:
        return self.steps

    @property
    def eval_updates(self) -> int:
        return self.aggregator.every if self.eval_every else 0

    def is_eval_due(self, tables: Iterable[tuple[int, Any]], newest: Mapping[str, Any]) -> bool:
        """Whether the env steps have passed a multiple of `eval_every` since the newest line."""
        length = self.names.index("length")
        steps = self.steps + sum(int(self._rows(*table)[:, length].astype(np.float64).sum()) for table in tables)
        return steps // self.eval_every > newest.get("env_steps", 0) // self.eval_every

    def add(self, count: int, table: Any) -> list[dict[str, Any]]:
        rows = self._rows(count, table)
        column = {name: rows[:, i].astype(np.float64) for i, name in enumerate(self.names)}
        before, failed = self.update, self.failed
        steps = self.steps + np.cumsum(column["length"]).astype(np.int64)
        self.steps = int(steps[-1])
        lines = super().add(count, table)
        if self.failed and not failed:
            self.faulty = before + 1 + int(np.argmax(column["fault"]))
        return [line | {"env_steps": int(steps[line["update"] - before - 1])} for line in lines]

    def restore(self, meta: dict[str, Any]) -> None:
        super().restore(meta)
        self.steps = meta["env_steps"]


def make_evolution_program(plan: Evolution, devices: int | None = None) -> EvolutionProgram:
    """The program of an evolution, over all local devices or the first few; ERL is on one."""
    setup = plan.played.setup
    check_compiled(setup)
    for name in plan.evolve:
        if name not in setup.spec.groups:
            raise OptionError(f"evolution: {unknown_name('policy to evolve', name, setup.spec.groups)}")
        if name not in _unfrozen(setup):
            raise OptionError(f"evolution: the policy {name!r} belongs to a frozen learner, so it cannot evolve")
    require(bool(_unfrozen(setup)), "evolution", "learners", "frozen ones only", "such that at least one evolves")
    _check_return_groups(plan, setup)
    if isinstance(plan.strategy, ERL):
        Hybrid.check(setup, plan)
        devices = 1
    if devices is not None and devices > 0 and plan.population % devices:
        raise OptionError(f"evolution: population must be a multiple of the devices, {devices}, got {plan.population}")
    require_counts("evolution", population=plan.population, copies=plan.population * plan.episodes)
    mesh = make_mesh(plan.population, 1, devices)
    return EvolutionProgram(plan, setup, mesh)


def _check_memory(program: EvolutionProgram) -> None:
    """Refuses a population that does not fit into memory; the error gives the largest one that does."""
    plan, devices = program.plan, program.mesh.size

    @functools.cache
    def need(population: int) -> Need:
        if population == plan.population:
            return program.need
        smaller = dataclasses.replace(plan, population=population)
        return dataclasses.replace(program, plan=smaller, setup=smaller.played.setup).need

    def advice() -> str:
        most = largest(need, plan.population, 16 * devices, devices)  # no strategy needs more members than 16
        return SMALLER if most is None else f"The largest population that fits is {most:,}."

    members = f"{plan.population:,} members x {plan.episodes:,} episodes"
    require_room(f"{plan.experiment.env} with {members}", program.need, advice, devices)


def start_of(setup: Setup) -> dict[str, Any]:
    """The policies that start from the weights of other runs."""
    check_weights(setup.experiment)
    found = {}
    for name, (algorithm, spec) in setup.learners.items():
        run = setup.experiment.learners[name].weights
        if run is not None:
            found |= weights_from(run, jax.eval_shape(lambda a=algorithm, s=spec: a.init(jax.random.key(0), s).params))
    return found


def _check_return_groups(plan: Evolution, setup: Setup) -> None:
    """Refuses a zero-sum fitness."""
    evolving = set(plan.evolve or _unfrozen(setup))
    players = setup.env.players
    if setup.env.kind != "competitive" or len(players) < 2:
        return
    if all(any(group in evolving for group, _ in seats) for seats in players.values()):
        raise OptionError(
            f"evolution: in {plan.experiment.env!r} the players compete, so the sum of all returns cannot "
            f"be improved. Name the policies that evolve, --evolve NAME; its policies are "
            f"{', '.join(setup.spec.groups)}."
        )


def _unfrozen(setup: Setup) -> tuple[str, ...]:
    """The policies of the learners that are not frozen, in the order of the world's groups."""
    learners = setup.experiment.learners
    owned = {
        policy for name, (_, spec) in setup.learners.items() if not learners[name].frozen for policy in spec.groups
    }
    return tuple(name for name in setup.spec.groups if name in owned)
