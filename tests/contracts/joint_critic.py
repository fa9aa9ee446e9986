"""A tiny actor-critic whose one critic sees every group at once: proof that the contract can hold MADDPG, QMIX and kin.

The actors differ in views and actions; the critic gets all views of a copy, so it cannot be computed by
one agent alone: `value` is not used, and `update` values whole copies from the experience.
"""

import dataclasses
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct

from shoal.batching.agents import over_agents
from shoal.core.algorithm import ActOutput, Algorithm
from shoal.ops.distributions import distribution, num_parameters
from shoal.ops.returns import advantages


class Head(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.width, kernel_init=nn.initializers.normal(0.01))(nn.tanh(nn.Dense(32)(x)))


@struct.dataclass
class Policy:
    weights: Any
    head: Any = struct.field(pytree_node=False)
    action: Any = struct.field(pytree_node=False)


@struct.dataclass
class State:
    params: dict[str, Policy]
    critic: Any
    optimiser: Any
    hyper: dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class JointCritic(Algorithm):
    name: ClassVar[str] = "joint_critic"
    learning_rate: float = 3e-3

    def init(self, key, spec):
        params, width = {}, 0
        for i, (name, group) in enumerate(spec.groups.items()):
            half = group.action.shape[0] if hasattr(group.action, "shape") else None
            head = Head(half or num_parameters(group.action))
            weights = head.init(jax.random.fold_in(key, i), jnp.zeros(group.observation.shape))
            params[name] = Policy(weights, head, group.action)
            width += group.size * group.observation.shape[0]
        critic = Head(1).init(jax.random.fold_in(key, 99), jnp.zeros(width))
        weights = {"critic": critic} | {name: policy.weights for name, policy in params.items()}
        return State(params, critic, optax.adam(1.0).init(weights), self.hyper(spec))

    def initial_memory(self, params):
        return ()

    def act(self, params, observation, memory, key, explore):
        dist = self._distribution(params, params.weights, observation.view)
        action = dist.sample(key) if explore else dist.mode()
        return ActOutput(action, memory, {})

    def value(self, params, observation, memory):
        return jnp.zeros(())

    def update(self, state, experience, key, axis=None):
        self = self.traced(state.hyper)
        gradients, metrics = self.gradients(state, experience)
        return self.apply(state, gradients), metrics

    def gradients(self, state, experience):
        weights = {"critic": state.critic} | {name: policy.weights for name, policy in state.params.items()}
        return jax.grad(self._loss, has_aux=True)(weights, state.params, experience)

    def apply(self, state, gradients):
        weights = {"critic": state.critic} | {name: policy.weights for name, policy in state.params.items()}
        step, optimiser = optax.adam(1.0).update(gradients, state.optimiser)
        weights = jax.tree.map(lambda w, s: w + self.learning_rate * s, weights, step)
        params = {name: policy.replace(weights=weights[name]) for name, policy in state.params.items()}
        return state.replace(params=params, critic=weights["critic"], optimiser=optimiser)

    def _loss(self, weights, policies, experience):
        tracks = experience.trajectories
        views = [tracks[name].observation.view for name in sorted(tracks)]
        last = [tracks[name].last_observation.view for name in sorted(tracks)]
        value = self._joint_value(weights["critic"], views)
        last_value = self._joint_value(weights["critic"], last)
        reward = sum(track.reward.mean(-1) for track in tracks.values()) / len(tracks)
        # The world here only truncates, and with this horizon ignoring what comes after is good enough for a fixture.
        advantage, target = advantages(
            reward,
            value,
            jnp.zeros_like(value),
            last_value,
            experience.terminated,
            experience.truncated,
            None,
            None,
            0.9,
            0.9,
        )
        advantage, target = jax.lax.stop_gradient((advantage, target))
        loss = jnp.mean(jnp.square(value - target))
        for name, track in tracks.items():
            policy = policies[name]

            def log_prob(weights, observation, action, policy=policy):
                return self._distribution(policy, weights, observation.view).log_prob(action)

            log_probs = jax.vmap(over_agents(log_prob), (None, 0, 0))(weights[name], track.observation, track.action)
            normal = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
            loss = loss - jnp.mean(log_probs * normal[..., None])
        return loss, {"value_loss": jnp.mean(jnp.square(value - target))}

    def _distribution(self, policy, weights, view):
        out = policy.head.apply(weights, view)
        if hasattr(policy.action, "shape"):
            out = jnp.concatenate([out, jnp.full_like(out, -1.0)])
        return distribution(policy.action, out)

    def _joint_value(self, weights, views):
        flat = jnp.concatenate([view.reshape(*view.shape[:-2], -1) for view in views], -1)
        return Head(1).apply(weights, flat)[..., 0]
