"""Gradients that travel: workers compute them with weights that they pulled, one learner applies them and publishes.

The optimiser lives in the learner alone. Every applied gradient makes a version of its own: workers pull the newest
weights before each gradient, and say with the gradient which version it is of, so its staleness is known exactly. It is
counted in updates: an update is `per_update` gradients. What is more than `max_staleness` updates behind is dropped.

    worker (Gorila): windows of the replay -> gradient        actor (A3C): its own rollout -> gradient
"""

import functools
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from shoal.algorithms import _replay as stored
from shoal.algorithms.a2c import A2C
from shoal.core.types import PyTree
from shoal.core.vectorise import Worlds
from shoal.execution.cluster import rollouts
from shoal.execution.cluster.actor import WAIT, Actor
from shoal.execution.cluster.dataset import Item, Queue
from shoal.execution.cluster.fabric import Gone, Handle, Store, insist
from shoal.execution.cluster.learner import Learner, Learning
from shoal.execution.cluster.plan import Plan
from shoal.execution.cluster.replay import LIFE
from shoal.execution.cluster.replay_actor import is_mean, shards_of, told_of
from shoal.execution.cluster.replay_learner import Paid, ReplayLearning, Shards, checked
from shoal.execution.cluster.rollouts import Layout, Rollout, Share
from shoal.execution.experiment import Experiment
from shoal.execution.fused import Program, policies_of
from shoal.execution.rollout import experience

WEIGHTS = "weights"
"""The name of all that a gradient is computed from: learners without optimisers and replays."""
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
    """Learners as those need them who compute gradients, but do not apply them."""
    bare = {name: state.replace(optimiser=None) for name, state in learners.items()}
    return {name: state.replace(replay=None) if hasattr(state, "replay") else state for name, state in bare.items()}


class Weights:
    """The newest weights, in the hands of a worker. version: gradients that were applied to them."""

    def __init__(self, program: Program, parameters: Handle, store: Store):
        shapes = without_optimisers(program.shapes().learners)
        self.layout = Layout(jax.tree.structure(shapes), jax.tree.leaves(shapes))
        self.parameters, self.store = parameters, store
        self.version, self.epoch = -1, -1
        self.learners: dict[str, Any] = {}

    def pull(self, epoch: int = 0) -> bool:
        """Brings them up to date; False if there are none of a learner that has begun so often."""
        wait = 0.0 if self.epoch >= epoch and self.learners else WAIT
        found = insist(self.parameters, "pull", WEIGHTS, self.version, 0, wait, self.epoch)
        if found is not None:
            try:
                self.learners = self.layout.unpack(self.store.get(found.ref))
            except Gone:  # the service died with them; the learner pushes them again
                return False
            self.version, self.epoch = found.version, found.epoch
        return bool(self.learners) and self.epoch >= epoch


class Applier(Learner):
    """The side that applies gradients, one after the other. per_update: how many make an update."""

    per_update = 1
    applied = 0

    @property
    def tick(self) -> int:
        """Gradients that were applied, in all: the version of the weights."""
        return self.update * self.per_update + self.applied

    @functools.cached_property
    def _apply(self):
        roles, frozen = self.learning.program.cast, {n for n, one in self.experiment.learners.items() if one.frozen}
        own: dict[str, Any] = {n: algorithm for n, (algorithm, _) in roles.learners.items() if n not in frozen}

        def apply(learners: PyTree, tripped: PyTree, update: jax.Array, gradients: Mapping[str, PyTree], last: bool):
            learners = dict(learners)
            for name, algorithm in own.items():
                state = algorithm.apply(learners[name], gradients[name])
                learners[name] = algorithm.elapsed(state) if last else state
            return learners, checked(tripped, update, learners, {})

        return jax.jit(apply, static_argnums=4, donate_argnums=(0, 1))

    def gather(self) -> tuple[list[dict[str, float]], list[float]] | None:
        """Applies the gradients of one update; what was told with them, and their staleness. None: to stop."""
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
            self.spent["learn"] += time.perf_counter() - began
            if not last:
                self._publish_weights()
        self.applied = 0
        return told, behind

    def _next(self) -> tuple[Item, Any] | None:
        """The next gradient that is not too old; None if the run is to stop."""
        began = time.perf_counter()
        while not self.dead.is_set():
            least = max(0, self.tick - self.plan.max_staleness * self.per_update)
            items = insist(self.services["dataset"], "take", 1, least, None, WAIT)
            if not items and self._waits():
                return None
            for item in items:
                try:
                    value = self.store.get(item.ref)
                except Gone:  # it died with its maker, who makes others
                    continue
                self.spent["wait"] += time.perf_counter() - began
                return item, value
        return None

    def _publish(self) -> None:
        super()._publish()
        self._publish_weights()

    def _publish_weights(self) -> None:
        leaves = [np.asarray(leaf) for leaf in jax.device_get(jax.tree.leaves(without_optimisers(self.learners)))]
        insist(self.services["parameters"], "push", WEIGHTS, self.tick, leaves, self.epoch)


class RolloutGradientLearner(Applier):
    """A3C's: each gradient is of one actor's rollout, so an update is one of each actor, on average."""

    def __init__(self, experiment: dict[str, Any], folder: str, plan: Plan, handles: dict[str, Handle], store: Store):
        super().__init__(experiment, folder, plan, handles, store)
        self.learning = Learning(self.experiment, 1)
        self.per_update = plan.actors

    def once(self) -> bool:
        found = self.gather()
        if found is None:
            return True
        told, behind = found
        values = combined(told) | {"fault": float(np.max(jax.device_get(self.tripped.kind)))}
        row = np.array([values.get(name, 0.0) for name in self.learning.program.names], np.float32)
        return self.finish(row, behind)


class ReplayGradientLearner(Applier, Paid):
    """Gorila's: gradients are of windows that workers drew; new env steps are only counted here."""

    def __init__(self, experiment: dict[str, Any], folder: str, plan: Plan, handles: dict[str, Handle], store: Store):
        super().__init__(experiment, folder, plan, handles, store)
        self.per_update = max(algorithm.gradient_steps for algorithm, _ in self.own.values())

    def once(self) -> bool:
        if not self.paid():
            return True
        if not self.warm():
            update = np.int32(self.update)
            self.learners, self.tripped, _, _ = self.learning.learn_windows(self.learners, self.tripped, update, {})
            return self.finish(self.row_of({}), [0.0])
        found = self.gather()
        if found is None:
            return True
        told, behind = found
        return self.finish(self.row_of({name: np.mean([one[name] for one in told]) for name in told[0]}), behind)


def combined(told: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Figures of several rollouts as one: sums over their episodes, means of the rest."""

    def is_sum(name: str) -> bool:
        return name in ("episodes", "length") or name.startswith("return/")

    return {
        name: float((np.sum if is_sum(name) and not is_mean(name) else np.mean)([one[name] for one in told]))
        for name in told[0]
    }


class GradientWorker:
    """Gorila's worker: draws windows, computes one gradient, pushes it; then again with the newest weights."""

    def __init__(
        self, experiment: dict[str, Any], number: int, handles: dict[str, Handle], store: Store, max_wait: float = WAIT
    ):
        self.name, self.number, self.store, self.max_wait = f"learner-{number}", number, store, max_wait
        self.services = {name: handle.by("worker") for name, handle in handles.items()}
        self.experiment = Experiment.from_dict(experiment)
        self.learning = ReplayLearning(self.experiment)
        self.own = self.learning.own
        self.cost = self.experiment.num_envs * self.experiment.num_steps
        self.shards = Shards(shards_of(self.services), list(self.own), self.experiment.seed + number)
        self.weights = Weights(self.learning.program, self.services["parameters"], store)
        self.per_update = max(algorithm.gradient_steps for algorithm, _ in self.own.values())
        self.dead = threading.Event()

    def die(self) -> None:
        self.dead.set()

    def run(self) -> str:
        """Works until told to stop; returns why."""
        number = insist(self.services["coordinator"], "hello", self.name) * LIFE
        looked = time.monotonic()
        while not self.dead.is_set():
            if time.monotonic() - looked > self.max_wait:
                looked = time.monotonic()
                if self._stopping():
                    return "stopped"
            number += self._once(number)
        return "died"

    def _once(self, number: int) -> bool:
        """One gradient, if there is something to compute it from; whether it was pushed."""
        if not (self.weights.pull() and self._warm()):
            time.sleep(0.02)
            return False
        batches = self.shards.answered(self.shards.ask({name: one.batch_size for name, (one, _) in self.own.items()}))
        if batches is None:
            time.sleep(0.02)
            return False
        windows = {
            name: (jax.tree.unflatten(self.learning.structures[name], batch.leaves), batch.odds)
            for name, batch in batches.items()
        }
        gradients, metrics, priorities = jax.device_get(self._gradient(self.weights.learners, windows))
        for name, batch in batches.items():
            if self.own[name][0].prioritised:
                self.shards.reprioritise(name, batch, priorities[name])
        told = {name: float(value) for name, value in metrics.items()}
        item = gradient_item(self, number, gradients, told, 0)
        while not insist(self.services["dataset"], "push", item, WAIT, give_up=self.dead.is_set):
            if self.dead.is_set() or self._stopping():
                return False
        return True

    def _stopping(self) -> bool:
        """Says that it is there; whether it is to stop."""
        nowhere = (-1, -1, [])  # it does not know where the run stands
        return bool(insist(self.services["coordinator"], "standing", self.name, *nowhere, give_up=self.dead.is_set))

    def _warm(self) -> bool:
        update = self.weights.version // self.per_update
        return (update + 1) * self.cost >= max(algorithm.warm_up for algorithm, _ in self.own.values())

    @functools.cached_property
    def _gradient(self):
        def gradient(learners: PyTree, windows: Mapping[str, Any]):
            gradients, metrics, priorities = {}, {}, {}
            for name, (algorithm, _) in self.own.items():
                state, (batch, odds) = learners[name], windows[name]
                weight = algorithm.importance(state, odds)
                gradients[name], (found, error) = algorithm.gradients(state, batch, weight)
                priorities[name] = stored.priorities(error, state.hyper["priority_exponent"])
                metrics |= found
            return gradients, metrics, priorities

        return jax.jit(gradient)


def gradient_item(maker: Any, number: int, gradients: PyTree, told: Mapping[str, float], env_steps: int) -> Item:
    """A gradient on its way: its maker has a `name`, a `number`, a `store` and the `weights` that it is of."""
    weights, ref = maker.weights, maker.store.put((gradients, dict(told)))
    size = rollouts.num_bytes(gradients)
    return Item(maker.name, maker.number, number, weights.version, ref, GRADIENT, size, env_steps, weights.epoch)


class GradientActor(Actor):
    """A3C's actor: acts, computes the gradient of what happened with the weights that it acted with, pushes that."""

    def __init__(self, experiment: dict[str, Any], number: int, copies: int, handles: dict[str, Handle], store: Store):
        super().__init__(experiment, number, copies, handles, store)
        self.weights = Weights(self.program, self.services["parameters"], store)
        self.made = 0

    def _held(self, share: Share) -> Any:
        self.made = share.anew * LIFE
        return super()._held(share)

    @functools.cached_property
    def _gradient(self):
        experiment, key = self.experiment, jax.random.key(0)

        def gradient(learners: PyTree, made: Rollout):
            after = Worlds(key, made.clock, None, None, made.last, made.steps.first[0], {}, made.clock)
            whole = experience(made.steps, made.memory, after, made.last_memory)
            gradients, metrics = {}, {}
            for name, (algorithm, spec) in self.program.cast.learners.items():
                if not experiment.learners[name].frozen:
                    assert isinstance(algorithm, A2C)
                    own = whole.replace(tracks={group: whole.tracks[group] for group in spec.groups})
                    gradients[name], found = algorithm.gradients(*algorithm.prepare(learners[name], own))
                    metrics |= found
            return gradients, metrics

        return jax.jit(gradient)

    def _roll(self, held: Any, task: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        if not self.weights.pull(task["epoch"]):
            return {}
        pulled = time.perf_counter()
        made, healthy = held.roll(policies_of(self.weights.learners))
        rolled = time.perf_counter()
        made = self._sound(made, healthy)
        gradients, metrics = jax.device_get(self._gradient(self.weights.learners, made))
        told = told_of(made) | {name: float(value) for name, value in metrics.items()}
        steps = self.copies * self.experiment.num_steps
        item = gradient_item(self, self.made, gradients, told, steps)
        self.made += 1
        computed = time.perf_counter()
        while not insist(self.services["dataset"], "push", item, WAIT, give_up=self.dead.is_set):
            insist(self.services["coordinator"], "waiting", self.name, give_up=self.dead.is_set)
            if self.dead.is_set():
                return {}
        seconds = {"pull": pulled - began, "roll": rolled - pulled, "gradient": computed - rolled}
        return {
            "round": task["round"],
            "epoch": task["epoch"],
            "env_steps": steps,
            "seconds": seconds | {"push": time.perf_counter() - computed},
            "sick": sorted(self.sick),
        }
