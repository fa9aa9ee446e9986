"""Deep Q-learning with a replay on the device. A mixer makes it VDN or QMIX; a recurrent network makes it R2D2.

    target = r + γ r' + ... + γ^n Q⁻(s⁽ⁿ⁾, argmax_a Q(s⁽ⁿ⁾, a)),    loss = w (Q(s, a) - target)²

Papers: Mnih et al. 2015 (DQN), van Hasselt et al. 2016 (double), Wang et al. 2016 (dueling), Schaul et al. 2016
(prioritised replay), Sunehag et al. 2018 (VDN), Rashid et al. 2018 (QMIX), Kapturowski et al. 2019 (R2D2: stored state
and burn-in). Departures: the target network is updated slowly (Polyak) instead of copied periodically; the loss is
squared and gradients are scaled down to a norm instead of Huber's; n counts own decisions; truncated episodes bootstrap
from their real final observation; a team's reward is the mean of its agents'; R2D2's values are not rescaled.

With `mixer="none"` each agent learns for itself (IQL), with shared weights inside a group. Another target is another
`backup`. Shape letters: `W` rows of a window, `S` of them are learnt from (`sequence`), `T` of them are needed for that
(`S + n_step - 1`), `B` windows of a batch, `n` agents of a group, `A` choices of an action.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from shoal.algorithms import q_learning as q
from shoal.algorithms.q_learning import QLearning, QPolicy, interpolate
from shoal.algorithms.replay import NextObservations, Replayed, Steps, split_windows
from shoal.batching.agents import as_weight, keep_where
from shoal.batching.masked import masked_map
from shoal.core import trees
from shoal.core.algorithm import Experience, LearnerSpec, Prioritises, Traits
from shoal.core.checks import check_floats
from shoal.core.spaces import Discrete, MultiDiscrete
from shoal.core.types import Observation, PyTree
from shoal.networks.q_network import QNetwork
from shoal.networks.sequences import apply_each, unroll
from shoal.networks.torsos import initial_carry
from shoal.ops import replay as buffers
from shoal.ops.devices import mean_over_devices
from shoal.ops.gradients import adam


class LearnerState(struct.PyTreeNode):
    """Everything a learner carries. mixer: its weights. target: slow copies of all weights, under the same names."""

    params: dict[str, QPolicy]
    mixer: PyTree
    target: dict[str, PyTree]
    optimiser: PyTree
    hyper: dict[str, jax.Array]
    updates: jax.Array
    replay: buffers.Replay


class Transition(NamedTuple):
    """The transitions of one group in `T` consecutive steps, leaves `[T, B, n, ...]`: (s, a, r, s')."""

    observation: Observation
    action: jax.Array
    reward: jax.Array
    next_observation: Observation


class QValues(NamedTuple):
    """One network's action values `[T, B, n, A]` of `T` steps of a group, and of what followed each (no gradients)."""

    now: jax.Array
    next: jax.Array


@dataclasses.dataclass(frozen=True)
class DQN(Replayed, QLearning, Prioritises):
    """Action values from a replay."""

    name: ClassVar[str] = "dqn"
    only_with: ClassVar[Mapping[str, str]] = {
        "priority_exponent": "prioritised",
        "importance_exponent": "prioritised",
    }

    target_rate: float = 0.01  # share of the way that the target network moves per gradient step
    double: bool = True  # the target network values the action that the online network chooses
    prioritised: bool = False  # windows with large errors are drawn more often
    priority_exponent: float = 0.6  # how much errors matter to prioritised sampling
    importance_exponent: float = 0.4  # share of its bias that is corrected at the beginning; all of it at the end

    def __post_init__(self):
        super().__post_init__()
        check_floats(self, target_rate=(0.0, 1.0), priority_exponent=(0.0, None), importance_exponent=(0.0, 1.0))
        self.check_replay()

    @property
    def traits(self) -> Traits:
        return self.make_traits(self.mixer == "monotonic", self.prioritised)

    def init(self, key: jax.Array, spec: LearnerSpec) -> LearnerState:
        """Fresh policies for the groups of `spec`, and an empty replay."""
        params, mixer = self.init_weights(key, spec)
        weights = q.join_weights(params, mixer)
        optimiser = adam(self.max_grad_norm).init(weights)
        replay = buffers.init(*self.replay_shape(spec), self.prioritised)
        return LearnerState(params, mixer, weights, optimiser, self.hyper(spec), jnp.int32(0), replay)

    def fresh_memory(self) -> PyTree:
        return initial_carry(self.network)

    def update(
        self, state: LearnerState, experience: Experience, key: jax.Array, axis: str | None = None
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """Stores the experience, then makes gradient steps on windows of the replay; ε falls."""
        self = self.traced(state.hyper)
        state = self.store(state, experience)
        state, metrics = self.repeat_when_warm(lambda state, key: self.step(state, key, axis), state, key, axis)
        return self.count_update(state), metrics

    def step(
        self, state: LearnerState, key: jax.Array, axis: str | None = None
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """One gradient step on windows drawn from the replay, and metrics."""
        drawn, windows = self.sample(state, key, axis)
        gradients, (metrics, error) = self.gradients(state, windows, self.importance(state, drawn.odds))
        gradients, metrics = mean_over_devices((gradients, metrics), axis)
        state = self.apply(state, gradients)
        if self.prioritised:
            replay = buffers.reprioritise(state.replay, drawn, self.priorities(state, error))
            state = state.replace(replay=replay)
        return state, metrics

    def gradients(self, state: LearnerState, windows: Steps, weight: jax.Array) -> tuple[PyTree, Any]:
        """Gradients of the loss on windows, with weights `[B]`; metrics, and absolute errors `[S, B]`."""
        self = self.traced(state.hyper)
        weights = q.join_weights(state.params, state.mixer)
        return jax.grad(self.loss, has_aux=True)(weights, state, windows, weight)

    def apply(self, state: LearnerState, gradients: PyTree) -> LearnerState:
        """One step of Adam; the target network follows."""
        self = self.traced(state.hyper)
        state = super().apply(state, gradients)
        weights = q.join_weights(state.params, state.mixer)
        return state.replace(target=trees.polyak_update(state.target, weights, self.target_rate))

    def loss(
        self, weights: dict[str, PyTree], state: LearnerState, windows: Steps, weight: jax.Array
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array]]:
        """The mean of w (Q(s, a) - target)² over agents that are present; metrics, and absolute errors `[S, B]`."""
        rows, after = split_windows(windows, self.burn_in)
        chosen, reward, following = self.evaluate(weights, state, windows, rows, after)  # by group, [T, B, n]
        level = jnp.mean(jnp.stack([jnp.mean(value) for value in chosen.values()]))
        seen = rows.observation
        if self.mixer == "none":  # independent agents
            parts = [(chosen[g], reward[g], following[g], seen[g].active, seen[g].present) for g in chosen]
        else:  # the team as one agent
            now, ahead = q.concatenate_agents(chosen, seen), q.concatenate_agents(following, after.observation)
            now = self.mix(weights["mixer"], now, rows.state)
            ahead = self.mix(state.target["mixer"], ahead, after.state)
            parts = [(now[..., None], q.team_reward(reward, seen)[..., None], ahead[..., None], None, None)]
        errors, counts = [], []
        for value, paid, next_value, active, present in parts:
            target = self.n_step_targets(rows, paid, next_value, active, present)
            errors.append(value[: self.sequence] - lax.stop_gradient(target))
            counts.append(as_weight(present, value)[: self.sequence])
        error, count = jnp.concatenate(errors, axis=-1), jnp.concatenate(counts, axis=-1)
        loss = jnp.sum(weight[:, None] * count * error**2) / jnp.maximum(jnp.sum(count), 1.0)
        size = jnp.sum(count * jnp.abs(error), axis=-1) / jnp.maximum(jnp.sum(count, axis=-1), 1.0)
        return loss, ({"loss": loss, "q": level}, lax.stop_gradient(size))

    def evaluate(
        self, weights: dict[str, PyTree], state: LearnerState, windows: Steps, rows: Steps, after: NextObservations
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array], dict[str, jax.Array]]:
        """By group, `[T, B, n]`: Q(s, a) of the actions taken, rewards, and values of the next observations."""
        chosen, reward, following = {}, {}, {}
        for name, policy in state.params.items():
            network, seen = policy.network, rows.observation[name]
            steps = Transition(seen, rows.action[name], rows.reward[name], after.observation[name])
            online = q_values(network, weights["agents"][name], windows, name, steps, self.burn_in)
            target = q_values(network, state.target["agents"][name], windows, name, steps, self.burn_in)
            chosen[name] = q.action_value(network.action, online.now, steps.action, seen)
            reward[name], ahead = self.backup(network.action, online, target, steps)
            following[name] = keep_where(steps.next_observation.present, ahead)
        return chosen, reward, following

    def backup(
        self, space: Discrete | MultiDiscrete, online: QValues, target: QValues, steps: Transition
    ) -> tuple[jax.Array, jax.Array]:
        """The parts of one group's targets, `[T, B, n]`: rewards, and the values of the next observations.

        These are Q⁻(s', argmax_a Q(s', a)), with `double`, or max_a Q⁻(s', a).
        """
        choose = online.next if self.double else target.next
        return steps.reward, q.greedy_value(space, choose, target.next, steps.next_observation)

    # Prioritised replay, in this process or on a cluster.

    def importance(self, state: LearnerState, odds: jax.Array) -> jax.Array:
        """Weights of windows in the loss, given how probable each was relative to a uniform draw `[B]`."""
        if not self.prioritised:
            return jnp.ones(odds.shape)
        self = self.traced(state.hyper)
        done = state.updates / state.hyper["total_updates"]
        return buffers.importance(odds, interpolate(self.importance_exponent, 1.0, done))

    def errors(self, state: LearnerState, windows: Steps) -> jax.Array:
        """Absolute errors `[S, B]` of windows, without gradients: for actors, which only set priorities."""
        self = self.traced(state.hyper)
        ones = jnp.ones(windows.first.shape[1:])
        return self.loss(q.join_weights(state.params, state.mixer), state, windows, ones)[1][1]

    def priorities(self, state: LearnerState, errors: jax.Array) -> jax.Array:
        """Priorities `[B]` of windows with absolute errors `[S, B]`."""
        return buffers.priorities(errors, self.traced(state.hyper).priority_exponent)

    def single_row(self) -> "DQN":
        return dataclasses.replace(self, sequence=1, burn_in=0)

    def shared_weights(self, state: LearnerState) -> PyTree:
        return state.mixer

    def with_weights(self, state: LearnerState, params: dict[str, QPolicy], shared: PyTree) -> LearnerState:
        return state.replace(params=params, mixer=shared, target=q.join_weights(params, shared))

    def with_exploration(self, params: QPolicy, share: Any) -> QPolicy:
        return params.replace(epsilon=share)


def q_values(network: QNetwork, weights: PyTree, windows: Steps, name: str, steps: Transition, burn_in: int) -> QValues:
    """Action values of a group's rows after the burn-in, except the last; and of the observation after each of them.

    A recurrent network values the next row anyway; only the final observations of truncated episodes are valued
    separately, with the memory that led to them.
    """
    seen, following = windows.observation[name], steps.next_observation.view
    memory = jax.tree.map(lambda leaf: leaf[0], windows.memory[name])
    fixed = lax.stop_gradient(weights)
    if not jax.tree.leaves(memory):
        now = apply_each(network, weights, steps.observation.view, ())
        return QValues(now, apply_each(network, fixed, following, ()))
    values, memories = unroll(network, weights, seen, windows.first, memory, burn_in)

    def value_rows(weights: PyTree, rows: tuple[PyTree, PyTree]) -> jax.Array:
        return apply_each(network, weights, *jax.tree.map(lambda leaf: leaf[None], rows))[0]

    def flatten(tree: PyTree) -> PyTree:  # windows and their rows as one axis
        return jax.tree.map(lambda leaf: lax.stop_gradient(leaf.reshape(-1, *leaf.shape[2:])), tree)

    cut = (windows.truncated & ~windows.terminated)[burn_in:-1].reshape(-1)
    carried = jax.tree.map(lambda leaf: leaf[:-1], memories)
    after = masked_map(value_rows, cut, fixed, flatten((following, carried)), flatten(values[1:]))
    return QValues(values[:-1], after.reshape(values[1:].shape))
