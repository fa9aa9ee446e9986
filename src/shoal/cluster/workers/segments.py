"""Rollouts that may end early: made in segments, filled up to their full length, and masked.

Padding teaches nothing. The last real step counts as truncated, with the value of the next observation as its
bootstrap; in the rows after it no agent is active or present. So an update on a padded rollout is the update on a
shorter one, and shapes stay as they are.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from shoal.batching.policies import Policies
from shoal.batching.rollout import Rollout
from shoal.cluster.workers import rollouts
from shoal.cluster.workers.host_envs import HostEnvShare
from shoal.cluster.workers.rollouts import EnvShare, Share
from shoal.core.types import Observation, PyTree
from shoal.training.experiment import Experiment

SEGMENTS = 4
"""Parts of a rollout after which a slow learner may stop."""


class Segments:
    """Rollouts of a share of the copies, made in parts; one that ends early is padded and masked."""

    def __init__(self, experiment: Experiment, share: Share, parts: int):
        self.share, self.parts, self.num_steps = share, parts, experiment.num_steps
        program = rollouts.program_of(dataclasses.replace(experiment, num_steps=experiment.num_steps // parts))
        self.held = (HostEnvShare if rollouts.runs_on_host(program) else EnvShare)(program, share)
        self.value = jax.jit(Policies(program.setup.algorithms, program.setup.spec.groups).final_value)
        self.made = 0  # steps of the last rollout

    @property
    def out(self) -> np.ndarray:
        """Which copies `[E]` are left out for good."""
        return self.held.out

    @property
    def resets(self) -> int:
        """How often a copy was restarted because of NaN."""
        return self.held.resets

    def roll(self, policies: PyTree, enough: Callable[[bool], bool]) -> tuple[Rollout, np.ndarray]:
        """A rollout, which ends early if `enough` (called after each part) says so, and which copies are healthy."""
        found = []
        for number in range(self.parts):
            found.append(self.held.roll(policies))
            if enough(number == self.parts - 1):
                break
        healthy = np.all([sound for _, sound in found], axis=0)
        made = concatenate_rollouts([part for part, _ in found])
        self.made = len(made.steps.first)
        if self.parts == 1:
            return made, healthy
        value = jax.device_get(self.value(policies, (made.last_observation, made.last_memory)))
        return pad_rollout(made, value, self.num_steps), healthy


def concatenate_rollouts(parts: Sequence[Rollout]) -> Rollout:
    """Rollouts of the same copies, one after the other, as one."""
    steps = jax.tree.map(lambda *leaves: np.concatenate(leaves), *(part.steps for part in parts))
    return parts[-1].replace(steps=steps, memory=parts[0].memory, clock=parts[0].clock)


def pad_rollout(made: Rollout, value: dict[str, np.ndarray], num_steps: int) -> Rollout:
    """A rollout padded to `num_steps`: no agent is present in the padding.

    The last real row counts as truncated; its bootstrap is the `value` of the observation after it. Observations say
    who is active and present even if all are, so that whole rollouts have the same structure.
    """
    steps, count = made.steps, len(made.steps.first)
    missing = num_steps - count
    if missing:
        going_on = ~(steps.terminated[-1] | steps.truncated[-1])
        values = {name: np.where(going_on[:, None], value[name], row[-1]) for name, row in steps.final_value.items()}
        final = {name: np.concatenate([row[:-1], values[name][None]]) for name, row in steps.final_value.items()}
        truncated = np.concatenate([steps.truncated[:-1], (steps.truncated[-1] | going_on)[None]])
        steps = steps.replace(final_value=final, truncated=truncated)
    rows = np.minimum(np.arange(num_steps), count - 1)
    there = np.arange(num_steps) < count
    filled = jax.tree.map(lambda leaf: np.asarray(leaf)[rows], steps)

    def keep(leaf: np.ndarray) -> np.ndarray:
        return np.where(there.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0).astype(leaf.dtype)

    rewards = {name: np.asarray(reward)[rows] for name, reward in steps.reward.items()}
    observation = {name: _mask_padding(seen, rewards[name], keep) for name, seen in filled.observation.items()}
    episodes = jax.tree.map(keep, filled.episodes)
    return made.replace(steps=filled.replace(observation=observation, episodes=episodes))


def _mask_padding(seen: Observation, like: np.ndarray, keep: Callable[[np.ndarray], np.ndarray]) -> Observation:
    """An observation with `active` and `present` flags that are false in the padding."""
    everybody: Any = np.ones(like.shape, bool)
    present = everybody if seen.present is None else seen.present
    active = present if seen.active is None else seen.active
    return seen.replace(active=keep(np.asarray(active)), present=keep(np.asarray(present)))
