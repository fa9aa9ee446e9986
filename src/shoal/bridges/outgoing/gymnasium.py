"""A Shoal world of one agent as a Gymnasium environment: one copy, or many that are stepped together.

    env = make_env("control/cartpole")
    envs = make_vec("control/cartpole", num_envs=1024)

`make_vec` steps all copies in one compiled call, on the accelerator if there is one. Where an episode ends the next one
begins: by default in the same step (`AutoresetMode.SAME_STEP`), and then copy 0 sees what `make_env` sees with the same
seed. Final observations are in `infos["final_obs"]`, returns and lengths in `infos["final_info"]["episode"]`. With
`autoreset_mode=AutoresetMode.NEXT_STEP` the next episode begins in the next step, which ignores the action.

Legal actions, in worlds that have them, are in `info["action_mask"]` (int8), beside the world's metrics: an array, or
where an action is several choices a tuple of them, as `action_space.sample(mask)` takes it; of many copies `[E, n]`, or
an array of `E` tuples. With `render_mode="rgb_array"`, `render()` gives pictures (`[height, width, 3]`, uint8) in the
looks of the replay page; of many copies a tuple of them. `draw`, a function of a `shoal.Scene`, draws otherwise. A
world of several agents is refused: it is for `shoal.bridges.outgoing.pettingzoo` or `shoal.bridges.outgoing.torchrl`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from shoal.batching.vectorise import Vectorised, Worlds
from shoal.bridges.outgoing._single import ResetNeeded, SingleEnv, SingleStep
from shoal.bridges.outgoing._worlds import (
    FPS,
    RGB_ARRAY,
    Draw,
    check_action,
    check_seed,
    choose_draw,
    make_env_of,
    missing_package_error,
    only_group,
    own_part,
    their_mask,
)
from shoal.core import trees
from shoal.core.env import Env, describe
from shoal.core.errors import require, require_positive
from shoal.core.spaces import ActionSpace, MultiDiscrete
from shoal.core.types import Observation, PyTree

try:
    import gymnasium
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ImportError as error:
    raise missing_package_error("gymnasium") from error

from shoal.bridges.outgoing._gymnasium_spaces import action_space, view_space


def make_env(
    world: str | Env, *, render_mode: str | None = None, draw: Draw | None = None, **options: Any
) -> "ShoalEnv":
    """One copy of a world of one agent; `options` are the world's own. `draw` turns a `shoal.Scene` into a picture."""
    env, name = make_env_of("make_env", world, options)
    return ShoalEnv(env, name, choose_draw("make_env", render_mode, draw))


def make_vec(
    world: str | Env,
    num_envs: int,
    *,
    autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
    render_mode: str | None = None,
    draw: Draw | None = None,
    **options: Any,
) -> "ShoalVectorEnv":
    """`num_envs` copies of a world of one agent, stepped as one; `options` are the world's own."""
    env, name = make_env_of("make_vec", world, options)
    return ShoalVectorEnv(env, name, num_envs, autoreset_mode, choose_draw("make_vec", render_mode, draw))


class ShoalEnv(gymnasium.Env):
    """One copy; see the module."""

    def __init__(self, env: Env, name: str, draw: Draw | None = None):
        self._one = SingleEnv(env, name)
        self._group = only_group("make_env", name, self._one.spec)
        self._draw = draw
        self._space = self._one.spec.groups[self._group].action
        self.metadata = {"render_modes": [RGB_ARRAY], "render_fps": FPS}
        self.render_mode = None if draw is None else RGB_ARRAY
        self.observation_space = view_space(self._one.spec.groups[self._group].observation)
        self.action_space = action_space(self._space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode; worlds take no options here."""
        check_seed(self._one.name, seed)
        super().reset(seed=None if seed is None else int(seed))
        return self._told(self._one.reset(seed))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._one.require_episode()
        action = check_action(self._one.name, "the agent", self._space, action)
        seen = self._one.step({self._group: action[None]})
        view, info = self._told(seen)
        outcome = seen.outcome
        return view, outcome.reward[self._group].item(), bool(outcome.terminated), bool(outcome.truncated), info

    def render(self) -> Any:
        """A picture `[height, width, 3]` of uint8; None without a render mode."""
        return None if self._draw is None else self._draw(self._one.scene())

    def _told(self, seen: SingleStep) -> tuple[Any, dict[str, Any]]:
        view, legal = own_part(seen.observation[self._group], 0)
        info = {name: value.item() for name, value in seen.outcome.metrics.items()}
        return view, info if legal is None else {**info, "action_mask": their_mask(self._space, legal)}


class VectorState(struct.PyTreeNode):
    """The copies, and which of them wait with their next episode for the next step."""

    worlds: Worlds
    held: jax.Array


class Final(NamedTuple):
    """What is known of the episodes that ended, `[E, ...]`: what was seen in the end, the rewards' sum, the steps."""

    view: PyTree
    returns: jax.Array
    length: jax.Array


class VectorStep(NamedTuple):
    """What a step of all copies led to, `[E, ...]`."""

    view: PyTree
    legal: jax.Array | None
    final: Final
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    metrics: dict[str, jax.Array]


class ShoalVectorEnv(VectorEnv):
    """Many copies; see the module."""

    def __init__(
        self,
        env: Env,
        name: str,
        num_envs: int,
        autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
        draw: Draw | None = None,
    ):
        require_positive("make_vec", num_envs=num_envs)
        modes = (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP)
        require(autoreset_mode in modes, "make_vec", "autoreset_mode", autoreset_mode, f"one of {modes}")
        spec = describe(env)
        self._name, self._group = name, only_group("make_vec", name, spec)
        self._space = spec.groups[self._group].action
        self.num_envs = num_envs
        self.metadata = {"autoreset_mode": autoreset_mode, "render_modes": [RGB_ARRAY], "render_fps": FPS}
        self.render_mode = None if draw is None else RGB_ARRAY
        self._draw, self._env = draw, env
        self.single_observation_space = view_space(spec.groups[self._group].observation)
        self.single_action_space = action_space(self._space)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._same_step = autoreset_mode is AutoresetMode.SAME_STEP
        self._begin, self._advance = _programs(Vectorised(env, num_envs), self._group, self._same_step)
        self._state: VectorState | None = None
        self._key: jax.Array | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins an episode in every copy. One seed is enough for all: each copy has its own chain of keys."""
        check_seed(self._name, seed, ", one for all: each copy has a chain of keys of its own from it")
        require(not options, self._name, "options", options, "None: all copies restart")
        super().reset(seed=None if seed is None else int(seed))
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        self._state, obs = self._begin(jax.random.key(int(seed)))
        return _own_arrays(_views(obs)), _with_masks(_mask_info(self._space, obs.legal), np.ones(self.num_envs, bool))

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        if self._state is None:
            raise ResetNeeded(f"{self._name}: no episode has begun: call reset() before step()")
        actions = check_action(self._name, "the copies", self._space, actions, (self.num_envs,))
        self._state, told = self._advance(self._state, actions)
        view, reward, terminated, truncated, metrics = _own_arrays(
            (told.view, told.reward, told.terminated, told.truncated, told.metrics)
        )
        infos = _with_masks({**metrics, **_mask_info(self._space, told.legal)}, np.ones(self.num_envs, bool))
        ended = terminated | truncated
        if self._same_step and ended.any():
            infos |= _with_masks(_final_info(told.final, ended), ended)
        return view, reward, terminated, truncated, infos

    def render(self) -> tuple[np.ndarray, ...] | None:
        """A picture `[height, width, 3]` of each copy; None without a render mode."""
        if self._draw is None:
            return None
        if self._state is None:
            raise ResetNeeded(f"{self._name}: there is nothing to draw before the first reset()")
        scenes = jax.device_get(_scenes(self._env)(self._state.worlds.state, self._state.worlds.params))
        return tuple(self._draw(jax.tree.map(lambda leaf, i=i: leaf[i], scenes)) for i in range(self.num_envs))


@functools.lru_cache(maxsize=128)  # copies that are made again are not compiled again
def _programs(worlds: Vectorised, group: str, same_step: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """How all copies begin, and how they move on."""

    def begin(key: jax.Array) -> tuple[VectorState, Observation]:
        state = worlds.reset(key)
        return VectorState(state, jnp.zeros(worlds.num_envs, bool)), state.observation[group]

    def advance(state: VectorState, actions: jax.Array) -> tuple[VectorState, VectorStep]:
        moved, outcome, ended = worlds.step(state.worlds, {group: actions[:, None]})
        shown, last = moved.observation[group], worlds.observe(ended.params, ended.state, worlds.num_envs)[group]
        final = Final(_views(last), next(iter(ended.returns.values())), ended.length)
        reward, terminated, truncated = outcome.reward[group][:, 0], outcome.terminated, outcome.truncated
        if same_step:
            told = VectorStep(_views(shown), shown.legal, final, reward, terminated, truncated, outcome.metrics)
            return VectorState(moved, state.held), told
        # A copy that ended in the last step stands still in this one, and shows where its new episode begins.
        held = state.held
        kept = trees.where(held, state.worlds, moved)
        shown = trees.where(held, state.worlds.observation[group], last)
        reward, metrics = jax.tree.map(lambda leaf: jnp.where(held, 0.0, leaf), (reward, outcome.metrics))
        told = VectorStep(_views(shown), shown.legal, final, reward, terminated & ~held, truncated & ~held, metrics)
        return VectorState(kept.replace(clock=moved.clock), ended.mask & ~held), told

    return jax.jit(begin), jax.jit(advance)


@functools.lru_cache(maxsize=128)
def _scenes(env: Env) -> Callable[[PyTree, PyTree], Any]:
    """Pictures of the states `[E, ...]` of all copies as arrays. Params are None where they are the world's own."""

    @jax.jit
    def scenes(states: PyTree, params: PyTree) -> Any:
        if params is None:
            own = env.default_params()
            return jax.vmap(lambda state: env.scene(state, own))(states)
        return jax.vmap(env.scene)(states, params)

    return scenes


def _views(obs: Observation) -> PyTree:
    """Views `[E, ...]` of the only agent; flags as numbers, as its space has them."""
    return jax.tree.map(lambda leaf: (leaf.astype(jnp.int8) if leaf.dtype == bool else leaf)[:, 0], obs.view)


def _own_arrays(tree: PyTree) -> Any:
    """Numpy arrays that the caller may write to."""
    return jax.tree.map(np.array, tree)


def _mask_info(space: ActionSpace, legal: jax.Array | None) -> dict[str, np.ndarray]:
    if legal is None:
        return {}
    rows = np.array(legal[:, 0]).astype(np.int8)
    if not isinstance(space, MultiDiscrete):
        return {"action_mask": rows}
    by_copy = np.full(len(rows), None, dtype=object)  # as Gymnasium's own vector environments put tuples together
    for i, row in enumerate(rows):
        by_copy[i] = their_mask(space, row)
    return {"action_mask": by_copy}


def _final_info(final: "Final", ended: np.ndarray) -> dict[str, Any]:
    """Final views as Gymnasium wants them, one object a copy, None where no episode ended; returns and lengths."""
    views = _own_arrays(final.view)
    by_copy = np.full(len(ended), None, dtype=object)
    for i in np.flatnonzero(ended):
        by_copy[i] = jax.tree.map(lambda leaf, i=i: leaf[i], views)
    episode = {"r": np.where(ended, final.returns, 0.0), "l": np.where(ended, final.length, 0)}
    return {"final_obs": by_copy, "final_info": _with_masks({"episode": _with_masks(episode, ended)}, ended)}


def _with_masks(infos: dict[str, Any], mask: np.ndarray) -> dict[str, Any]:
    """Gymnasium has, for every entry, one more that says which copies it is about."""
    return {**infos, **{f"_{name}": mask for name in infos}}
