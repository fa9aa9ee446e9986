"""Munchausen-DQN (Vieillard et al. 2020): the log-probability of what was done is paid besides the reward.

target = r + α max(τ log π(a|s), low) + γ Σ π(a'|s') (Q⁻(s', a') - τ log π(a'|s')),    π = softmax(Q⁻ / τ)

shoal train control/cartpole --import examples/munchausen_dqn.py --algo munchausen_dqn
"""

import dataclasses

import jax
import jax.numpy as jnp

import shoal
from shoal.algorithms import DQN


@shoal.register_algorithm("munchausen_dqn")
@dataclasses.dataclass(frozen=True)
class MunchausenDQN(DQN):
    """DQN with Munchausen's bonus and a soft target, for discrete actions."""

    temperature: float = 0.03  # τ
    bonus: float = 0.9  # α
    lowest: float = -1.0  # bound of the bonus

    def init(self, key, spec):
        if not all(isinstance(group.action, shoal.Discrete) for group in spec.groups.values()):
            raise shoal.ShoalError("munchausen_dqn: actions must be Discrete")
        return super().init(key, spec)

    def backup(self, space, online, target, steps):
        reward, following = super().backup(space, online, target, steps)  # the same for waiting agents
        now = self._log_policy(target.now, steps.observation)
        after = self._log_policy(target.next, steps.next_observation)
        taken = jnp.take_along_axis(now, steps.action[..., None], axis=-1)[..., 0]
        bonus = self.bonus * jnp.clip(self.temperature * taken, self.lowest, 0.0)
        soft = jnp.sum(jnp.exp(after) * (target.next - self.temperature * after), axis=-1)
        reward = reward + if_active(steps.observation, bonus, 0.0)
        return reward, if_active(steps.next_observation, soft, following)

    def _log_policy(self, values, observation):
        legal = True if observation.legal is None else observation.legal
        return jax.nn.log_softmax(jnp.where(legal, values / self.temperature, -1e9))


def if_active(observation, acts, waits):
    return acts if observation.active is None else jnp.where(observation.active, acts, waits)
