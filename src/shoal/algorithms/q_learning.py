"""The base of learners of action values (DQN, PQN): ε-greedy policies, values of observations, mixers, and Adam.

An inactive agent has no choice to value: the value of its observation is the mean over the legal choices, which is
trained like that of a chosen one. So values propagate through the observations of waiting agents in turn-based games.
Shape letters: `T` time, `E` environments (in a replay: windows), `n` agents of a group, `A` choices of an action.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from shoal.batching.agents import as_weight, keep_where, over_axes
from shoal.core.algorithm import ActOutput, Algorithm, Evolves, LearnerSpec
from shoal.core.checks import check_floats, check_types, check_whole
from shoal.core.errors import OptionError, require
from shoal.core.spaces import Box, Discrete, MultiDiscrete
from shoal.core.types import Observation, PyTree
from shoal.networks.mixers import MixerKind, init_mixer, mix
from shoal.networks.q_network import QNetwork, best_action, init_q_network, mean_value, value_of
from shoal.networks.torsos import Network
from shoal.ops.distributions import random_action
from shoal.ops.gradients import anneal, apply_gradients


class QPolicy(struct.PyTreeNode):
    """One group's policy: the weights of its action values, its share of random actions, and its network."""

    weights: PyTree
    epsilon: jax.Array
    network: QNetwork = struct.field(pytree_node=False)

    def forward(self, observation: Observation, memory: PyTree) -> tuple[jax.Array, PyTree]:
        """One agent's action values `[A]`, and its memory after."""
        return self.network.apply(self.weights, observation.view, memory)


def interpolate(start: jax.Array | float, end: jax.Array | float, done: jax.Array) -> jax.Array:
    """From `start` to `end` as `done` goes from 0 to 1, then `end`."""
    return start + (end - start) * jnp.clip(done, 0.0, 1.0)


@dataclasses.dataclass(frozen=True)
class QLearning(Algorithm, Evolves):
    """Options and methods common to learners of action values (abstract).

    A learner's state has `params`, the policies by group; `mixer`, the mixer's weights; `optimiser`; `updates`.
    """

    learning_rate: float = 5e-4  # Adam's step size
    gamma: float = 0.99  # discount per environment step
    max_grad_norm: float = 10.0  # gradients are scaled down to this norm
    epsilon_start: float = 1.0  # share of random actions at the beginning
    epsilon_end: float = 0.05  # share of random actions after it has fallen
    epsilon_fraction: float = 0.3  # share of the run over which it falls
    anneal: bool = False  # learning rate falls linearly to 0
    dueling: bool = False  # separate heads for value and advantages
    mixer: MixerKind = "none"  # mixer of the team's values: none (independent), sum (VDN), monotonic (QMIX)
    mixer_hidden: int = 64  # width of the hypernetwork of a monotonic mixer
    network: Network = dataclasses.field(default_factory=Network)  # torso of the action values

    def __post_init__(self):
        check_types(self)
        unit, positive = (0.0, 1.0), (0.0, None)
        check_floats(self, gamma=unit, epsilon_start=unit, epsilon_end=unit, epsilon_fraction=unit)
        check_floats(self, learning_rate=positive, max_grad_norm=positive)
        check_whole(self, mixer_hidden=1)
        start, end = self.epsilon_start, self.epsilon_end
        if isinstance(start, int | float) and isinstance(end, int | float):  # under vmap they are tracers
            allowed = f"at most epsilon_start, {start}: exploration falls from there to here"
            require(end <= start, type(self).__name__, "epsilon_end", end, allowed)

    def init_weights(self, key: jax.Array, spec: LearnerSpec) -> tuple[dict[str, QPolicy], PyTree]:
        """Fresh policies for the groups of `spec`, and a mixer; refuses action spaces that cannot be enumerated."""
        for_agents, for_mixer = jax.random.split(key)
        epsilon = jnp.asarray(self.epsilon_start, jnp.float32)
        policies = {}
        for k, (name, group) in zip(jax.random.split(for_agents, len(spec.groups)), spec.groups.items(), strict=True):
            if isinstance(group.action, Box):
                raise OptionError(
                    f"{type(self).__name__}: cannot value every action of {group.action}, the action space of {name!r}."
                    " It handles Discrete and MultiDiscrete actions; for a Box use PPO, A2C, Impala, DDPG or SAC."
                )
            module = QNetwork(self.network, group.action, self.dueling)
            policies[name] = QPolicy(init_q_network(module, k, group.observation), epsilon, module)
        agents = sum(group.size for group in spec.groups.values())
        return policies, init_mixer(self.mixer, for_mixer, agents, spec.state, self.mixer_hidden)

    def initial_memory(self, params: QPolicy) -> PyTree:
        return params.network.initial_memory()

    def act(
        self, params: QPolicy, observation: Observation, memory: PyTree, key: jax.Array, explore: bool
    ) -> ActOutput:
        """One agent's best action; if `explore`, any legal one with probability ε."""
        action, memory, _ = choose_action(params, observation, memory, key, explore)
        return ActOutput(action, memory)

    def value(self, params: QPolicy, observation: Observation, memory: PyTree) -> jax.Array:
        """One agent's expected return from here on: the value of its best action."""
        values, _ = params.forward(observation, memory)
        return greedy_value(params.network.action, values, values, observation)

    def acting_weights(self, params: QPolicy) -> PyTree:
        return params.weights

    def with_acting_weights(self, params: QPolicy, weights: PyTree) -> QPolicy:
        return params.replace(weights=weights)

    def mix(self, weights: PyTree, values: jax.Array, state: PyTree) -> jax.Array:
        """Values of teams, `[T, E]`, from those of their agents, `[T, E, agents]`. weights: the mixer's."""
        state = state if self.mixer == "monotonic" else None
        return over_axes(lambda values, state: mix(self.mixer, weights, values, state), 2)(values, state)

    def apply(self, state: Any, gradients: PyTree) -> Any:
        """The state after one step of Adam."""
        self = self.traced(state.hyper)
        rate = self.learning_rate
        rate = anneal(rate, state.updates, state.hyper["total_updates"]) if self.anneal else rate
        old = join_weights(state.params, state.mixer)
        new, optimiser = apply_gradients(old, gradients, state.optimiser, self.max_grad_norm, rate)
        params = {name: policy.replace(weights=new["agents"][name]) for name, policy in state.params.items()}
        return state.replace(params=params, mixer=new["mixer"], optimiser=optimiser)

    def count_update(self, state: Any) -> Any:
        """The state after one more update: ε follows its schedule."""
        self = self.traced(state.hyper)
        updates = state.updates + 1
        done = updates / state.hyper["total_updates"] / jnp.maximum(self.epsilon_fraction, 1e-6)
        epsilon = interpolate(self.epsilon_start, self.epsilon_end, done)
        params = {name: policy.replace(epsilon=epsilon) for name, policy in state.params.items()}
        return state.replace(params=params, updates=updates)


def join_weights(params: dict[str, QPolicy], mixer: PyTree) -> dict[str, PyTree]:
    """All trained weights: those of the agents' values, by group, and of the mixer."""
    return {"agents": {name: policy.weights for name, policy in params.items()}, "mixer": mixer}


def choose_action(
    policy: QPolicy, observation: Observation, memory: PyTree, key: jax.Array, explore: bool
) -> tuple[jax.Array, PyTree, jax.Array]:
    """One agent's ε-greedy action (greedy unless `explore`), its memory after it, and its action values."""
    values, memory = policy.forward(observation, memory)
    space = policy.network.action
    action = best_action(space, values, observation.legal)
    if explore:
        whether, which = jax.random.split(key)
        other = random_action(space, observation.legal, which)
        action = jnp.where(jax.random.uniform(whether) < policy.epsilon, other, action)
    return action, memory, values


def greedy_value(
    space: Discrete | MultiDiscrete, choose: jax.Array, values: jax.Array, observation: Observation
) -> jax.Array:
    """Values `[...]` of observations by `values` `[..., A]`, of the actions that are best by `choose`.

    The mean over legal actions where the agent may not act.
    """

    def one(choose: jax.Array, values: jax.Array, legal: jax.Array | None, active: jax.Array | None) -> jax.Array:
        best = value_of(space, values, best_action(space, choose, legal))
        return best if active is None else jnp.where(active, best, mean_value(space, values, legal))

    return over_axes(one, values.ndim - 1)(choose, values, observation.legal, observation.active)


def action_value(
    space: Discrete | MultiDiscrete, values: jax.Array, action: jax.Array, observation: Observation
) -> jax.Array:
    """Values `[...]` of actions by `values` `[..., A]`; the mean over legal ones where the agent may not act."""

    def one(values: jax.Array, action: jax.Array, legal: jax.Array | None, active: jax.Array | None) -> jax.Array:
        chosen = value_of(space, values, action)
        return chosen if active is None else jnp.where(active, chosen, mean_value(space, values, legal))

    return over_axes(one, values.ndim - 1)(values, action, observation.legal, observation.active)


def concatenate_agents(values: dict[str, jax.Array], observation: dict[str, Observation]) -> jax.Array:
    """The values of all agents of a team side by side, `[..., agents]`; 0 for agents that are not present."""
    masked = [keep_where(observation[name].present, value) for name, value in values.items()]
    return jnp.concatenate(masked, axis=-1)


def team_reward(reward: dict[str, jax.Array], observation: dict[str, Observation]) -> jax.Array:
    """The mean over the agents that are present, `[...]` from `[..., n]` by group."""
    total, count = jnp.float32(0.0), jnp.float32(0.0)
    for name, gained in reward.items():
        weight = as_weight(observation[name].present, gained)
        total, count = total + jnp.sum(gained * weight, axis=-1), count + jnp.sum(weight, axis=-1)
    return total / jnp.maximum(count, 1.0)
