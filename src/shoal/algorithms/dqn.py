"""Deep Q-learning with a replay on the device. A mixer makes it VDN or QMIX; a recurrent network makes it R2D2.

    target = r + γ r' + ... + γ^n Q⁻(s⁽ⁿ⁾, argmax_a Q(s⁽ⁿ⁾, a)),    loss = w (Q(s, a) - target)²

Papers: Mnih et al. 2015 (DQN), van Hasselt et al. 2016 (double), Wang et al. 2016 (dueling), Schaul et al. 2016
(prioritised replay), Sunehag et al. 2018 (VDN), Rashid et al. 2018 (QMIX), Kapturowski et al. 2019 (R2D2: stored state
and burn-in). Departures: the target network follows slowly instead of being copied now and then; the loss is squared
and gradients are scaled down to a norm instead of Huber's; n counts own decisions; episodes that were cut
short bootstrap from their real final view; a team is paid the mean of its agents' rewards; R2D2's values are not
rescaled.

With `mixer="none"` each agent learns for itself (IQL), with shared weights inside a group. Shape letters: `W` rows of a
window, `B` windows of a batch, `n` agents of a group.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from shoal.algorithms import q_learning as q
from shoal.algorithms import replay as stored
from shoal.algorithms._learner import (
    adam,
    annealed,
    check_burn_in,
    check_exploration,
    descend,
    linear,
    towards,
)
from shoal.algorithms.replay import Steps
from shoal.core.algorithm import ActOutput, Algorithm, Experience, LearnerSpec, Prioritises, ReplayTraits, Traits
from shoal.core.checks import check_floats, check_whole
from shoal.core.options import check_types
from shoal.core.types import Observation, PyTree
from shoal.networks.mixers import MixerKind, init_mixer
from shoal.networks.torsos import Network
from shoal.ops import replay as buffers
from shoal.ops.returns import n_step_returns


class LearnerState(struct.PyTreeNode):
    """Everything a learner carries. `mixer`: its weights. `target`: slow copies of all weights, by what they are."""

    params: dict[str, q.QPolicy]
    mixer: PyTree
    target: dict[str, PyTree]
    optimiser: PyTree
    hyper: dict[str, jax.Array]
    updates: jax.Array
    replay: buffers.Replay


@dataclasses.dataclass(frozen=True)
class DQN(Algorithm, Prioritises):
    """Action values from a replay."""

    name: ClassVar[str] = "dqn"
    # Options without an effect unless the switch that they name is on.
    only_with: ClassVar[Mapping[str, str]] = {
        "priority_exponent": "prioritised",
        "importance_exponent": "prioritised",
    }

    learning_rate: float = 5e-4  # Adam's step size
    gamma: float = 0.99  # discount per environment step
    max_grad_norm: float = 10.0  # gradients are scaled down to this norm
    target_rate: float = 0.01  # share of the way that the target network follows in each gradient step
    epsilon_start: float = 1.0  # share of random actions at the beginning
    epsilon_end: float = 0.05  # and later
    epsilon_fraction: float = 0.3  # share of the run over which it falls
    priority_exponent: float = 0.6  # how much errors matter to prioritised sampling
    importance_exponent: float = 0.4  # how much of its bias is undone at the beginning; all of it at the end
    anneal: bool = False  # learning rate falls linearly to 0
    buffer_size: int = 100_000  # environment steps that the replay holds
    warm_up: int = 2_000  # environment steps before learning begins
    batch_size: int = 256  # windows of a gradient step
    gradient_steps: int = 4  # in each update
    n_step: int = 1  # own decisions until values are bootstrapped from
    sequence: int = 1  # steps of a window that are learnt from; more for recurrent networks
    burn_in: int = 0  # steps before them that only bring the memory up to date
    double: bool = True  # the target network values what the online network chooses
    dueling: bool = False  # value and advantages have heads of their own
    prioritised: bool = False  # windows with large errors are drawn more often
    mixer: MixerKind = "none"  # of the team's values: none (independent), sum (VDN), monotonic (QMIX)
    mixer_hidden: int = 64  # width of the network that makes the weights of a monotonic mixer
    network: Network = dataclasses.field(default_factory=Network)  # of the action values

    def __post_init__(self):
        check_types(self)
        unit, positive = (0.0, 1.0), (0.0, None)
        check_floats(self, gamma=unit, target_rate=unit, epsilon_start=unit, epsilon_end=unit, epsilon_fraction=unit)
        check_floats(self, learning_rate=positive, max_grad_norm=positive, priority_exponent=positive)
        check_floats(self, importance_exponent=unit)
        check_whole(self, buffer_size=1, warm_up=0, batch_size=1, gradient_steps=1, n_step=1, sequence=1, burn_in=0)
        check_whole(self, mixer_hidden=1)
        check_exploration(self)
        check_burn_in(self)

    @property
    def traits(self) -> Traits:
        replay = ReplayTraits(self.window, self.batch_size, self.gradient_steps, self.prioritised)
        return Traits(
            needs_global_state=self.mixer == "monotonic",
            records_final_observations=True,
            warm_up=self.warm_up,
            replay=replay,
        )

    @property
    def window(self) -> int:
        """Rows of a sample; the last is there for its view only."""
        return self.burn_in + self.sequence + self.n_step

    def init(self, key: jax.Array, spec: LearnerSpec) -> LearnerState:
        """Fresh policies for the groups of `spec`, and an empty replay."""
        for_agents, for_mixer = jax.random.split(key)
        hyper = self.hyper(spec)
        owner = type(self).__name__
        params = q.new_policies(owner, for_agents, spec, self.network, self.dueling, hyper["epsilon_start"])
        agents = sum(group.size for group in spec.groups.values())
        mixer = init_mixer(self.mixer, for_mixer, agents, spec.state, self.mixer_hidden)
        weights = q.weights_of(params, mixer)
        replay = buffers.init(*self.replay_shape(spec), self.prioritised)
        return LearnerState(params, mixer, weights, adam(hyper).init(weights), hyper, jnp.int32(0), replay)

    def replay_shape(self, spec: LearnerSpec) -> tuple[Steps, int, int]:
        """One step as it is stored, rows, and copies: what decides how large the replay is."""
        memories = {name: q.memory_spec(self.network) for name in spec.groups}
        example = stored.example_step(spec, memories, self.traits.needs_global_state)
        return example, stored.num_rows(type(self).__name__, self.buffer_size, self.window, spec), spec.num_envs

    def initial_memory(self, params: q.QPolicy) -> PyTree:
        return params.network.initial_memory()

    def act(
        self, params: q.QPolicy, observation: Observation, memory: PyTree, key: jax.Array, explore: bool
    ) -> ActOutput:
        """One agent's best action; if it is to `explore`, sometimes any legal one."""
        return q.act(params, observation, memory, key, explore)

    def value(self, params: q.QPolicy, observation: Observation, memory: PyTree) -> jax.Array:
        """What one agent can expect from here on."""
        values, _ = q.apply(params.network, params.weights, observation.view, memory)
        return q.best_value(params.network.action, values, values, observation)

    def update(
        self, state: LearnerState, experience: Experience, key: jax.Array, axis: str | None = None
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """Stores the experience, then makes gradient steps on windows of the replay."""
        sizes = {"window": self.window, "warm_up": self.warm_up, "gradient_steps": self.gradient_steps}
        state, metrics = stored.learn(state, experience, key, axis, self.learn_once, **sizes)
        return q.explored(state), metrics

    def learn_once(
        self, state: LearnerState, key: jax.Array, axis: str | None = None
    ) -> tuple[LearnerState, dict[str, jax.Array]]:
        """One gradient step on windows drawn from the replay."""
        drawn = buffers.sample(state.replay, key, stored.share(self.batch_size, axis), self.window)
        batch = buffers.take(state.replay, drawn, self.window)
        gradients, (metrics, error) = self.gradients(state, batch, self.importance(state, drawn.odds))
        if axis:
            gradients, metrics = lax.pmean((gradients, metrics), axis)
        state = self.apply(state, gradients)
        if self.prioritised:
            priority = stored.priorities(error, state.hyper["priority_exponent"])
            state = state.replace(replay=buffers.reprioritise(state.replay, drawn, priority))
        return state, metrics

    def importance(self, state: LearnerState, odds: jax.Array) -> jax.Array:
        """What windows weigh in the loss, given how probable each was relative to a uniform draw `[B]`."""
        if not self.prioritised:
            return jnp.ones(odds.shape)
        undo = linear(state.hyper["importance_exponent"], jnp.float32(1.0), _done(state))
        return buffers.importance(buffers.Drawn(odds, odds, odds), undo)

    def errors(self, state: LearnerState, batch: Steps) -> jax.Array:
        """Absolute errors `[sequence, B]` of windows, without gradients: for those who only set priorities."""
        ones = jnp.ones(batch.first.shape[1:])
        return self._loss(state, q.weights_of(state.params, state.mixer), batch, ones)[1][1]

    def count_update(self, state: LearnerState) -> LearnerState:
        """The state one update older, its policies exploring as much as is due then."""
        return q.explored(state.replace(updates=state.updates + 1))

    def gradients(self, state: LearnerState, batch: Steps, weight: jax.Array) -> tuple[PyTree, Any]:
        """Gradients of the loss on windows, with weights `[B]`; metrics, and absolute errors `[sequence, B]`."""
        return jax.grad(lambda weights: self._loss(state, weights, batch, weight), has_aux=True)(
            q.weights_of(state.params, state.mixer)
        )

    def apply(self, state: LearnerState, gradients: PyTree) -> LearnerState:
        """One optimiser step; the target network follows."""
        rate = state.hyper["learning_rate"]
        rate = annealed(rate, state.updates, state.hyper) if self.anneal else rate
        old = q.weights_of(state.params, state.mixer)
        weights, optimiser = descend(old, gradients, state.optimiser, state.hyper, rate)
        params = {name: policy.replace(weights=weights["agents"][name]) for name, policy in state.params.items()}
        target = towards(state.target, weights, state.hyper["target_rate"])
        return state.replace(params=params, mixer=weights["mixer"], target=target, optimiser=optimiser)

    def _loss(self, state: LearnerState, weights: dict[str, PyTree], batch: Steps, weight: jax.Array) -> Any:
        chosen, following = self._values(state, weights, batch)
        learnt = stored.rows(batch, self.burn_in, self.window - 1)
        after = stored.rows(stored.after(batch), self.burn_in, self.window - 1)
        if self.mixer == "none":
            parts = [self._own_error(state, name, chosen[name], following[name], learnt) for name in chosen]
        else:
            parts = [self._team_error(state, weights, chosen, following, learnt, after)]
        errors = jnp.concatenate([error[: self.sequence] for error, _ in parts], axis=-1)
        counts = jnp.concatenate([count[: self.sequence] for _, count in parts], axis=-1)
        loss = jnp.sum(weight[:, None] * counts * errors**2) / jnp.maximum(jnp.sum(counts), 1.0)
        size = jnp.sum(counts * jnp.abs(errors), axis=-1) / jnp.maximum(jnp.sum(counts, axis=-1), 1.0)
        level = jnp.mean(jnp.stack([jnp.mean(value) for value in chosen.values()]))
        return loss, ({"loss": loss, "q": level}, lax.stop_gradient(size))

    def _values(self, state: LearnerState, weights: dict[str, PyTree], batch: Steps) -> tuple[dict, dict]:
        """By group, what the actions taken are worth and what follows them is, each `[W - 1 - burn_in, B, n]`."""
        chosen, following = {}, {}
        after = stored.after(batch).observation
        for name, policy in state.params.items():
            space = policy.network.action
            sequence = q.Sequence(
                seen=batch.observation[name],
                after=stored.rows(after[name], self.burn_in, self.window - 1),
                memory=jax.tree.map(lambda leaf: leaf[0], batch.memory[name]),
                first=batch.first,
                cut=(batch.truncated & ~batch.terminated)[self.burn_in : -1],
            )
            online, choose = q.along(policy.network, weights["agents"][name], sequence, self.burn_in, self.double)
            slow = state.target["agents"][name]
            _, values = q.along(policy.network, slow, sequence, self.burn_in, True)
            seen = stored.rows(sequence.seen, self.burn_in, self.window - 1)
            acted = batch.action[name][self.burn_in : -1]
            chosen[name] = q.over(lambda v, a, o, s=space: q.chosen_value(s, v, a, o), 3)(online, acted, seen)
            choose, ahead = values if choose is None else choose, sequence.after
            best = q.over(lambda c, v, o, s=space: q.best_value(s, c, v, o), 3)(choose, values, ahead)
            following[name] = lax.stop_gradient(q.present_only(best, ahead))
        return chosen, following

    def _own_error(self, state, name: str, chosen: jax.Array, following: jax.Array, learnt: Steps):
        """Errors `[S, B, n]` of agents that learn for themselves, and which of them count."""
        seen = learnt.observation[name]
        flags = learnt.terminated[..., None], learnt.truncated[..., None], seen.active, seen.present
        target = self._target(learnt.reward[name], following, flags, state.hyper["gamma"])
        counts = jnp.ones_like(chosen) if seen.present is None else seen.present.astype(chosen.dtype)
        return chosen - lax.stop_gradient(target), counts

    def _team_error(self, state, weights, chosen, following, learnt: Steps, after: stored.After):
        """Errors `[S, B, 1]` of the team as a whole."""
        value = q.mixed(self.mixer, weights["mixer"], q.joined(chosen, learnt.observation), learnt.state)
        ahead = q.mixed(self.mixer, state.target["mixer"], q.joined(following, after.observation), after.state)
        reward = stored.team_reward(learnt.reward, learnt.observation)
        target = self._target(reward, ahead, (learnt.terminated, learnt.truncated, None, None), state.hyper["gamma"])
        error = value - lax.stop_gradient(target)
        return error[..., None], jnp.ones_like(error)[..., None]

    def _target(self, reward: jax.Array, following: jax.Array, flags, gamma: jax.Array) -> jax.Array:
        return n_step_returns(
            reward, stored.shifted(following), following, following[-1], *flags, gamma=gamma, n=self.n_step
        )


def _done(state: LearnerState) -> jax.Array:
    """Which share of the run is over."""
    return state.updates / state.hyper["total_updates"]
