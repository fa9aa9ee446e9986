"""Environments of the host in an actor: stepped in Python, decided on in batches by one compiled program.

Where decisions are made on an accelerator, the share's environments are cut into two parts: while those of one are
stepped in Python, the actions of the other are computed; a call of a compiled program returns at once and is only
waited for when its part is stepped. On a CPU both are done by the same core, and one call for all is cheaper than two.

Where environments are stepped one by one, each has the seed that the host runner gives it, whichever actor holds it, so
synchronous training gives the host runner's weights. Batches that step themselves (vector environments) stay whole,
and have a seed for each share. An actor that restarts begins other episodes.

How an environment that gives NaN is handled is described in `host_stages`. One that raises ends the rollout with an
error that names it.
"""

import functools
import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np

from shoal.batching.policies import Policies
from shoal.batching.regroup import unwrap_regrouped
from shoal.batching.rollout import Rollout
from shoal.batching.vectorise import Worlds
from shoal.cluster.workers.rollouts import Share, join_rollouts, world_key
from shoal.core.host import HostEnvProxy, check_observations
from shoal.core.host import SerialHostBatch as OneByOne
from shoal.core.interrupts import listening
from shoal.core.types import PyTree
from shoal.training.fused import FusedProgram
from shoal.training.host import HostStepper
from shoal.training.host_stages import BatchedEnvs, SeparateEnvs, Stage

BUFFERS = {"cpu": 1}
"""Parts that a share is cut into, by the backend that computes actions; two by default.

On a CPU most of a decision is the call itself, which nothing can overlap: two parts of 32 took 8 % more CPU time for a
step of `mpe2`'s simple_spread than one of 64.
"""


class HostEnvShare:
    """A share of the copies of a host environment."""

    def __init__(self, program: FusedProgram, share: Share, buffers: int | None = None):
        self.share, self.experiment = share, program.experiment
        buffers = buffers or BUFFERS.get(jax.default_backend(), 2)
        env = unwrap_regrouped(program.setup.env)
        assert isinstance(env, HostEnvProxy)
        self._stages = open_stages(env, share, self.experiment.seed, buffers)
        try:
            with listening():
                self._parts = self._begin(program)
        except BaseException:
            self.close()
            raise

    def _begin(self, program: FusedProgram) -> list["_Part"]:
        setup = program.setup
        actor = Policies(setup.algorithms, setup.spec.groups)
        key = world_key(self.experiment.seed, self.share)
        host_stepper: dict[int, HostStepper] = {}  # parts of one size share what is compiled
        parts, first = [], self.share.first
        for stage in self._stages:
            plays = host_stepper.setdefault(stage.num_envs, HostStepper(setup, actor, stage.num_envs))
            ids = jnp.arange(first, first + stage.num_envs, dtype=jnp.uint32)
            parts.append(_Part(plays, stage, jax.jit(plays.worlds.reset)(key, ids)))
            first += stage.num_envs
        return parts

    def roll(self, policies: PyTree) -> tuple[Rollout, np.ndarray]:
        """`num_steps` steps of all copies with these policies, and which `[E]` of them are to be learnt from."""
        policies = jax.device_put(policies)  # once, not with every step
        while True:
            for part in self._parts:
                part.begin(policies, self.experiment.num_steps)
            with listening():
                for t in range(self.experiment.num_steps):
                    for part in self._parts:
                        part.step(policies, t)
            sound = np.concatenate([part.sound for part in self._parts])
            if sound.any() or self.out.all():
                return join_rollouts([part.rollout() for part in self._parts]), sound

    @property
    def out(self) -> np.ndarray:
        """Which copies `[E]` are left out for good."""
        return np.concatenate([stage.out for stage in self._stages])

    @property
    def resets(self) -> int:
        """How often a copy was restarted because of NaN."""
        return sum(stage.restarts for stage in self._stages)

    def close(self) -> None:
        """Closes the environments. A failure to close must not lose what was learnt."""
        for stage in self._stages:
            try:
                stage.close()
            except Exception as error:  # the environment's own code may raise anything
                said = f"{self.experiment.env}: its close raised {type(error).__name__}: {error}"
                warnings.warn(said, RuntimeWarning, stacklevel=2)


class _Part:
    """Some of the copies, with their last actions."""

    def __init__(self, host_stepper: HostStepper, stage: Stage, worlds: Worlds):
        self.host_stepper, self.stage = host_stepper, stage
        timestep = stage.reset()
        check_observations(host_stepper.proxy, timestep.observation)
        self.worlds: Worlds = host_stepper.fill_in(worlds, timestep)
        self.memory: PyTree = None

    @functools.cached_property
    def _rows(self):
        return jax.jit(self.host_stepper.buffer, static_argnums=3)

    def begin(self, policies: PyTree, num_steps: int) -> None:
        """Starts to compute the first actions of a rollout."""
        if self.memory is None:
            self.memory = self.host_stepper.actor.initial_memory(policies, self.host_stepper.num_envs)
        self.sound = np.ones(self.host_stepper.num_envs, bool)
        self.start = (self.memory, self.worlds.clock)
        self.acts, self.actions = self.host_stepper.decide(policies, self.memory, self.worlds)
        # A new one for each rollout: whoever takes the rollout may look at this very memory.
        self.buffer = self._rows(policies, self.worlds, self.memory, num_steps)

    def step(self, policies: PyTree, t: int) -> None:
        """Steps the environments and starts to compute the next actions."""
        timestep = self.stage.step(jax.device_get(self.actions))
        self.sound &= self.stage.sound
        self.memory = self.acts.memory
        self.worlds, self.buffer, self.acts, self.actions = self.host_stepper.tick(
            policies, self.worlds, self.acts, timestep, self.buffer, np.int32(t)
        )

    def rollout(self) -> Rollout:
        """The rollout, in numpy."""
        memory, clock = self.start
        return jax.device_get(Rollout(self.buffer, memory, self.worlds.observation, self.memory, clock))


def open_stages(env: HostEnvProxy, share: Share, seed: int, buffers: int) -> list[SeparateEnvs | BatchedEnvs]:
    """The share's environments, open, in parts that are stepped in turn."""
    batch = env.open(share.size)
    sequence = np.random.SeedSequence((seed, share.restarts) if share.restarts else seed)
    if not isinstance(batch, OneByOne):
        whole = not share.first and not share.restarts
        return [BatchedEnvs(env, batch, seed if whole else int(sequence.generate_state(share.first + 1)[-1]))]
    seeds = sequence.generate_state(share.first + share.size)[
        share.first :
    ].tolist()  # as `core.host.SerialHostBatch` has them
    ends = np.linspace(0, share.size, min(buffers, share.size) + 1).astype(int).tolist()
    return [
        SeparateEnvs(env, batch.envs[start:end], seeds[start:end], share.first + start)
        for start, end in itertools.pairwise(ends)
    ]
