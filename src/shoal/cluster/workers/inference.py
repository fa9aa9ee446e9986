"""Central inference: one service holds the weights and acts for all actors, which only step their environments.

An actor sends the observations of all its copies at once and gets their actions back. Requests of several actors are
answered in one compiled call: the first one waits a moment for the others. The server sees everything that a
rollout is made of, so it keeps the recurrent memory of every copy, records the steps and pushes the rollouts; weights
reach nobody else.

Its state may be lost at any time. Every request says whose copies it is about and which step they are at, so a server
that restarted starts a new rollout with the next request: only rollouts in the making, and memories, are lost.
"""

import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.batching.policies import ActorOutput, Policies
from shoal.batching.rollout import Episodes, Rollout, Step
from shoal.cluster.services.dataset import Item
from shoal.cluster.services.directory import Handles, Services
from shoal.cluster.transport.service import ServiceUnavailable, Store
from shoal.cluster.workers import rollouts
from shoal.cluster.workers.rollouts import Share
from shoal.cluster.workers.weights import POLICIES, WAIT, policy_layout
from shoal.core.keys import copy_keys, run_keys
from shoal.core.types import Observation, PyTree
from shoal.training.experiment import Experiment

PATIENCE = 0.003
"""Seconds that a request waits for those of other actors."""
RECENT = 1.0
"""Seconds without a request after which an actor is not waited for."""


class StepResult(NamedTuple):
    """What a step of some copies led to; leaves are `[E, ...]`. final: final views, or None if no episode was cut."""

    reward: dict[str, np.ndarray]
    terminated: np.ndarray
    truncated: np.ndarray
    metrics: dict[str, np.ndarray]
    episodes: Episodes
    final: dict[str, Observation] | None


class Request(NamedTuple):
    """The observations of some copies. share: which; clock: steps made so far; result: of the last step."""

    actor: str
    share: Share
    clock: int
    observation: dict[str, Observation]
    first: np.ndarray
    result: StepResult | None
    sick: tuple[int, ...] = ()  # whose last steps are not to be learnt from


class PendingRequests(NamedTuple):
    """Copies that wait for decisions: a `Situation` without the environments behind it."""

    key: jax.Array
    clock: jax.Array
    observation: dict[str, Observation]
    first: jax.Array
    keys: None = None


class Newest(NamedTuple):
    """Weights, on the device."""

    policies: PyTree
    version: int
    epoch: int


class Slot:
    """The copies of one kind of request, and their rollout in the making."""

    def __init__(self, share: Share, memory: PyTree):
        self.share = share
        self.memory = memory  # before the decision that is asked for
        self.asked: Request | None = None
        self.acts: ActorOutput | None = None  # what was answered last
        self.rows: list[Step] = []
        self.version = 0
        self.start: tuple[PyTree, int] = (memory, 0)
        self.item: Item | None = None  # made, but not pushed yet

    def restart(self) -> None:
        """Discards the steps so far."""
        self.rows, self.acts = [], None

    def take_rollout(self, num_steps: int, last: Request) -> Rollout:
        """The complete rollout; starts the next one."""
        steps = jax.tree.map(lambda *rows: np.stack(rows), *self.rows)
        memory, clock = self.start
        self.rows = []
        return Rollout(steps, memory, last.observation, self.memory, np.uint32(clock))


class InferenceServer:
    """Answers requests. `act` may be called from many threads at once."""

    def __init__(self, experiment: dict[str, Any], handles: Handles, store: Store):
        self.experiment, self.store = Experiment.from_dict(experiment), store
        self.services = Services(handles, "inference")
        program = rollouts.program_of(self.experiment)
        self.layout = policy_layout(program)
        self.actor = Policies(program.setup.algorithms, program.setup.spec.groups)
        self.key = run_keys(self.experiment.seed).world
        self.newest: Newest | None = None
        self.slots: dict[int, Slot] = {}
        self.seen: dict[str, float] = {}
        self.pending: list[Slot] = []
        self.requests = self.batches = self.made = 0
        self.dead, self.there = threading.Event(), threading.Event()
        self._came, self._deciding = threading.Condition(), False
        self._act, self._value = jax.jit(jax.vmap(self._one, (None, 0))), jax.jit(self.actor.final_value)
        threading.Thread(target=self._follow, daemon=True, name="weights").start()

    def die(self) -> None:
        self.dead.set()

    def act(self, request: Request) -> Any:
        """Actions `[E, n, ...]` by group; None if the learner is behind, or not there yet: then ask once more."""
        if not self.there.wait(WAIT):
            return None
        slot = self._slot(request)
        self._take_in(slot, request)
        if slot.item is not None and not self.services.dataset.retry_until(self.dead.is_set).push(slot.item, WAIT):
            return None
        slot.item = None
        self._decide(slot)
        assert slot.acts is not None
        return slot.acts.action

    def figures(self) -> dict[str, float]:
        """Numbers of requests, of batches that answered them, and of rollouts."""
        mean = self.requests / max(1, self.batches)
        version = self.newest.version if self.newest else -1
        return {"requests": self.requests, "batch": round(mean, 2), "rollouts": self.made, "version": version}

    def _follow(self) -> None:
        """Keeps pulling the newest weights."""
        while not self.dead.is_set():
            version, epoch = (self.newest.version, self.newest.epoch) if self.newest else (-1, -1)
            asked = (POLICIES, version, 0, WAIT, epoch)
            try:
                found = self.services.parameters.retry_until(self.dead.is_set).pull(*asked)
                leaves = None if found is None else self.store.get(found.ref)
            except ServiceUnavailable:  # they died with the service, and are pushed again
                continue
            if found is not None and leaves is not None:
                self.newest = Newest(jax.device_put(self.layout.unpack(leaves)), found.version, found.epoch)
                self.there.set()

    def _slot(self, request: Request) -> Slot:
        """Where the copies of a request are kept; empty if they, or the server, have restarted."""
        share = request.share
        found = self.slots.get(share.first)
        if found is None or found.share != share:
            assert self.newest is not None
            memory = jax.device_get(self.actor.initial_memory(self.newest.policies, share.size))
            found = self.slots[share.first] = Slot(share, memory)
        self.seen[request.actor] = time.monotonic()
        return found

    def _take_in(self, slot: Slot, request: Request) -> None:
        """Records the step that led to a request, once; a complete rollout is made ready to be pushed."""
        before, slot.asked = slot.asked, request
        if before is not None and before.clock == request.clock:
            return
        if before is None or request.clock != before.clock + 1 or request.result is None or slot.acts is None:
            slot.restart()
            return
        slot.rows.append(self._record(before, slot.acts, request.result))
        slot.memory = slot.acts.memory
        if len(slot.rows) == self.experiment.num_steps:
            if len(request.sick) == slot.share.size:  # nothing in it is of use
                slot.rows = []
                return
            slot.item = self._make_item(slot, request)

    def _record(self, before: Request, acts: ActorOutput, result: StepResult) -> Step:
        """A step: observations, actions and their result."""
        final = {name: np.zeros_like(reward) for name, reward in result.reward.items()}
        if result.final is not None:
            assert self.newest is not None
            cut = (result.truncated & ~result.terminated)[:, None]
            values = jax.device_get(self._value(self.newest.policies, (result.final, acts.memory)))
            final = {name: np.where(cut, value, final[name]) for name, value in values.items()}
        parts: dict[str, Any] = {
            "reward": result.reward,
            "final_value": final,
            "first": before.first,
            "terminated": result.terminated,
            "truncated": result.truncated,
            "metrics": result.metrics,
            "episodes": result.episodes,
        }
        return Step(observation=before.observation, action=acts.action, extras=acts.extras, **parts)

    def _make_item(self, slot: Slot, request: Request) -> Item:
        made = slot.take_rollout(self.experiment.num_steps, request)
        if request.sick:
            well = np.isin(np.arange(slot.share.size), request.sick, invert=True)
            made = rollouts.replace_unsound(made, well, self.experiment.env)
        self.made += 1
        assert self.newest is not None
        # A number that never comes again, however often actors and server restart.
        number = (slot.share.restarts << 32) + request.clock
        place = (request.actor, slot.share.first, number, slot.version)
        steps = slot.share.size * self.experiment.num_steps
        return Item(*place, self.store.put(made), "rollout", rollouts.num_bytes(made), steps, self.newest.epoch)

    def _decide(self, slot: Slot) -> None:
        """Waits for other requests, then acts for all that are pending, unless another thread has done so."""
        slot.acts = None
        with self._came:
            self.pending.append(slot)
            self._came.notify_all()
            self._came.wait_for(lambda: slot.acts is not None or not self._deciding)
            if slot.acts is not None:
                return
            self._deciding = True
            self._came.wait_for(self._all_asked, PATIENCE)
            batch, self.pending = self.pending, []
        try:
            self._answer(batch if slot in batch else [*batch, slot])  # whoever was to decide for it may have failed
        finally:
            with self._came:
                self._deciding = False
                self._came.notify_all()

    def _all_asked(self) -> bool:
        """Whether every active actor waits for an answer."""
        now = time.monotonic()
        waiting = {slot.asked.actor for slot in self.pending if slot.asked is not None}
        return waiting >= {actor for actor, when in list(self.seen.items()) if now - when < RECENT}

    def _answer(self, batch: Sequence[Slot]) -> None:
        """One compiled call for all; filled up with repeats to a power of two, so that few programs are compiled."""
        assert self.newest is not None
        policies, version, _ = self.newest
        rows = [self._read_request(slot) for slot in batch]
        rows += rows[-1:] * ((1 << (len(rows) - 1).bit_length()) - len(rows))
        acts = jax.device_get(self._act(policies, jax.tree.map(lambda *leaves: np.stack(leaves), *rows)))
        for i, slot in enumerate(batch):
            if not slot.rows:
                assert slot.asked is not None
                slot.start, slot.version = (slot.memory, slot.asked.clock), version
            slot.acts = jax.tree.map(lambda leaf, i=i: leaf[i], acts)
        self.requests += len(batch)
        self.batches += 1

    def _read_request(self, slot: Slot) -> PyTree:
        request = slot.asked
        assert request is not None
        share = np.array([slot.share.first, slot.share.restarts], np.uint32)
        return share, np.uint32(request.clock), request.observation, request.first, slot.memory

    def _one(self, policies: PyTree, asked: PyTree) -> ActorOutput:
        """The actions of one request's copies, with the keys that they would have on an ordinary actor."""
        (start, restarts), clock, observation, first, memory = asked
        key = jnp.where(restarts > 0, jax.random.fold_in(self.key, restarts), self.key)
        keys = copy_keys(key, start + jnp.arange(first.shape[0], dtype=jnp.uint32))
        return self.actor.act(policies, memory, PendingRequests(keys, clock, observation, first)).replace(
            memory_before={}
        )
