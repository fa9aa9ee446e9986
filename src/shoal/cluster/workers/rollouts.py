"""Rollouts of shares of the copies: made by actors, joined in order by learners.

An actor that holds the copies `first` to `first + count` keeps their key chains, so it makes no difference which actor
steps a copy.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.batching.policies import Policies
from shoal.batching.regroup import unwrap_regrouped
from shoal.batching.rollout import Rollout, rollout
from shoal.batching.vectorise import Vectorised, Worlds
from shoal.core import trees
from shoal.core.errors import WorldError
from shoal.core.host import HostEnvProxy
from shoal.core.keys import run_keys
from shoal.core.types import PyTree
from shoal.training.devices import make_mesh
from shoal.training.experiment import Experiment
from shoal.training.fused import FusedProgram, policies_of
from shoal.training.health import Health
from shoal.training.memory import need_of, require_room

BESIDE = ("memory", "last_observation", "last_memory")
"""Parts of a rollout whose leaves are `[E, ...]`."""


class Share(NamedTuple):
    """Some of the copies of a world, by their global ids. restarts: how often they were restarted."""

    first: int
    size: int
    restarts: int = 0

    @property
    def ids(self) -> jax.Array:
        """The global ids of its copies."""
        return jnp.arange(self.first, self.first + self.size, dtype=jnp.uint32)


def world_key(seed: int, share: Share) -> jax.Array:
    """The key of a share's environments: the run's, unless they were restarted."""
    key = run_keys(seed).world
    return jax.random.fold_in(key, share.restarts) if share.restarts else key


def program_of(experiment: Experiment) -> FusedProgram:
    """The program of an experiment on one device; nothing is compiled yet."""
    return FusedProgram(experiment.setup, make_mesh(experiment.num_envs, 1, 1))


class EnvShare:
    """A share of the copies of a world of ours, stepped in one compiled program.

    Where NaN is found in a rollout, that copy's part of it is not to be learnt from, and the copy restarts; one that
    gives NaN in more than half of its rollouts is left out sooner or later.
    """

    def __init__(self, program: FusedProgram, share: Share):
        self.share, self.experiment = share, program.experiment
        setup = program.setup
        self._actor = Policies(setup.algorithms, setup.spec.groups)
        self._vectorised = setup.vectorised(share.size)
        self._key, self._ids = world_key(self.experiment.seed, share), share.ids
        self._check_memory(program)
        self._worlds: Worlds = jax.jit(self._vectorised.reset)(self._key, self._ids)
        self._memory: PyTree = None
        self._health = Health(share.size, 1.0)

    def _check_memory(self, program: FusedProgram) -> None:
        """Refuses a share that does not fit on this actor's machine; its rollouts are there twice, once to be sent."""
        policies = policies_of(program.shapes().learners)
        worlds = jax.eval_shape(self._vectorised.reset, jax.random.key(0))
        memory = jax.eval_shape(lambda given: self._actor.initial_memory(given, self.share.size), policies)
        need = need_of((policies, worlds), jax.make_jaxpr(self._roll)(policies, worlds, memory))
        copies = f"{self.share.size:,} copies x {self.experiment.num_steps:,} steps"
        what = f"an actor of {self.experiment.env} with {copies}"
        advice = "Use fewer copies (num_envs) or steps (num_steps), or more actors."
        require_room(what, dataclasses.replace(need, made=2 * need.made), lambda: advice)

    @functools.cached_property
    def _roll(self):
        def roll(policies: PyTree, worlds: Worlds, memory: PyTree) -> tuple[Worlds, PyTree, Rollout, jax.Array]:
            after, last_memory, steps = rollout(
                self._vectorised, self._actor, policies, worlds, memory, self.experiment.num_steps
            )
            made = Rollout(steps, memory, after.observation, last_memory, worlds.clock)
            return after, last_memory, made, _healthy(made)

        return jax.jit(roll, donate_argnums=1)

    def roll(self, policies: PyTree) -> tuple[Rollout, np.ndarray]:
        """`num_steps` steps of all copies with these policies, and which `[E]` of them are to be learnt from."""
        if self._memory is None:
            self._memory = self._actor.initial_memory(policies, self.share.size)
        while True:
            self._worlds, self._memory, made, sound = self._roll(policies, self._worlds, self._memory)
            made, sound = jax.device_get((made, sound))
            self._health.turn(sound | self.out)
            if not sound.all():
                self._worlds = reset_envs(self._vectorised, self._worlds, self._key, self._ids, ~sound)
                initial = self._actor.initial_memory(policies, self.share.size)
                self._memory = trees.where(~sound, initial, self._memory)
            if sound.any() or self.out.all():
                return made, sound & ~self.out

    @property
    def out(self) -> np.ndarray:
        """Which copies `[E]` are left out for good."""
        return self._health.out

    @property
    def resets(self) -> int:
        """How often a copy was restarted because of NaN."""
        return self._health.resets

    def close(self) -> None:
        """There is nothing to close."""


def reset_envs(vectorised: Vectorised, worlds: Worlds, key: jax.Array, ids: jax.Array, which: np.ndarray) -> Worlds:
    """Resets these copies `[E]`. key, ids: those that they were first reset with."""
    fresh = jax.jit(vectorised.reset)(jax.random.fold_in(key, worlds.clock), ids)
    return trees.where(which, fresh.replace(clock=worlds.clock, key=worlds.key), worlds)


def runs_on_host(program: FusedProgram) -> bool:
    """Whether the experiment's environments live on the host."""
    return isinstance(unwrap_regrouped(program.setup.env), HostEnvProxy)


def _healthy(made: Rollout) -> jax.Array:
    """Which copies `[E]` have finite observations and rewards only."""
    flags = []
    for axis, tree in (
        (1, (made.steps.observation, made.steps.reward, made.steps.final_value)),
        (0, made.last_observation),
    ):
        for leaf in jax.tree.leaves(tree):
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                rest = tuple(i for i in range(leaf.ndim) if i != axis)
                flags.append(jnp.all(jnp.isfinite(leaf), axis=rest))
    return jnp.all(jnp.stack(flags), axis=0)


def replace_unsound(made: Rollout, healthy: np.ndarray, world: str) -> Rollout:
    """The rollout with the steps of unsound copies replaced by those of sound ones, so that its shape stays."""
    well = np.flatnonzero(healthy)
    if not len(well):
        raise no_sound_env_error(world)
    index = np.where(healthy, np.arange(len(healthy)), well[np.arange(len(healthy)) % len(well)])
    steps, episodes = made.steps, made.steps.episodes
    parts = jax.tree.map(lambda leaf: leaf[:, index], steps.replace(episodes=None))
    finite = jax.tree.map(lambda leaf: np.nan_to_num(leaf, posinf=0.0, neginf=0.0), episodes)
    rest = {name: jax.tree.map(lambda leaf: leaf[index], getattr(made, name)) for name in BESIDE}
    return Rollout(steps=parts.replace(episodes=finite), clock=made.clock, **rest)


def no_sound_env_error(world: str) -> WorldError:
    """The error for an actor all of whose copies are left out."""
    return WorldError(
        f"world {world!r}: every copy of an actor gives NaN or infinity, again and again. "
        "Check its `step` and `observe`."
    )


def join_rollouts(parts: Sequence[Rollout]) -> Rollout:
    """The rollouts of several shares as one, copies in the order given."""
    if len(parts) == 1:
        return parts[0]

    def along(axis: int):
        return lambda *leaves: np.concatenate(leaves, axis=axis)

    sums = jax.tree.map(lambda *leaves: np.sum(np.stack(leaves), axis=0), *(part.steps.episodes for part in parts))
    steps = jax.tree.map(along(1), *(part.steps.replace(episodes=None) for part in parts))
    rest = {name: jax.tree.map(along(0), *(getattr(part, name) for part in parts)) for name in BESIDE}
    return Rollout(steps=steps.replace(episodes=sums), clock=parts[0].clock, **rest)


def num_bytes(tree: PyTree) -> int:
    """The size of a tree's arrays."""
    return sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(tree))
