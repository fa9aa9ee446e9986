"""Worlds around a world: each wrapper changes one thing and leaves the rest to the world inside.

    env = FrameStack(TimeLimit(make("mpe/simple_spread"), max_steps=50), count=4)

A wrapper without a world is a plan, as an experiment keeps it: `Experiment(env="mpe/simple_spread",
wrappers=(TimeLimit(max_steps=50), FrameStack(count=4)))` is the same world, and so is
`shoal train mpe/simple_spread --wrap time_limit:max_steps=50 --wrap frame_stack:count=4`. The first is the innermost.

| name | class | what it changes |
|---|---|---|
| `time_limit` | `TimeLimit` | truncates episodes after `max_steps` steps |
| `frame_stack` | `FrameStack` | a view is the last `count` views, oldest first |
| `reward_scale` | `RewardScale` | multiplies all rewards by `scale` |
| `observation_noise` | `ObservationNoise` | adds normal noise of deviation `scale` to all float views |
| `agent_ids` | `AgentIds` | tells every agent which one it is |
| `pad` | `Pad` | brings views and actions of all groups to one size, so that one policy can play them all |

Wrappers are worlds: static, hashable, checked by `check_env`, and they may be nested in any order. Params, players,
movers, who is active and present, the global state and the scene are those of the world inside.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, NoReturn, Self

import jax
import jax.numpy as jnp

from shoal.core.checks import check_types, require_finite, require_not_negative, require_whole
from shoal.core.env import Env, EnvAround, groups_of
from shoal.core.errors import OptionError, WorldError, require, unknown_name
from shoal.core.spaces import ActionNames, Box, names_fit, number_actions
from shoal.core.types import Actions, Group, Observation, Outcome, PyTree, Scene, Seat
from shoal.envs import _padding as padding

_MAX_FRAMES = 1000
Observations = dict[str, Observation]


@dataclasses.dataclass(frozen=True)
class Nothing(Env):
    """Stands for the world that a wrapper has not been put around yet."""

    @property
    def groups(self) -> Mapping[str, Group]:
        return self._refuse()

    def reset(self, key: jax.Array, params: PyTree) -> NoReturn:
        self._refuse()

    def step(self, key: jax.Array, state: PyTree, actions: Actions, params: PyTree) -> NoReturn:
        self._refuse()

    def observe(self, state: PyTree, params: PyTree) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise WorldError("this wrapper is around no world yet: give it one, as in FrameStack(env, count=4)")


NOTHING = Nothing()


@dataclasses.dataclass(frozen=True)
class Wrapper(EnvAround):
    """A world that does what the world inside does. Subclasses change what they are for."""

    env: Env = NOTHING
    name: ClassVar[str] = ""

    def __post_init__(self):
        if not isinstance(self.env, Env):
            option = next((field.name for field in dataclasses.fields(self) if field.name != "env"), None)
            plan = f"{option}={self.env!r}" if option and isinstance(self.env, int | float) else f"{option}=..."
            raise OptionError(
                f"{self.name}: the first argument must be a world, as made by shoal.make, got {self.env!r}. Or leave "
                f"it out: {type(self).__name__}({plan if option else ''}) is a plan, to be put around a world later"
            )
        check_types(self, self.name)

    def around(self, env: Env) -> Self:
        """The same wrapper, its options included, around another world."""
        return dataclasses.replace(self, env=env)


class _WithMemory(NamedTuple):
    """What a wrapper remembers from step to step, beside the state of the world inside."""

    state: PyTree
    memory: PyTree


@dataclasses.dataclass(frozen=True)
class _Remembering(Wrapper):
    """A wrapper that adds something to the state."""

    def global_state(self, state: _WithMemory, params: PyTree) -> PyTree:
        return self.env.global_state(state.state, params)

    def scene(self, state: _WithMemory, params: PyTree) -> Scene:
        return self.env.scene(state.state, params)

    def scene_for(self, state: _WithMemory, params: PyTree, seat: Seat) -> Scene:
        return self.env.scene_for(state.state, params, seat)


@dataclasses.dataclass(frozen=True)
class TimeLimit(_Remembering):
    """Truncates an episode after `max_steps` steps, unless the world ends it before."""

    max_steps: int = 1000
    name: ClassVar[str] = "time_limit"

    def __post_init__(self):
        super().__post_init__()
        require_whole(self.name, 1, max_steps=self.max_steps)

    def reset(self, key: jax.Array, params: PyTree) -> _WithMemory:
        return _WithMemory(self.env.reset(key, params), jnp.int32(0))

    def step(self, key: jax.Array, state: _WithMemory, actions: Actions, params: PyTree) -> tuple[PyTree, Outcome]:
        inner, outcome = self.env.step(key, state.state, actions, params)
        t = state.memory + 1
        truncated = outcome.truncated | ((t >= self.max_steps) & ~outcome.terminated)
        return _WithMemory(inner, t), outcome.replace(truncated=truncated)

    def observe(self, state: _WithMemory, params: PyTree) -> Observations:
        return self.env.observe(state.state, params)


@dataclasses.dataclass(frozen=True)
class RewardScale(Wrapper):
    """Multiplies all rewards by `scale`; the returns that are reported are scaled too."""

    scale: float = 1.0
    name: ClassVar[str] = "reward_scale"

    def __post_init__(self):
        super().__post_init__()
        require_finite(self.name, scale=self.scale)
        require(self.scale != 0, self.name, "scale", self.scale, "other than 0, which leaves nothing to learn from")

    def step(self, key: jax.Array, state: PyTree, actions: Actions, params: PyTree) -> tuple[PyTree, Outcome]:
        state, outcome = self.env.step(key, state, actions, params)
        return state, outcome.replace(reward={name: self.scale * reward for name, reward in outcome.reward.items()})


@dataclasses.dataclass(frozen=True)
class FrameStack(_Remembering):
    """Shows the last `count` views as one, oldest first; an episode begins with its first view `count` times.

    They are joined along the last axis: vectors get longer, images get more channels, and a single number a view
    becomes a vector.
    """

    count: int = 4
    name: ClassVar[str] = "frame_stack"

    def __post_init__(self):
        super().__post_init__()
        require_whole(self.name, 1, at_most=_MAX_FRAMES, count=self.count)

    @property
    def groups(self) -> Mapping[str, Group]:
        return _with_other_views(self.env.groups)

    def reset(self, key: jax.Array, params: PyTree) -> _WithMemory:
        state = self.env.reset(key, params)
        frames = jax.tree.map(lambda leaf: jnp.stack([leaf] * self.count, axis=1), self._views(state, params))
        return _WithMemory(state, frames)

    def step(self, key: jax.Array, state: _WithMemory, actions: Actions, params: PyTree) -> tuple[PyTree, Outcome]:
        inner, outcome = self.env.step(key, state.state, actions, params)
        newest = self._views(inner, params)
        frames = jax.tree.map(lambda old, new: jnp.concatenate([old[:, 1:], new[:, None]], 1), state.memory, newest)
        return _WithMemory(inner, frames), outcome

    def observe(self, state: _WithMemory, params: PyTree) -> Observations:
        seen = self.env.observe(state.state, params)
        stacked = jax.tree.map(_join, state.memory)
        return {name: obs.replace(view=stacked[name]) for name, obs in seen.items()}

    def _views(self, state: PyTree, params: PyTree) -> dict[str, PyTree]:
        return {name: obs.view for name, obs in self.env.observe(state, params).items()}


@dataclasses.dataclass(frozen=True)
class ObservationNoise(_Remembering):
    """Adds normal noise of standard deviation `scale` to every number of a float view, drawn for every step.

    Views of other types, such as images of bytes, stay as they are; a world that has no others is refused. The noise is
    part of the state, so that whoever looks twice sees the same.
    """

    scale: float = 0.1
    name: ClassVar[str] = "observation_noise"

    def __post_init__(self):
        super().__post_init__()
        require_not_negative(self.name, scale=self.scale)

    @property
    def groups(self) -> Mapping[str, Group]:
        return _with_other_views(self.env.groups)

    def reset(self, key: jax.Array, params: PyTree) -> _WithMemory:
        key, own = jax.random.split(key)
        state = self.env.reset(key, params)
        return _WithMemory(state, self._draw(own, state, params))

    def step(self, key: jax.Array, state: _WithMemory, actions: Actions, params: PyTree) -> tuple[PyTree, Outcome]:
        key, own = jax.random.split(key)
        inner, outcome = self.env.step(key, state.state, actions, params)
        return _WithMemory(inner, self._draw(own, inner, params)), outcome

    def observe(self, state: _WithMemory, params: PyTree) -> Observations:
        seen = self.env.observe(state.state, params)
        noisy = {}
        for name, obs in seen.items():
            leaves, structure = jax.tree.flatten(obs.view)
            draws = iter(state.memory[name])
            leaves = [leaf + next(draws) if _is_float(leaf) else leaf for leaf in leaves]
            noisy[name] = obs.replace(view=jax.tree.unflatten(structure, leaves))
        return noisy

    def _draw(self, key: jax.Array, state: PyTree, params: PyTree) -> dict[str, list[jax.Array]]:
        shapes = jax.eval_shape(self.env.observe, state, params)
        leaves = [(name, leaf) for name, obs in shapes.items() for leaf in jax.tree.leaves(obs.view) if _is_float(leaf)]
        if not leaves:
            kinds = sorted({str(leaf.dtype) for obs in shapes.values() for leaf in jax.tree.leaves(obs.view)})
            raise OptionError(
                f"{self.name}: no view of this world is made of floats ({', '.join(kinds)}), and others get no noise"
            )
        noise: dict[str, list[jax.Array]] = {name: [] for name in shapes}
        for number, (name, leaf) in enumerate(leaves):
            own = jax.random.fold_in(key, number)
            noise[name].append(self.scale * jax.random.normal(own, leaf.shape, leaf.dtype))
        return noise


@dataclasses.dataclass(frozen=True)
class AgentIds(Wrapper):
    """Tells every agent which one it is: a one-hot vector over all agents of all groups, in the order of the groups.

    It is appended to views that are vectors; a dict of views gets the entry `agent_id`, and any other view `x` becomes
    `{"agent_id": ..., "view": x}`.
    """

    name: ClassVar[str] = "agent_ids"

    @property
    def groups(self) -> Mapping[str, Group]:
        return _with_other_views(self.env.groups)

    def observe(self, state: PyTree, params: PyTree) -> Observations:
        sizes = [group.size for group in self.env.groups.values()]
        ids = dict(zip(self.env.groups, jnp.split(jnp.eye(sum(sizes)), padding.ends(sizes)), strict=True))
        seen = self.env.observe(state, params)
        return {name: obs.replace(view=_with_id(obs.view, ids[name])) for name, obs in seen.items()}


@dataclasses.dataclass(frozen=True)
class Pad(Wrapper):
    """Brings the views and the actions of all groups to one size, so that one policy can play them all.

    Views are filled up with zeros at their ends. Discrete actions that a group does not have are illegal for it and, if
    taken all the same, count as the first one; numbers beyond a group's own of a continuous action have no effect.
    Groups whose views or actions differ in more than size are refused.
    """

    name: ClassVar[str] = "pad"

    def __post_init__(self):
        super().__post_init__()
        if self.env != NOTHING:
            padding.common_action(groups_of(self.env))

    @property
    def groups(self) -> Mapping[str, Group]:
        action = padding.common_action(self.env.groups)
        groups = _with_other_views(self.env.groups)
        return {name: dataclasses.replace(group, action=action) for name, group in groups.items()}

    def action_names(self, group: str) -> ActionNames:
        """Those of the world inside, and numbers where the group has fewer actions than others."""
        names, action = self.env.action_names(group), padding.common_action(self.env.groups)
        return names if names_fit(action, names) else number_actions(action)

    def step(self, key: jax.Array, state: PyTree, actions: Actions, params: PyTree) -> tuple[PyTree, Outcome]:
        own = {name: padding.own_action(group.action, actions[name]) for name, group in self.env.groups.items()}
        return self.env.step(key, state, own, params)

    def observe(self, state: PyTree, params: PyTree) -> Observations:
        seen = self.env.observe(state, params)
        shapes = padding.common_shapes({name: obs.view for name, obs in seen.items()})
        return {name: self._pad(name, obs, shapes) for name, obs in seen.items()}

    def _pad(self, name: str, obs: Observation, shapes: PyTree) -> Observation:
        obs = obs.replace(view=jax.tree.map(padding.pad_to, obs.view, shapes))
        group, action = self.env.groups[name], padding.common_action(self.env.groups)
        if isinstance(action, Box) or (obs.legal is None and group.action == action):
            return obs
        return obs.replace(legal=padding.own_legal(group.action, group.size, obs.legal, action))


WRAPPERS: dict[str, type[Wrapper]] = {
    wrapper.name: wrapper for wrapper in (TimeLimit, FrameStack, RewardScale, ObservationNoise, AgentIds, Pad)
}
"""The wrappers, by the names that run folders and the command line know them by."""


def wrapper_class(name: str) -> type[Wrapper]:
    """The wrapper of that name."""
    if name not in WRAPPERS:
        raise unknown_name("wrapper", name, WRAPPERS)
    return WRAPPERS[name]


def wrap(env: Env, wrappers: Iterable[Wrapper]) -> Env:
    """The world within all of these, the first being the innermost."""
    for wrapper in wrappers:
        env = wrapper.around(env)
    return env


def innermost(world: Env) -> Env:
    """A world without its wrappers."""
    while isinstance(world, Wrapper):
        world = world.env
    return world


def _with_other_views(groups: Mapping[str, Group]) -> dict[str, Group]:
    """The same groups; what they see is derived again, from what `observe` returns."""
    return {name: dataclasses.replace(group, observation=None) for name, group in groups.items()}


def _join(frames: jax.Array) -> jax.Array:
    """Frames `[n, count, ..., d]` as one, `[n, ..., count * d]`; `[n, count]` is joined already."""
    if frames.ndim == 2:
        return frames
    last = jnp.moveaxis(frames, 1, -2)
    return last.reshape(*last.shape[:-2], -1)


def _with_id(view: PyTree, ids: jax.Array) -> PyTree:
    if isinstance(view, Mapping):
        if "agent_id" in view:
            raise OptionError("agent_ids: the views of this world have an entry 'agent_id' already")
        return {**view, "agent_id": ids}
    if getattr(view, "ndim", 0) == 2 and _is_float(view):
        return jnp.concatenate([view, ids.astype(view.dtype)], axis=1)
    return {"agent_id": ids, "view": view}


def _is_float(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)
