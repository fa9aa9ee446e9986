"""Evolution on a cluster (Salimans et al. 2017): members play on all workers, which exchange only seeds and returns.

    driver    adds the tasks of every generation, follows, keeps metrics and checkpoints
       |  which members play (a seed and a range)            ^  what they returned
    workers   each has a copy of the search, makes all members of a generation from the seed, plays some of them;
              then it gets the returns of all other members, and takes the same step as all workers

Weights are sent only once, to workers that join a resumed run. A restarted worker starts from the seed and replays all
returns since, which are in the task board's journal. Where views are normalised, the sums for their statistics are sent
with the returns. All replicas must be equal to the bit: every result has a digest of the replica that played it, and a
different one ends the run. So all workers have to be of the same kind (processor, accelerator, versions). ERL also has
learners and cannot run on clusters.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shoal.cluster.tasks.board import Task, TaskBoard, TaskResult
from shoal.cluster.tasks.pool import LazyPool, WorkerPool
from shoal.cluster.tasks.populations import digest, from_arrays, to_arrays
from shoal.cluster.transport.service import Service
from shoal.core.errors import OptionError, RunError
from shoal.populations.evolution.members import copy_ids, empty_stats, play, with_stats
from shoal.populations.evolution.plan import Evolution
from shoal.populations.evolution.program import EvolutionCarry, EvolutionProgram
from shoal.populations.evolution.strategies import ERL
from shoal.training.fused import policies_of
from shoal.training.program import MAX_UPDATES
from shoal.training.serialise import from_plain, to_plain

MOST_SLICES = 16
"""The most tasks per generation: fixed for a run, not per pool, so that workers may join and leave."""
AHEAD = 2
"""Generations whose tasks are on the board ahead of the current one."""


def check(plan: Evolution) -> None:
    """Refuses strategies that need more than returns."""
    if isinstance(plan.strategy, ERL):
        raise OptionError(
            "evolution: the strategy erl also trains by gradients, so workers would exchange more than returns. "
            "Choose another strategy, such as open_es, or leave out --cluster."
        )


def make_program(config: Evolution, workers: LazyPool) -> "ClusterEvolutionProgram":
    """The program of an evolution whose members play on workers."""
    program = config.program(1)
    program.check()
    return ClusterEvolutionProgram(program.plan, program.setup, program.mesh, program.start, workers)


def num_slices(population: int) -> int:
    """The largest number of equal shares of a population, up to a limit."""
    return max(count for count in range(1, MOST_SLICES + 1) if population % count == 0)


@dataclasses.dataclass(frozen=True)
class Replica:
    """A search that needs returns only; pure functions of its carry, compiled."""

    program: EvolutionProgram

    @property
    def slices(self) -> int:
        return num_slices(self.program.plan.population)

    @property
    def size(self) -> int:
        """Members that one task plays."""
        return self.program.plan.population // self.slices

    @functools.cached_property
    def play(self) -> Callable[[EvolutionCarry, jax.Array, bool], dict[str, Any]]:
        """`play(carry, first, centre) -> figures`: some members of this generation and, optionally, the centre."""
        return jax.jit(self._play, static_argnums=2)

    @functools.cached_property
    def tell(self) -> Callable[..., tuple[EvolutionCarry, dict[str, Any]]]:
        """`tell(carry, figures) -> carry, metrics`: the next generation. figures: of all slices, in their order."""
        return jax.jit(self._tell)

    def _keys(self, carry: EvolutionCarry) -> jax.Array:
        return jax.random.split(jax.random.fold_in(carry.key, carry.generation), 4)

    def _play(self, carry: EvolutionCarry, first: jax.Array, centre: bool) -> dict[str, Any]:
        program, plan, keys = self.program, self.program.plan, self._keys(carry)
        vectors, search = plan.strategy.ask(keys[0], carry.search, plan.population)
        own = lax.dynamic_slice_in_dim(vectors, first, self.size)
        ids = copy_ids(first, self.size, plan.episodes, plan.common_starts)
        if centre:
            own = jnp.concatenate([own, plan.strategy.centre(search)[None]])
            ids = jnp.concatenate([ids, copy_ids(0, 1, plan.episodes, True)])
        policies = {
            name: () if name in program.playing_at_random else p for name, p in policies_of(carry.learners).items()
        }
        vectorised = program.setup.vectorised(ids.shape[0])
        episode_stats = play(vectorised, program.actor, (own, policies), keys[1], ids, plan.max_steps)
        rows = self.size * plan.episodes
        each = jnp.mean(episode_stats.fitness.reshape(-1, plan.episodes), axis=1)
        sums = {"episodes": jnp.float32(rows), "length": jnp.sum(episode_stats.length[:rows])}
        sums |= {f"return/{group}": jnp.sum(value[:rows]) for group, value in episode_stats.returns.items()}
        views = jax.tree.leaves(episode_stats.stats)
        return {"returns": each[: self.size], "centre": each[self.size :], "sums": sums, "views": views}

    def _tell(self, carry: EvolutionCarry, figures: Sequence[dict[str, Any]]) -> tuple[EvolutionCarry, dict[str, Any]]:
        program, plan, keys = self.program, self.program.plan, self._keys(carry)
        strategy, policies = plan.strategy, policies_of(carry.learners)
        fitness = jnp.concatenate([part["returns"] for part in figures])
        vectors, search = strategy.ask(keys[0], carry.search, plan.population)
        search = strategy.tell(keys[3], vectors, fitness, search)
        for part in figures:
            policies = with_stats(policies, self._stats(policies, part["views"]), None)
        centre = strategy.centre(search)
        learners = program.with_vector(carry.learners, policies, centre)
        metrics: dict[str, Any] = {name: sum(part["sums"][name] for part in figures) for name in figures[0]["sums"]}
        metrics |= {"fitness/best": jnp.max(fitness), "fitness/mean": jnp.mean(fitness)}
        metrics |= {"fitness/std": jnp.std(fitness), "fitness/policy": figures[0]["centre"][0]}
        finite = jnp.all(jnp.isfinite(fitness)) & jnp.all(jnp.isfinite(centre))
        metrics["fault"] = 1.0 - finite
        return EvolutionCarry(learners, search, carry.gradient, carry.key, carry.generation + 1), metrics

    def _stats(self, policies: dict[str, Any], leaves: Sequence[jax.Array]) -> dict[str, Any]:
        """Statistics of views from their bare numbers."""
        vectorised = self.program.setup.vectorised(1)
        like = jax.eval_shape(lambda: empty_stats(vectorised, 1, policies, self.program.genome.normalised).stats)
        return jax.tree.unflatten(jax.tree.structure(like), list(leaves))

    def read(self, result: TaskResult) -> dict[str, Any]:
        """The figures of a task as arrays."""
        told = result.figures
        return {
            "returns": np.array(told["returns"], np.float32),
            "centre": np.array(told["centre"], np.float32),
            "sums": {name: np.float32(value) for name, value in told["sums"].items()},
            "views": [np.array(view, np.float32) for view in told["views"]],
        }

    def tasks(self, generation: int, begun: int = 0) -> list[Task]:
        """The tasks of a generation, which depend on those of the one before. begun: the first that workers play."""
        before = tuple(self.ids(generation - 1)) if generation > begun else ()
        common = {"generation": generation, "seed": self.program.experiment.seed}
        return [
            Task(id, "generation", common | {"first": i * self.size}, before)
            for i, id in enumerate(self.ids(generation))
        ]

    def ids(self, generation: int) -> list[str]:
        return [f"generation/{generation}/{number}" for number in range(self.slices)]


class EvolutionHandler:
    """A worker's copy of the search. base: leaves of the initial carry; None: derived from the seed."""

    def __init__(self, config: dict[str, Any], base: list[np.ndarray] | None):
        self.replica = Replica(from_plain(Evolution, config, "evolution").program(1))
        self.base = base
        self.carry = self._begin()

    def _begin(self) -> EvolutionCarry:
        program = self.replica.program
        if self.base is None:
            return program.begin()
        return from_arrays(self.base, program.shapes())

    def run(self, task: Task, board: Service[TaskBoard]) -> tuple[dict[str, Any], None]:
        """Plays some members, after applying the returns of all earlier generations."""
        generation = task.payload["generation"]
        if int(self.carry.generation) > generation:
            self.carry = self._begin()
        for past in range(int(self.carry.generation), generation):
            results = board.retry.results(self.replica.ids(past))
            self.carry, _ = self.replica.tell(self.carry, [self.replica.read(result) for result in results])
        first = task.payload["first"]
        found = jax.device_get(self.replica.play(self.carry, jnp.int32(first), first == 0))
        plain = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32).tolist(), found)
        return plain | {"copy": fingerprint(self.carry)}, None


def fingerprint(carry: EvolutionCarry) -> str:
    """A digest of all weights and statistics of a replica."""
    return digest(to_arrays(carry.learners))


@dataclasses.dataclass(frozen=True)
class ClusterEvolutionProgram(EvolutionProgram):
    """A program whose generations are played by a pool; this process follows as one more replica."""

    watchable: ClassVar[bool] = False
    workers: LazyPool | None = None

    def compiled(self, carry: Any) -> Any:
        assert self.workers is not None
        begun, replica = int(carry.generation), Replica(self)
        base = to_arrays(carry) if begun else None
        pool = self.workers.start(EvolutionHandler, to_plain(self.plan), base, most=1)
        pool.forget([id for past in range(begun) for id in replica.ids(past)])
        return functools.partial(self._follow, replica, pool, begun)

    def close(self) -> None:
        if self.workers is not None:
            self.workers.close()

    def _follow(
        self, replica: Replica, pool: WorkerPool, begun: int, carry: EvolutionCarry, count: jax.Array
    ) -> tuple[EvolutionCarry, jax.Array]:
        table = np.zeros((MAX_UPDATES, len(self.names)), np.float32)
        for row in range(int(count)):
            generation = int(carry.generation)
            last = min(generation + AHEAD, self.plan.generations - 1)
            ahead = [task for later in range(generation + 1, last + 1) for task in replica.tasks(later, begun)]
            results = pool.run(replica.tasks(generation, begun), ahead)
            own = fingerprint(carry)
            for result in results:
                _compare(own, result, generation)
            carry, metrics = replica.tell(carry, [replica.read(result) for result in results])
            table[row] = [float(metrics[name]) for name in self.names]
        return carry, jnp.asarray(table)


def _compare(own: str, result: TaskResult, generation: int) -> None:
    if result.figures["copy"] != own:
        raise RunError(
            f"evolution: in generation {generation} the worker of task {result.id} had other weights than the driver. "
            "Copies stay equal only on machines of the same kind with the same versions: leave out the odd ones."
        )
