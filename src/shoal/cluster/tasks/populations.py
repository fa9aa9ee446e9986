"""Populations on a cluster: the loop, the run folder and the checkpoints of one machine, with training and matches on
workers.

    driver   populations.psro: meta-solver, banks, payoff table, checkpoints
       |  one task for each training (player and lane), one for some line-ups of the payoff table
    workers  populations.responses, populations.matches, compiled once and kept

PSRO, fictitious self-play (meta-solvers `uniform` and `last`), pipelines and leagues differ only in the driver's tasks.
Tasks are deterministic: the policies and payoffs do not depend on the worker, nor on retries. Its id contains a digest
of all inputs of a task; so a run that is resumed after its driver died reuses exactly the results since the last
checkpoint. Anytime PSRO trains in the driver, in step with its mixtures; only its line-ups are played by workers.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.cluster.tasks.board import Task, TaskBoard
from shoal.cluster.tasks.pool import LazyPool
from shoal.cluster.transport.service import Service, Store
from shoal.core.errors import OptionError
from shoal.core.keys import is_key
from shoal.core.types import PyTree
from shoal.populations.game import Game
from shoal.populations.matches import Matches
from shoal.populations.oracles import LearnedOracle
from shoal.populations.population import PopulationConfig, PopulationProgram
from shoal.populations.responses import Responses, TrainingInputs
from shoal.training.serialise import from_plain, to_plain

EPISODES = 16_384
"""Approximate number of episodes per task: enough to keep a worker busy, few enough for many workers."""


def check(config: PopulationConfig) -> None:
    """Refuses populations that gain nothing from a cluster."""
    if config.oracle == "exact":
        raise OptionError("exact responses take a moment on one machine: leave out --cluster")


def make_program(config: PopulationConfig, workers: LazyPool) -> "ClusterPopulation":
    """The program of a population whose responses are trained, and whose line-ups are played, by workers."""
    program = config.program(workers.config.devices)
    assert isinstance(program.oracle, LearnedOracle)
    oracle = dataclasses.replace(program.oracle, backend=WorkerHands(config, workers))
    return ClusterPopulation(config, oracle, workers)


@dataclasses.dataclass(frozen=True)
class ClusterPopulation(PopulationProgram):
    """A population whose policies are trained and evaluated by workers."""

    workers: LazyPool

    def saved(self) -> None:
        self.workers.saved()

    def close(self) -> None:
        self.workers.close()


class WorkerHands:
    """Trains and plays for an oracle (see `oracles.OracleBackend`) by tasks."""

    def __init__(self, config: PopulationConfig, workers: LazyPool):
        self.config, self.workers, self.store = config, workers, workers.launcher.store

    def train(
        self, game: Game, capacity: int, inputs: TrainingInputs
    ) -> tuple[dict[str, PyTree], dict[str, np.ndarray]]:
        """One task for each player that learns and each lane."""
        banks = {player: to_arrays(policies) for player, policies in inputs.banks.items()}
        stored = {player: self.store.put(leaves) for player, leaves in banks.items()}
        known = {player: digest(leaves) for player, leaves in banks.items()}
        tasks = []
        for number, player in enumerate(inputs.opponent_mixtures):
            for lane in range(len(inputs.seeds)):
                own = {
                    "seed": int(inputs.seeds[lane]) + number,
                    "meets": {
                        other: np.asarray(rows[lane]) for other, rows in inputs.opponent_mixtures[player].items()
                    },
                    "start": [leaf[lane] for leaf in to_arrays(inputs.initial_policies[player])],
                    "warm": bool(inputs.warm_start[lane]),
                }
                name = digest([own["seed"], *own["meets"].values(), *own["start"], own["warm"], *known.values()])
                payload = own | {"player": player, "capacity": capacity, "banks": stored}
                tasks.append(Task(f"train/{player}/{lane}/{name}", "train", payload))
        results = iter(self._run(tasks))
        policies, earned = {}, {}
        for player in inputs.opponent_mixtures:
            mine = [next(results) for _ in range(len(inputs.seeds))]
            stacked = [jnp.stack(leaves) for leaves in zip(*(result.leaves for result in mine), strict=True)]
            policies[player] = jax.tree.unflatten(jax.tree.structure(inputs.initial_policies[player]), stacked)
            earned[player] = np.array([result.figures["earned"] for result in mine])
        return policies, earned

    def play(
        self, banks: Mapping[str, PyTree], lineups: np.ndarray, episodes: int, seed: int, first: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Plays line-ups, several per task."""
        arrays = {player: to_arrays(policies) for player, policies in banks.items()}
        stored = {player: self.store.put(leaves) for player, leaves in arrays.items()}
        known = [digest(leaves) for leaves in arrays.values()]
        share, tasks = max(1, EPISODES // episodes), []
        for start in range(0, len(lineups), share):
            own = {"lineups": np.asarray(lineups[start : start + share]), "first": first + start * episodes}
            name = digest([own["lineups"], own["first"], episodes, seed, *known])
            payload = own | {"episodes": episodes, "seed": seed, "banks": stored}
            tasks.append(Task(f"play/{start}/{name}", "play", payload))
        results = self._run(tasks)
        returns, squares = zip(*(result.leaves or () for result in results), strict=True)
        return np.concatenate(returns), np.concatenate(squares)

    def _run(self, tasks: Sequence[Task]) -> list[Any]:
        self.workers.start(PSROHandler, to_plain(self.config), self.workers.config.devices, self.store)
        return self.workers.run(tasks)


class PSROHandler:
    """Trains and plays in a worker process."""

    def __init__(self, config: dict[str, Any], devices: int | None, store: Store):
        population = from_plain(PopulationConfig, config, "psro")
        self.devices, self.store = devices, store
        self.game = Game(population.experiment)
        self.matches = Matches(self.game, not population.greedy, devices=devices)
        self._trainers: dict[tuple[str, int], Responses] = {}
        self._like: dict[str, Any] = {}

    def run(self, task: Task, board: Service[TaskBoard]) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Policies and their returns; or sums of returns and of squares."""
        del board
        return self._train(task.payload) if task.kind == "train" else self._play(task.payload)

    def _train(self, payload: dict[str, Any]) -> tuple[dict[str, Any], list[np.ndarray]]:
        player, place = payload["player"], (payload["player"], payload["capacity"])
        if place not in self._trainers:
            self._trainers[place] = Responses(self.game, place[1], devices=self.devices, learning=(player,))
        inputs = TrainingInputs(
            banks=self._banks({other: payload["banks"][other] for other in payload["meets"]}),
            opponent_mixtures={player: {other: jnp.asarray(row)[None] for other, row in payload["meets"].items()}},
            seeds=jnp.array([payload["seed"]], jnp.uint32),
            initial_policies={player: self._policy(player, [leaf[None] for leaf in payload["start"]])},
            warm_start=jnp.array([payload["warm"]]),
        )
        policies, earned = self._trainers[place].train(inputs)
        return {"earned": float(earned[player][0])}, [leaf[0] for leaf in to_arrays(policies[player])]

    def _play(self, payload: dict[str, Any]) -> tuple[dict[str, Any], list[np.ndarray]]:
        banks = self._banks(payload["banks"])
        asked = payload["lineups"], payload["episodes"], payload["seed"], payload["first"]
        return {}, list(self.matches.play(banks, *asked))

    def _banks(self, stored: Mapping[str, Any]) -> dict[str, PyTree]:
        return {player: self._policy(player, self.store.get(ref)) for player, ref in stored.items()}

    def _policy(self, player: str, leaves: Sequence[np.ndarray]) -> PyTree:
        if not self._like:
            fresh = Responses(self.game, 1, devices=self.devices)
            self._like = jax.eval_shape(lambda: fresh.fresh(0))
        return from_arrays(leaves, self._like[player])


def to_arrays(tree: PyTree) -> list[np.ndarray]:
    """The arrays of a tree, on the host; keys as their raw numbers."""
    leaves = [jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in jax.tree.leaves(tree)]
    return [np.asarray(leaf) for leaf in jax.device_get(leaves)]


def from_arrays(leaves: Sequence[np.ndarray], like: PyTree) -> PyTree:
    """The inverse, for a tree of the form of `like`."""
    found = [
        jax.random.wrap_key_data(jnp.asarray(leaf)) if is_key(place) else jnp.asarray(leaf)
        for leaf, place in zip(leaves, jax.tree.leaves(like), strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(like), found)


def digest(parts: Sequence[Any]) -> str:
    """A short name for arrays, numbers and texts."""
    found = hashlib.blake2b(digest_size=10)
    for part in parts:
        array = np.asarray(part)
        found.update(f"{array.dtype} {array.shape};".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
