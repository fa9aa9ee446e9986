"""The actor: asks for a task, pulls weights, steps its share of the copies, pushes what happened; then asks again."""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.batching.rollout import Rollout
from shoal.cluster.services.dataset import Item
from shoal.cluster.services.directory import Handles, Services
from shoal.cluster.transport.service import ServiceUnavailable, Store
from shoal.cluster.workers import rollouts
from shoal.cluster.workers.rollouts import Copies, Share
from shoal.training.experiment import Experiment

POLICIES = "policies"
"""The name of the weights of all policies of a training."""
WAIT = 1.0
"""Seconds that a service is asked to wait before it says that there is nothing: then the actor looks around."""


class Actor:
    """One share of the copies. `run` works until it is told to stop.

    number: which share; shares beyond those of the experiment have copies of their own, for recipes that take rollouts
    from whoever has some.
    """

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
        self.layout = rollouts.layout_of(self.program)
        self.make, self.copies = make, copies
        self.version, self.epoch, self.policies = -1, -1, None
        self.sick: set[int] = set()  # copies whose part of the last rollout was not learnt from
        self.resets = 0  # of copies that gave NaN, as far as the coordinator was told
        self.dead = threading.Event()
        self.timing: dict[str, float] = {}

    def die(self) -> None:
        self.dead.set()

    def run(self) -> str:
        """Works until told to stop; returns why."""
        anew = self.services.coordinator.retry.hello(self.name)
        share = Share(self.number * self.copies, self.copies, anew)
        held, self.resets = self._held(share), 0
        report: dict[str, Any] = {}
        try:
            while not self.dead.is_set():
                task = self.services.coordinator.retry_until(self.dead.is_set).next(self.name, report, WAIT)
                report = {}
                if task is None:
                    continue
                if task["kind"] == "stop":
                    return "stopped"
                report = self._roll(held, task)
        finally:
            held.close()
        return "died"

    def _held(self, share: Share) -> Any:
        if self.make is not None:
            return self.make(self.program, share)
        if rollouts.on_host(self.program):
            from shoal.cluster.workers.host_copies import HostCopies

            return HostCopies(self.program, share)
        return Copies(self.program, share)

    def _roll(self, held: Any, task: dict[str, Any]) -> dict[str, Any]:
        began = time.perf_counter()
        if not self._pulled(task["version"], task["epoch"]):
            return {}
        pulled = time.perf_counter()
        made, sound = held.roll(self.policies)
        rolled = time.perf_counter()
        made = self._sound(made, sound)
        steps = self.copies * self.experiment.num_steps
        size = rollouts.num_bytes(made)
        place = (self.name, self.number, task["round"], self.version)
        item = Item(*place, self.store.put(made), "rollout", size, steps, task["epoch"])
        while not self.services.dataset.retry_until(self.dead.is_set).push(item, WAIT):
            self.services.coordinator.retry_until(self.dead.is_set).waiting(self.name)
            if self.dead.is_set():
                return {}
        done = time.perf_counter()
        return {
            "round": task["round"],
            "epoch": task["epoch"],
            "env_steps": steps,
            "seconds": {"pull": pulled - began, "roll": rolled - pulled, "push": done - rolled},
        } | self._health(held)

    def _health(self, held: Any) -> dict[str, Any]:
        """What is to be reported of NaN: which copies are left out, and how many were begun anew since last time."""
        before, self.resets = self.resets, held.resets
        return {"sick": np.flatnonzero(held.out).tolist(), "resets": self.resets - before}

    def _pulled(self, least: int, epoch: int) -> bool:
        """Brings the weights up to date; False if those that are asked for do not come."""
        wait = 0.0 if self._suffices(least, epoch) else WAIT
        found = self.services.parameters.retry.pull(POLICIES, self.version, least, wait, self.epoch)
        if found is not None:
            try:
                self.policies = self.layout.unpack(self.store.get(found.ref))
            except ServiceUnavailable:  # the service died with them; the learner pushes them again
                return False
            self.version, self.epoch = found.version, found.epoch
        return self._suffices(least, epoch)

    def _suffices(self, least: int, epoch: int) -> bool:
        return self.version >= least and self.epoch >= epoch

    def _sound(self, made: Rollout, sound: np.ndarray) -> Rollout:
        """The rollout; what is not to be learnt from, as it has NaN in it, is replaced."""
        self.sick = {int(copy) for copy in np.flatnonzero(~sound)}
        return rollouts.replaced(made, sound, self.experiment.env) if self.sick else made
