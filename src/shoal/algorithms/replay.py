"""The base of learners with a replay: what is stored of a step, windows of it, and gradient steps once it is warm.

Shape letters: `T` time, `E` environments, `W` rows of a window, `B` windows of a batch, `n` agents of a group.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from shoal.core import trees
from shoal.core.algorithm import Algorithm, Experience, LearnerSpec, Replays, ReplayTraits
from shoal.core.checks import check_whole
from shoal.core.errors import OptionError, require
from shoal.core.spaces import action_dtype, action_shape
from shoal.core.types import Observation, PyTree
from shoal.ops import replay as buffers


class Steps(struct.PyTreeNode):
    """Steps as they are stored; leaves are `[T, E, ...]`, in a batch `[W, B, ...]`, by group but for flags and states.

    state, final_state: the global state, once for all groups; None where nobody asks for it.
    """

    observation: dict[str, Observation]
    final_observation: dict[str, Observation]
    action: dict[str, jax.Array]
    reward: dict[str, jax.Array]
    memory: dict[str, PyTree]
    state: PyTree
    final_state: PyTree
    first: jax.Array
    terminated: jax.Array
    truncated: jax.Array


class After(struct.PyTreeNode):
    """What followed each row of a window: the next observation, or the final one where the episode was cut short."""

    observation: dict[str, Observation]
    state: PyTree


@dataclasses.dataclass(frozen=True)
class Replayed(Algorithm, Replays):
    """Options and methods common to learners with a replay (abstract). A learner's state has a `replay`."""

    buffer_size: int = 100_000  # environment steps that the replay holds
    warm_up: int = 2_000  # environment steps before learning begins
    batch_size: int = 256  # windows of a gradient step
    gradient_steps: int = 4  # in each update
    n_step: int = 1  # own decisions until values are bootstrapped from
    sequence: int = 1  # steps of a window that are learnt from; more for recurrent networks
    burn_in: int = 0  # steps before them that only bring the memory up to date

    @abc.abstractmethod
    def fresh_memory(self) -> PyTree:
        """One agent's memory at the start of an episode: it is stored with every step."""

    def check_replay(self) -> None:
        """Refuses sizes that do not fit together."""
        check_whole(self, buffer_size=1, warm_up=0, batch_size=1, gradient_steps=1, n_step=1, sequence=1, burn_in=0)
        if self.burn_in and not jax.tree.leaves(jax.eval_shape(self.fresh_memory)):
            allowed = "0 if the network has no memory (network.recurrent is 'none')"
            require(False, type(self).__name__, "burn_in", self.burn_in, allowed)

    @property
    def window(self) -> int:
        """Rows of a sample; the last is there for its observation only."""
        return self.burn_in + self.sequence + self.n_step

    def replay_traits(self, prioritised: bool = False) -> ReplayTraits:
        return ReplayTraits(self.window, self.batch_size, self.gradient_steps, prioritised, self.sequence)

    def replay_shape(self, spec: LearnerSpec) -> tuple[Steps, int, int]:
        """One step as it is stored, rows, and copies: what decides how large the replay is."""
        memories = {name: jax.eval_shape(self.fresh_memory) for name in spec.groups}
        example = example_step(spec, memories, self.traits.needs_global_state)
        return example, num_rows(type(self).__name__, self.buffer_size, self.window, spec), spec.num_envs

    def make_steps(self, experience: Experience) -> Steps:
        """What is stored of an experience; the global state only if this learner asks for it, not another one."""
        steps = steps_of(experience)
        return steps if self.traits.needs_global_state else steps.replace(state=None, final_state=None)

    def store(self, state: Any, experience: Experience) -> Any:
        """The state with the experience in its replay."""
        return state.replace(replay=buffers.add(state.replay, self.make_steps(experience), self.window))

    def sample(self, state: Any, key: jax.Array, axis: str | None) -> tuple[buffers.ReplaySample, Steps]:
        """Where this device's share of a batch begins in the replay, and the windows there, leaves `[W, B, ...]`."""
        drawn = buffers.sample(state.replay, key, share(self.batch_size, axis), self.window)
        return drawn, buffers.take(state.replay, drawn, self.window)

    def repeat_when_warm(
        self, step: Callable[[Any, jax.Array], tuple[Any, dict[str, jax.Array]]], state: Any, key: jax.Array, axis: Any
    ) -> tuple[Any, dict[str, jax.Array]]:
        """`gradient_steps` calls of `step(state, key)` if `warm_up` steps are stored, and the means of the metrics.

        Before, the state as it is, and zeros.
        """
        replay = state.replay
        learner = state.replace(replay=replay.replace(store=()))  # the store itself must not pass through the branch

        def steps(learner: Any) -> tuple[Any, dict[str, jax.Array]]:
            def once(learner, key):
                learner, metrics = step(learner.replace(replay=learner.replay.replace(store=replay.store)), key)
                return learner.replace(replay=learner.replay.replace(store=())), metrics

            keys = jax.random.split(sampling_key(key, axis), self.gradient_steps)
            learner, metrics = lax.scan(once, learner, keys)
            return learner, jax.tree.map(jnp.mean, metrics)

        shapes = jax.eval_shape(steps, learner)[1]
        zeros = trees.zeros(shapes)
        ready = warm(replay, self.window, self.warm_up, axis)
        learner, metrics = lax.cond(ready, steps, lambda learner: (learner, zeros), learner)
        return learner.replace(replay=learner.replay.replace(store=replay.store)), metrics


def steps_of(experience: Experience) -> Steps:
    """The part of an experience that is stored."""
    tracks = experience.trajectories
    one = next(iter(tracks.values()))
    finals = {name: track.final_observation for name, track in tracks.items() if track.final_observation is not None}
    return Steps(
        observation={name: track.observation.replace(state=None) for name, track in tracks.items()},
        final_observation={name: final.replace(state=None) for name, final in finals.items()},
        action={name: track.action for name, track in tracks.items()},
        reward={name: track.reward for name, track in tracks.items()},
        memory={name: track.memories for name, track in tracks.items()},
        state=one.observation.state,
        final_state=None if one.final_observation is None else one.final_observation.state,
        first=experience.first,
        terminated=experience.terminated,
        truncated=experience.truncated,
    )


def example_step(spec: LearnerSpec, memories: dict[str, PyTree], needs_state: bool) -> Steps:
    """One step of one copy, as shapes. memories: one agent's memory, by group."""
    views = {name: seen.replace(state=None) for name, seen in spec.observations.items()}
    shape: Any = jax.ShapeDtypeStruct
    flag = shape((), bool)
    held = {
        name: jax.tree.map(lambda leaf, n=group.size: shape((n, *leaf.shape), leaf.dtype), memories[name])
        for name, group in spec.groups.items()
    }
    return Steps(
        observation=views,
        final_observation=views,
        action={
            name: shape((group.size, *action_shape(group.action)), action_dtype(group.action))
            for name, group in spec.groups.items()
        },
        reward={name: shape((group.size,), jnp.float32) for name, group in spec.groups.items()},
        memory=held,
        state=spec.state if needs_state else None,
        final_state=spec.state if needs_state else None,
        first=flag,
        terminated=flag,
        truncated=flag,
    )


def num_rows(owner: str, buffer_size: int, window: int, spec: LearnerSpec) -> int:
    """Rows of a replay that holds `buffer_size` steps, rounded up to whole updates."""
    rows = -(-buffer_size // (spec.num_envs * spec.num_steps)) * spec.num_steps
    if rows < spec.num_steps + window:
        least = (spec.num_steps + window) * spec.num_envs
        copies = f"{spec.num_envs} {'copy' if spec.num_envs == 1 else 'copies'}"
        raise OptionError(
            f"{owner}: buffer_size must be at least {least} for {copies}, updates of {spec.num_steps} steps and "
            f"windows of {window}, got {buffer_size}. Give a larger one, or fewer copies."
        )
    return rows


def after(window: Steps) -> After:
    """What followed each row but the last of a window: leaves `[W - 1, B, ...]`."""
    cut = window.truncated[:-1] & ~window.terminated[:-1]

    def choose(final: PyTree, seen: PyTree) -> PyTree:
        def one(final: jax.Array, seen: jax.Array) -> jax.Array:
            return jnp.where(cut.reshape(cut.shape + (1,) * (seen.ndim - 2)), final[:-1], seen[1:])

        return jax.tree.map(one, final, seen)

    observation = {name: choose(final, window.observation[name]) for name, final in window.final_observation.items()}
    return After(observation, choose(window.final_state, window.state))


def split(windows: Steps, burn_in: int) -> tuple[Steps, After]:
    """The rows of windows after their burn-in, but for the last; and what followed each of them."""
    stop = windows.first.shape[0] - 1
    return rows(windows, burn_in, stop), rows(after(windows), burn_in, stop)


def rows(tree: PyTree, start: int, stop: int) -> PyTree:
    """Some rows of a window."""
    return jax.tree.map(lambda leaf: leaf[start:stop], tree)


def shifted(value: jax.Array) -> jax.Array:
    """Values of what follows each row, as values of the rows themselves; the first is read by nobody."""
    return jnp.concatenate([jnp.zeros_like(value[:1]), value[:-1]])


def sampling_key(key: jax.Array, axis: str | None) -> jax.Array:
    """Each device draws from its own copies, so each needs its own key.

    So what is drawn depends on the number of devices: a learner with a replay agrees with itself on another number in
    what it learns, not in its numbers. All else that is drawn belongs to a copy, whichever device has it.
    """
    return jax.random.fold_in(key, lax.axis_index(axis)) if axis else key


def share(batch_size: int, axis: str | None) -> int:
    """How many windows of a batch each device draws."""
    return max(1, batch_size // lax.axis_size(axis)) if axis else batch_size


def warm(replay: buffers.Replay, window: int, warm_up: int, axis: str | None) -> jax.Array:
    """Whether all devices together have stored `warm_up` steps, and a window can be drawn."""
    num_envs = replay.num_envs * (lax.axis_size(axis) if axis else 1)
    return buffers.can_sample(replay, window, -(-warm_up // num_envs))


def priorities(error: jax.Array, exponent: jax.Array | float) -> jax.Array:
    """Priorities `[B]` of windows with absolute errors `[W, B]`: mostly their largest (Kapturowski et al. 2019)."""
    return jnp.power(0.9 * jnp.max(error, axis=0) + 0.1 * jnp.mean(error, axis=0) + 1e-6, exponent)
