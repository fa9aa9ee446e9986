"""PPO with the KL penalty of its paper (Schulman et al. 2017, section 4), for discrete actions.

shoal train cards/kuhn --import examples/kl_ppo.py --algo kl_ppo --algo.kl-coef 0.5
"""

import dataclasses

import jax
import jax.numpy as jnp

import shoal


@shoal.register_algorithm("kl_ppo")
@dataclasses.dataclass(frozen=True)
class KLPPO(shoal.PPO):
    """PPO that pays for KL(π_old ‖ π) in place of clipping."""

    kl_coef: float = 1.0  # what a unit of divergence costs

    def init(self, key, spec):
        if not all(isinstance(group.action, shoal.Discrete) for group in spec.groups.values()):
            raise shoal.ShoalError("kl_ppo: actions must be Discrete")
        return super().init(key, spec)

    def act(self, params, observation, memory, key, explore):
        out = super().act(params, observation, memory, key, explore)
        policy, _, _ = params.forward(observation, memory)
        return out.replace(extras=out.extras | {"logits": policy.logits})  # recorded for `loss`

    def loss(self, new, batch):
        ratio = jnp.exp(new.log_prob - batch.log_prob)
        old, now = jax.nn.log_softmax(batch.extras["logits"]), jax.nn.log_softmax(new.distribution.logits)
        kl = batch.mean_active(jnp.sum(jnp.exp(old) * (old - now), -1))
        policy = batch.mean_active(-ratio * batch.advantage - self.entropy_coef * new.entropy)
        value = batch.mean_present(jnp.square(new.value - batch.target))
        loss = policy + self.kl_coef * kl + 0.5 * self.value_coef * value
        return loss, {"loss": loss, "policy_loss": policy, "value_loss": value, "kl": kl}
