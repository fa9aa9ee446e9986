"""What learners with a replay share: what is stored of a step, windows of it, and what comes after each of its rows.

Shape letters: `W` rows of a window, `B` windows of a batch, `n` agents of a group.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from shoal.core.algorithm import Experience, LearnerSpec
from shoal.core.errors import OptionError
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
    """What each row of a window was followed by: the next view, or the final one where the episode was cut short."""

    observation: dict[str, Observation]
    state: PyTree


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


def rows(tree: PyTree, start: int, stop: int) -> PyTree:
    """Some rows of a window."""
    return jax.tree.map(lambda leaf: leaf[start:stop], tree)


def shifted(value: jax.Array) -> jax.Array:
    """Values of what follows each row, as values of the rows themselves; the first is read by nobody."""
    return jnp.concatenate([jnp.zeros_like(value[:1]), value[:-1]])


def team_reward(reward: dict[str, jax.Array], observation: dict[str, Observation]) -> jax.Array:
    """The mean over the agents who are present, `[...]` from `[..., n]` by group."""
    total, count = jnp.float32(0.0), jnp.float32(0.0)
    for name, gained in reward.items():
        present = observation[name].present
        weight = jnp.ones_like(gained) if present is None else present.astype(gained.dtype)
        total, count = total + jnp.sum(gained * weight, axis=-1), count + jnp.sum(weight, axis=-1)
    return total / jnp.maximum(count, 1.0)


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


def learn(
    state: Any,
    experience: Experience,
    key: jax.Array,
    axis: str | None,
    learn_once: Callable[[Any, jax.Array, str | None], tuple[Any, dict[str, jax.Array]]],
    *,
    window: int,
    warm_up: int,
    gradient_steps: int,
) -> tuple[Any, dict[str, jax.Array]]:
    """Stores the experience in `state.replay`, then calls `learn_once` some times, if the replay is warmed up.

    Returns the state, one update older, and the mean of the metrics.
    """
    new = steps_of(experience)
    if state.replay.store.state is None:  # seen because another learner of the same world asks for it
        new = new.replace(state=None, final_state=None)
    replay = buffers.add(state.replay, new, window)
    learner = state.replace(replay=replay.replace(store=()))  # the store itself must not pass through the branch

    def steps(learner: Any) -> tuple[Any, dict[str, jax.Array]]:
        def step(learner, key):
            whole = learner.replace(replay=learner.replay.replace(store=replay.store))
            learner, metrics = learn_once(whole, key, axis)
            return learner.replace(replay=learner.replay.replace(store=())), metrics

        learner, metrics = lax.scan(step, learner, jax.random.split(sampling_key(key, axis), gradient_steps))
        return learner, jax.tree.map(jnp.mean, metrics)

    shapes = jax.eval_shape(steps, learner)[1]
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    ready = warm(replay, window, warm_up, axis)
    learner, metrics = lax.cond(ready, steps, lambda learner: (learner, zeros), learner)
    return learner.replace(replay=learner.replay.replace(store=replay.store), updates=state.updates + 1), metrics


def priorities(error: jax.Array, exponent: jax.Array) -> jax.Array:
    """Priorities `[B]` of windows with absolute errors `[W, B]`: mostly their largest (Kapturowski et al. 2019)."""
    return jnp.power(0.9 * jnp.max(error, axis=0) + 0.1 * jnp.mean(error, axis=0) + 1e-6, exponent)
