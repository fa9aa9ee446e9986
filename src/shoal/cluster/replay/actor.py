"""An actor that feeds a replay: it steps its copies, estimates priorities, and pushes the steps to its shard.

With Ape-X and R2D2 it sets the priorities of new windows itself, from the TD errors under the weights that it acted
with, so the learner need not evaluate new steps for their priorities.
"""

import abc
import functools
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from shoal.batching.rollout import Rollout, make_experience
from shoal.cluster.replay.ring import Table
from shoal.cluster.replay.service import LIFE, ReplayPush
from shoal.cluster.services.directory import Handles
from shoal.cluster.transport.service import ServiceUnavailable, Store
from shoal.cluster.workers.actor import ActorWorker
from shoal.cluster.workers.rollouts import Share
from shoal.cluster.workers.weights import WAIT
from shoal.core.algorithm import Algorithm, LearnerSpec, Prioritises, ReplayTraits, supports
from shoal.core.types import PyTree
from shoal.training.experiment import Setup
from shoal.training.fused import step_metrics

SHARED = "shared"
"""The name of the weights, besides the policies, that actors need to estimate priorities."""
LADDER = (0.4, 7.0)
"""Actor i of N takes a random action with probability 0.4^(1 + 7 i / (N - 1)), as in the paper."""


class Replaying(Algorithm, Prioritises, abc.ABC):
    """The type of an algorithm that has the protocol."""


def replaying_learners(setup: Setup) -> dict[str, tuple[Replaying, LearnerSpec]]:
    """The learners that learn from a replay."""
    frozen = {name for name, learner in setup.experiment.learners.items() if learner.frozen}
    return {
        name: (cast(Replaying, algorithm), spec)
        for name, (algorithm, spec) in setup.learners.items()
        if name not in frozen and supports(algorithm, Prioritises)
    }


def replay_traits(algorithm: Algorithm) -> ReplayTraits:
    """How an algorithm that has a replay draws from it."""
    assert algorithm.traits.replay is not None, f"{type(algorithm).__name__} has Prioritises, so traits.replay"
    return algorithm.traits.replay


def tables_of(setup: Setup) -> dict[str, Table]:
    """The table of each of them; rows are those of the fused runner's replay."""
    tables = {}
    for name, (algorithm, spec) in replaying_learners(setup).items():
        _, rows, _ = algorithm.replay_shape(spec)
        traits = replay_traits(algorithm)
        tables[name] = Table(rows, traits.window, traits.prioritised)
    return tables


def ladder(number: int, actors: int) -> float:
    """How often actor `number` of `actors` explores."""
    base, steep = LADDER
    return base ** (1.0 + steep * min(number, actors - 1) / max(actors - 1, 1))


class PriorityEstimator:
    """The priorities of one learner's windows as they become possible, from steps that come in pieces `[T, E, ...]`."""

    def __init__(self, algorithm: Replaying, spec: LearnerSpec):
        self.algorithm = algorithm
        # One row at a time, each with the memory that it was acted with: every step is valued once.
        self._single = cast(Replaying, algorithm.single_row())
        self._lookahead = replay_traits(self._single).window - 1

        def bare() -> Any:
            return algorithm.init(jax.random.key(0), spec).replace(optimiser=None, replay=None)

        self._state = jax.jit(bare)()  # compiled, so that no replay is ever made
        self.shared: PyTree = algorithm.shared_weights(self._state)
        self.forget()

    def forget(self) -> None:
        """The next steps do not follow the previous ones."""
        self._tail: PyTree = None
        self._errors: np.ndarray | None = None

    @functools.cached_property
    def _estimate(self):
        lookahead, sequence = self._lookahead, replay_traits(self.algorithm).sequence

        def estimate(params: PyTree, shared: PyTree, steps: PyTree, before: jax.Array):
            state = self.algorithm.with_weights(self._state, params, shared)
            rows, copies = jax.tree.leaves(steps)[0].shape[:2]
            count = rows - lookahead
            index = jnp.arange(lookahead + 1)[:, None] + jnp.arange(count)
            windows = jax.tree.map(lambda leaf: leaf[index].reshape(lookahead + 1, -1, *leaf.shape[2:]), steps)
            errors = self._single.errors(state, windows).reshape(count, copies)
            errors = jnp.concatenate([before, errors])
            spans = errors[jnp.arange(sequence)[:, None] + jnp.arange(count)]
            return self.algorithm.priorities(self._state, spans), errors[count:]

        return jax.jit(estimate)

    def __call__(self, params: PyTree, shared: PyTree, steps: PyTree) -> np.ndarray:
        """Priorities `[T, E]` of the windows that end at these steps. (Before there is a whole one: of nothing.)"""
        if self._tail is None or self._errors is None:
            copies = jax.tree.leaves(steps)[0].shape[1]
            self._tail = jax.tree.map(lambda leaf: np.zeros((self._lookahead, *leaf.shape[1:]), leaf.dtype), steps)
            self._errors = np.zeros((replay_traits(self.algorithm).sequence - 1, copies), np.float32)
        whole = jax.tree.map(lambda old, new: np.concatenate([old, new]), self._tail, steps)
        priority, errors = jax.device_get(self._estimate(params, shared, whole, self._errors))
        self._tail, self._errors = jax.tree.map(lambda leaf: leaf[-self._lookahead :], whole), errors
        return priority


class ReplayActor(ActorWorker):
    """Pushes to its shard. actors: their number. prioritises: whether it sets priorities, and
    has its own place on the ladder of exploration; otherwise it explores as the learner's schedule says.
    """

    packing: ClassVar[str] = "judge"

    def __init__(
        self,
        experiment: dict[str, Any],
        number: int,
        copies: int,
        handles: Handles,
        store: Store,
        actors: int = 1,
        prioritises: bool = False,
    ):
        super().__init__(experiment, number, copies, handles, store)
        shards = self.services.shards
        self.shard = shards[number % len(shards)]
        self.learners = replaying_learners(self.program.setup)
        self.epsilon = np.float32(ladder(number, actors)) if prioritises else None
        self.estimators = {n: PriorityEstimator(*pair) for n, pair in self.learners.items()} if prioritises else {}
        self.shared = {name: estimator.shared for name, estimator in self.estimators.items()}
        self.stamp = 0

    def open_envs(self, share: Share) -> Any:
        self._begin(share.restarts * LIFE)
        return super().open_envs(share)

    def _begin(self, stamp: int) -> None:
        """The next steps do not follow the previous ones."""
        self.stamp = stamp
        for estimator in self.estimators.values():
            estimator.forget()

    def pull(self, least: int, epoch: int) -> bool:
        if not super().pull(least, epoch):
            return False
        if self.epsilon is not None:
            self.policies = self.policies | {
                group: algorithm.with_exploration(self.policies[group], self.epsilon)
                for algorithm, spec in self.learners.values()
                for group in spec.groups
            }
        if jax.tree.leaves(self.shared):
            found = self.services.parameters.retry.pull(SHARED, -1, 0, WAIT, -1)
            if found is None:
                return False
            try:
                self.shared = self.store.get(found.ref)
            except ServiceUnavailable:
                return False
        return True

    def replace_unhealthy(self, made: Rollout, sound: np.ndarray) -> Rollout:
        before = self.sick
        made = super().replace_unhealthy(made, sound)
        if self.sick != before:  # others stand in than before: a gap, so that no window mixes them
            self._begin(self.stamp + 1)
        return made

    def pack(self, made: Rollout, task: dict[str, Any]) -> ReplayPush:
        steps = {}
        for name, own in steps_by_learner(made, self.learners).items():
            estimator = self.estimators.get(name)
            policies = {group: self.policies[group] for group in self.learners[name][1].groups}
            priority = None if estimator is None else estimator(policies, self.shared[name], own)
            steps[name] = (jax.tree.leaves(own), priority)
        package = ReplayPush(self.number, self.stamp, self.weights.version, self.env_steps, steps, report_metrics(made))
        self.stamp += self.experiment.num_steps
        return package

    def push(self, package: ReplayPush) -> bool:
        return self.shard.retry_until(self.dead.is_set).push(package, WAIT)


def steps_by_learner(made: Rollout, learners: Mapping[str, tuple[Replaying, LearnerSpec]]) -> dict[str, PyTree]:
    """What each learner stores of a rollout."""
    whole = make_experience(made.steps, made.memory, made.last_observation, made.last_memory)
    steps = {}
    for name, (algorithm, spec) in learners.items():
        own = whole.replace(trajectories={group: whole.trajectories[group] for group in spec.groups})
        steps[name] = algorithm.make_steps(own)
    return steps


_metrics = jax.jit(step_metrics)


def report_metrics(made: Rollout) -> dict[str, float]:
    """Figures of a rollout's episodes (sums) and of its world (means), by the names that runs log."""
    found = jax.device_get(_metrics(made.steps.metrics, made.steps.episodes))
    return {name: float(value) for name, value in found.items()}


def is_mean(name: str) -> bool:
    """Whether figures of that name are means over rollouts; others are sums."""
    return name.startswith("world/")
