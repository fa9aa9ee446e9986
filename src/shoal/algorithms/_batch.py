"""One group's batch: what a loss is computed from, and how actor-critic losses are evaluated over it.

Shape letters: `T` time, `E` environments, `n` agents of a group.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from shoal.batching.agents import AGENT_AXES, mover_index, pick, pick_observation
from shoal.core.algorithm import Experience, Trajectory
from shoal.core.types import Observation, PyTree
from shoal.networks.actor_critic import ActorCritic
from shoal.ops import normalisation
from shoal.ops.distributions import distribution

CPU_CHUNK_SAMPLES = 8192


class Policy(struct.PyTreeNode):
    """One group's policy: weights, the statistics its inputs and values are normalised by, and its network."""

    weights: PyTree
    view_stats: PyTree
    value_stats: PyTree
    network: ActorCritic = struct.field(pytree_node=False)
    movers: int | None = struct.field(pytree_node=False, default=None)


class Trail(struct.PyTreeNode):
    """What returns are made of besides values, for everybody: agents' leaves are `[T, E, n]`, flags `[T, E]`.

    movers: which agents the batch was cut down to, `[T, E, movers]`; None if it still has all.
    """

    reward: jax.Array
    final_value: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    active: jax.Array | None
    present: jax.Array | None
    movers: jax.Array | None = None


class Last(struct.PyTreeNode):
    """What there is after the last step; leaves are `[E, n, ...]`."""

    observation: Observation
    memory: PyTree


class Batch(struct.PyTreeNode):
    """What one group's loss is computed from; leaves are `[T, E, n, ...]`, memory `[E, n, ...]`.

    trail, last: for learners that compute advantages and targets anew at every gradient step.
    """

    observation: Observation
    action: jax.Array
    log_prob: jax.Array
    advantage: jax.Array
    target: jax.Array
    memory: PyTree
    first: jax.Array  # [T, E]
    actor_weight: jax.Array | None  # None: every decision counts
    critic_weight: jax.Array | None
    trail: Trail | None = None
    last: Last | None = None


def trail_of(track: Trajectory, experience: Experience, movers: jax.Array | None = None) -> Trail:
    """The rewards and the ends of a group's experience."""
    return Trail(
        reward=track.reward,
        final_value=track.final_value,
        terminated=experience.terminated,
        truncated=experience.truncated,
        active=track.observation.active,
        present=track.observation.present,
        movers=movers,
    )


def mover_rows(policy: Policy, observation: Observation, memory: PyTree) -> jax.Array | None:
    """In turn-based games, who moves. None for recurrent policies, which keep those who wait: their order matters."""
    if policy.movers is None or observation.active is None or jax.tree.leaves(memory):
        return None
    return mover_index(observation.active, policy.movers)


def pick_rows(batch: Batch, index: jax.Array | None) -> Batch:
    """Drops the rows of those who are not in `index`; only decisions count then."""
    if index is None:
        return batch
    fields = ("action", "log_prob", "advantage", "target", "actor_weight", "critic_weight")
    picked = {field: pick(getattr(batch, field), index) for field in fields}
    return batch.replace(
        **picked | {"critic_weight": picked["actor_weight"]}, observation=pick_observation(batch.observation, index)
    )


def evaluate(policy: Policy, weights: PyTree, batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Log-probability of the batch's actions, entropy, and value, each `[T, E, n]`, under `weights`."""
    network = policy.network
    obs = batch.observation if network.uses_state else batch.observation.replace(state=None)

    def unroll(view, state, memory, first, active):
        parameters, values, _ = apply_network(network, weights, view, state, memory, first, active, method="unroll")
        return parameters, values

    def single(observation):
        parameters, value, _ = apply_network(network, weights, observation.view, observation.state, ())
        return parameters, value

    def judge(parameters, legal, action):
        dist = distribution(network.action, parameters, legal)
        return dist.log_prob(action), dist.entropy()

    if jax.tree.leaves(batch.memory):
        agents = jax.vmap(unroll, (1, None, 0, None, 1), 1)
        args = (obs.view, obs.state, batch.memory, batch.first, obs.active)
        parameters, values = jax.vmap(agents, (1, 1, 0, 1, 1), 1)(*args)
    else:
        parameters, values = _over_samples(single, obs)
    log_prob, entropy = jax.vmap(jax.vmap(jax.vmap(judge)))(parameters, obs.legal, batch.action)
    return log_prob, entropy, values


def _over_samples(single: Any, obs: Observation) -> Any:
    """`single` for every agent of every step. One flat axis, where it can be, makes the best matrix products."""
    shape = jax.tree.leaves(obs.view)[0].shape[:3]
    kept = 3 if obs.state is None else 2
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[kept:]), obs.replace(state=None))
    state = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), obs.state)
    lifted = jax.vmap(single if kept == 3 else jax.vmap(single, (AGENT_AXES,)))
    return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[4 - kept :]), lifted(flat.replace(state=state)))


def chunked_gradient(loss: Any, weights: PyTree, batches: dict[str, Batch], samples: int) -> tuple[PyTree, PyTree]:
    """Gradient and auxiliary sums of `loss(weights, batches)`, a sum over environments, chunk by chunk.

    On a CPU the activations of a chunk stay in the cache, which makes the gradient 1.8 times as fast as that of a large
    batch at once; elsewhere it saves memory.
    """
    samples = samples or (CPU_CHUNK_SAMPLES if jax.default_backend() == "cpu" else 0)
    gradient = jax.grad(loss, has_aux=True)
    num_envs = next(iter(batches.values())).first.shape[1]
    per_env = sum(batch.advantage.size for batch in batches.values()) // num_envs
    fits = [n for n in range(1, num_envs + 1) if num_envs % n == 0 and n * per_env <= max(samples, per_env)]
    size = max(fits) if samples else num_envs
    if size == num_envs:
        return gradient(weights, batches)

    def add(total, chunk):
        return jax.tree.map(jnp.add, total, gradient(weights, take_envs(batches, chunk))), None

    chunks = jnp.arange(num_envs).reshape(-1, size)
    shapes = jax.eval_shape(gradient, weights, batches)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return lax.scan(add, zeros, chunks)[0]


def take_envs(batches: dict[str, Batch], index: jax.Array) -> dict[str, Batch]:
    """The environments `index` of each group's batch."""

    def one(batch: Batch) -> Batch:
        timed = jax.tree.map(lambda leaf: leaf[:, index], batch.replace(memory=(), last=None))
        memory, last = jax.tree.map(lambda leaf: leaf[index], (batch.memory, batch.last))
        return timed.replace(memory=memory, last=last)

    return {name: one(batch) for name, batch in batches.items()}


def total_weights(batch: Batch, axis: str | None) -> tuple[jax.Array, jax.Array]:
    """Decisions and views that count, over all devices; at least 1, so that an empty batch gives 0 and not NaN."""
    sizes = [
        weighted_sum(jnp.ones_like(batch.advantage), weight) for weight in (batch.actor_weight, batch.critic_weight)
    ]
    actor, critic = lax.psum(sizes, axis) if axis else sizes
    return jnp.maximum(actor, 1.0), jnp.maximum(critic, 1.0)


def weighted_sum(values: jax.Array, weight: jax.Array | None) -> jax.Array:
    return jnp.sum(values if weight is None else values * weight)


def normalise_advantage(batch: Batch, axis: str | None) -> Batch:
    """Advantages with zero mean and unit variance over the decisions of the batch, on all devices."""
    add = (lambda x: lax.psum(x, axis)) if axis else (lambda x: x)
    total, _ = total_weights(batch, axis)
    mean = add(weighted_sum(batch.advantage, batch.actor_weight)) / total
    variance = add(weighted_sum(jnp.square(batch.advantage - mean), batch.actor_weight)) / total
    return batch.replace(advantage=(batch.advantage - mean) / jnp.sqrt(variance + 1e-8))


def combine(gradients: PyTree, metrics: PyTree, axis: str | None) -> tuple[PyTree, PyTree]:
    """Sums over devices: losses are already divided by the weight on all of them."""
    return lax.psum((gradients, metrics), axis) if axis else (gradients, metrics)


def apply_network(network: ActorCritic, weights: PyTree, *args: PyTree, method: str | None = None) -> Any:
    return network.apply(weights, *args, method=method)


def normalised_view(policy: Policy, view: PyTree) -> PyTree:
    """A view as the policy's network sees it."""
    return view if policy.view_stats is None else normalisation.normalise_tree(policy.view_stats, view)


def natural_value(stats: PyTree, value: jax.Array) -> jax.Array:
    """What a network's value means in units of reward."""
    return value if stats is None else normalisation.denormalise(stats, value)


def scaled_target(stats: PyTree, target: jax.Array) -> jax.Array:
    """The inverse of `natural_value`."""
    return target if stats is None else normalisation.normalise(stats, target)


def as_weight(mask: jax.Array | None) -> jax.Array | None:
    return None if mask is None else mask.astype(jnp.float32)


def with_value_head_kept(weights: PyTree, old: PyTree, new: PyTree) -> PyTree:
    """Weights whose values mean under the `new` statistics what they meant under the `old` (van Hasselt et al. 2016).

    Without this, values grow with the statistics of targets that are made from them, and both without end.
    """
    return with_value_head(weights, *new_units(old, new))


def new_units(old: PyTree, new: PyTree) -> tuple[jax.Array, jax.Array]:
    """What to multiply values by, and to add, that were normalised by the `old` statistics and now are by the `new`.

    What was learnt before there were any statistics is not kept: it then starts at the mean of the first targets.
    """
    known = old.count > 0
    return jnp.where(known, old.std / new.std, 1.0), jnp.where(known, (old.mean - new.mean) / new.std, 0.0)


def with_value_head(weights: PyTree, scale: jax.Array, shift: jax.Array) -> PyTree:
    """Weights of a network whose values are `scale` times what they were, plus `shift`."""
    head = weights["params"]["value_head"]
    head = {"kernel": head["kernel"] * scale, "bias": head["bias"] * scale + shift}
    return {**weights, "params": {**weights["params"], "value_head": head}}
