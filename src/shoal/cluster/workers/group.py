"""Learners without a centre: each steps its own share of the copies, and gradients are averaged among all of them.

The processes form one group (`jax.distributed`), whose devices are one mesh: the update is the fused runner's, spread
over processes as it is over devices, and what travels between them is what its `psum`s say. A process belongs to one
group in its life. When one dies, the group is over: all others end themselves, are restarted like any worker, form a
new group, and go on from the last commit.

Slow learners need not hold up the others. With `backups`, an update waits until all but that many learners have
finished their rollouts; the rest then stop early (see `segments`).
"""

import functools
import math
import os
import socket
import threading
import time
import uuid
from typing import Any

import jax
import numpy as np
from jax._src import xla_bridge
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shoal.batching.rollout import Rollout
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.services.directory import Handles
from shoal.cluster.transport.service import ServiceUnavailable, Store
from shoal.cluster.workers import rollouts
from shoal.cluster.workers.learner import LearnerWorker, Learning
from shoal.cluster.workers.rollouts import BESIDE, Share
from shoal.cluster.workers.segments import SEGMENTS, Segments
from shoal.cluster.workers.weights import WAIT
from shoal.core.errors import NonFiniteError
from shoal.core.keys import run_keys
from shoal.core.types import PyTree
from shoal.training import nan_guard
from shoal.training.devices import AXIS
from shoal.training.experiment import Experiment
from shoal.training.fused import Carry, FusedProgram, policies_of, with_weights

LOOPBACK = "127.0.0.1"
HEARTBEAT = 10
"""Seconds without a sign of life after which a process counts as dead to its group."""
LOOK = 0.5
"""Seconds between looks at whether the group is still whole."""


class Rendezvous:
    """The rendezvous of a group of learners. Its state may be lost: members report which group they are of."""

    def __init__(self, size: int):
        self.size = size
        self.generation, self.formed = 0, False
        self.members: dict[int, tuple[str, str]] = {}
        self.finished: tuple[int, int] = (0, -1)
        self.ready: set[int] = set()
        self._changed = threading.Condition()

    def join(self, rank: int, token: str, address: str, timeout: float) -> tuple[int, str] | None:
        """The number of the group and the address of its first member, once all are there. token: of the process.

        A process that was not there before ends the group that there was: it stands for one that died.
        """
        with self._changed:
            if self.members.get(rank, ("", ""))[0] != token:
                if self.formed or not self.generation:
                    self.generation, self.formed, self.members = self.generation + 1, False, {}
                self.members[rank] = (token, address)
                self._changed.notify_all()
            self._changed.wait_for(lambda: len(self.members) == self.size, timeout)
            if len(self.members) < self.size or self.members[rank][0] != token:
                return None
            self.formed = True
            return self.generation, self.members[0][1]

    def whole(self, generation: int) -> bool:
        """Whether the group of that number is still the current one."""
        with self._changed:
            if generation > self.generation:  # it has been forgotten here
                self.generation, self.formed, self.members = generation, True, {}
            return generation == self.generation

    def enough(self, rank: int, generation: int, update: int, finished: bool, needed: int) -> bool:
        """Whether enough members have finished the rollout of an update; `finished` counts this one."""
        with self._changed:
            if (generation, update) > self.finished:
                self.finished, self.ready = (generation, update), set()
            if finished and (generation, update) == self.finished:
                self.ready.add(rank)
            return len(self.ready) >= needed or (generation, update) < self.finished

    def figures(self) -> dict[str, int]:
        """How many groups there have been."""
        return {"generation": self.generation, "members": len(self.members)}


class GroupLearning(Learning):
    """`Learning` over the devices of all processes; each puts in the rollout of its own copies."""

    def __init__(self, experiment: Experiment, processes: int):
        devices = jax.devices() if processes > 1 else jax.local_devices()[:1]
        mesh = Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))
        self.program, self.size = FusedProgram(experiment.setup, mesh), len(devices)
        self.key = run_keys(experiment.seed).update
        whole, split, rows = (NamedSharding(mesh, spec) for spec in (P(), P(AXIS), P(None, AXIS)))
        self.whole, self.split, self.rows = whole, split, rows
        self.local = len(jax.local_devices()) if processes > 1 else 1

    def fresh(self) -> tuple[PyTree, PyTree]:
        """Every process makes the same learners by itself."""
        alone = rollouts.program_of(self.program.experiment)
        learners = jax.jit(lambda: alone.init_learners(run_keys(alone.experiment.seed).learner, {}))()
        learners = with_weights(alone, Carry(None, None, learners, None, None, None)).learners  # pyright: ignore[reportArgumentType]
        return self.put(learners), self._spread(jax.device_get(nan_guard.clear(self.local)), self.split)

    def put(self, learners: PyTree) -> PyTree:
        """Learners on all devices."""
        return self._spread(jax.device_get(learners), self.whole)

    def put_on_devices(self, made: Rollout) -> Rollout:
        """The rollout of this process as its part of the whole."""
        if self.size == 1:
            return jax.device_put(made)
        episodes = jax.tree.map(lambda leaf: np.asarray(leaf) / self.size, made.steps.episodes)  # they are summed
        steps = self._spread(made.steps.replace(episodes=None), self.rows)
        steps = steps.replace(episodes=self._spread(_divisible(episodes, self.local), self.split))
        rest = {name: self._spread(getattr(made, name), self.split) for name in BESIDE}
        return Rollout(steps=steps, clock=made.clock, **rest)

    def replicate(self, tree: PyTree) -> PyTree:
        """Gathers a split tree from all processes. All of them must call it together."""
        if self.size == 1:
            return jax.device_get(tree)
        return jax.device_get(jax.jit(lambda tree: tree, out_shardings=self.whole)(tree))

    def _spread(self, tree: PyTree, place: NamedSharding) -> PyTree:
        if self.size == 1:
            return jax.device_put(tree)
        return jax.tree.map(lambda leaf: jax.make_array_from_process_local_data(place, np.asarray(leaf)), tree)


class GroupLearner(LearnerWorker):
    """One learner of a group. The first one, `learner-0`, writes checkpoints and metrics for all.

    private: whether all are on this machine, and nobody else is to reach them.
    """

    def __init__(
        self,
        experiment: dict[str, Any],
        folder: str,
        plan: ClusterPlan,
        handles: Handles,
        store: Store,
        rank: int,
        private: bool = False,
    ):
        super().__init__(experiment, folder, plan, handles, store)
        self.name, self.rank, self.private = f"learner-{rank}", rank, private
        self.generation = 0
        self.reported = 0  # copies that gave NaN and were restarted, as far as the coordinator knows
        self.held: Segments | None = None
        self.report: dict[str, Any] = {}

    @functools.cached_property
    def learning(self) -> GroupLearning:
        """Made when the others are there: a process can join a group only before it has used its devices."""
        return GroupLearning(self.experiment, self.plan.learners)

    def run(self) -> dict[str, Any]:
        """Meets the others, then learns with them; only the first one ever returns."""
        if self.plan.learners > 1:
            if self.generation:  # this process was in a group that is no more
                os._exit(1)
            self._meet()
        self.held, self.report, self.reported = None, {}, 0
        if self.rank == 0:
            return super().run()
        self.epoch = self.services.coordinator.retry.hello(self.name)
        self._restore()
        while self.update < self.total and not self.dead.is_set():
            self.once()
        self.dead.wait()  # the run ends when the first one has written all down
        return {}

    def _meet(self) -> None:
        token, address, found = uuid.uuid4().hex, _address(self.private), None
        while found is None:
            found = self.services.meeting.retry.join(self.rank, token, address, WAIT)
        self.generation, first = found
        threading.Thread(target=self._watch, daemon=True, name="group").start()
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        if self.private:
            _stay_on_loopback()
        jax.distributed.initialize(
            first,
            self.plan.learners,
            self.rank,
            coordinator_bind_address=first if self.private else None,  # None: all interfaces
            cluster_detection_method="deactivate",
            initialization_timeout=60,
            heartbeat_timeout_seconds=HEARTBEAT,
            shutdown_timeout_seconds=1,
        )

    def _watch(self) -> None:
        """Ends this process when the group has lost a member, for which it might wait for ever."""
        while True:
            time.sleep(LOOK)
            try:
                whole = self.services.meeting.once.whole(self.generation)
            except ServiceUnavailable:
                continue
            if not whole:
                os._exit(1)

    def once(self) -> bool:
        """One rollout of its own share and one joint update; returns whether to stop."""
        began = time.perf_counter()
        task = self._task()
        if task is None:
            return True
        asked = time.perf_counter()
        policies = jax.tree.map(lambda leaf: leaf.addressable_data(0), policies_of(self.learners))
        self.held = self.held or self._open_envs()
        made, sound = self.held.roll(policies, self._enough)
        made = made if sound.all() else rollouts.replace_unsound(made, sound, self.experiment.env)
        rolled = time.perf_counter()
        learners, tripped, row = self.learning.learn(
            self.learners, self.tripped, np.int32(self.update), self.learning.put_on_devices(made)
        )
        self.learners, self.tripped = learners, tripped
        row = np.asarray(row)
        learnt = time.perf_counter()
        for what, since, until in (("wait", began, asked), ("roll", asked, rolled), ("learn", rolled, learnt)):
            self.clock.spend(what, since, until)
        self._report(task, {"roll": rolled - asked, "learn": learnt - rolled}, row)
        if self.rank == 0:
            return self.finish(row, [0.0])
        self.update += 1
        return False

    def _task(self) -> dict[str, Any] | None:
        """Reports the last rollout and asks for the next; None if the run is to stop.

        Only the first learner stops when asked to. If the others stopped they would keep it waiting, and what they
        begin in vain does no harm.
        """
        while not self.dead.is_set():
            task = self.services.coordinator.retry.next(self.name, self.report, WAIT)
            self.report = {}
            if task is not None and task["kind"] != "stop":
                return task
            if task is not None:
                return None if self.rank == 0 else {"epoch": self.epoch}
            if self.rank == 0 and self._waits():  # a coordinator that restarted hears where the run stands
                return None
        return None

    def _report(self, task: dict[str, Any], seconds: dict[str, float], row: np.ndarray) -> None:
        if row[self.learning.program.names.index("fault")]:
            self._check(self.learning.replicate(self.tripped))
        assert self.held is not None
        steps = self.held.share.size * self.held.made
        place = {"round": self.update, "epoch": task["epoch"]}
        health = {"sick": np.flatnonzero(self.held.out).tolist(), "resets": self.held.resets - self.reported}
        self.reported = self.held.resets
        self.report = place | {"env_steps": steps, "seconds": seconds} | health

    def _open_envs(self) -> Segments:
        size = self.experiment.num_envs // self.plan.learners
        parts = math.gcd(SEGMENTS, self.experiment.num_steps) if self.plan.backups else 1
        return Segments(self.experiment, Share(self.rank * size, size, self.epoch), parts)

    def _enough(self, finished: bool) -> bool:
        """Whether the rollout is to end here."""
        if not self.plan.backups or self.plan.learners == 1:
            return finished
        needed = max(1, self.plan.learners - self.plan.backups)
        place = (self.rank, self.generation, self.update)
        return self.services.meeting.retry.enough(*place, finished, needed) or finished

    def _publish(self) -> None:
        """Publishes nothing: all learners have the same weights."""

    def _check(self, tripped: PyTree = None) -> None:
        """Checks the latch of this process, or the given one of all processes."""
        if tripped is None:
            tripped = jax.tree.map(lambda leaf: np.asarray(leaf.addressable_data(0)), self.tripped)
        groups = list(self.learning.program.setup.spec.groups)
        error = nan_guard.report(tripped, self.experiment.env, groups)
        if error:
            raise NonFiniteError(f"{error} The last checkpoint in {self.folder} is from before it happened.")


def _divisible(episodes: PyTree, count: int) -> PyTree:
    """Sums over episodes `[T]` with rows of zeros, so that they can be split among the devices of a process."""
    return jax.tree.map(lambda leaf: np.concatenate([leaf, np.zeros(-len(leaf) % count, leaf.dtype)]), episodes)


def _address(private: bool) -> str:
    """An address of this machine that the others can reach, with a port that is free."""
    host = LOOPBACK if private else _address_for_others()
    with socket.socket() as free:
        free.bind((LOOPBACK if private else "", 0))
        return f"{host}:{free.getsockname()[1]}"


def _address_for_others() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))  # nothing is sent: it only asks which way it would go
            return probe.getsockname()[0]
        except OSError:
            return LOOPBACK


def _stay_on_loopback() -> None:
    """Restricts the traffic of a group to loopback; by default a process listens on the address of its host name."""
    native: Any = xla_bridge._jax  # pyright: ignore[reportPrivateImportUsage]
    native.make_gloo_tcp_collectives = functools.partial(native.make_gloo_tcp_collectives, hostname=LOOPBACK)
