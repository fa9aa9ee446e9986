"""ERL's episodes: the population plays, an explorer plays beside it, and a learner is trained on all experience.

Episodes are played in pieces of a few steps; after each piece the learner stores it in its replay and makes gradient
steps. When the last episode of a generation is over the others are cut short, bootstrapping from their last view, so
that no step is ever paired with one of another generation.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from shoal.batching.policies import ActorOutput, Policies
from shoal.batching.regroup import sum_rewards
from shoal.batching.rollout import Step, make_experience, step
from shoal.batching.vectorise import Ended, Vectorised, Worlds
from shoal.core import trees
from shoal.core.algorithm import Experience
from shoal.core.errors import OptionError
from shoal.core.types import PyTree
from shoal.populations.evolution.members import (
    EpisodeStats,
    PopulationActor,
    add_step,
    copy_ids,
    cut_episodes,
    empty_stats,
)
from shoal.training.experiment import Setup
from shoal.training.fused import check_replays, policies_of


@dataclasses.dataclass(frozen=True)
class WithExplorer:
    """The members, and as an additional one the learners' own policies, which explore.

    Its params are those of the members and the learners' policies.
    """

    members: PopulationActor
    explorer: Policies

    @property
    def recorded_groups(self) -> tuple[str, ...]:
        return self.members.recorded_groups

    def initial_memory(self, params: PyTree, num_envs: int) -> PyTree:
        return self.members.initial_memory(params[0], num_envs)

    def act(self, params: PyTree, memory: PyTree, worlds: Worlds) -> ActorOutput:
        count = worlds.first.shape[0] - self.members.copies

        def some(part: slice) -> tuple[PyTree, Worlds]:
            rows = (memory, worlds.key, worlds.first, worlds.observation)
            held, key, first, seen = jax.tree.map(lambda leaf: leaf[part], rows)
            return held, worlds.replace(key=key, first=first, observation=seen)  # other fields are not read

        theirs = self.members.act(params[0], *some(slice(0, count)))
        own = self.explorer.act(params[1], *some(slice(count, None)))
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), theirs, own)

    def final_value(self, params: PyTree, rows: tuple[Any, Any]) -> dict[str, jax.Array]:
        return self.members.final_value(params[0], rows)


class _Generation(struct.PyTreeNode):
    """A generation in progress."""

    worlds: Worlds
    memory: PyTree
    played: EpisodeStats
    learners: dict[str, Any]
    pieces: jax.Array
    losses: dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Hybrid:
    """ERL's additions to an evolution: learners of the evolving policies, trained while the population plays."""

    setup: Setup
    actor: PopulationActor
    common_starts: bool
    max_steps: int

    @staticmethod
    def check(setup: Setup, plan: Any) -> None:
        """Refuses learners that ERL cannot use: they must be off-policy, and all of their policies must evolve."""
        for name, (algorithm, spec) in setup.learners.items():
            if setup.experiment.learners[name].frozen:
                continue
            if algorithm.traits.replay is None:
                raise OptionError(
                    f"ERL: the learner {name!r} has the algorithm {algorithm.name!r}, which has no replay and cannot "
                    "learn from the population. Use ddpg, sac or dqn (--algo ddpg)."
                )
            if plan.evolve and not set(spec.groups) <= set(plan.evolve):
                raise OptionError(f"ERL: evolve must have all policies of {name!r} ({', '.join(spec.groups)}) or none")
        check_replays(setup)

    @property
    def learning(self) -> dict[str, Any]:
        """Algorithm and spec of the learners whose policies evolve."""
        names = set(self.actor.genome.names)
        return {name: part for name, part in self.setup.learners.items() if names & set(part[1].groups)}

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Fresh learners."""
        items = enumerate(self.learning.items())
        return {name: algorithm.init(jax.random.fold_in(key, i), spec) for i, (name, (algorithm, spec)) in items}

    def play(
        self, params: PyTree, learners: dict[str, Any], key: jax.Array, learner_key: jax.Array
    ) -> tuple[EpisodeStats, dict[str, Any], dict[str, jax.Array]]:
        """A generation: episodes of the members, the learners after it, and their metrics."""
        copies, members = self.actor.copies, params[0].shape[0]
        own = copy_ids(0, members, copies, self.common_starts)
        ids = jnp.concatenate([own, copy_ids(members, 1, copies, False)])
        vectorised = self.setup.vectorised(ids.shape[0])
        explorer = dataclasses.replace(self.actor.policies, explore=True)
        actor = WithExplorer(self.actor, explorer)
        worlds = vectorised.reset(key, ids)
        memory = actor.initial_memory((params, params[1]), ids.shape[0])
        episode_stats = empty_stats(vectorised, ids.shape[0], {}, ())
        state = _Generation(worlds, memory, episode_stats, learners, jnp.int32(0), {})

        def piece(state: _Generation) -> _Generation:
            return self._piece(vectorised, actor, params, state, learner_key)

        shapes = jax.eval_shape(piece, state).losses
        state = state.replace(losses=trees.zeros(shapes))
        state = lax.while_loop(lambda state: ~self._last(state.played, state.worlds), piece, state)
        losses = {name: value / jnp.maximum(state.pieces, 1) for name, value in state.losses.items()}
        return cut_episodes(state.played, state.worlds), state.learners, losses

    def _last(self, episode_stats: EpisodeStats, worlds: Worlds) -> jax.Array:
        """Whether the generation is over; it does not wait for the explorer."""
        members = episode_stats.over[: episode_stats.over.shape[0] - self.actor.copies]
        return jnp.all(members) | (worlds.clock > self.max_steps)

    def _piece(
        self, vectorised: Vectorised, actor: WithExplorer, params: PyTree, state: _Generation, key: jax.Array
    ) -> _Generation:
        """Some steps of all copies, then an update of each learner."""
        everyone = (params, dict(params[1]) | policies_of(state.learners))

        def body(
            carry: tuple[Worlds, PyTree, EpisodeStats], _: None
        ) -> tuple[tuple[Worlds, PyTree, EpisodeStats], Step]:
            worlds, memory, episode_stats = carry
            following, memory, record = step(vectorised, actor, everyone, worlds, memory)
            mask = record.terminated | record.truncated
            gained = return_group_rewards(vectorised, worlds, record)
            ended = Ended(mask, None, None, gained, worlds.length)
            episode_stats = add_step(episode_stats, worlds, record.reward, ended, self.actor.genome.names)
            return (following, memory, episode_stats), record

        start = (state.worlds, state.memory, state.played)
        (worlds, memory, episode_stats), steps = lax.scan(body, start, length=self.setup.experiment.num_steps)
        whole = make_experience(steps, state.memory, worlds.observation, memory)
        whole = close_trajectory(whole, self._last(episode_stats, worlds), self.learning)
        learners, losses = dict(state.learners), dict(state.losses)
        for i, (name, (algorithm, spec)) in enumerate(self.learning.items()):
            own = whole.replace(trajectories={group: whole.trajectories[group] for group in spec.groups})
            use = jax.random.fold_in(jax.random.fold_in(key, state.pieces), i)
            learners[name], results = algorithm.update(learners[name], own, use)
            for loss, value in results.items():
                losses[loss] = losses.get(loss, jnp.float32(0.0)) + value
        return _Generation(worlds, memory, episode_stats, learners, state.pieces + 1, losses)


def return_group_rewards(vectorised: Vectorised, worlds: Worlds, record: Step) -> dict[str, jax.Array]:
    """Returns by return group of the current episodes, including a step's rewards."""
    gained = sum_rewards(vectorised.env, record.reward)
    return {group: worlds.returns[group] + gained[group] for group in gained}


def close_trajectory(whole: Experience, last: jax.Array, learning: dict[str, Any]) -> Experience:
    """The experience, its last step truncated if it is the `last` of a generation."""
    ended = whole.terminated[-1] | whole.truncated[-1]
    cut = last & ~ended

    def final(old: jax.Array, seen: jax.Array) -> jax.Array:
        mask = cut.reshape(cut.shape + (1,) * (seen.ndim - 1))
        return old.at[-1].set(jnp.where(mask, seen, old[-1]))

    groups = {group for _, spec in learning.values() for group in spec.groups}
    tracks = dict(whole.trajectories)
    for name in groups:
        track = tracks[name]
        views = jax.tree.map(final, track.final_observation, track.last_observation)
        tracks[name] = track.replace(final_observation=views)
    return whole.replace(trajectories=tracks, truncated=whole.truncated.at[-1].set(whole.truncated[-1] | cut))
