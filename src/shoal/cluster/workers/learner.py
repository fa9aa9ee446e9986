"""The learner: takes rollouts from the queue, makes updates, publishes weights, and keeps what it did safe on disk.

The update is the fused runner's, fed from outside. An update counts as committed once a checkpoint that holds it is on
disk; a restarted learner continues from there. Only the learner writes checkpoints and metrics.
"""

import functools
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shoal.batching.rollout import Rollout, make_experience
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.services.clock import Clock
from shoal.cluster.services.dataset import Item
from shoal.cluster.services.directory import Handles, Services
from shoal.cluster.transport.service import ServiceUnavailable, Store
from shoal.cluster.workers import rollouts
from shoal.cluster.workers.rollouts import BESIDE
from shoal.cluster.workers.weights import POLICIES, WAIT, Layout, policy_layout
from shoal.core.algorithm import EstimatesKL, require_protocol
from shoal.core.errors import NonFiniteError
from shoal.core.keys import run_keys
from shoal.core.types import PyTree
from shoal.training import checkpoint, nan_guard, records
from shoal.training.devices import AXIS
from shoal.training.evaluate import Evaluator
from shoal.training.experiment import Experiment
from shoal.training.fused import FusedProgram, mesh_of, policies_of, with_weights
from shoal.training.metrics import Aggregator, MetricsLog
from shoal.training.program import LINES
from shoal.training.run import RunFolder
from shoal.training.stored_replays import load_with_replays, replay_names, without_replays

FIGURES = ("staleness", "staleness_max", "nan_resets")
"""Metrics that are logged besides those of the fused runner. The last: copies restarted since the last update."""


class Learning:
    """The compiled update: `learn` makes one from the rollouts of all copies."""

    def __init__(self, experiment: Experiment, devices: int | None = None):
        self.program = FusedProgram(experiment.setup, mesh_of(experiment, devices))
        self.key = run_keys(experiment.seed).update
        mesh = self.program.mesh
        self.size = mesh.size
        whole, split, rows = (NamedSharding(mesh, spec) for spec in (P(), P(AXIS), P(None, AXIS)))
        self.whole, self.split, self.rows = whole, split, rows

    def fresh(self) -> tuple[PyTree, PyTree]:
        """Learners before the first update, and a latch that has not tripped."""
        carry = with_weights(self.program, self.program.init())
        return carry.learners, carry.latch

    def put(self, learners: PyTree) -> PyTree:
        """Learners that were stored, on the devices."""
        return jax.device_put(learners, self.program.shardings.learners)

    @functools.cached_property
    def learn(self):
        """`learn(learners, latch, update, rollout) -> learners, latch, row of metrics`; donates the first two."""
        axis = AXIS if self.size > 1 else None

        def local(learners: PyTree, tripped: PyTree, update: jax.Array, made: Rollout):
            learners, tripped, metrics = self.program.learn(learners, tripped, self.key, update, made, axis)
            row = jnp.stack([jnp.asarray(metrics[name], jnp.float32) for name in self.program.names])
            return learners, tripped, row

        if axis is None:
            return jax.jit(local, donate_argnums=(0, 1))
        specs = self.program.specs()

        def learn(learners: PyTree, tripped: PyTree, update: jax.Array, made: Rollout):
            return jax.shard_map(
                local,
                mesh=self.program.mesh,
                in_specs=(specs.learners, specs.latch, P(), _specs_of(made)),
                out_specs=(specs.learners, specs.latch, P()),
                check_vma=False,
            )(learners, tripped, update, made)

        places = self.program.shardings
        return jax.jit(learn, donate_argnums=(0, 1), out_shardings=(places.learners, places.latch, self.whole))

    @functools.cached_property
    def divergence(self):
        """`divergence(learners, rollout)`: the KL of the acting policy from the newest, the largest of all groups.

        Every learner that is not frozen must be able to estimate it (`EstimatesKL`).
        """

        def largest(learners: PyTree, made: Rollout) -> jax.Array:
            whole = make_experience(made.steps, made.memory, made.last_observation, made.last_memory)
            found = [jnp.float32(0.0)]
            for name, (algorithm, spec) in self.program.setup.learners.items():
                if not self.program.experiment.learners[name].frozen:
                    own = whole.replace(trajectories={group: whole.trajectories[group] for group in spec.groups})
                    estimator = require_protocol(algorithm, EstimatesKL, "cluster: max_divergence")
                    found.append(estimator.approx_kl(learners[name], own))
            return jnp.max(jnp.stack(found))

        return jax.jit(largest)

    def put_on_devices(self, made: Rollout) -> Rollout:
        """A rollout of all copies on the devices."""
        if self.size == 1:
            return jax.device_put(made)
        episodes = jax.tree.map(lambda leaf: np.asarray(leaf) / self.size, made.steps.episodes)  # they are summed
        made = made.replace(steps=made.steps.replace(episodes=episodes))
        places = jax.tree.map(lambda spec: NamedSharding(self.program.mesh, spec), _specs_of(made))
        return jax.device_put(made, places)


def _specs_of(made: Rollout) -> Rollout:
    """Which parts of a rollout are split over the devices: those with an axis of copies."""

    def fill(tree: PyTree, spec: P) -> PyTree:
        return jax.tree.map(lambda _: spec, tree)

    steps = fill(made.steps, P(None, AXIS)).replace(episodes=fill(made.steps.episodes, P()))
    rest = {name: fill(getattr(made, name), P(AXIS)) for name in BESIDE}
    return Rollout(steps=steps, clock=P(), **rest)


class LearnerWorker:
    """The one learner of a run. `run` works until all updates are made, or it is asked to stop."""

    def __init__(self, experiment: dict[str, Any], folder: str, plan: ClusterPlan, handles: Handles, store: Store):
        self.name, self.plan, self.store, self.folder = "learner-0", plan, store, Path(folder)
        self.services = Services(handles, "learner")
        self.experiment = Experiment.from_dict(experiment)
        self.run_folder = RunFolder(self.folder, self.experiment)
        self.total = self.experiment.num_updates
        self.dead = threading.Event()
        self.clock = Clock()
        self.newest: dict[str, Any] | None = None
        self.left_out = 0
        self.resets, self.known_resets = 0, 0  # of copies that gave NaN: all that were reported, and those in metrics

    @functools.cached_property
    def learning(self) -> Learning:
        return Learning(self.experiment)

    @functools.cached_property
    def layout(self) -> Layout:
        return policy_layout(self.learning.program)

    def die(self) -> None:
        self.dead.set()

    def run(self) -> dict[str, Any]:
        """Makes the remaining updates; returns how it ended."""
        self.epoch = self.services.coordinator.retry.hello(self.name)
        self._restore()
        log = MetricsLog(self.folder, keep_until=self.update)
        try:
            if self.update == 0:
                self._commit(log)
            self._publish()
            if "dataset" in self.services:
                self.services.dataset.retry.clear(self.epoch)
            self.services.coordinator.retry.began(self.update, self.epoch)
            self._updates(log)
            if not self.dead.is_set():
                self._commit(log)
        finally:
            log.close()
        return {"update": self.update, "line": self.newest} | self.clock.figures

    def _updates(self, log: MetricsLog) -> None:
        saved = time.monotonic()
        while self.update < self.total and not self.dead.is_set():
            if self.once():
                break
            if time.monotonic() - saved >= self.plan.commit_seconds:
                self._commit(log)
                saved = time.monotonic()

    def once(self) -> bool:
        """Makes one update, if its data is there; returns whether to stop. Recipes override it."""
        items = self._take()
        if items is None:
            return True
        values = self._fetch(items)
        if values is None:
            return False
        began = time.perf_counter()
        made = self.learning.put_on_devices(rollouts.join_rollouts(values))
        there = time.perf_counter()
        if self._has_diverged(made):
            return False
        behind = [max(0, self.update - item.version) for item in items]
        learners, tripped, row = self.learning.learn(self.learners, self.tripped, np.int32(self.update), made)
        self.learners, self.tripped = learners, tripped
        row = np.asarray(row)
        self.clock.spend("join", began, there)
        self.clock.spend("learn", there)
        return self.finish(row, behind)

    def _has_diverged(self, made: Rollout) -> bool:
        """Whether a rollout is dropped because the policy has changed too much since it acted."""
        if self.plan.sync_mode != "stale" or not self.plan.max_divergence:
            return False
        far = float(self.learning.divergence(self.learners, made)) > self.plan.max_divergence
        self.left_out += far
        return far

    def finish(self, row: np.ndarray, behind: Sequence[float]) -> bool:
        """Counts an update with its row of metrics and staleness, publishes weights; returns whether to stop."""
        self.update += 1
        self.clock.count_update()
        if row[self.learning.program.names.index("fault")]:
            self._check()
        anew, self.known_resets = max(0, self.resets - self.known_resets), self.resets
        row = np.concatenate([row, [np.mean(behind), max(behind), anew]]).astype(np.float32)
        began = time.perf_counter()
        self._publish()
        self.clock.spend("publish", began)
        better = self._evaluate_if_due()
        self.lines += self._add(row)
        if better:
            self._save(best=True)
        figures = {
            "staleness": [float(np.mean(behind)), float(max(behind))],
            "update": self.update,
            "left_out": self.left_out,
            "line": self.newest,
        } | self.clock.figures
        stopping, self.resets = self.services.coordinator.retry.report_update(self.update, figures)
        return bool(stopping)

    def _take(self) -> list[Item] | None:
        """One rollout for each share of the copies; None if the run is to stop."""
        began, plan = time.perf_counter(), self.plan
        sync = plan.sync_mode
        least = max(0, self.update - plan.max_staleness) if sync == "stale" else 0
        wanted = self.update if sync == "sync" else None
        while not self.dead.is_set():
            items = self.services.dataset.retry.take(plan.actors, least, wanted, WAIT)
            if items:
                self.clock.spend("wait", began)
                return sorted(items, key=lambda item: item.share)
            if self._waits():
                return None
        return None

    def _waits(self) -> bool:
        """Re-sends the run's position to services that may have restarted; returns whether to stop."""
        self._publish()
        present = self.services.dataset.retry.makers() if "dataset" in self.services else []
        return bool(self.services.coordinator.retry.standing(self.name, self.update, self.epoch, present))

    def _fetch(self, items: list[Item]) -> list[Rollout] | None:
        """Fetches the items' values; None if some were lost with their actor, which is asked to make them again."""
        values, whole = [], []
        for item in items:
            try:
                values.append(self.store.get(item.ref))
                whole.append(item)
            except ServiceUnavailable:
                self.services.coordinator.retry.report_lost(item.maker, item.round)
        if len(whole) == len(items):
            return values
        for item in reversed(whole):  # which wait for the others
            self.services.dataset.retry.back(item)
        return None

    def _publish(self) -> None:
        policies = self.layout.pack(policies_of(self.learners))
        self.services.parameters.retry.push(POLICIES, self.update, policies, self.epoch)

    def _restore(self) -> None:
        newest = checkpoint.latest(self.folder / "checkpoints")
        self.learners, self.tripped = self.learning.fresh()
        self.update, self.lines, before = 0, [], 0.0
        self.best, self.evaluated = None, {}
        names = (*self.learning.program.names, *FIGURES)
        steps = self.experiment.num_envs * self.experiment.num_steps
        self.aggregator = Aggregator(names, max(1, self.total // LINES), steps)
        if newest is not None:
            like = {"learners": self.learning.program.shapes().learners}
            meta = records.read_progress(newest, self.total)
            stored = load_with_replays(newest, like, partial=True)["learners"]
            records.check_finite(newest, {name: learner.params for name, learner in stored.items()})
            self.learners = self.learning.put(self.learning.program.stretch_schedules(stored))
            self.best = meta.get("best")
            self.update, before = meta["update"], meta["seconds"]
            pending = meta["pending"]
            if isinstance(pending, list):  # rows of early versions, of before `nan_resets`
                pending = [
                    [*row, *[0.0] * (len(names) - len(row))] if isinstance(row, list) else row for row in pending
                ]
            try:
                self.aggregator.restore(self.update, pending, self.total)
            except (ValueError, TypeError) as error:
                raise records.forged(newest, error) from error
        self.clock = Clock(before)

    def _add(self, row: np.ndarray) -> list[dict[str, Any]]:
        lines = self.aggregator.add(row[None], self.total)
        for line in lines:
            line |= self.evaluated.pop(line["update"], {})
            line["seconds"] = round(self.clock.seconds, 3)
            self.newest = line
        return lines

    @functools.cached_property
    def _evaluator(self) -> Evaluator:
        return Evaluator(self.learning.program.setup, self.experiment.eval_episodes, self.experiment.seed)

    def _evaluate_if_due(self) -> bool:
        """Evaluates greedily every `eval_every` env steps and at the end, as on one machine; whether it is the best."""
        between = self.aggregator.updates_of(self.experiment.eval_every)
        if not between or not (self.update % between == 0 or self.update == self.total):
            return False
        began = time.perf_counter()
        found = self._evaluator(jax.device_get(policies_of(self.learners)))
        self.evaluated[self.update] = found.metrics()
        better = found.better_return(self.best, self.learning.program.setup.env)
        if better is not None:
            self.best = better
        self.clock.spend("evaluate", began)
        return better is not None

    def _commit(self, log: MetricsLog) -> None:
        """Writes the lines of metrics, then a checkpoint, which commits them.

        Lines after the newest checkpoint are dropped when a learner restarts. In the other order, a kill between the
        two would lose lines for good.
        """
        began = time.perf_counter()
        self._check()
        for line in self.lines:
            log.write(line)
        self.lines = []
        self._save()
        self.services.coordinator.retry.report_commit(self.update)
        self.clock.spend("commit", began)

    def _save(self, best: bool = False) -> None:
        meta = {
            "update": self.update,
            "env_steps": self.update * self.experiment.num_envs * self.experiment.num_steps,
            "devices": self.learning.size,
            "seconds": self.clock.seconds,
            "pending": self.aggregator.pending(),
        }
        meta |= {} if self.best is None else {"best": self.best}
        tree = {"learners": self.learners}
        if best:
            checkpoint.save(self.run_folder.best, self.update, without_replays(tree), meta, keep=1)
        else:
            keep = self.experiment.keep_checkpoints
            checkpoint.save(self.run_folder.checkpoints, self.update, tree, meta, keep, replay_names(tree))

    def _check(self) -> None:
        groups = list(self.learning.program.setup.spec.groups)
        error = nan_guard.report(jax.device_get(self.tripped), self.experiment.env, groups)
        if error:
            raise NonFiniteError(f"{error} The last checkpoint in {self.folder} is from before it happened.")
