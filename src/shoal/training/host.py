"""The host runner: environments that only exist on the host, stepped in this process, with one compiled `act`.

It is the fused runner with a rollout split into steps. In each step the actions come from the device, the
environments are stepped in Python, and the timestep goes back in one call, which records it and computes the next
actions. Steps are written into one buffer on the device, updated in place; the update is the same as everywhere.

Environments are stepped in this process, one after the other, or in worker processes (`env_workers`); failures are
handled as described in `host_stages`.

A run can be resumed, but not to the bit: the state of the environments cannot be saved, so episodes restart.
"""

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from shoal.batching.policies import Actor, ActorOutput
from shoal.batching.regroup import sum_rewards, to_env_actions, unwrap_regrouped
from shoal.batching.rollout import Rollout, Step, step_envs
from shoal.batching.vectorise import Ended, Vectorised, Worlds
from shoal.core.checks import require_counts
from shoal.core.errors import NonFiniteWorldError, OptionError, WorldError, require_positive
from shoal.core.host import HostEnvProxy, HostState, SerialHostBatch, check_observations
from shoal.core.interrupts import is_users, listening
from shoal.core.origin import claimed
from shoal.core.registry import imported_files
from shoal.core.types import PyTree
from shoal.training.devices import memory_in_use
from shoal.training.env_workers import EnvSource, WorkerEnvs, check_workers
from shoal.training.evaluate import MAX_STEPS, Evaluation, Gains, assign_policies
from shoal.training.experiment import IN_THIS_PROCESS, Experiment, Setup, Stepping
from shoal.training.fused import (
    MAX_UPDATES,
    Carry,
    FusedProgram,
    check_contracts,
    check_replays,
    check_warm_up,
    copies_unit,
    mesh_of,
    policies_of,
)
from shoal.training.host_stages import BatchedEnvs, SeparateEnvs, Stage, Watchdog
from shoal.training.memory import Need, largest, require_room, size

MEASURED = 16
"""Environments that are opened to measure their memory, if there are to be many."""
LEAST_COPY = 4096
"""The least memory of an environment in bytes: a Python object and its last timestep."""
EVALUATED = 16
"""The most environments that an evaluation uses."""


@dataclasses.dataclass(frozen=True)
class HostVectorised(Vectorised):
    """Copies of a host environment. Where an episode ends, the host has already reset the copy."""

    def _renew(self, worlds: Worlds, ended: Ended) -> tuple[PyTree, PyTree]:
        del ended
        return worlds.params, worlds.state


@dataclasses.dataclass(frozen=True)
class HostStepper:
    """A setup whose environments are on the host: compiled acting, and environments stepped in Python."""

    setup: Setup
    actor: Actor
    num_envs: int
    stepping: Stepping = IN_THIS_PROCESS

    @property
    def proxy(self) -> HostEnvProxy:
        env = unwrap_regrouped(self.setup.env)
        assert isinstance(env, HostEnvProxy)
        return env

    @functools.cached_property
    def worlds(self) -> HostVectorised:
        like = self.setup.vectorised(self.num_envs)
        return HostVectorised(like.env, like.num_envs, like.randomise, like.with_state)

    @property
    def stage(self) -> Stage:
        """The environments, once `begin` has opened them."""
        return self.__dict__["stage"]

    def _open(self, seed: int) -> Stage:
        env, experiment = self.proxy, self.setup.experiment
        seeds = np.random.SeedSequence(seed).generate_state(self.num_envs).tolist()
        if self.stepping.workers:
            check_workers(env)
            source = EnvSource.of(experiment.env, experiment.env_options)
            return WorkerEnvs(env, source, seeds, self.stepping.workers, self.stepping.timeout)
        batch = env.open(self.num_envs)
        stage = (
            SeparateEnvs(env, batch.envs, seeds)
            if isinstance(batch, SerialHostBatch)
            else BatchedEnvs(env, batch, seed)
        )
        self.__dict__["watchdog"] = Watchdog(stage, self.stepping.timeout)
        return stage

    def close(self) -> None:
        """Closes the environments, if they are open. An error while closing must not lose the training."""
        stage, watchdog = (self.__dict__.pop(name, None) for name in ("stage", "watchdog"))
        if watchdog is not None:
            watchdog.close()
        try:
            if stage is not None:
                stage.close()
        except BaseException as error:  # the environment's own code may raise anything
            if is_users(error):
                raise
            name = self.setup.experiment.env
            warnings.warn(f"{name}: its close raised {type(error).__name__}: {error}", RuntimeWarning, stacklevel=2)

    @functools.cached_property
    def decide(self):
        """`decide(policies, memory, worlds) -> acts, actions by the environment's own groups`, compiled."""
        return jax.jit(self._decide)

    @functools.cached_property
    def tick(self):
        """`tick(policies, worlds, acts, timestep, buffer, t) -> worlds, buffer, acts, actions`: records one step and
        computes the next actions. The buffer is donated.
        """
        return jax.jit(self._tick, donate_argnums=4)

    def _decide(self, policies: PyTree, memory: PyTree, worlds: Worlds) -> tuple[ActorOutput, dict[str, jax.Array]]:
        acts = self.actor.act(policies, memory, worlds)
        return acts, to_env_actions(self.setup.env, acts.action)

    def _tick(
        self, policies: PyTree, worlds: Worlds, acts: ActorOutput, timestep: HostState, buffer: Step, t: jax.Array
    ):
        worlds, record = step_envs(self.worlds, self.actor, policies, worlds.replace(state=timestep), acts)
        buffer = jax.tree.map(lambda rows, row: rows.at[t].set(row), buffer, record)
        return worlds, buffer, *self._decide(policies, acts.memory, worlds)

    def begin(self, worlds: Worlds, seed: int, stage: Stage | None = None) -> Worlds:
        """Starts new episodes in all environments, or in those of a stage; keys and the clock continue."""
        stage = self.__dict__["stage"] = stage or self._open(seed)
        timestep = stage.reset()
        check_observations(self.proxy, timestep.observation)
        return self.fill_in(worlds, timestep)

    @functools.cached_property
    def fill_in(self) -> Callable[[Worlds, HostState], Worlds]:
        """`fill_in(worlds, timestep) -> worlds`: the worlds after a reset, with the environments' first timestep."""

        def begun(worlds: Worlds, timestep: HostState) -> Worlds:
            return worlds.replace(
                state=timestep,
                observation=self.worlds.observe(worlds.params, timestep, self.num_envs),
                first=jnp.ones(self.num_envs, bool),
                returns=jax.tree.map(jnp.zeros_like, worlds.returns),
                length=jnp.zeros_like(worlds.length),
            )

        return jax.jit(begun)

    def step(self, actions: dict[str, jax.Array]) -> HostState:
        """Steps the environments."""
        return self.stage.step(jax.device_get(actions))

    def buffer(self, policies: PyTree, worlds: Worlds, memory: PyTree, rows: int) -> Step:
        """An empty buffer of `rows` steps."""

        def one(policies, worlds, memory):
            acts = self.actor.act(policies, memory, worlds)
            return step_envs(self.worlds, self.actor, policies, worlds, acts)[1]

        shapes = jax.eval_shape(one, policies, worlds, memory)
        return jax.tree.map(lambda leaf: jnp.zeros((rows, *leaf.shape), leaf.dtype), shapes)


@dataclasses.dataclass(frozen=True)
class HostProgram(FusedProgram):
    """An experiment in host environments: used like `Program`, but `advance` runs on the host."""

    stepping: Stepping = IN_THIS_PROCESS
    most: ClassVar[int] = 1  # so that a failing environment costs only the update it fails in
    survives_errors: ClassVar[bool] = True

    def check(self) -> None:
        """Refuses environments that do not fit into memory, and updates as any other program does."""
        _check_copies(self)
        super().check()

    @functools.cached_property
    def host_stepper(self) -> HostStepper:
        return HostStepper(self.setup, self._actor, self.experiment.num_envs, self.stepping)

    def incidents(self) -> dict[str, int]:
        restarts = self.host_stepper.stage.restarts if "stage" in self.host_stepper.__dict__ else 0
        return {"env_restarts": restarts} if restarts else {}

    def resume_options(self) -> list[str]:
        claim = claimed(self.experiment.env, self.experiment.env_options)  # checked if a folder names it
        named = [*imported_files(), *([claim] if claim else [])]
        options = [part for name in named for part in ("--import", name)]
        return options + (["--env-workers", str(self.stepping.workers)] if self.stepping.workers else [])

    def close(self) -> None:
        """Closes the environments, if they are open; called when the program is no longer needed."""
        self.host_stepper.close()

    @functools.cached_property
    def counts(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return range(MAX_UPDATES + 1)

    def compiled(self, carry: Carry) -> Callable[[Carry, Any], tuple[Carry, jax.Array]]:
        """`advance`, ready to run: environments are open and reset, programs are compiled."""
        host_stepper, policies = self.host_stepper, policies_of(carry.learners)
        seed = (self.experiment.seed + 7919 * int(carry.update)) % 2**32  # a resumed run plays new episodes
        with listening():
            begun = [host_stepper.begin(carry.worlds, seed)]
        worlds, memory = begun[0], carry.memory
        buffers = [host_stepper.buffer(policies, worlds, memory, self.experiment.num_steps)]
        decide = host_stepper.decide.lower(policies, memory, worlds).compile()
        acts, _ = decide(policies, memory, worlds)
        tick = host_stepper.tick.lower(policies, worlds, acts, worlds.state, buffers[0], np.int32(0)).compile()
        learn = self._learner.lower(carry, worlds, acts.memory, buffers[0]).compile()

        def one(carry: Carry) -> tuple[Carry, jax.Array]:
            carry = carry.replace(worlds=begun.pop()) if begun else carry
            policies, buffer = policies_of(carry.learners), buffers.pop()
            while True:
                worlds, memory, sound = carry.worlds, carry.memory, np.ones(host_stepper.num_envs, bool)
                acts, actions = decide(policies, memory, worlds)
                with listening():
                    for t in range(self.experiment.num_steps):
                        timestep = host_stepper.step(actions)
                        sound &= host_stepper.stage.sound
                        memory = acts.memory
                        worlds, buffer, acts, actions = tick(policies, worlds, acts, timestep, buffer, np.int32(t))
                if sound.any() or host_stepper.stage.out.all():
                    break
                carry = carry.replace(worlds=worlds, memory=memory)  # nothing to learn from: repeat the rollout
            carry, row = self._learn(learn, carry, worlds, memory, buffer, sound)
            buffers.append(buffer)
            return carry, row

        def advance(carry: Carry, count: int) -> tuple[Carry, jax.Array]:
            rows = []
            for _ in range(count):
                carry, row = one(carry)
                rows.append(row)
            empty = jnp.zeros((MAX_UPDATES - count, len(self.names)))
            table = jnp.concatenate([jnp.stack(rows), empty])
            table.copy_to_host_async()
            return carry, table

        return advance

    def _learn(
        self,
        learn: Callable[..., tuple[Carry, jax.Array]],
        carry: Carry,
        worlds: Worlds,
        memory: PyTree,
        steps: Step,
        sound: np.ndarray,
    ) -> tuple[Carry, jax.Array]:
        """Makes an update. Copies that are not `sound` `[E]` are replaced by others, which keeps shapes fixed."""
        if sound.all():
            return learn(carry, worlds, memory, steps)
        well = np.flatnonzero(sound)
        if not len(well):
            raise NonFiniteWorldError(f"{self.experiment.env}: every copy keeps returning NaN or infinity")
        index = np.where(sound, np.arange(len(sound)), well[np.arange(len(sound)) % len(well)])

        def some(tree: PyTree, axis: int) -> PyTree:
            return jax.tree.map(lambda leaf: jnp.take(leaf, index, axis), tree)

        others = some(steps.replace(episodes=None), 1).replace(episodes=steps.episodes)
        seen = worlds.replace(observation=some(worlds.observation, 0))
        after, row = learn(carry.replace(memory=some(carry.memory, 0)), seen, some(memory, 0), others)
        return after.replace(worlds=worlds, memory=memory), row

    @functools.cached_property
    def _learner(self):
        def learn(carry: Carry, worlds: Worlds, memory: PyTree, steps: Step) -> tuple[Carry, jax.Array]:
            made = Rollout(steps, carry.memory, worlds.observation, memory, carry.worlds.clock)
            learners, latch, metrics = self.learn(carry.learners, carry.latch, carry.key, carry.update, made)
            carry = Carry(worlds, memory, learners, carry.key, carry.update + 1, latch)
            return carry, self.row(metrics)

        return jax.jit(learn)


def _check_copies(program: HostProgram) -> None:
    """Refuses environments that do not fit into memory, judging by a few that are opened one by one."""
    experiment, few = program.experiment, MEASURED
    if experiment.num_envs <= 16 * few:
        return
    before = memory_in_use()
    with contextlib.closing(program.host_stepper.proxy.open(few)):
        each = max(LEAST_COPY, (memory_in_use() - before) // few)
    most = largest(Need(each, 0).times, experiment.num_envs, copies_unit(experiment))
    advice = f"The largest num_envs that fits is {most:,}." if most else "Use fewer copies (num_envs)."
    what = f"{experiment.num_envs:,} environments of {experiment.env}, each of about {size(each)},"
    require_room(what, Need(each, 0).times(experiment.num_envs), lambda: advice)


def make_host_program(
    experiment: Experiment, devices: int | None = None, stepping: Stepping = IN_THIS_PROCESS
) -> HostProgram:
    """The program of an experiment in host environments, on the first device."""
    if devices is not None and devices > 1:
        raise OptionError(f"{experiment.env} runs on the host and learns on one device; leave out --devices")
    if experiment.num_seeds > 1:
        raise OptionError(
            f"{experiment.env} runs on the host, one training at a time: num_seeds must be 1, got "
            f"{experiment.num_seeds}. Start a run for each seed."
        )
    if experiment.randomise:
        raise OptionError(f"{experiment.env} has no sample_params to draw from: leave out --randomise")
    require_counts("experiment", num_envs=experiment.num_envs, num_steps=experiment.num_steps)
    setup = experiment.setup
    check_contracts(setup)
    check_warm_up(experiment)
    check_replays(setup)
    return HostProgram(setup, mesh_of(experiment, 1), stepping=stepping)


def evaluate(
    setup: Setup,
    policies: dict[str, PyTree] | None,
    episodes: int = 1024,
    seed: int = 0,
    explore: bool = False,
    stepping: Stepping = IN_THIS_PROCESS,
    gains: Gains = sum_rewards,
) -> Evaluation:
    """As `training.evaluate.evaluate`, in host environments: equally many episodes in each, one after the other."""
    require_positive("evaluate", episodes=episodes)
    actor, given = assign_policies(setup, policies, explore)
    with listening(), contextlib.closing(HostStepper(setup, actor, min(EVALUATED, episodes), stepping)) as host_stepper:
        return _evaluate(host_stepper, given, episodes, seed, gains)


def _evaluate(
    host_stepper: HostStepper, given: dict[str, PyTree], episodes: int, seed: int, gains: Gains
) -> Evaluation:
    setup, count = host_stepper.setup, host_stepper.num_envs
    worlds = jax.jit(host_stepper.worlds.reset)(jax.random.key(seed))
    worlds = host_stepper.begin(worlds, seed)
    memory = host_stepper.actor.initial_memory(given, count)
    quota = np.full(count, episodes // count) + (np.arange(count) < episodes % count)
    acts, actions = host_stepper.decide(given, memory, worlds)
    buffer = host_stepper.buffer(given, worlds, memory, 1)
    returns: list[dict[str, float]] = []
    lengths: list[int] = []
    totals, steps = None, np.zeros(count, int)
    while quota.any():
        timestep = host_stepper.step(actions)
        worlds, buffer, acts, actions = host_stepper.tick(given, worlds, acts, timestep, buffer, np.int32(0))
        gained = jax.device_get(gains(setup.env, jax.tree.map(lambda rows: rows[0], buffer.reward)))
        totals = gained if totals is None else {name: totals[name] + gained[name] for name in gained}
        steps += 1
        if host_stepper.stage.out.any():
            raise NonFiniteWorldError(f"{setup.experiment.env}: a copy keeps returning NaN or infinity")
        ended = np.asarray(timestep.outcome.terminated) | np.asarray(timestep.outcome.truncated)
        for i in np.flatnonzero(
            ended & (quota > 0) & ~host_stepper.stage.cut_short
        ):  # a failed copy has not finished its episode
            returns.append({name: float(total[i]) for name, total in totals.items()})
            lengths.append(int(steps[i]))
            quota[i] -= 1
        totals = {name: np.where(ended, 0.0, total) for name, total in totals.items()}
        steps[ended] = 0
        if steps.max() > MAX_STEPS:
            raise WorldError(f"{setup.experiment.env}: an episode did not end within {MAX_STEPS} steps")
    return Evaluation({name: np.array([one[name] for one in returns]) for name in returns[0]}, np.array(lengths))
