"""The learner of a replay: it draws windows from all shards, makes gradient steps, and writes priorities back.

An update stands for `num_envs * num_steps` new env steps, as everywhere, and makes `gradient_steps` gradient steps. The
learner begins one when that many have arrived since the last, from any actor; actors may be `LEAD` updates ahead of
it. Until `warm_up` steps were made, updates pass without a gradient step, as in the fused runner.

The windows of the next update are requested before this one is computed, so that sampling and learning overlap. The
staleness of a batch is the number of updates since the weights that acted in it.
"""

import functools
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shoal.cluster.plan import ClusterPlan
from shoal.cluster.replay.actor import SHARED, is_mean, replay_traits, replaying_learners
from shoal.cluster.replay.shards import Asked, Shards, WindowBatch
from shoal.cluster.services.directory import Handles
from shoal.cluster.transport.service import Store
from shoal.cluster.workers.learner import LearnerWorker, Learning
from shoal.cluster.workers.weights import WAIT
from shoal.core.types import PyTree
from shoal.training import nan_guard
from shoal.training.experiment import Experiment
from shoal.training.fused import FusedProgram, mesh_of

LEAD = 2
"""Updates that actors may be ahead of the learner."""


class WithoutReplay(FusedProgram):
    """The program of an experiment whose replay is elsewhere: learners have none, nor do checkpoints."""

    def init_learners(self, key: jax.Array, floats: dict[str, dict[str, jax.Array]]) -> dict[str, Any]:
        learners, own = super().init_learners(key, floats), replaying_learners(self.setup)
        return {name: state.replace(replay=None) if name in own else state for name, state in learners.items()}

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        return FusedProgram(self.setup, self.mesh).names


class ReplayLearning(Learning):
    """The compiled update from windows."""

    def __init__(self, experiment: Experiment):
        super().__init__(experiment, 1)
        self.program = WithoutReplay(experiment.setup, mesh_of(experiment, 1))
        self.own = replaying_learners(self.program.setup)
        self.structures = {
            name: jax.tree.structure(algorithm.replay_shape(spec)[0]) for name, (algorithm, spec) in self.own.items()
        }

    @functools.cached_property
    def learn_windows(self):
        """`(learners, latch, update, batches) -> learners, latch, metrics, priorities`; donates the first two.

        batches: by learner, windows `[G, W, B, ...]` and their odds `[G, B]` for G gradient steps; a learner that has
        none lets the update pass. priorities: `[G, B]`.
        """

        def learn(learners: PyTree, tripped: PyTree, update: jax.Array, batches: Mapping[str, Any]):
            learners, metrics, priorities = dict(learners), {}, {}
            for name, (algorithm, _) in self.own.items():
                if name in batches:

                    def step(state, drawn, algorithm=algorithm):
                        batch, odds = drawn
                        gradients, (metrics, error) = algorithm.gradients(
                            state, batch, algorithm.importance(state, odds)
                        )
                        return algorithm.apply(state, gradients), (metrics, algorithm.priorities(state, error))

                    learners[name], (found, priorities[name]) = lax.scan(step, learners[name], batches[name])
                    metrics |= jax.tree.map(jnp.mean, found)
                learners[name] = algorithm.count_update(learners[name])
            return learners, nan_guard.check_learners(tripped, update, learners, metrics), metrics, priorities

        return jax.jit(learn, donate_argnums=(0, 1))


class RateLimitedLearner(LearnerWorker):
    """A learner that waits for `num_envs * num_steps` new env steps per update. `row_of` makes a row of metrics."""

    def __init__(self, experiment: dict[str, Any], folder: str, plan: ClusterPlan, handles: Handles, store: Store):
        super().__init__(experiment, folder, plan, handles, store)
        self.own = self.windows.own
        self.cost = self.experiment.num_envs * self.experiment.num_steps
        self.shards = Shards(self.services.shards, list(self.own), self.experiment.seed)
        self.unused_steps = 0  # env steps that have come, and of which no update has been made yet
        self.told: dict[str, float] = {}
        self.pushes = 0
        self.means: dict[str, float] = {}

    @functools.cached_property
    def learning(self) -> Learning:
        return self.windows

    @functools.cached_property
    def windows(self) -> ReplayLearning:
        """The same, with all that it can do."""
        return ReplayLearning(self.experiment)

    def run(self) -> dict[str, Any]:
        ended = super().run()
        if not self.dead.is_set():  # to be resumed, or trained further
            self.shards.spill()
        return ended

    def wait_for_steps(self) -> bool:
        """Waits for the env steps of one more update; False if the run is to stop."""
        began = looked = time.perf_counter()
        while not self.dead.is_set():
            room = (LEAD + 1) * self.cost - self.unused_steps  # this update's, and what makers may be ahead
            self.look(room, max(self.cost - self.unused_steps, 0), WAIT / 4)
            if self.unused_steps >= self.cost:
                self.unused_steps -= self.cost
                self.clock.spend("wait", began)
                return True
            if time.perf_counter() - looked > WAIT:
                looked = time.perf_counter()
                if self._waits():
                    return False
        return False

    def look(self, room: int, enough: int, timeout: float) -> int:
        """Counts new env steps and admits `room` more; returns how many arrived."""
        came, told, pushes = self.shards.news(room, enough, timeout)
        self.unused_steps += came
        self.pushes += pushes
        for name, value in told.items():
            self.told[name] = self.told.get(name, 0.0) + value
        return came

    def warm(self) -> bool:
        """Whether enough steps were made for all learners to learn from."""
        return (self.update + 1) * self.cost >= max(algorithm.traits.warm_up for algorithm, _ in self.own.values())

    def row_of(self, metrics: Mapping[str, Any]) -> np.ndarray:
        """One row of the table of metrics: of the gradient steps, and of the rollouts that came since the last."""
        told, pushes = self.told, max(self.pushes, 1)
        self.means |= {name: value / pushes for name, value in told.items() if is_mean(name) and self.pushes}
        sums = {name: value for name, value in told.items() if not is_mean(name)}
        self.told, self.pushes = {}, 0
        fault = float(np.max(jax.device_get(self.tripped.kind)))
        values = {"fault": fault} | self.means | sums | {name: float(value) for name, value in metrics.items()}
        return np.array([values.get(name, 0.0) for name in self.learning.program.names], np.float32)

    def _publish(self) -> None:
        super()._publish()
        shared = {name: algorithm.shared_weights(self.learners[name]) for name, (algorithm, _) in self.own.items()}
        if jax.tree.leaves(shared):
            self.services.parameters.retry.push(SHARED, self.update, jax.device_get(shared), self.epoch)


class ReplayLearner(RateLimitedLearner):
    """Draws, learns, writes priorities back."""

    asked: Asked | None = None

    def once(self) -> bool:
        if not self.wait_for_steps():
            return True
        batches = self._draw() if self.warm() else {}
        if batches is None:
            return True
        began = time.perf_counter()
        update = np.int32(self.update)
        placed = {name: self._make_windows(name, batch) for name, batch in batches.items()}
        self.learners, self.tripped, metrics, priorities = self.windows.learn_windows(
            self.learners, self.tripped, update, placed
        )
        metrics, priorities = jax.device_get((metrics, priorities))
        self.clock.spend("learn", began)
        for name, batch in batches.items():
            if replay_traits(self.own[name][0]).prioritised:
                self.shards.reprioritise(name, batch, priorities[name].reshape(-1))
        ages = [np.maximum(self.update - batch.version, 0) for batch in batches.values()]
        return self.finish(self.row_of(metrics), np.concatenate(ages).tolist() if ages else [0.0])

    def _draw(self) -> dict[str, WindowBatch] | None:
        """One batch for each learner; None if the run is to stop."""
        began, looked = time.perf_counter(), time.perf_counter()
        traits = {name: replay_traits(algorithm) for name, (algorithm, _) in self.own.items()}
        counts = {name: one.gradient_steps * one.batch_size for name, one in traits.items()}
        while not self.dead.is_set():
            asked = self.asked or self.shards.ask(counts)
            self.asked = None
            batches = self.shards.collect(asked)
            if batches is not None:
                self.asked = self.shards.ask(counts)
                self.clock.spend("wait", began)
                return batches
            if not self.look((LEAD + 1) * self.cost - self.unused_steps, 1, 0.05):
                time.sleep(0.05)  # enough has come, but no window is whole yet, or all shards are away
            if time.perf_counter() - looked > WAIT:
                looked = time.perf_counter()
                if self._waits():
                    return None
        return None

    def _make_windows(self, name: str, batch: WindowBatch) -> tuple[PyTree, np.ndarray]:
        """Windows `[G, W, B, ...]` and odds `[G, B]` for so many gradient steps."""
        traits = replay_traits(self.own[name][0])
        steps, size = traits.gradient_steps, traits.batch_size

        def cut(leaf: np.ndarray) -> np.ndarray:
            return np.moveaxis(leaf.reshape(leaf.shape[0], steps, size, *leaf.shape[2:]), 1, 0)

        windows = jax.tree.unflatten(self.windows.structures[name], [cut(leaf) for leaf in batch.leaves])
        return windows, batch.odds.reshape(steps, size)
