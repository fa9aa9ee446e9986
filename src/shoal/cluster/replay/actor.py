"""An actor that feeds a replay: it steps its copies, judges what happened, and pushes the steps to its shard.

Who judges (Ape-X, R2D2) sets the priorities of new windows itself, by the errors of its own action values with the
weights that it acted with; so nobody else ever values new steps just to find out how surprising they are.
"""

import dataclasses
import functools
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.algorithms import q_learning as q
from shoal.algorithms import replay as stored
from shoal.algorithms.dqn import DQN
from shoal.batching.rollout import Rollout, experience
from shoal.cluster.replay.ring import Table
from shoal.cluster.replay.service import LIFE, Push
from shoal.cluster.replay.shards import shards_of
from shoal.cluster.transport.launcher import Gone, Handle, Store, insist
from shoal.cluster.workers.actor import WAIT, Actor
from shoal.cluster.workers.rollouts import Share
from shoal.core.algorithm import LearnerSpec
from shoal.core.types import PyTree
from shoal.training.experiment import Cast
from shoal.training.fused import step_metrics

MIXERS = "mixers"
"""The name of the weights of all mixers of a training."""
LADDER = (0.4, 7.0)
"""Actor i of N takes a random action with probability 0.4^(1 + 7 i / (N - 1)), as in the paper."""


def replaying(roles: Cast) -> dict[str, tuple[DQN, LearnerSpec]]:
    """The learners that learn from a replay."""
    frozen = {name for name, learner in roles.experiment.learners.items() if learner.frozen}
    return {
        name: (algorithm, spec)
        for name, (algorithm, spec) in roles.learners.items()
        if name not in frozen and isinstance(algorithm, DQN)
    }


def tables_of(roles: Cast) -> dict[str, Table]:
    """What is kept for each of them; rows are those of the fused runner's replay."""
    tables = {}
    for name, (algorithm, spec) in replaying(roles).items():
        _, rows, _ = algorithm.replay_shape(spec)
        tables[name] = Table(rows, algorithm.window, algorithm.prioritised)
    return tables


def ladder(number: int, actors: int) -> float:
    """How often actor `number` of `actors` explores."""
    base, steep = LADDER
    return base ** (1.0 + steep * min(number, actors - 1) / max(actors - 1, 1))


class Judge:
    """The priorities of one learner's windows as they become possible, from steps that come in pieces `[T, E, ...]`."""

    def __init__(self, algorithm: DQN, spec: LearnerSpec):
        self.algorithm = algorithm
        # One row at a time, each with the memory that it was acted with: every step is valued once.
        self._single = dataclasses.replace(algorithm, sequence=1, burn_in=0)

        def bare() -> Any:
            return algorithm.init(jax.random.key(0), spec).replace(optimiser=None, replay=None)

        self._state = jax.jit(bare)()  # compiled, so that no replay is ever made
        self.forget()

    def forget(self) -> None:
        """What comes next does not follow what came before."""
        self._tail: PyTree = None
        self._errors: np.ndarray | None = None

    @functools.cached_property
    def _judged(self):
        depth, sequence = self.algorithm.n_step, self.algorithm.sequence

        def judged(params: PyTree, mixer: PyTree, steps: stored.Steps, before: jax.Array):
            state = self._state.replace(params=params, mixer=mixer, target=q.weights_of(params, mixer))
            count, copies = steps.first.shape[0] - depth, steps.first.shape[1]
            rows = jnp.arange(depth + 1)[:, None] + jnp.arange(count)
            windows = jax.tree.map(lambda leaf: leaf[rows].reshape(depth + 1, -1, *leaf.shape[2:]), steps)
            errors = self._single.errors(state, windows).reshape(count, copies)
            errors = jnp.concatenate([before, errors])
            spans = errors[jnp.arange(sequence)[:, None] + jnp.arange(count)]
            priority = stored.priorities(spans, self._state.hyper["priority_exponent"])
            return priority, errors[count:]

        return jax.jit(judged)

    def __call__(self, params: PyTree, mixer: PyTree, steps: stored.Steps) -> np.ndarray:
        """Priorities `[T, E]` of the windows that end at these steps. (Before there is a whole one: of nothing.)"""
        depth, copies = self.algorithm.n_step, steps.first.shape[1]
        if self._tail is None or self._errors is None:
            self._tail = jax.tree.map(lambda leaf: np.zeros((depth, *leaf.shape[1:]), leaf.dtype), steps)
            self._errors = np.zeros((self.algorithm.sequence - 1, copies), np.float32)
        whole = jax.tree.map(lambda old, new: np.concatenate([old, new]), self._tail, steps)
        priority, errors = jax.device_get(self._judged(params, mixer, whole, self._errors))
        self._tail, self._errors = jax.tree.map(lambda leaf: leaf[-depth:], whole), errors
        return priority


class ReplayActor(Actor):
    """Pushes to the shard that it is dealt to. actors: how many there are. judges: whether it sets priorities, and has
    its own place on the ladder of exploration; otherwise it explores as the learner's schedule says.
    """

    def __init__(
        self,
        experiment: dict[str, Any],
        number: int,
        copies: int,
        handles: dict[str, Handle],
        store: Store,
        actors: int = 1,
        judges: bool = False,
    ):
        super().__init__(experiment, number, copies, handles, store)
        shards = shards_of(self.services)
        self.shard = shards[number % len(shards)]
        self.learners = replaying(self.program.cast)
        self.epsilon = np.float32(ladder(number, actors)) if judges else None
        self.judges = {name: Judge(*pair) for name, pair in self.learners.items()} if judges else {}
        self.mixers: dict[str, PyTree] = dict.fromkeys(self.learners, ())
        self.mixed = judges and any(algorithm.mixer == "monotonic" for algorithm, _ in self.learners.values())
        self.stamp = 0

    def _held(self, share: Share) -> Any:
        self._begin(share.anew * LIFE)
        return super()._held(share)

    def _begin(self, stamp: int) -> None:
        """What is made from here on does not follow what was made before."""
        self.stamp = stamp
        for judge in self.judges.values():
            judge.forget()

    def _pulled(self, least: int, epoch: int) -> bool:
        if not super()._pulled(least, epoch):
            return False
        if self.epsilon is not None and self.policies is not None:
            own = [group for _, spec in self.learners.values() for group in spec.groups]
            self.policies |= {group: self.policies[group].replace(epsilon=self.epsilon) for group in own}
        if self.mixed:
            found = insist(self.services["parameters"], "pull", MIXERS, -1, 0, WAIT, -1)
            if found is None:
                return False
            try:
                self.mixers = self.store.get(found.ref)
            except Gone:
                return False
        return True

    def _roll(self, held: Any, task: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        if not self._pulled(task["version"], task["epoch"]):
            return {}
        pulled = time.perf_counter()
        made, sound = held.roll(self.policies)
        rolled = time.perf_counter()
        ill = set(self.sick)
        made = self._sound(made, sound)
        if self.sick != ill:  # others stand in than before: a gap, so that no window mixes them
            self._begin(self.stamp + 1)
        push = self._push_of(made)
        self.stamp += self.experiment.num_steps
        judged = time.perf_counter()
        while not insist(self.shard, "push", push, WAIT, give_up=self.dead.is_set):
            insist(self.services["coordinator"], "waiting", self.name, give_up=self.dead.is_set)
            if self.dead.is_set():
                return {}
        seconds = {"pull": pulled - began, "roll": rolled - pulled, "judge": judged - rolled}
        return {
            "round": task["round"],
            "epoch": task["epoch"],
            "env_steps": push.env_steps,
            "seconds": seconds | {"push": time.perf_counter() - judged},
        } | self._health(held)

    def _push_of(self, made: Rollout) -> Push:
        steps = {}
        for name, own in steps_by_learner(made, self.learners).items():
            judge = self.judges.get(name)
            policies = {group: (self.policies or {})[group] for group in self.learners[name][1].groups}
            priority = None if judge is None else judge(policies, self.mixers[name], own)
            steps[name] = (jax.tree.leaves(own), priority)
        env_steps = self.copies * self.experiment.num_steps
        return Push(self.number, self.stamp, self.version, env_steps, steps, told_of(made))


def steps_by_learner(made: Rollout, learners: Mapping[str, tuple[DQN, LearnerSpec]]) -> dict[str, stored.Steps]:
    """What each learner stores of a rollout."""
    whole = experience(made.steps, made.memory, made.last_observation, made.last_memory)
    steps = {}
    for name, (algorithm, spec) in learners.items():
        own = stored.steps_of(whole.replace(trajectories={group: whole.trajectories[group] for group in spec.groups}))
        steps[name] = own if algorithm.traits.needs_global_state else own.replace(state=None, final_state=None)
    return steps


_metrics = jax.jit(step_metrics)


def told_of(made: Rollout) -> dict[str, float]:
    """Figures of a rollout's episodes (sums) and of its world (means), by the names that runs log."""
    found = jax.device_get(_metrics(made.steps.metrics, made.steps.episodes))
    return {name: float(value) for name, value in found.items()}


def is_mean(name: str) -> bool:
    """Whether figures of that name are means over rollouts; others are sums."""
    return name.startswith("world/")
