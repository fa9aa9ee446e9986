"""The compiled programs that a check runs, and the random actions it feeds them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from shoal.core import trees
from shoal.core.env import Env
from shoal.core.spaces import ActionSpace, Box, Discrete, MultiDiscrete
from shoal.core.types import Group, Observation, PyTree


@dataclasses.dataclass(frozen=True)
class Programs:
    """`begin(params_keys, reset_keys)` and `advance(...)` for a batch of copies, `single(...)` for one; see `build`."""

    begin: Callable[..., Any]
    advance: Callable[..., Any]
    single: Callable[..., Any]
    traces: list[str]  # one entry for each time `single` was traced


def look(env: Env, state: PyTree, params: PyTree) -> dict[str, Any]:
    """All that can be seen of a state."""
    return {
        "observation": env.observe(state, params),
        "global_state": env.global_state(state, params),
        "scene": env.scene(state, params),
    }


def take_step(env: Env, key: jax.Array, state: PyTree, actions: dict[str, Any], params: PyTree) -> dict[str, Any]:
    """One step of one copy and what can be seen after it."""
    state, outcome = env.step(key, state, actions, params)
    return {"state": state, "outcome": outcome, **look(env, state, params)}


def make_programs(env: Env) -> Programs:
    """Compiles nothing yet."""
    traces: list[str] = []

    def begin(params_key: jax.Array, reset_key: jax.Array) -> dict[str, Any]:
        params = env.sample_params(params_key)
        state = env.reset(reset_key, params)
        return {"params": params, "state": state, **look(env, state, params)}

    def single(key, state, actions, params):
        traces.append("single")
        return take_step(env, key, state, actions, params)

    return Programs(
        begin=jax.jit(jax.vmap(begin)),
        advance=jax.jit(jax.vmap(functools.partial(take_step, env))),
        single=jax.jit(single),
        traces=traces,
    )


@functools.partial(jax.jit, static_argnums=2)
def keys_of_step(key: jax.Array, t: int, num_envs: int) -> jax.Array:
    """Keys `[3, E]` for params, reset and step. Not part of a world's programs: it is compiled once for all worlds."""
    return jax.random.split(jax.random.fold_in(key, t), (3, num_envs))


select = jax.jit(trees.where)
"""Rows of the first tree where a mask `[E]` holds, of the second elsewhere."""


def sample_actions(
    rng: np.random.Generator, groups: dict[str, Group], observation: dict[str, Observation], lead: tuple[int, ...] = ()
) -> dict[str, np.ndarray]:
    """Random legal actions `[*lead, n, ...]` for observations on the host."""
    return {
        name: _sample(rng, group.action, (*lead, group.size), observation[name].legal) for name, group in groups.items()
    }


def change_inactive(
    rng: np.random.Generator,
    groups: dict[str, Group],
    observation: dict[str, Observation],
    actions: dict[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """The same actions for active agents, any at all for the others."""
    changed = {}
    for name, group in groups.items():
        active, old = observation[name].active, actions[name]
        if active is None:
            changed[name] = old
            continue
        active = np.asarray(active, bool)
        new = _sample(rng, group.action, active.shape, None)
        changed[name] = np.where(active.reshape(active.shape + (1,) * (old.ndim - active.ndim)), old, new)
    return changed


def _sample(rng: np.random.Generator, space: ActionSpace, lead: tuple[int, ...], legal: Any) -> np.ndarray:
    match space:
        case Discrete(n):
            return _choose(rng, n, lead, legal)
        case MultiDiscrete(sizes):
            ends = np.cumsum(sizes)
            parts = [None] * len(sizes) if legal is None else np.split(np.asarray(legal), ends[:-1], axis=-1)
            chosen = [_choose(rng, size, lead, part) for size, part in zip(sizes, parts, strict=True)]
            return np.stack(chosen, axis=-1)
        case Box():
            low, high = max(space.low, -1e3), min(space.high, 1e3)
            return rng.uniform(low, high, (*lead, *space.shape)).astype(space.dtype)


def _choose(rng: np.random.Generator, size: int, lead: tuple[int, ...], legal: Any) -> np.ndarray:
    scores = rng.random((*lead, size))
    return np.argmax(scores if legal is None else np.where(legal, scores, -1.0), axis=-1).astype(np.int32)
