"""Workers that compute gradients with the newest weights and push them to the learner that applies them.

worker (Gorila): windows of the replay -> gradient        actor (A3C): its own rollout -> gradient
"""

import functools
import threading
import time
from collections.abc import Mapping
from typing import Any, ClassVar

import jax

from shoal.batching.rollout import Rollout, make_experience
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.replay.actor import replay_traits, report_metrics
from shoal.cluster.replay.learner import ReplayLearning
from shoal.cluster.replay.service import LIFE
from shoal.cluster.replay.shards import Shards
from shoal.cluster.services.dataset import Item
from shoal.cluster.services.directory import Handles, Services
from shoal.cluster.transport.service import Store
from shoal.cluster.workers import rollouts
from shoal.cluster.workers.actor import ActorWorker
from shoal.cluster.workers.gradients import GRADIENT, learner_weights
from shoal.cluster.workers.rollouts import Share
from shoal.cluster.workers.weights import WAIT
from shoal.core.algorithm import SplitsUpdate, require_protocol
from shoal.core.types import PyTree
from shoal.training.experiment import Experiment
from shoal.training.fused import policies_of


class GradientWorker:
    """Gorila's worker: draws windows, computes one gradient, pushes it; then again with the newest weights."""

    def __init__(
        self,
        experiment: dict[str, Any],
        folder: str,
        plan: ClusterPlan,
        handles: Handles,
        store: Store,
        number: int,
        max_wait: float = WAIT,
    ):
        del folder, plan  # which are the learner's
        self.name, self.number, self.store, self.max_wait = f"learner-{number}", number, store, max_wait
        self.services = Services(handles, "worker")
        self.experiment = Experiment.from_dict(experiment)
        self.learning = ReplayLearning(self.experiment)
        self.own = self.learning.own
        self.cost = self.experiment.num_envs * self.experiment.num_steps
        self.shards = Shards(self.services.shards, list(self.own), self.experiment.seed + number)
        self.weights = learner_weights(self.learning.program, self.services.parameters, store)
        self.per_update = max(replay_traits(algorithm).gradient_steps for algorithm, _ in self.own.values())
        self.dead = threading.Event()

    def die(self) -> None:
        self.dead.set()

    def run(self) -> str:
        """Works until it is asked to stop; returns why."""
        number = self.services.coordinator.retry.hello(self.name) * LIFE
        looked = time.monotonic()
        while not self.dead.is_set():
            if time.monotonic() - looked > self.max_wait:
                looked = time.monotonic()
                if self._stopping():
                    return "stopped"
            number += self._once(number)
        return "died"

    def _once(self, number: int) -> bool:
        """Computes one gradient, if there is data; returns whether it was pushed."""
        if not (self.weights.pull() and self._warm()):
            time.sleep(0.02)
            return False
        counts = {name: replay_traits(algorithm).batch_size for name, (algorithm, _) in self.own.items()}
        batches = self.shards.collect(self.shards.ask(counts))
        if batches is None:
            time.sleep(0.02)
            return False
        windows = {
            name: (jax.tree.unflatten(self.learning.structures[name], batch.leaves), batch.odds)
            for name, batch in batches.items()
        }
        gradients, metrics, priorities = jax.device_get(self._gradient(self.weights.value, windows))
        for name, batch in batches.items():
            if replay_traits(self.own[name][0]).prioritised:
                self.shards.reprioritise(name, batch, priorities[name])
        told = {name: float(value) for name, value in metrics.items()}
        item = gradient_item(self, number, gradients, told, 0)
        while not self.services.dataset.retry_until(self.dead.is_set).push(item, WAIT):
            if self.dead.is_set() or self._stopping():
                return False
        return True

    def _stopping(self) -> bool:
        """Reports that it is alive; returns whether to stop."""
        nowhere = (-1, -1, [])  # it does not know where the run stands
        return bool(self.services.coordinator.retry_until(self.dead.is_set).standing(self.name, *nowhere))

    def _warm(self) -> bool:
        update = self.weights.version // self.per_update
        return (update + 1) * self.cost >= max(algorithm.traits.warm_up for algorithm, _ in self.own.values())

    @functools.cached_property
    def _gradient(self):
        def gradient(learners: PyTree, windows: Mapping[str, Any]):
            gradients, metrics, priorities = {}, {}, {}
            for name, (algorithm, _) in self.own.items():
                state, (batch, odds) = learners[name], windows[name]
                weight = algorithm.importance(state, odds)
                gradients[name], (found, error) = algorithm.gradients(state, batch, weight)
                priorities[name] = algorithm.priorities(state, error)
                metrics |= found
            return gradients, metrics, priorities

        return jax.jit(gradient)


def gradient_item(maker: Any, number: int, gradients: PyTree, told: Mapping[str, float], env_steps: int) -> Item:
    """A gradient on its way: its maker has a `name`, a `number`, a `store` and the `weights` that it is of."""
    weights, ref = maker.weights, maker.store.put((gradients, dict(told)))
    size = rollouts.num_bytes(gradients)
    return Item(maker.name, maker.number, number, weights.version, ref, GRADIENT, size, env_steps, weights.epoch)


class GradientActor(ActorWorker):
    """A3C's actor: acts, computes the gradient of what happened with the weights that it acted with, pushes that."""

    packing: ClassVar[str] = "gradient"

    def __init__(self, experiment: dict[str, Any], number: int, copies: int, handles: Handles, store: Store):
        super().__init__(experiment, number, copies, handles, store)
        self.weights = learner_weights(self.program, self.services.parameters, store)
        self.made = 0

    def open_envs(self, share: Share) -> Any:
        self.made = share.restarts * LIFE
        return super().open_envs(share)

    @functools.cached_property
    def _gradient(self):
        experiment = self.experiment

        def gradient(learners: PyTree, made: Rollout):
            whole = make_experience(made.steps, made.memory, made.last_observation, made.last_memory)
            gradients, metrics = {}, {}
            for name, (algorithm, spec) in self.program.setup.learners.items():
                if not experiment.learners[name].frozen:
                    splits = require_protocol(algorithm, SplitsUpdate, "the recipe a3c")
                    own = whole.replace(trajectories={group: whole.trajectories[group] for group in spec.groups})
                    gradients[name], found = splits.gradients(*splits.prepare(learners[name], own))
                    metrics |= found
            return gradients, metrics

        return jax.jit(gradient)

    def pull(self, least: int, epoch: int) -> bool:
        pulled = self.weights.pull(0, epoch)
        self.policies = policies_of(self.weights.value or {})
        return pulled

    def pack(self, made: Rollout, task: dict[str, Any]) -> Item:
        gradients, metrics = jax.device_get(self._gradient(self.weights.value, made))
        told = report_metrics(made) | {name: float(value) for name, value in metrics.items()}
        item = gradient_item(self, self.made, gradients, told, self.env_steps)
        self.made += 1
        return item
