"""Gradient steps: gradients in chunks, Adam, an annealed rate, and minibatches."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jax import lax

from shoal.core import trees
from shoal.core.types import PyTree

ADAM_EPS = 1e-5
CPU_CHUNK_SAMPLES = 8192


def chunked_gradient(
    loss: Callable[[PyTree, PyTree], tuple[jax.Array, PyTree]],
    weights: PyTree,
    batch: PyTree,
    take: Callable[[PyTree, jax.Array], PyTree],
    num_envs: int,
    samples_per_env: int,
    chunk_samples: int = 0,
) -> tuple[PyTree, PyTree]:
    """Gradient and auxiliary sums of `loss(weights, batch)`, a sum over environments, chunk by chunk.

    take: `take(batch, index)` gives the environments `index` of a batch. chunk_samples: samples per gradient
    computation; 0: chosen for the device. On a CPU the activations of a chunk stay in the cache, which makes
    the gradient 1.8 times as fast as that of a large batch at once; elsewhere it saves memory.
    """
    samples = chunk_samples or (CPU_CHUNK_SAMPLES if jax.default_backend() == "cpu" else 0)
    gradient = jax.grad(loss, has_aux=True)
    fits = [n for n in range(1, num_envs + 1) if num_envs % n == 0 and n * samples_per_env <= samples]
    size = max(fits, default=1) if samples else num_envs
    if size == num_envs:
        return gradient(weights, batch)

    def add(total, chunk):
        return jax.tree.map(jnp.add, total, gradient(weights, take(batch, chunk))), None

    shapes = jax.eval_shape(gradient, weights, batch)
    zeros = trees.zeros(shapes)
    return lax.scan(add, zeros, jnp.arange(num_envs).reshape(-1, size))[0]


def adam(max_grad_norm: jax.Array | float) -> optax.GradientTransformation:
    """Adam's direction for gradients scaled down to `max_grad_norm`; the caller scales it by the learning rate."""
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.scale_by_adam(eps=ADAM_EPS))  # pyright: ignore[reportArgumentType]


def apply_gradients(
    weights: PyTree, gradients: PyTree, optimiser: PyTree, max_grad_norm: jax.Array | float, rate: jax.Array | float
) -> tuple[PyTree, PyTree]:
    """Weights and optimiser state after one step of Adam of size `rate`."""
    direction, optimiser = adam(max_grad_norm).update(gradients, optimiser, weights)
    return jax.tree.map(lambda old, step: old - rate * step, weights, direction), optimiser


def anneal(rate: jax.Array | float, updates: jax.Array, total_updates: jax.Array) -> jax.Array:
    """A learning rate that falls linearly to 0 over the run."""
    return rate * jnp.maximum(0.0, 1.0 - updates / total_updates)


def shuffle_envs(key: jax.Array, num_envs: int, epochs: int, minibatches: int, axis: str | None) -> jax.Array:
    """The environments of each minibatch of each epoch: `[epochs * minibatches, num_envs // minibatches]`.

    Of every `minibatches` adjacent environments each minibatch of an epoch gets one, at random. The draw is keyed by
    the neighbours' global number, so that the minibatches are the same sets of copies on any number of devices.
    """
    chunks = num_envs // minibatches
    first = lax.axis_index(axis) * chunks if axis else 0

    def epoch(key: jax.Array) -> jax.Array:
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, first + jnp.arange(chunks))
        order = jax.vmap(lambda key: jax.random.permutation(key, minibatches))(keys)
        return (order + jnp.arange(chunks)[:, None] * minibatches).T

    return jax.vmap(epoch)(jax.random.split(key, epochs)).reshape(epochs * minibatches, chunks)
