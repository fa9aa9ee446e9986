"""Proximal policy optimisation: IPPO with the critic on the agent's own view, MAPPO with it on the global state.

Papers: Schulman et al. 2017 (PPO), de Witt et al. 2020 (IPPO), Yu et al. 2022 (MAPPO). Departures: minibatches are made
of whole environments, not single samples (the copies are independent, and moving whole ones is several times cheaper);
the value loss is not clipped; returns run over an agent's own decisions (`ops.returns`).
Shape letters: `T` time, `E` environments, `n` agents of a group.
"""

import dataclasses
from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from shoal.algorithms import on_policy as ac
from shoal.core.algorithm import Experience, Traits
from shoal.core.checks import check_positive
from shoal.core.errors import require_positive
from shoal.core.types import PyTree


@dataclasses.dataclass(frozen=True)
class PPO(ac.ActorCriticLearner):
    """Several epochs of minibatch steps on the clipped objective."""

    name: ClassVar[str] = "ppo"

    clip_eps: float = 0.2  # how far the probability ratio may move
    epochs: int = 4  # passes over the batch
    minibatches: int = 4  # parts each pass is cut into; must divide the number of copies

    def __post_init__(self):
        super().__post_init__()
        require_positive("PPO", epochs=self.epochs, minibatches=self.minibatches)
        check_positive(self, "clip_eps")

    @property
    def traits(self) -> Traits:
        return dataclasses.replace(super().traits, minibatches=self.minibatches)

    def update(
        self, state: ac.LearnerState, experience: Experience, key: jax.Array, axis: str | None = None
    ) -> tuple[ac.LearnerState, dict[str, jax.Array]]:
        """Advantages, then epochs of minibatches; metrics are means over all steps."""
        state, batches = self.prepare(state, experience, axis)
        return minibatch_epochs(self, state, batches, key, axis)

    def decision_losses(
        self, hyper: dict[str, jax.Array], log_prob: jax.Array, batch: ac.Batch
    ) -> dict[str, jax.Array]:
        """The clipped objective, and how far the policy has moved from the one that acted."""
        log_ratio = log_prob - batch.log_prob
        return {
            "policy_loss": clipped_objective(log_ratio, batch.advantage, hyper["clip_eps"]),
            "approx_kl": approx_kl(log_ratio),
        }


class InMinibatches(Protocol):
    """A learner that takes several steps on each batch."""

    @property
    def epochs(self) -> int: ...

    @property
    def minibatches(self) -> int: ...

    def gradients(
        self, state: ac.LearnerState, batches: dict[str, ac.Batch], axis: str | None = None
    ) -> tuple[PyTree, dict[str, jax.Array]]: ...

    def apply(self, state: ac.LearnerState, gradients: PyTree) -> ac.LearnerState: ...


def minibatch_epochs(
    learner: InMinibatches, state: ac.LearnerState, batches: dict[str, ac.Batch], key: jax.Array, axis: str | None
) -> tuple[ac.LearnerState, dict[str, jax.Array]]:
    """`learner.epochs` passes over the batch in `learner.minibatches` steps each; metrics are means over all steps."""
    num_envs = next(iter(batches.values())).first.shape[1]

    def step(state, index):
        gradients, metrics = learner.gradients(state, ac.take_envs(batches, index), axis)
        return learner.apply(state, gradients), metrics

    def epoch(state, key):
        return lax.scan(step, state, env_minibatches(key, num_envs, learner.minibatches, axis))

    state, metrics = lax.scan(epoch, state, jax.random.split(key, learner.epochs))
    return state.replace(updates=state.updates + 1), jax.tree.map(jnp.mean, metrics)


def clipped_objective(log_ratio: jax.Array, advantage: jax.Array, clip_eps: jax.Array | float) -> jax.Array:
    """PPO's loss of a decision: minus the smaller of the plain and the clipped surrogate."""
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - clip_eps, 1.0 + clip_eps)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def approx_kl(log_ratio: jax.Array) -> jax.Array:
    """Estimate of the divergence from the old policy: ratio − 1 − log ratio, never negative."""
    return jnp.exp(log_ratio) - 1.0 - log_ratio


def env_minibatches(key: jax.Array, num_envs: int, minibatches: int, axis: str | None) -> jax.Array:
    """Which environments make up each minibatch: indices `[minibatches, num_envs // minibatches]`.

    Of every `minibatches` neighbours each minibatch gets one, at random. The draw is keyed by the neighbours' global
    number, so that the minibatches are the same sets of copies on any number of devices.
    """
    chunks = num_envs // minibatches
    first = lax.axis_index(axis) * chunks if axis else 0
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, first + jnp.arange(chunks))
    order = jax.vmap(lambda key: jax.random.permutation(key, minibatches))(keys)
    return (order + jnp.arange(chunks)[:, None] * minibatches).T
