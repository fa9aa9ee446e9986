"""The actor: asks for a task, pulls weights, steps its share of the copies, pushes the rollout; then asks again."""

import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from shoal.batching.rollout import Rollout
from shoal.cluster.services.dataset import Item
from shoal.cluster.services.directory import Handles, Services
from shoal.cluster.transport.service import Store
from shoal.cluster.workers import rollouts
from shoal.cluster.workers.rollouts import EnvShare, Share
from shoal.cluster.workers.weights import POLICIES, WAIT, PulledWeights, policy_layout
from shoal.training.experiment import Experiment


class ActorWorker:
    """One share of the copies. `run` works until it is asked to stop. Other kinds of actors `pack` something else.

    number: which share; shares beyond those of the experiment have copies of their own, for recipes that take rollouts
    from any actor.
    """

    packing: ClassVar[str] = "push"

    def __init__(
        self,
        experiment: dict[str, Any],
        number: int,
        copies: int,
        handles: Handles,
        store: Store,
        make: Callable[[Any, Share], Any] | None = None,
    ):
        self.name = f"actor-{number}"
        self.number, self.store = number, store
        self.services = Services(handles, "actor")
        self.experiment = Experiment.from_dict(experiment)
        self.program = rollouts.program_of(self.experiment)
        self.weights = PulledWeights(POLICIES, policy_layout(self.program), self.services.parameters, store)
        self.make, self.copies = make, copies
        self.policies: Any = None
        self.sick: set[int] = set()  # copies whose part of the last rollout was not learnt from
        self.resets = 0  # of copies that gave NaN, as far as the coordinator knows
        self.dead = threading.Event()

    def die(self) -> None:
        self.dead.set()

    def run(self) -> str:
        """Works until it is asked to stop; returns why."""
        restarts = self.services.coordinator.retry.hello(self.name)
        share = Share(self.number * self.copies, self.copies, restarts)
        envs, self.resets = self.open_envs(share), 0
        report: dict[str, Any] = {}
        try:
            while not self.dead.is_set():
                task = self.services.coordinator.retry_until(self.dead.is_set).next(self.name, report, WAIT)
                report = {}
                if task is None:
                    continue
                if task["kind"] == "stop":
                    return "stopped"
                report = self.perform(envs, task)
        finally:
            envs.close()
        return "died"

    def open_envs(self, share: Share) -> Any:
        """The environments of a share of the copies."""
        if self.make is not None:
            return self.make(self.program, share)
        if rollouts.runs_on_host(self.program):
            from shoal.cluster.workers.host_envs import HostEnvShare

            return HostEnvShare(self.program, share)
        return EnvShare(self.program, share)

    def perform(self, envs: Any, task: dict[str, Any]) -> dict[str, Any]:
        """Pulls weights, makes a rollout and pushes what learners need of it; returns the report, {} if there is none.

        The time of `pack` is reported as `packing`, a name that each kind of actor chooses.
        """
        began = time.perf_counter()
        if not self.pull(task["version"], task["epoch"]):
            return {}
        pulled = time.perf_counter()
        made, sound = envs.roll(self.policies)
        rolled = time.perf_counter()
        package = self.pack(self.replace_unhealthy(made, sound), task)
        packed = time.perf_counter()
        while not self.push(package):
            self.services.coordinator.retry_until(self.dead.is_set).waiting(self.name)
            if self.dead.is_set():
                return {}
        seconds = {"pull": pulled - began, "roll": rolled - pulled, self.packing: packed - rolled}
        seconds["push"] = seconds.get("push", 0.0) + time.perf_counter() - packed
        return self.report(envs, task, seconds)

    def pull(self, least: int, epoch: int) -> bool:
        """Pulls the policies that the task asks for; False if they do not arrive."""
        pulled = self.weights.pull(least, epoch)
        self.policies = self.weights.value
        return pulled

    def pack(self, made: Rollout, task: dict[str, Any]) -> Any:
        """The part of a rollout that is pushed."""
        place = (self.name, self.number, task["round"], self.weights.version)
        size = rollouts.num_bytes(made)
        return Item(*place, self.store.put(made), "rollout", size, self.env_steps, task["epoch"])

    def push(self, package: Any) -> bool:
        """Pushes the packed rollout; False if there is no room yet."""
        return self.services.dataset.retry_until(self.dead.is_set).push(package, WAIT)

    @property
    def env_steps(self) -> int:
        """Of one rollout."""
        return self.copies * self.experiment.num_steps

    def report(self, envs: Any, task: dict[str, Any], seconds: dict[str, float]) -> dict[str, Any]:
        """The report of a task for the coordinator: its duration, the copies that are left out because of NaN, and how
        many were restarted since the last report.
        """
        before, self.resets = self.resets, envs.resets
        place = {"round": task["round"], "epoch": task["epoch"], "env_steps": self.env_steps, "seconds": seconds}
        return place | {"sick": np.flatnonzero(envs.out).tolist(), "resets": self.resets - before}

    def replace_unhealthy(self, made: Rollout, sound: np.ndarray) -> Rollout:
        """The rollout, with parts that have NaN replaced."""
        self.sick = {int(copy) for copy in np.flatnonzero(~sound)}
        return rollouts.replace_unsound(made, sound, self.experiment.env) if self.sick else made
