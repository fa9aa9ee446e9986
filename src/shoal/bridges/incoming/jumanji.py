"""Jumanji environments as worlds: `jumanji:Game2048-v1`. They are JAX, so they run in the fused runner.

**Agents.** One group, `agent`: of `num_agents` in environments that have such a number, else of one. The view is a dict
of the fields of their observation, nested ones as `agent_position.row`, all float32. Where there are several agents,
each sees its own row of fields that have one for each, and the whole of all others; of those named in `shared` (by
default `grid`, whose side may happen to be the number of agents) always the whole. If they see the same array, `agent`
says, one-hot, which one they are.

**Legal actions** are those of `action_mask`. Choices made at once whose mask covers all combinations of them (as in
`BinPack-v2`) become one choice among the combinations, in the order of the mask.

**Ends.** The last step with a discount of 0 terminates an episode, with any other it is truncated.
"""

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jumanji.registration import make as make_theirs
from jumanji.registration import registered_environments

from shoal.bridges.incoming._jax_worlds import (
    Actions,
    WrappedState,
    box_actions,
    choices,
    some_legal,
    strengthen_dtypes,
    tidy,
)
from shoal.core.env import Env
from shoal.core.errors import OptionError, require, unknown_name
from shoal.core.spaces import Box, Discrete, num_logits
from shoal.core.types import Group, Observation, Outcome, PyTree

GROUP = "agent"
MASK = "action_mask"


@dataclasses.dataclass(frozen=True)
class Jumanji(Env):
    """An environment of Jumanji. alone: it has one agent, whose actions have no axis of agents."""

    id: str
    options: tuple[tuple[str, Any], ...]
    env: Any = dataclasses.field(compare=False)  # the id and the options say all that the rest does
    actions: Actions = dataclasses.field(compare=False)
    size: int
    alone: bool
    masked: bool
    shared: tuple[str, ...]

    kind: ClassVar[str] = "cooperative"

    @property
    def groups(self) -> dict[str, Group]:
        return {GROUP: Group(self.size, self.actions.space)}

    def reset(self, key: jax.Array, params: PyTree) -> WrappedState:
        state, step = self.env.reset(key)
        return self._held(strengthen_dtypes(state), step.observation)

    def step(
        self, key: jax.Array, state: WrappedState, actions: dict[str, jax.Array], params: PyTree
    ) -> tuple[WrappedState, Outcome]:
        chosen = jax.vmap(self.actions.theirs)(actions[GROUP])
        inner, step = self.env.step(state.inner, chosen[0] if self.alone else chosen)
        reward = jnp.broadcast_to(jnp.asarray(step.reward, jnp.float32), (self.size,))
        over, gone = step.last(), jnp.all(step.discount == 0)
        return self._held(strengthen_dtypes(inner, state.inner), step.observation), Outcome(
            {GROUP: reward}, over & gone, over & ~gone
        )

    def observe(self, state: WrappedState, params: PyTree) -> dict[str, Observation]:
        return {GROUP: Observation(state.view[GROUP], state.legal[GROUP] if state.legal else None)}

    def _held(self, inner: PyTree, observation: PyTree) -> WrappedState:
        legal = None
        if self.masked:
            width = num_logits(self.actions.space)  # pyright: ignore[reportArgumentType]
            legal = {GROUP: some_legal(getattr(observation, MASK).reshape(self.size, width))}
        return WrappedState(inner, {GROUP: self._view(observation)}, legal)

    def _view(self, observation: PyTree) -> PyTree:
        seen = tidy(observation)
        if not isinstance(seen, dict):
            seen = {"view": seen}
        if self.masked:
            seen = {name: leaf for name, leaf in seen.items() if name != MASK}
        view = {name: self._rows(name, leaf) for name, leaf in seen.items()}
        if not self.alone and any(self._is_shared(name, leaf) and leaf.size > 1 for name, leaf in seen.items()):
            view["agent"] = jnp.eye(self.size)
        return view

    def _rows(self, name: str, leaf: jax.Array) -> jax.Array:
        """A field as every agent sees it, `[n, ...]`."""
        if not self._is_shared(name, leaf):
            return leaf.reshape(self.size, -1) if leaf.ndim == 1 else leaf
        return jnp.broadcast_to(leaf, (self.size, *leaf.shape))

    def _is_shared(self, name: str, leaf: jax.Array) -> bool:
        return self.alone or name in self.shared or leaf.shape[0] != self.size


def make(name: str, shared: tuple[str, ...] = ("grid",), **options: Any) -> Env:
    """An environment of Jumanji by its id; options are arguments of its constructor."""
    title = f"jumanji:{name}"
    known = registered_environments()
    if name not in known:
        raise OptionError(f"{title}: {unknown_name('Jumanji environment', name, known)}")
    require(isinstance(shared, tuple | list), title, "shared", shared, "names of fields, such as ('grid',)")
    try:
        env = make_theirs(name, **options)
    except Exception as error:  # a constructor may download, read and check whatever it likes
        raise OptionError(f"{title}: Jumanji cannot make it: {type(error).__name__}: {error}") from error
    _, step = jax.eval_shape(env.reset, jax.eval_shape(lambda: jax.random.key(0)))
    num_agents = getattr(env, "num_agents", None)
    alone = num_agents is None
    mask = tuple(step.observation.action_mask.shape) if hasattr(step.observation, MASK) else None
    actions = _actions(title, env.action_spec, alone, mask)
    size = 1 if alone else int(num_agents)
    masked = mask is not None and not isinstance(actions.space, Box)
    if masked and math.prod(mask or ()) != size * num_logits(actions.space):  # pyright: ignore[reportArgumentType]
        raise OptionError(f"{title}: observation.{MASK} has the shape {mask}, which does not fit its actions")
    return Jumanji(title, tuple(sorted(options.items())), env, actions, size, alone, masked, tuple(shared))


def _actions(title: str, spec: Any, alone: bool, mask: tuple[int, ...] | None) -> Actions:
    """The actions of one agent."""
    path = "action_spec"
    if not hasattr(spec, "shape") or not hasattr(spec, "minimum"):
        raise OptionError(f"{title}: {path} is {type(spec).__name__}: actions must be choices or a bounded array")
    shape = tuple(spec.shape) if alone else tuple(spec.shape)[1:]
    low, high = (np.broadcast_to(np.asarray(bound), spec.shape) for bound in (spec.minimum, spec.maximum))
    if not alone:
        if len(set(map(bytes, low))) > 1 or len(set(map(bytes, high))) > 1:
            raise OptionError(f"{title}: {path} differs between agents, who would need groups of their own")
        low, high = low[0], high[0]
    if jnp.issubdtype(spec.dtype, jnp.floating):
        return box_actions(title, path, low, high, shape, spec.dtype)
    if len(shape) > 1 or low.min(initial=0) != 0 or low.max(initial=0) != 0:
        raise OptionError(f"{title}: {path} is {spec}: choices must be a number or a vector of numbers from 0 on")
    sizes = tuple(int(most) + 1 for most in np.atleast_1d(high))
    if not shape:
        return choices(sizes[0], spec.dtype)
    if alone and mask == sizes:
        return Actions(Discrete(math.prod(sizes)), lambda action: _combination(action, sizes, spec))
    if alone and mask is not None and len(mask) == 2 and mask[0] == len(sizes) and mask[1] < min(sizes):
        sizes = (mask[1],) * len(sizes)  # `MultiCVRP-v0` declares one choice more than it has
    return choices(sizes, spec.dtype)


def _combination(action: jax.Array, sizes: tuple[int, ...], spec: Any) -> jax.Array:
    return jnp.stack(jnp.unravel_index(action, sizes)).astype(spec.dtype)
