"""What all learners have: float hyper-parameters in their state, limits on these, and gradient steps with Adam."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from shoal.core.errors import require
from shoal.core.types import PyTree

ADAM_EPS = 1e-5


def check_exploration(algorithm: Any) -> None:
    """The share of random actions must not rise."""
    start, end = algorithm.epsilon_start, algorithm.epsilon_end
    if isinstance(start, int | float) and isinstance(end, int | float):  # under vmap they are tracers
        allowed = f"at most epsilon_start, {start}: exploration falls from there to here"
        require(end <= start, type(algorithm).__name__, "epsilon_end", end, allowed)


def check_burn_in(algorithm: Any) -> None:
    """Without a memory there is none to bring up to date."""
    if algorithm.burn_in and algorithm.network.recurrent == "none":
        allowed = "0 if the network has no memory (network.recurrent is 'none')"
        require(False, type(algorithm).__name__, "burn_in", algorithm.burn_in, allowed)


def adam(hyper: dict[str, jax.Array]) -> optax.GradientTransformation:
    """Adam's direction for gradients scaled down to `max_grad_norm`; the caller scales it by the learning rate."""
    return optax.chain(optax.clip_by_global_norm(hyper["max_grad_norm"]), optax.scale_by_adam(eps=ADAM_EPS))


def descend(
    weights: PyTree, gradients: PyTree, optimiser: PyTree, hyper: dict[str, jax.Array], rate: jax.Array
) -> tuple[PyTree, PyTree]:
    """Weights and optimiser state after one step of size `rate`."""
    direction, optimiser = adam(hyper).update(gradients, optimiser, weights)
    return jax.tree.map(lambda old, step: old - rate * step, weights, direction), optimiser


def annealed(rate: jax.Array, updates: jax.Array, hyper: dict[str, jax.Array]) -> jax.Array:
    """A learning rate that falls linearly to 0 over the run."""
    return rate * jnp.maximum(0.0, 1.0 - updates / hyper["total_updates"])


def towards(target: PyTree, weights: PyTree, share: jax.Array | float) -> PyTree:
    """Slow copies of weights, moved a `share` of the way to them (Polyak averaging)."""
    return jax.tree.map(lambda slow, fast: slow + share * (fast - slow), target, weights)


def linear(start: jax.Array, end: jax.Array, done: jax.Array) -> jax.Array:
    """From `start` to `end` as `done` goes from 0 to 1, then `end`."""
    return start + (end - start) * jnp.clip(done, 0.0, 1.0)
