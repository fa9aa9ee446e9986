"""Many copies of a world at once, with auto-reset: the one place where episodes end and begin.

Only the copies whose episode ended are reset (see `masked.masked_map`), and every episode starts from an independent
draw. Observations are computed once per step, after the resets. The final state of an ended episode is returned beside
the new one; `Vectorised.observe` gives its observation where values are bootstrapped from it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.extend.core import Literal

from shoal.batching.masked import masked_map
from shoal.batching.regroup import return_groups, sum_rewards
from shoal.core import trees
from shoal.core.env import Env, check_actions
from shoal.core.errors import require, require_positive
from shoal.core.keys import StepKeys, Use, copy_keys, use_key
from shoal.core.registry import make
from shoal.core.types import Observation, Outcome, PyTree


class Worlds(struct.PyTreeNode):
    """The copies of a world; leaves are `[E, ...]`, except the clock.

    key: each copy's own chain. clock: uint32 steps since the start. params: each copy's own, or None if all have the
    default ones. first: an episode begins here. returns: rewards of the episode so far, by return group (see
    `regroup.return_groups`). length: its steps so far. keys: of the next step, if they were derived ahead.
    """

    key: jax.Array
    clock: jax.Array
    params: PyTree
    state: PyTree
    observation: dict[str, Observation]
    first: jax.Array
    returns: dict[str, jax.Array]
    length: jax.Array
    keys: StepKeys | None = None


class Ended(struct.PyTreeNode):
    """The episodes that a step ended; leaves are `[E, ...]`, meaningful where `mask` holds."""

    mask: jax.Array
    params: PyTree  # of the episode that ended
    state: PyTree  # the final one, before the new episode began
    returns: dict[str, jax.Array]
    length: jax.Array


@dataclasses.dataclass(frozen=True)
class Vectorised:
    """`num_envs` copies of `env`. With `randomise`, each episode draws its own params from `sample_params`.

    `with_state` fills in `Observation.state` for centralised critics.
    """

    env: Env
    num_envs: int
    randomise: bool = False
    with_state: bool = False

    def __post_init__(self):
        require_positive("Vectorised", num_envs=self.num_envs)

    def reset(self, key: jax.Array, copy_ids: jax.Array | None = None, params: PyTree = None) -> Worlds:
        """Fresh copies.

        `copy_ids` are global: a device or an actor with some of the copies passes theirs. `params`, if given,
        has a leading axis `[E]`: each copy keeps its own.
        """
        copy_ids = jnp.arange(self.num_envs, dtype=jnp.uint32) if copy_ids is None else copy_ids
        count = copy_ids.shape[0]
        keys = copy_keys(key, copy_ids)
        params, state = self._begin((jnp.zeros(count, jnp.uint32), keys, params))
        return Worlds(
            key=keys,
            clock=jnp.uint32(1),
            params=params,
            state=state,
            observation=self.observe(params, state, count),
            first=jnp.ones(count, bool),
            returns={name: jnp.zeros(count) for name in return_groups(self.env)},
            length=jnp.zeros(count, jnp.int32),
        )

    def step(
        self, worlds: Worlds, actions: dict[str, jax.Array], keep_state: bool = False
    ) -> tuple[Worlds, Outcome, Ended]:
        """Steps every copy and begins a new episode where one ended.

        actions: an array `[E, n, ...]` for each group, checked while this is traced. keep_state: compute states before
        anything is made of them, see `trees.compute_once`.
        """
        require(isinstance(worlds, Worlds), "Vectorised.step", "worlds", worlds, "what reset or the last step returned")
        count = worlds.first.shape[0]
        check_actions("Vectorised.step", self.env.groups, count, actions)
        if worlds.keys is None:
            keys = jax.vmap(lambda key: use_key(key, worlds.clock, Use.STEP))(worlds.key)
        else:
            keys = worlds.keys.step
        state, outcome = self._each(self.env.step, count, worlds.params, keys, worlds.state, actions)
        state = trees.compute_once(state) if keep_state else state
        gained = sum_rewards(self.env, outcome.reward)
        returns = {name: worlds.returns[name] + gained[name] for name in worlds.returns}
        ended = Ended(outcome.terminated | outcome.truncated, worlds.params, state, returns, worlds.length + 1)
        params, state = self._renew(worlds, ended)
        worlds = Worlds(
            key=worlds.key,
            clock=worlds.clock + 1,
            params=params,
            state=state,
            observation=self.observe(params, state, count),
            first=ended.mask,
            returns={name: jnp.where(ended.mask, 0.0, value) for name, value in returns.items()},
            length=jnp.where(ended.mask, 0, ended.length),
        )
        return worlds, outcome, ended

    def observe(self, params: PyTree, state: PyTree, count: int) -> dict[str, Observation]:
        """The observations of `count` copies in these states."""
        return self._each(self._observe, count, params, state)

    def may_truncate(self, worlds: Worlds, actions: PyTree) -> bool:
        """Whether a step may truncate an episode: worlds without a time limit say by a constant that none does."""
        given = (worlds.key, worlds.state, actions, worlds.params)
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), given)

        def truncated(key: jax.Array, state: PyTree, actions: PyTree, params: PyTree) -> jax.Array:
            params = self.env.default_params() if params is None else params
            return self.env.step(key, state, actions, params)[1].truncated

        (found,) = jax.make_jaxpr(truncated)(*one).jaxpr.outvars
        return not isinstance(found, Literal) or bool(found.val)

    def _renew(self, worlds: Worlds, ended: Ended) -> tuple[PyTree, PyTree]:
        """Params and state, those of a new episode in the copies that ended."""
        default = (worlds.params, ended.state)
        if worlds.keys is not None:
            rows = (worlds.keys.reset, worlds.params)
            return masked_map(lambda _, rows: self._begin_with(*rows), ended.mask, (), rows, default)
        # The clock is passed with the rows: it is the same for all, but as a shared value a vmap over seeds would map
        # it.
        rows = (jnp.broadcast_to(worlds.clock, ended.mask.shape), worlds.key, worlds.params)
        return masked_map(lambda _, rows: self._begin(rows), ended.mask, (), rows, default)

    def _begin(self, rows: tuple[jax.Array, jax.Array, PyTree]) -> tuple[PyTree, PyTree]:
        clock, keys, params = rows
        return self._begin_with(jax.vmap(lambda key, clock: use_key(key, clock, Use.RESET))(keys, clock), params)

    def _begin_with(self, keys: jax.Array, params: PyTree) -> tuple[PyTree, PyTree]:
        """New episodes, from their keys `[E]`."""
        count = keys.shape[0]
        if self.randomise:
            keys, draw = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
            params = jax.vmap(self.env.sample_params)(draw)
        return params, self._each(self.env.reset, count, params, keys)

    def _observe(self, state: PyTree, params: PyTree) -> dict[str, Observation]:
        observation = self.env.observe(state, params)
        if self.with_state:
            whole = self.env.global_state(state, params)
            observation = {name: obs.replace(state=whole) for name, obs in observation.items()}
        return observation

    def _each(self, method: Callable, count: int, params: PyTree, *args: PyTree) -> Any:
        """`method(*args, params)` for each copy; default params are constants, so that the compiler folds them."""
        if params is None:
            return jax.vmap(lambda *args: method(*args, self.env.default_params()), axis_size=count)(*args)
        return jax.vmap(method, axis_size=count)(*args, params)


def vectorise(env: Env | str, num_envs: int, randomise: bool = False, with_state: bool = False) -> Vectorised:
    """`num_envs` copies of a world, given as it is or by its id, stepped as one."""
    env = make(env) if isinstance(env, str) else env
    require(isinstance(env, Env), "shoal.vectorise", "env", env, "a world, shoal.make(ID), or its id")
    require(type(num_envs) is int, "shoal.vectorise", "num_envs", num_envs, "a number of copies, at least 1")
    return Vectorised(env, num_envs, randomise, with_state)
