"""The environment contract: a world, written once, in plain JAX, for one environment.

A world is a frozen dataclass whose fields are its options (sizes, rules); everything that changes lives in the
state that `reset` and `step` return, every float that one may want to randomise lives in `params`. The framework
batches, resets and trains it. See `docs/design.md` and `shoal.testing.check_env`.
"""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from shoal.core.errors import OptionError, WorldError
from shoal.core.spaces import ActionNames, Box, action_dtype, action_shape, number_actions
from shoal.core.types import Actions, Group, Observation, Outcome, PyTree, Scene, Seat


class Env:
    """Base class of worlds. Subclasses are frozen dataclasses; every method is pure and written for one copy."""

    kind: ClassVar[str] = "mixed"
    """cooperative (the sum of all returns is what everybody wants), competitive or mixed.

    It is shown by `shoal envs`, and runs of several sides keep a best checkpoint only where they cooperate.
    """

    @property
    def groups(self) -> Mapping[str, Group]:
        """The groups of agents, by name."""
        raise WorldError(f"{type(self).__name__} must define the property `groups`")

    @property
    def players(self) -> dict[str, tuple[Seat, ...]]:
        """The players and the seats they play. By default each group is one player; a card game has one per seat."""
        return {name: tuple((name, i) for i in range(group.size)) for name, group in self.groups.items()}

    def default_params(self) -> PyTree:
        """The world's float parameters: a pytree of float leaves."""
        return ()

    def sample_params(self, key: jax.Array) -> PyTree:
        """Parameters drawn at random for one episode (domain randomisation); by default the default ones."""
        return self.default_params()

    def reset(self, key: jax.Array, params: PyTree) -> PyTree:
        """The state at the start of an episode."""
        raise WorldError(f"{type(self).__name__} must define `reset(key, params)`")

    def step(self, key: jax.Array, state: PyTree, actions: Actions, params: PyTree) -> tuple[PyTree, Outcome]:
        """The next state and the outcome of the actions. An inactive agent's action must have no effect."""
        raise WorldError(f"{type(self).__name__} must define `step(key, state, actions, params)`")

    def observe(self, state: PyTree, params: PyTree) -> dict[str, Observation]:
        """The observations of each group in a state."""
        raise WorldError(f"{type(self).__name__} must define `observe(state, params)`")

    def global_state(self, state: PyTree, params: PyTree) -> PyTree:
        """The global state for centralised critics: by default all agents' views, concatenated."""
        views = [obs.view for obs in self.observe(state, params).values()]
        return jnp.concatenate([leaf.astype(jnp.float32).ravel() for leaf in jax.tree.leaves(views)])

    def scene(self, state: PyTree, params: PyTree) -> Scene:
        """A picture of the state. The default shows nothing: define it to watch replays."""
        return Scene()

    def scene_for(self, state: PyTree, params: PyTree, seat: Seat) -> Scene:
        """What a person in a seat may see: the whole picture, unless the world hides something from that seat."""
        return self.scene(state, params)

    def action_names(self, group: str) -> ActionNames:
        """What the actions of a group are called, for a person who plays: see `ActionNames`. By default, numbers.

        `left`, `right`, `up` and `down` are played by the arrow keys, `stay` and `nothing` by no key at all.
        """
        return number_actions(self.groups[group].action)

    @property
    def play_fps(self) -> float:
        """Steps a second when a person plays; 0: the world waits for the person, as all that are played in turns do."""
        return 0.0 if any(group.movers is not None for group in self.groups.values()) else 10.0

    def to_pettingzoo(self, turns: bool = False) -> Any:
        """The world as a PettingZoo environment, all agents acting at once; turns: one after the other (AEC)."""
        bridge = importlib.import_module("shoal.bridges.outgoing.pettingzoo")  # late: it may not be installed
        return bridge.aec_env(self) if turns else bridge.parallel_env(self)


class EnvAround(Env):
    """A world that forwards everything to the wrapped world, `env`. Subclasses override what they change."""

    env: Env

    @property
    def kind(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.env.kind

    @property
    def groups(self) -> Mapping[str, Group]:
        return self.env.groups

    @property
    def players(self) -> dict[str, tuple[Seat, ...]]:
        return self.env.players

    def default_params(self) -> PyTree:
        return self.env.default_params()

    def sample_params(self, key: jax.Array) -> PyTree:
        return self.env.sample_params(key)

    def reset(self, key: jax.Array, params: PyTree) -> PyTree:
        return self.env.reset(key, params)

    def step(self, key: jax.Array, state: PyTree, actions: Actions, params: PyTree) -> tuple[PyTree, Outcome]:
        return self.env.step(key, state, actions, params)

    def observe(self, state: PyTree, params: PyTree) -> dict[str, Observation]:
        return self.env.observe(state, params)

    def global_state(self, state: PyTree, params: PyTree) -> PyTree:
        return self.env.global_state(state, params)

    def scene(self, state: PyTree, params: PyTree) -> Scene:
        return self.env.scene(state, params)

    def scene_for(self, state: PyTree, params: PyTree, seat: Seat) -> Scene:
        return self.env.scene_for(state, params, seat)

    def action_names(self, group: str) -> ActionNames:
        return self.env.action_names(group)

    @property
    def play_fps(self) -> float:
        return self.env.play_fps


@dataclasses.dataclass(frozen=True)
class Spec:
    """A world's actual shapes: groups with their observation filled in, and the global state's spec.

    observations: what `observe` returns, by group, as shapes.
    """

    groups: dict[str, Group]
    state: PyTree
    observations: dict[str, Observation] = dataclasses.field(default_factory=dict)


def groups_of(env: Env) -> dict[str, Group]:
    """A world's groups; refuses anything but a mapping from names to groups."""
    groups = env.groups
    said = f"{type(env).__name__}.groups"
    form = "It must be a dict of names and groups, such as {'agent': shoal.Group(3, shoal.Discrete(5))}"
    if not isinstance(groups, Mapping):
        raise WorldError(f"{said} is {groups!r}. {form}.")
    if not groups:
        raise WorldError(f"{said} is empty: a world needs at least one group of agents. {form}.")
    for name, group in groups.items():
        if not isinstance(name, str) or not isinstance(group, Group):
            raise WorldError(f"{said} has the entry {name!r}: {group!r}. {form}.")
    return dict(groups)


def action_shapes(groups: Mapping[str, Group]) -> dict[str, jax.ShapeDtypeStruct]:
    """The actions `[n, ...]` of all agents, by group, as shapes."""
    return {
        name: jax.ShapeDtypeStruct((group.size, *action_shape(group.action)), action_dtype(group.action))
        for name, group in groups.items()
    }


def check_actions(owner: str, groups: Mapping[str, Group], count: int, actions: Any) -> None:
    """Refuses anything but one array of actions `[count, n, ...]` for each group.

    Values are not looked at: all of this is known while a program is traced, so a compiled loop checks nothing.
    """
    wanted = {name: jax.ShapeDtypeStruct((count, *one.shape), one.dtype) for name, one in action_shapes(groups).items()}
    form = "actions must be a dict with an array for each group: " + ", ".join(
        f"{name!r}: {_in_words(one)}" for name, one in wanted.items()
    )
    if not isinstance(actions, Mapping):
        raise OptionError(f"{owner}: {form}; got {_in_words(actions)}")
    if set(actions) != set(wanted):
        raise OptionError(f"{owner}: {form}; got the groups {', '.join(map(repr, actions)) or 'none'}")
    for name, one in wanted.items():
        _check_group(owner, name, one, groups[name], actions[name])


def _check_group(owner: str, name: str, wanted: jax.ShapeDtypeStruct, group: Group, got: Any) -> None:
    where = f"{owner}: the actions of {name!r} must be {_in_words(wanted)}, by copy and agent"
    if not hasattr(got, "shape") or not hasattr(got, "dtype"):
        raise OptionError(f"{where}; got {_in_words(got)}. Make it an array with jnp.asarray.")
    if got.shape != wanted.shape:
        raise OptionError(f"{where}; got {_in_words(got)}. {_advice(wanted.shape, got.shape)}")
    kind = jnp.integer if jnp.issubdtype(wanted.dtype, jnp.integer) else jnp.floating
    if not jnp.issubdtype(got.dtype, kind):
        raise OptionError(f"{where}, for {group.action}; got {_in_words(got)}. Convert it with .astype.")


def _advice(wanted: tuple[int, ...], got: tuple[int, ...]) -> str:
    if got == wanted[1:]:
        return "These are the actions of one copy: jnp.broadcast_to gives them to all."
    if got == wanted[:1] + wanted[2:] and wanted[1] == 1:
        return "Its one agent has an axis, too: actions[:, None]."
    return f"The first axis is of the {wanted[0]} copies, the second of the {wanted[1]} agents of the group."


def _in_words(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype} {list(value.shape)}"
    return f"a {type(value).__name__}"


def describe(env: Env) -> Spec:
    """Derives every shape of a world with `jax.eval_shape`; nothing is computed."""
    groups = groups_of(env)
    key = jax.eval_shape(lambda: jax.random.key(0))

    def first(key: jax.Array) -> tuple[Any, Any]:
        params = env.default_params()
        state = env.reset(key, params)
        return env.observe(state, params), env.global_state(state, params)

    observations, state = jax.eval_shape(first, key)
    if set(observations) != set(groups):
        raise WorldError(
            f"{type(env).__name__}.observe returned the groups {sorted(observations)}, "
            f"but `groups` declares {sorted(groups)}"
        )
    filled = {}
    for name, group in groups.items():
        if group.size < 1:
            raise WorldError(f"{type(env).__name__}: group {name!r} has size {group.size}, it must be at least 1")
        for path, leaf in jax.tree_util.tree_leaves_with_path(observations[name].view):
            if leaf.ndim < 1 or leaf.shape[0] != group.size:
                raise WorldError(
                    f"{type(env).__name__}.observe: the view{jax.tree_util.keystr(path)} of group {name!r} has shape "
                    f"{leaf.shape}; its first axis must be the group's size, {group.size}"
                )
        seen = jax.tree.map(lambda leaf: Box(leaf.shape[1:], dtype=str(leaf.dtype)), observations[name].view)
        filled[name] = dataclasses.replace(group, observation=group.observation or seen)
    return Spec(groups=filled, state=state, observations=dict(observations))
