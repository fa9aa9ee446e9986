"""Populations on a cluster: the loop, the run folder and the checkpoints of one machine, but others train and play.

    driver   population.psro: meta-solver, banks, payoff table, checkpoints
       |  one task for each training (player and lane), one for some line-ups of the payoff table
    workers  execution.responses, execution.matches, compiled once and kept

PSRO, fictitious self-play (meta-solvers `uniform` and `last`), pipelines and leagues differ only in what the driver
hands out. Tasks are deterministic: whoever carries one out, and however often, the policies and the payoffs are the
same. Its id holds a digest of all that goes into a task; so a run that goes on after its driver died finds what was
done since the last checkpoint, and nothing else. Anytime PSRO trains where the driver is, in step with its mixtures;
only its line-ups are played elsewhere.
"""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.cluster.tasks.board import Task, TaskBoard
from shoal.cluster.tasks.pool import PoolConfig, WorkerPool
from shoal.cluster.transport.launcher import Launcher
from shoal.cluster.transport.service import Service, Store
from shoal.core.types import PyTree
from shoal.populations import psro_run
from shoal.populations.game import Game
from shoal.populations.matches import Matches
from shoal.populations.psro import PSROState
from shoal.populations.psro_run import Listener, PSROSettings
from shoal.populations.responses import Responses, TrainingInputs
from shoal.training.experiment import from_plain, to_plain

EPISODES = 16_384
"""Episodes of one task, about: enough to keep a worker busy, so few that many workers have something to do."""


def psro_on_cluster(
    settings: PSROSettings, folder: str | Path, config: PoolConfig, launcher: Launcher, listener: Listener | None = None
) -> PSROState:
    """Grows a population from the start on a cluster; ends what the launcher has started."""
    psro_run.check(settings)
    folder = Path(folder).absolute()
    with _worker_pool(settings, folder, config, launcher) as workers:
        oracle = psro_run.oracle_of(settings, config.devices, workers)
        return psro_run.start(settings, folder, config.devices, workers.after_checkpoints(listener), oracle)


def resume_psro_on_cluster(
    folder: str | Path, config: PoolConfig, launcher: Launcher, listener: Listener | None = None
) -> PSROState:
    """Goes on with a population, wherever it was begun; what was done since its last checkpoint is not done again."""
    folder = Path(folder).absolute()
    settings = psro_run.open_settings(folder)
    with _worker_pool(settings, folder, config, launcher) as workers:
        oracle = psro_run.oracle_of(settings, config.devices, workers)
        return psro_run.resume_psro(folder, config.devices, workers.after_checkpoints(listener), oracle)


@contextlib.contextmanager
def _worker_pool(settings: PSROSettings, folder: Path, config: PoolConfig, launcher: Launcher) -> Iterator["Workers"]:
    """Workers for as long as a population grows."""
    workers = Workers(settings, folder, config, launcher)
    try:
        yield workers
    finally:
        try:
            workers.close()
        finally:
            launcher.stop()


class Workers:
    """Trains and plays for an oracle (see `oracles.OracleBackend`) by tasks. Workers start when there is work to do.

    So a run folder is made, and bad input refused, before anything is started.
    """

    def __init__(self, settings: PSROSettings, folder: Path, config: PoolConfig, launcher: Launcher):
        self.settings, self.folder, self.config, self.launcher = settings, folder, config, launcher
        self._pool: WorkerPool | None = None
        self._done: list[str] = []

    @property
    def pool(self) -> WorkerPool:
        if self._pool is None:
            made = (to_plain(self.settings), self.config.devices, self.launcher.store)
            self._pool = WorkerPool(self.folder, self.launcher, self.config, PSROHandler, *made)
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()

    def after_checkpoints(self, listener: Listener | None) -> Listener:
        """Called after every checkpoint: what came of tasks is safe in it."""

        def on(state: PSROState) -> None:
            if self._pool is not None:
                self._pool.forget(self._done)
                self._pool.write_status()
                self._done = []
            if listener is not None:
                listener(state)

        return on

    def train(
        self, game: Game, capacity: int, inputs: TrainingInputs
    ) -> tuple[dict[str, PyTree], dict[str, np.ndarray]]:
        """One task for each player that learns and each lane."""
        banks = {player: to_arrays(policies) for player, policies in inputs.banks.items()}
        stored = {player: self.launcher.store.put(leaves) for player, leaves in banks.items()}
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
        """Some line-ups a task."""
        arrays = {player: to_arrays(policies) for player, policies in banks.items()}
        stored = {player: self.launcher.store.put(leaves) for player, leaves in arrays.items()}
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
        self._done += [task.id for task in tasks]
        return self.pool.run(tasks)


class PSROHandler:
    """Trains and plays where a worker lives."""

    def __init__(self, settings: dict[str, Any], devices: int | None, store: Store):
        self.settings = from_plain(PSROSettings, settings, "psro")
        self.devices, self.store = devices, store
        self.game = Game(self.settings.experiment)
        self.matches = Matches(self.game, not self.settings.greedy, devices=devices)
        self._trainers: dict[tuple[str, int], Responses] = {}
        self._like: dict[str, Any] = {}

    def run(self, task: Task, board: Service[TaskBoard]) -> tuple[dict[str, Any], list[np.ndarray]]:
        """Policies and what they earned; or sums of returns and of squares."""
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
    leaves = [jax.random.key_data(leaf) if _is_key(leaf) else leaf for leaf in jax.tree.leaves(tree)]
    return [np.asarray(leaf) for leaf in jax.device_get(leaves)]


def from_arrays(leaves: Sequence[np.ndarray], like: PyTree) -> PyTree:
    """The inverse, for a tree of the form of `like`."""
    found = [
        jax.random.wrap_key_data(jnp.asarray(leaf)) if _is_key(place) else jnp.asarray(leaf)
        for leaf, place in zip(leaves, jax.tree.leaves(like), strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(like), found)


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def digest(parts: Sequence[Any]) -> str:
    """A short name for arrays, numbers and texts."""
    found = hashlib.blake2b(digest_size=10)
    for part in parts:
        array = np.asarray(part)
        found.update(f"{array.dtype} {array.shape};".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()
