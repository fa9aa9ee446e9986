"""The base of learners with a replay: stored steps, sampled windows, and gradient steps after a warm-up.

Shape letters: `T` time, `E` environments; `W` rows of a window, `T` of them between the burn-in and the last, `S` of
these are trained on (`sequence`), `B` windows of a batch, `n` agents of a group.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from shoal.core import trees
from shoal.core.algorithm import Algorithm, Experience, LearnerSpec, Replays, ReplayTraits, Traits
from shoal.core.checks import check_whole
from shoal.core.errors import OptionError, require
from shoal.core.spaces import action_dtype, action_shape
from shoal.core.types import Observation, PyTree
from shoal.ops import replay as buffers
from shoal.ops.returns import n_step_returns
from shoal.ops.scan_metrics import pack_metrics

ByGroup = dict[str, jax.Array]
Observations = dict[str, Observation]
Metrics = dict[str, jax.Array]


class Steps(struct.PyTreeNode):
    """Steps as they are stored; leaves are `[T, E, ...]`, in a batch `[W, B, ...]`.

    By group, except for flags and the global state (`state`, `final_state`; None if not needed).
    """

    observation: Observations
    final_observation: Observations
    action: ByGroup
    reward: ByGroup
    memory: dict[str, PyTree]
    state: PyTree
    final_state: PyTree
    first: jax.Array
    terminated: jax.Array
    truncated: jax.Array


class NextObservations(NamedTuple):
    """The successor of each row of a window: the next observation, or the final one where the episode was truncated."""

    observation: Observations
    state: PyTree


@dataclasses.dataclass(frozen=True)
class Replayed(Algorithm, Replays):
    """Options and methods common to learners with a replay (abstract). A learner's state has a `replay`."""

    buffer_size: int = 100_000  # capacity of the replay in environment steps
    warm_up: int = 2_000  # environment steps before learning begins
    batch_size: int = 256  # windows per gradient step
    gradient_steps: int = 4  # gradient steps per update
    gamma: float = 0.99  # discount per environment step
    n_step: int = 1  # own decisions before bootstrapping from values
    sequence: int = 1  # trained steps per window; more for recurrent networks
    burn_in: int = 0  # steps before these that only refresh the memory

    @abc.abstractmethod
    def fresh_memory(self) -> PyTree:
        """One agent's memory at the start of an episode: memories are stored with every step."""

    def check_replay(self) -> None:
        """Refuses inconsistent sizes."""
        check_whole(self, buffer_size=1, warm_up=0, batch_size=1, gradient_steps=1, n_step=1, sequence=1, burn_in=0)
        remembers = bool(jax.tree.leaves(jax.eval_shape(self.fresh_memory)))
        allowed = "0 if the network has no memory (network.recurrent is 'none')"
        require(remembers or not self.burn_in, type(self).__name__, "burn_in", self.burn_in, allowed)

    @property
    def window(self) -> int:
        """Rows of a sample; only the observation of the last is used."""
        return self.burn_in + self.sequence + self.n_step

    def make_traits(self, needs_global_state: bool, prioritised: bool = False) -> Traits:
        replay = ReplayTraits(self.window, self.batch_size, self.gradient_steps, prioritised, self.sequence)
        return Traits(needs_global_state, records_final_observations=True, warm_up=self.warm_up, replay=replay)

    def initial_memory(self, params: PyTree) -> PyTree:
        return self.fresh_memory()

    def replay_shape(self, spec: LearnerSpec) -> tuple[Steps, int, int]:
        """One stored step, rows and copies, which determine the size of the replay. Rows are whole updates."""
        rows = -(-self.buffer_size // (spec.num_envs * spec.num_steps)) * spec.num_steps
        if rows < spec.num_steps + self.window:
            least = (spec.num_steps + self.window) * spec.num_envs
            copies = f"{spec.num_envs} {'copy' if spec.num_envs == 1 else 'copies'}"
            raise OptionError(
                f"{type(self).__name__}: buffer_size must be at least {least} for {copies}, updates of {spec.num_steps}"
                f" steps and windows of {self.window}, got {self.buffer_size}. Give a larger one, or fewer copies."
            )
        memory = jax.eval_shape(self.fresh_memory)
        return example_step(spec, memory, self.traits.needs_global_state), rows, spec.num_envs

    def make_steps(self, experience: Experience) -> Steps:
        """The stored part of an experience; the global state only if this learner needs it."""
        tracks, needs_state = experience.trajectories, self.traits.needs_global_state
        one = next(iter(tracks.values()))
        finals = {g: track.final_observation for g, track in tracks.items() if track.final_observation is not None}
        return Steps(
            observation={g: track.observation.replace(state=None) for g, track in tracks.items()},
            final_observation={g: final.replace(state=None) for g, final in finals.items()},
            action={g: track.action for g, track in tracks.items()},
            reward={g: track.reward for g, track in tracks.items()},
            memory={g: track.memories for g, track in tracks.items()},
            state=one.observation.state if needs_state else None,
            final_state=one.final_observation.state if needs_state and one.final_observation is not None else None,
            first=experience.first,
            terminated=experience.terminated,
            truncated=experience.truncated,
        )

    def store(self, state: Any, experience: Experience) -> Any:
        """The state with the experience in its replay."""
        return state.replace(replay=buffers.add(state.replay, self.make_steps(experience), self.window))

    def sample(self, state: Any, key: jax.Array, axis: str | None) -> tuple[buffers.ReplaySample, Steps]:
        """Where this device's share of a batch begins in the replay, and the windows there, leaves `[W, B, ...]`."""
        share = max(1, self.batch_size // lax.axis_size(axis)) if axis else self.batch_size
        drawn = buffers.sample(state.replay, key, share, self.window)
        return drawn, buffers.take(state.replay, drawn, self.window)

    def is_warm(self, replay: buffers.Replay, axis: str | None) -> jax.Array:
        """Whether all devices together have stored `warm_up` steps, and a window can be drawn."""
        num_envs = replay.num_envs * (lax.axis_size(axis) if axis else 1)
        return buffers.can_sample(replay, self.window, -(-self.warm_up // num_envs))

    def n_step_targets(
        self, rows: Steps, reward: jax.Array, next_value: jax.Array, active: Any, present: Any
    ) -> jax.Array:
        """Targets r + γ r' + ... + γ^n V(s⁽ⁿ⁾), `[S, B, n]`. next_value: of the successor of each row, `[T, B, n]`."""
        before = jnp.concatenate([jnp.zeros_like(next_value[:1]), next_value[:-1]])  # the first is never read
        flags = rows.terminated[..., None], rows.truncated[..., None], active, present
        returns = n_step_returns(reward, before, next_value, next_value[-1], *flags, gamma=self.gamma, n=self.n_step)
        return returns[: self.sequence]

    def repeat_when_warm(
        self, step: Callable[[Any, jax.Array], tuple[Any, Metrics]], state: Any, key: jax.Array, axis: Any
    ) -> tuple[Any, Metrics]:
        """`gradient_steps` calls of `step(state, key)`, and the means of metrics; zeros during the warm-up."""
        replay = state.replay
        learner = state.replace(replay=replay.replace(store=()))  # the store must not pass through the branch

        def steps(learner: Any) -> tuple[Any, Metrics]:
            def once(learner, key):
                learner, metrics = step(learner.replace(replay=learner.replay.replace(store=replay.store)), key)
                return learner.replace(replay=learner.replay.replace(store=())), pack_metrics(metrics)

            # Each device draws from its own copies, with its own key: with another number of devices results are
            # equivalent, not equal to the bit.
            own = jax.random.fold_in(key, lax.axis_index(axis)) if axis else key
            keys = jax.random.split(own, self.gradient_steps)
            learner, metrics = lax.scan(once, learner, keys)
            return learner, metrics.means()

        zeros = trees.zeros(jax.eval_shape(steps, learner)[1])
        learner, metrics = lax.cond(self.is_warm(replay, axis), steps, lambda learner: (learner, zeros), learner)
        return learner.replace(replay=learner.replay.replace(store=replay.store)), metrics


def example_step(spec: LearnerSpec, memory: PyTree, needs_state: bool) -> Steps:
    """One step of one copy, as shapes. memory: one agent's."""
    views = {name: seen.replace(state=None) for name, seen in spec.observations.items()}
    state = spec.state if needs_state else None
    actions, rewards, memories = {}, {}, {}
    for name, group in spec.groups.items():
        n, space = group.size, group.action
        actions[name] = jax.ShapeDtypeStruct((n, *action_shape(space)), jnp.dtype(action_dtype(space)))
        rewards[name] = jax.ShapeDtypeStruct((n,), jnp.float32)
        memories[name] = jax.tree.map(lambda leaf, n=n: jax.ShapeDtypeStruct((n, *leaf.shape), leaf.dtype), memory)
    flag: Any = jax.ShapeDtypeStruct((), bool)
    return Steps(views, views, actions, rewards, memories, state, state, flag, flag, flag)  # pyright: ignore[reportArgumentType]


def next_observations(window: Steps) -> NextObservations:
    """The successors of all rows of a window except the last: leaves `[W - 1, B, ...]`."""
    cut = window.truncated[:-1] & ~window.terminated[:-1]

    def choose(final: PyTree, seen: PyTree) -> PyTree:
        return trees.where(cut, take_rows(final, 0, -1), take_rows(seen, 1, None))

    observation = {name: choose(final, window.observation[name]) for name, final in window.final_observation.items()}
    return NextObservations(observation, choose(window.final_state, window.state))


def split_windows(windows: Steps, burn_in: int) -> tuple[Steps, NextObservations]:
    """The rows of windows after their burn-in, except the last; and their successors."""
    return take_rows(windows, burn_in, -1), take_rows(next_observations(windows), burn_in, None)


def take_rows(tree: PyTree, start: int, stop: int | None) -> PyTree:
    """Some rows of windows."""
    return jax.tree.map(lambda leaf: leaf[start:stop], tree)
