"""Losses of one decision, as pure functions: the caller maps them over batches and takes means."""

import jax
import jax.numpy as jnp


def policy_gradient(log_prob: jax.Array, advantage: jax.Array) -> jax.Array:
    """The plain policy gradient's loss: -A log π(a)."""
    return -log_prob * advantage


def clipped_surrogate(ratio: jax.Array, advantage: jax.Array, clip_eps: jax.Array | float) -> jax.Array:
    """PPO's loss: minus the smaller of the plain and the clipped surrogate, ratio = π(a) / π_old(a)."""
    clipped = jnp.clip(ratio, 1.0 - clip_eps, 1.0 + clip_eps)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def approx_kl(log_ratio: jax.Array) -> jax.Array:
    """Estimate of the divergence from the old policy by one of its actions: ratio - 1 - log ratio, never negative."""
    return jnp.exp(log_ratio) - 1.0 - log_ratio
