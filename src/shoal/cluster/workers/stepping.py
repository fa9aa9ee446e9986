"""Actors that only step environments: observations go to the inference server, actions come back.

The copies of an actor are cut into two halves: while one half waits for its actions, the other half is stepped. Our
worlds are stepped by a compiled program, host environments in Python.
"""

import functools
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shoal.batching.policies import Policies
from shoal.batching.regroup import to_env_actions, unwrap_regrouped
from shoal.batching.rollout import Episodes
from shoal.batching.vectorise import Vectorised, Worlds
from shoal.cluster.transport.service import ServiceUnavailable
from shoal.cluster.workers import rollouts
from shoal.cluster.workers.actor import ActorWorker
from shoal.cluster.workers.host_envs import open_stages
from shoal.cluster.workers.inference import InferenceServer, Request, StepResult
from shoal.cluster.workers.rollouts import Share
from shoal.core.host import HostEnvProxy, check_observations
from shoal.core.interrupts import listening
from shoal.core.types import PyTree
from shoal.training.fused import FusedProgram
from shoal.training.health import Health
from shoal.training.host import HostStepper
from shoal.training.host_stages import MAX_FAILURE_RATE

PAUSE = 0.05
"""Seconds before a server that is not there is asked again."""


def num_slices(copies: int) -> int:
    """Parts that the copies of an actor are cut into."""
    return 2 if copies % 2 == 0 else 1


class Stepper:
    """`size` copies, compiled once for all parts of an actor."""

    def __init__(self, program: FusedProgram, size: int):
        self.program, self.size = program, size
        setup = program.setup
        self.host_stepper = None
        if rollouts.runs_on_host(program):
            self.host_stepper = HostStepper(setup, Policies(setup.algorithms, setup.spec.groups), size)
        self.vectorised: Vectorised = self.host_stepper.worlds if self.host_stepper else setup.vectorised(size)
        self.step = jax.jit(self._step)
        self.own = jax.jit(functools.partial(to_env_actions, setup.env))

    def reset(self, share: Share) -> Worlds:
        return jax.jit(self.vectorised.reset)(*self._begins(share))

    def reset_envs(self, worlds: Worlds, share: Share, which: np.ndarray) -> Worlds:
        """Resets these copies `[E]`."""
        return rollouts.reset_envs(self.vectorised, worlds, *self._begins(share), which)

    def _begins(self, share: Share) -> tuple[jax.Array, jax.Array]:
        return rollouts.world_key(self.program.experiment.seed, share), share.ids

    def _step(self, worlds: Worlds, actions: dict[str, jax.Array]) -> tuple[Worlds, StepResult, jax.Array]:
        """One step; what it led to, and which copies `[E]` are sound: free of NaN."""
        following, outcome, ended = self.vectorised.step(worlds, actions)
        cut = outcome.truncated & ~outcome.terminated

        def final(following: Worlds) -> PyTree:
            return self.vectorised.observe(ended.params, ended.state, self.size)

        views = lax.cond(jnp.any(cut), final, lambda following: following.observation, following)
        weight = ended.mask.astype(jnp.float32)
        returns = {name: jnp.sum(value * weight) for name, value in ended.returns.items()}
        episodes = Episodes(jnp.sum(weight), returns, jnp.sum(ended.length * weight))
        result = StepResult(outcome.reward, outcome.terminated, outcome.truncated, outcome.metrics, episodes, views)  # pyright: ignore[reportArgumentType]
        return following, result, _sound((following.observation, outcome.reward, views), self.size)


class EnvSlice:
    """Some copies of one actor, their observations, and their pending request."""

    def __init__(self, stepper: Stepper, actor: str, share: Share):
        self.stepper, self.actor, self.share = stepper, actor, share
        self.asked: Any = None
        self.worlds = stepper.reset(share)
        self.health = Health(share.size, MAX_FAILURE_RATE)
        self.wrong = np.full(share.size, -1)  # the clock at which each copy was last not to be learnt from
        self.stage = None
        if stepper.host_stepper is not None:
            env = unwrap_regrouped(stepper.program.setup.env)
            assert isinstance(env, HostEnvProxy)
            self.stage = open_stages(env, share, stepper.program.experiment.seed, 1)[0]
            with listening():
                result, self.health = self.stage.reset(), self.stage.health
            check_observations(env, result.observation)
            self.worlds = stepper.host_stepper.fill_in(self.worlds, result)
        self.clock = int(self.worlds.clock)
        self.request = self._request(None)

    def step(self, actions: dict[str, np.ndarray]) -> None:
        """Steps the copies and prepares the next request."""
        worlds = self.worlds
        if self.stage is not None:
            own = jax.device_get(self.stepper.own(actions))
            with listening():
                worlds = worlds.replace(state=self.stage.step(own))
        self.worlds, result, sound = self.stepper.step(worlds, actions)
        cut = np.asarray(result.truncated) & ~np.asarray(result.terminated)
        result = result if cut.any() else result._replace(final=None)
        self.clock += 1
        self.wrong[~self._check_health(np.asarray(sound))] = self.clock
        self.request = self._request(jax.device_get(result))

    def _check_health(self, sound: np.ndarray) -> np.ndarray:
        """Which copies `[E]` had a sound last step; our worlds that gave NaN are reset."""
        if self.stage is not None:
            return self.stage.sound
        self.health.turn(sound | self.health.out)
        if not sound.all():
            self.worlds = self.stepper.reset_envs(self.worlds, self.share, ~sound)
        return sound & ~self.health.out

    def _request(self, result: StepResult | None) -> Request:
        seen, first = jax.device_get((self.worlds.observation, self.worlds.first))
        recent = (self.wrong >= 0) & (self.clock - self.wrong <= self.stepper.program.experiment.num_steps)
        sick = tuple(int(copy) for copy in np.flatnonzero(recent | self.health.out))
        return Request(self.actor, self.share, self.clock, seen, first, result, sick)

    def close(self) -> None:
        if self.stage is not None:
            self.stage.close()


class EnvSlices:
    """All copies of one actor."""

    def __init__(self, program: FusedProgram, actor: str, share: Share):
        count = num_slices(share.size)
        size = share.size // count
        stepper = Stepper(program, size)
        self.parts = [
            EnvSlice(stepper, actor, Share(share.first + i * size, size, share.restarts)) for i in range(count)
        ]

    @property
    def out(self) -> np.ndarray:
        """Which copies `[E]` are left out for good."""
        return np.concatenate([part.health.out for part in self.parts])

    @property
    def resets(self) -> int:
        """How often a copy was restarted because of NaN."""
        return sum(part.health.resets for part in self.parts)

    def close(self) -> None:
        for part in self.parts:
            part.close()


class SteppingActor(ActorWorker):
    """An actor without weights. Its tasks are steps; the server makes rollouts of them."""

    def open_envs(self, share: Share) -> EnvSlices:
        return EnvSlices(self.program, self.name, share)

    def perform(self, envs: EnvSlices, task: dict[str, Any]) -> dict[str, Any]:
        spent = {"roll": 0.0, "wait": 0.0}
        for _ in range(self.experiment.num_steps):
            for part in envs.parts:
                began = time.perf_counter()
                actions = self._answer(part)
                if actions is None:
                    return {}
                answered = time.perf_counter()
                part.step(actions)
                part.asked = self._ask(part)
                spent["wait"] += answered - began
                spent["roll"] += time.perf_counter() - answered
        if envs.out.all():
            raise rollouts.no_sound_env_error(self.experiment.env)
        return self.report(envs, task, spent)

    def _ask(self, part: EnvSlice) -> Any:
        try:
            return self.services.inference.submit(InferenceServer.act, part.request)
        except ServiceUnavailable:
            return None

    def _answer(self, part: EnvSlice) -> dict[str, np.ndarray] | None:
        """The actions of a slice; retries until the server answers. None if this actor is to end."""
        while not self.dead.is_set():
            part.asked = self._ask(part) if part.asked is None else part.asked
            try:
                found = None if part.asked is None else part.asked.result()
            except ServiceUnavailable:
                time.sleep(PAUSE)
                found = None
            part.asked = None
            if found is not None:
                return found
            self.services.coordinator.retry_until(self.dead.is_set).waiting(self.name)
        return None


def _sound(tree: PyTree, size: int) -> jax.Array:
    """Which copies `[E]` have finite numbers only."""
    flags = [
        jnp.all(jnp.isfinite(leaf).reshape(size, -1), axis=1)
        for leaf in jax.tree.leaves(tree)
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    return jnp.all(jnp.stack(flags), axis=0)
