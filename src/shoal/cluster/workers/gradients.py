"""Asynchronous gradients: workers compute them with pulled weights, one learner applies them and publishes weights.

Only the learner has an optimiser. Every applied gradient makes a new version: workers pull the newest weights before
each gradient and send its version along, so its staleness is known exactly. It is counted in updates, of `per_update`
gradients each; a gradient more than `max_staleness` updates behind is dropped.

This is the side that applies gradients; the workers that compute them are in `gradient_workers`.
"""

import functools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from shoal.cluster.plan import ClusterPlan
from shoal.cluster.replay.actor import is_mean, replay_traits
from shoal.cluster.replay.learner import RateLimitedLearner
from shoal.cluster.services.dataset import Item, Queue
from shoal.cluster.services.directory import Handles
from shoal.cluster.services.parameters import ParameterService
from shoal.cluster.transport.service import Service, ServiceUnavailable, Store
from shoal.cluster.workers.learner import LearnerWorker, Learning
from shoal.cluster.workers.weights import WAIT, Layout, PulledWeights
from shoal.core.types import PyTree
from shoal.ops.replay import is_replay
from shoal.training import nan_guard
from shoal.training.fused import FusedProgram

WEIGHTS = "weights"
"""The name of the weights that gradients are computed from: learners without optimisers and replays."""
GRADIENT = "gradient"


class Gradients(Queue):
    """A queue that takes gradients and nothing else, and says how large the largest was."""

    def __init__(self, capacity: int):
        super().__init__(capacity)
        self.kinds: Counter[str] = Counter()
        self.largest = 0

    def push(self, item: Item, timeout: float = 0.0) -> bool:
        assert item.kind == GRADIENT, item
        taken = super().push(item, timeout)
        self.kinds[item.kind] += taken
        self.largest = max(self.largest, item.size)
        return taken

    def figures(self) -> dict[str, Any]:
        return super().figures() | {"kinds": dict(self.kinds), "largest_bytes": self.largest}


def without_optimisers(learners: Mapping[str, Any]) -> dict[str, Any]:
    """Learners without the state that only applying gradients needs."""
    bare = {name: state.replace(optimiser=None) for name, state in learners.items()}
    return jax.tree.map(lambda leaf: None if is_replay(leaf) else leaf, bare, is_leaf=is_replay)


def learner_weights(program: FusedProgram, parameters: Service[ParameterService], store: Store) -> PulledWeights:
    """The weights that gradient workers pull; their version counts the gradients applied to them."""
    return PulledWeights(WEIGHTS, Layout.of(without_optimisers(program.shapes().learners)), parameters, store)


class Applier(LearnerWorker):
    """The side that applies gradients, one after the other. per_update: how many make an update."""

    per_update = 1
    applied = 0

    @property
    def tick(self) -> int:
        """Total number of applied gradients: the version of the weights."""
        return self.update * self.per_update + self.applied

    @functools.cached_property
    def _apply(self):
        setup, frozen = self.learning.program.setup, {n for n, one in self.experiment.learners.items() if one.frozen}
        own: dict[str, Any] = {n: algorithm for n, (algorithm, _) in setup.learners.items() if n not in frozen}

        def apply(learners: PyTree, tripped: PyTree, update: jax.Array, gradients: Mapping[str, PyTree], last: bool):
            learners = dict(learners)
            for name, algorithm in own.items():
                state = algorithm.apply(learners[name], gradients[name])
                learners[name] = algorithm.count_update(state) if last else state
            return learners, nan_guard.check_learners(tripped, update, learners, {})

        return jax.jit(apply, static_argnums=4, donate_argnums=(0, 1))

    def gather(self) -> tuple[list[dict[str, float]], list[float]] | None:
        """Applies the gradients of one update; returns their reports and staleness, or None to stop."""
        told, behind = [], []
        self.applied = 0
        while self.applied < self.per_update:
            found = self._next()
            if found is None:
                return None
            item, (gradients, figures) = found
            began, last = time.perf_counter(), self.applied + 1 == self.per_update
            behind.append(max(0, self.tick - item.version) / self.per_update)
            self.learners, self.tripped = self._apply(
                self.learners, self.tripped, np.int32(self.update), gradients, last
            )
            told.append(figures)
            self.applied += 1
            self.clock.spend("learn", began)
            if not last:
                self._publish_weights()
        self.applied = 0
        return told, behind

    def _next(self) -> tuple[Item, Any] | None:
        """The next gradient that is not too old; None if the run is to stop."""
        began = time.perf_counter()
        while not self.dead.is_set():
            least = max(0, self.tick - self.plan.max_staleness * self.per_update)
            items = self.services.dataset.retry.take(1, least, None, WAIT)
            if not items and self._waits():
                return None
            for item in items:
                try:
                    value = self.store.get(item.ref)
                except ServiceUnavailable:  # it died with its maker, who makes others
                    continue
                self.clock.spend("wait", began)
                return item, value
        return None

    def _publish(self) -> None:
        super()._publish()
        self._publish_weights()

    def _publish_weights(self) -> None:
        bare = without_optimisers(self.learners)
        leaves = Layout.of(bare).pack(bare)
        self.services.parameters.retry.push(WEIGHTS, self.tick, leaves, self.epoch)


class RolloutGradientLearner(Applier):
    """A3C's: each gradient is of one actor's rollout, so an update is one of each actor, on average."""

    def __init__(self, experiment: dict[str, Any], folder: str, plan: ClusterPlan, handles: Handles, store: Store):
        super().__init__(experiment, folder, plan, handles, store)
        self.per_update = plan.actors

    @functools.cached_property
    def learning(self) -> Learning:
        return Learning(self.experiment, 1)

    def once(self) -> bool:
        found = self.gather()
        if found is None:
            return True
        told, behind = found
        values = combine_gradients(told) | {"fault": float(np.max(jax.device_get(self.tripped.kind)))}
        row = np.array([values.get(name, 0.0) for name in self.learning.program.names], np.float32)
        return self.finish(row, behind)


class ReplayGradientLearner(Applier, RateLimitedLearner):
    """Gorila's: gradients are of windows that workers drew; new env steps are only counted here."""

    def __init__(self, experiment: dict[str, Any], folder: str, plan: ClusterPlan, handles: Handles, store: Store):
        super().__init__(experiment, folder, plan, handles, store)
        self.per_update = max(replay_traits(algorithm).gradient_steps for algorithm, _ in self.own.values())

    def once(self) -> bool:
        if not self.wait_for_steps():
            return True
        if not self.warm():
            update = np.int32(self.update)
            self.learners, self.tripped, _, _ = self.windows.learn_windows(self.learners, self.tripped, update, {})
            return self.finish(self.row_of({}), [0.0])
        found = self.gather()
        if found is None:
            return True
        told, behind = found
        return self.finish(self.row_of({name: np.mean([one[name] for one in told]) for name in told[0]}), behind)


def combine_gradients(told: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Figures of several rollouts as one: sums over their episodes, means of the rest."""

    def is_sum(name: str) -> bool:
        return name in ("episodes", "length") or name.startswith("return/")

    return {
        name: float((np.sum if is_sum(name) and not is_mean(name) else np.mean)([one[name] for one in told]))
        for name in told[0]
    }
