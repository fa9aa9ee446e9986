"""Episodes of a whole population at once: each member plays its own copies of the world, with its own weights.

Shape letters: `M` members, `K` copies of each, `E = M K` copies in all, member by member.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax

from shoal.batching.policies import ActorOutput, Policies
from shoal.batching.regroup import return_groups
from shoal.batching.vectorise import Vectorised, Worlds
from shoal.core.types import PyTree
from shoal.ops import normalisation
from shoal.ops.devices import after, sum_over_devices
from shoal.ops.normalisation import RunningStats
from shoal.populations.evolution.genome import Genome


@dataclasses.dataclass(frozen=True)
class PopulationActor:
    """The actor of a population: members differ in the evolving weights and share everything else.

    Its params are `(vectors [M, D], policies)`.
    """

    policies: Policies
    genome: Genome
    copies: int

    @property
    def recorded_groups(self) -> tuple[str, ...]:
        return self.policies.recorded_groups

    def initial_memory(self, params: PyTree, num_envs: int) -> PyTree:
        return self.policies.initial_memory(params[1], num_envs)

    def act(self, params: PyTree, memory: PyTree, worlds: Worlds) -> ActorOutput:
        vectors, shared = params
        count = vectors.shape[0]

        def one(vector: jax.Array, rows: tuple[Any, ...]) -> ActorOutput:
            memory, key, first, observation = rows
            own = worlds.replace(key=key, first=first, observation=observation)  # other fields are not read
            return self.policies.act(self.genome.express(vector, shared), memory, own)

        rows = (memory, worlds.key, worlds.first, worlds.observation)
        acts = jax.vmap(one)(vectors, _split(rows, count))
        return _join(acts)

    def final_value(self, params: PyTree, rows: tuple[Any, Any]) -> dict[str, jax.Array]:
        """Not used: fitness does not bootstrap, and learners with a replay value final views themselves."""
        del params
        count = jax.tree.leaves(rows)[0].shape[0]
        return {name: jnp.zeros((count, group.size)) for name, group in self.policies.groups.items()}


class EpisodeStats(struct.PyTreeNode):
    """The results of the first episode of each copy; leaves are `[E]`.

    fitness: the summed rewards of the evolving policies. returns: by return group (see `regroup.return_groups`). stats:
    of the views of policies that have statistics, over all these episodes.
    """

    fitness: jax.Array
    returns: dict[str, jax.Array]
    length: jax.Array
    over: jax.Array
    stats: dict[str, PyTree]


def empty_stats(vectorised: Vectorised, count: int, policies: dict[str, Any], names: tuple[str, ...]) -> EpisodeStats:
    """Initial values; names: the policies whose statistics are collected."""
    zeros = jnp.zeros(count)
    stats = {name: _empty(policies[name].view_stats) for name in names}
    returns = dict.fromkeys(return_groups(vectorised.env), zeros)
    return EpisodeStats(zeros, returns, jnp.zeros(count, jnp.int32), jnp.zeros(count, bool), stats)


def add_step(
    episode_stats: EpisodeStats, worlds: Worlds, reward: dict[str, jax.Array], ended: Any, names: tuple[str, ...]
) -> EpisodeStats:
    """The results so far, after a step in `worlds`; steps after the end of an episode do not count."""
    alive = ~episode_stats.over
    gained = sum(jnp.sum(reward[name], axis=-1) for name in names)
    last = alive & ended.mask
    stats = {}
    for name, old in episode_stats.stats.items():
        seen = worlds.observation[name]
        shape = reward[name].shape
        weight = jnp.broadcast_to(alive[:, None], shape)
        stats[name] = normalisation.update_tree(
            old, seen.view, weight if seen.present is None else weight & seen.present
        )
    return EpisodeStats(
        fitness=episode_stats.fitness + jnp.where(alive, gained, 0.0),
        returns={name: jnp.where(last, ended.returns[name], value) for name, value in episode_stats.returns.items()},
        length=episode_stats.length + alive,
        over=episode_stats.over | ended.mask,
        stats=stats,
    )


def play(
    vectorised: Vectorised, actor: PopulationActor, params: PyTree, key: jax.Array, ids: jax.Array, max_steps: int
) -> EpisodeStats:
    """Plays one episode per copy, with global ids `ids`, until the last one ends or the limit is reached."""
    names = actor.genome.names
    worlds = vectorised.reset(key, ids)
    memory = actor.initial_memory(params, ids.shape[0])

    def unfinished(state: tuple[Worlds, PyTree, EpisodeStats]) -> jax.Array:
        worlds, _, episode_stats = state
        return ~jnp.all(episode_stats.over) & (worlds.clock <= max_steps)

    def body(state: tuple[Worlds, PyTree, EpisodeStats]) -> tuple[Worlds, PyTree, EpisodeStats]:
        worlds, memory, episode_stats = state
        acts = actor.act(params, memory, worlds)
        following, outcome, ended = vectorised.step(worlds, acts.action)
        return following, acts.memory, add_step(episode_stats, worlds, outcome.reward, ended, names)

    start = empty_stats(vectorised, ids.shape[0], params[1], actor.genome.normalised)
    worlds, _, episode_stats = lax.while_loop(unfinished, body, (worlds, memory, start))
    return cut_episodes(episode_stats, worlds)


def cut_episodes(episode_stats: EpisodeStats, worlds: Worlds) -> EpisodeStats:
    """Truncated episodes count with their returns so far."""
    returns = {
        name: jnp.where(episode_stats.over, value, worlds.returns[name])
        for name, value in episode_stats.returns.items()
    }
    return episode_stats.replace(returns=returns)


def copy_ids(first: jax.Array | int, members: int, copies: int, common: bool) -> jax.Array:
    """Global ids of the copies of members from `first` on. common: all members get the same random numbers."""
    own = jnp.arange(copies, dtype=jnp.uint32)
    member = jnp.zeros(members, jnp.uint32) if common else jnp.asarray(first, jnp.uint32) + jnp.arange(members)
    return (member.astype(jnp.uint32)[:, None] * jnp.uint32(copies) + own).reshape(-1)


def with_stats(policies: dict[str, Any], found: dict[str, PyTree], axis: str | None) -> dict[str, Any]:
    """The policies with statistics updated by one more generation, on all devices."""
    return policies | {
        name: policies[name].replace(view_stats=_merge(policies[name].view_stats, new, axis))
        for name, new in found.items()
    }


def _merge(old: PyTree, new: PyTree, axis: str | None) -> PyTree:
    def one(old: RunningStats, new: RunningStats) -> RunningStats:
        more, total = sum_over_devices((new.count, new.count * new.mean), axis)
        count = old.count + more
        mean = (old.count * old.mean + total) / jnp.where(count > 0, count, 1.0)
        with after((count, mean), axis):
            apart, m2 = sum_over_devices((new.count * (new.mean - mean) ** 2, new.m2), axis)
        return RunningStats(count, mean, old.m2 + m2 + (old.count * (old.mean - mean) ** 2 + apart))

    return jax.tree.map(one, old, new, is_leaf=lambda node: isinstance(node, RunningStats))


def _empty(stats: PyTree) -> PyTree:
    return jax.tree.map(jnp.zeros_like, stats)


def _split(tree: PyTree, count: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf.reshape(count, leaf.shape[0] // count, *leaf.shape[1:]), tree)


def _join(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), tree)
