"""Evaluation: exactly one episode a copy, so that short episodes do not count more often than long ones."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shoal.core.env import Env
from shoal.core.errors import WorldError, require_positive
from shoal.core.host import StandIn
from shoal.core.regroup import original, side_rewards, sides
from shoal.core.types import PyTree, Scene
from shoal.execution.experiment import Cast
from shoal.execution.host_stages import TIMEOUT
from shoal.execution.rollout import Actor, Policies, Uniform, step

BATCH = 4096
"""Episodes played at once at most."""
MAX_STEPS = 100_000


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Returns of many episodes, one entry each, by group of the world, whatever policies its agents share.

    A group's return is the sum over its agents. A group whose seats several players share, as in card games, is told
    apart by player instead.
    """

    returns: dict[str, np.ndarray]
    lengths: np.ndarray

    @property
    def episodes(self) -> int:
        return len(self.lengths)

    @property
    def mean_return(self) -> dict[str, float]:
        return {name: float(np.mean(values)) for name, values in self.returns.items()}

    @property
    def standard_error(self) -> dict[str, float]:
        return {name: float(np.std(v) / math.sqrt(len(v))) for name, v in self.returns.items()}

    @property
    def total_mean_return(self) -> float:
        return sum(self.mean_return.values())


def evaluate(
    roles: Cast,
    policies: dict[str, PyTree] | None,
    episodes: int = 1024,
    seed: int = 0,
    explore: bool = False,
    env_workers: int = 0,
    env_timeout: float = TIMEOUT,
) -> Evaluation:
    """Plays `episodes` episodes with the policies by name; those left out (None: all) play at random.

    env_workers, env_timeout: how environments of other libraries are stepped; as in `train`.
    """
    require_positive("evaluate", episodes=episodes)
    from shoal.execution import host  # which is built on this module

    stepping = host.Stepping(env_workers, env_timeout)
    if isinstance(original(roles.env), StandIn):
        return host.evaluate(roles, policies, episodes, seed, explore, stepping)
    host.check_stepping(roles.experiment, stepping)
    actor, policies = seated(roles, policies, explore)
    played, program = [], play(roles, actor)
    for start in range(0, episodes, BATCH):
        ids = jnp.arange(start, min(start + BATCH, episodes), dtype=jnp.uint32)
        returns, lengths, ended = program(policies, jax.random.key(seed), ids)
        if not bool(jnp.all(ended)):
            raise WorldError(f"world {roles.experiment.env!r}: an episode did not end within {MAX_STEPS} steps")
        played.append((jax.tree.map(np.asarray, returns), np.asarray(lengths)))
    names = played[0][0]
    return Evaluation(
        returns={name: np.concatenate([returns[name] for returns, _ in played]) for name in names},
        lengths=np.concatenate([lengths for _, lengths in played]),
    )


def play(roles: Cast, actor: Actor, gains: Callable[[Env, Mapping[str, jax.Array]], dict] = side_rewards):
    """The compiled program `(policies, key, copy ids) -> returns by side [E], lengths [E], ended [E]`.

    gains: from the rewards of a step `[E, n]` by policy to those that are summed up, `[E]` by name.
    """

    @jax.jit
    def program(policies, key, ids):
        vectorised = roles.vectorised(ids.shape[0])
        worlds = vectorised.reset(key, ids)
        memory = actor.initial_memory(policies, ids.shape[0])

        def unfinished(state):
            return ~jnp.all(state[3]) & (state[0].clock < MAX_STEPS)

        def body(state):
            worlds, memory, returns, ended, lengths = state
            worlds, memory, record = step(vectorised, actor, policies, worlds, memory)
            gained = gains(roles.env, record.reward)
            returns = {name: value + jnp.where(ended, 0.0, gained[name]) for name, value in returns.items()}
            lengths = lengths + ~ended
            return worlds, memory, returns, ended | record.terminated | record.truncated, lengths

        rewards = {name: jnp.zeros((ids.shape[0], group.size)) for name, group in roles.spec.groups.items()}
        zeros = jax.tree.map(jnp.zeros_like, gains(roles.env, rewards))
        start = (worlds, memory, zeros, jnp.zeros(ids.shape[0], bool), jnp.zeros(ids.shape[0], jnp.int32))
        _, _, returns, ended, lengths = lax.while_loop(unfinished, body, start)
        return returns, lengths, ended

    return program


@dataclasses.dataclass(frozen=True)
class Recording:
    """One episode to watch: scenes `[T + 1]` and cumulative returns by group `[T + 1]`."""

    frames: Scene
    returns: dict[str, np.ndarray]


def record(
    roles: Cast, policies: dict[str, PyTree] | None, seed: int = 0, explore: bool = False, max_steps: int = 2000
) -> Recording:
    """Plays one episode and keeps a picture of every step."""
    actor, policies = seated(roles, policies, explore)
    vectorised = roles.vectorised(1)

    def picture(state, params):
        params = roles.env.default_params() if params is None else jax.tree.map(lambda leaf: leaf[0], params)
        return roles.env.scene(jax.tree.map(lambda leaf: leaf[0], state), params)

    @functools.partial(jax.jit, static_argnums=3)
    def some(policies, worlds, memory, length):
        def body(carry, _):
            worlds, memory = carry
            acts = actor.act(policies, memory, worlds)
            following, outcome, ended = vectorised.step(worlds, acts.action)
            rewards = {name: value[0] for name, value in side_rewards(roles.env, outcome.reward).items()}
            return (following, acts.memory), (picture(ended.state, worlds.params), rewards, ended.mask[0])

        return lax.scan(body, (worlds, memory), length=length)

    worlds = jax.jit(vectorised.reset)(jax.random.key(seed))
    memory = actor.initial_memory(policies, 1)
    frames = [jax.tree.map(lambda leaf: np.asarray(leaf)[None], jax.jit(picture)(worlds.state, worlds.params))]
    rewards = [{name: np.zeros(1) for name in sides(roles.env)}]
    over, played = False, 0
    while not over and played < max_steps:
        (worlds, memory), chunk = some(policies, worlds, memory, 50)
        scenes, gained, ended = jax.tree.map(np.asarray, chunk)
        over = bool(ended.any())
        length = int(np.argmax(ended)) + 1 if over else 50
        played += length
        frames.append(jax.tree.map(lambda leaf, n=length: leaf[:n], scenes))
        rewards.append({name: value[:length] for name, value in gained.items()})
    joined = jax.tree.map(lambda *parts: np.concatenate(parts), *frames)
    returns = {name: np.cumsum(np.concatenate([part[name] for part in rewards])) for name in rewards[0]}
    return Recording(joined, returns)


def seated(roles: Cast, policies: dict[str, PyTree] | None, explore: bool) -> tuple[Actor, dict[str, PyTree]]:
    """Who plays: the given policies, and uniformly random play for the groups that have none."""
    given = policies or {}
    groups = roles.spec.groups
    algorithms = {name: roles.algorithms[name] if name in given else Uniform(groups[name].action) for name in groups}
    return Policies(algorithms, groups, explore), {name: given.get(name, ()) for name in groups}
