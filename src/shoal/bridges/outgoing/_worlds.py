"""What all wrappers of our worlds share: which world is meant, what its agents are called, which actions it takes."""

import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from shoal.core.env import Env, Spec
from shoal.core.errors import OptionError, require
from shoal.core.host import HostEnvProxy
from shoal.core.registry import make
from shoal.core.spaces import ActionSpace, Box, Discrete, MultiDiscrete, action_dtype, action_shape
from shoal.core.types import Observation, PyTree, Seat
from shoal.viz.raster import SceneRenderer

Draw = Callable[[Any], np.ndarray]
"""Turns a `Scene` into a picture `[height, width, 3]` of uint8."""


RGB_ARRAY = "rgb_array"
"""The render mode of arrays of pixels."""
FPS = 15
"""Frames a second at which pictures of every step look as on the replay page."""


def choose_draw(owner: str, render_mode: str | None, draw: Draw | None) -> Draw | None:
    """How pictures are made: by `draw`, or for the render mode `rgb_array` as films are; None: not at all."""
    allowed = f"None or {RGB_ARRAY!r}: a world describes its picture as shapes, it opens no window"
    require(render_mode in (None, RGB_ARRAY), owner, "render_mode", render_mode, allowed)
    return SceneRenderer() if draw is None and render_mode == RGB_ARRAY else draw


def make_env_of(owner: str, world: str | Env, options: dict[str, Any]) -> tuple[Env, str]:
    """The world, and what to call it: an id with its options, or a world that is already made."""
    if isinstance(world, str):
        env, name = make(world, **options), world
    else:
        require(isinstance(world, Env), owner, "world", world, "the id of a world, or a world as made by shoal.make")
        if options:
            raise OptionError(f"{owner}: the world is made already, so it takes no options; got {', '.join(options)}")
        env, name = world, type(world).__name__
    if isinstance(env, HostEnvProxy):
        raise OptionError(f"{owner}: {env.id} is an environment of another library already; use it there without Shoal")
    return env, name


def only_group(owner: str, name: str, spec: Spec) -> str:
    """The group of a world that has one agent; refuses worlds that have more."""
    total = sum(group.size for group in spec.groups.values())
    if total > 1:
        sizes = ", ".join(f"{group.size} {name}" for name, group in spec.groups.items())
        raise OptionError(
            f"{owner}: {name!r} has {total} agents ({sizes}), and a Gymnasium environment has one. "
            "Use shoal.bridges.outgoing.pettingzoo.parallel_env for a world of several agents, "
            "or shoal.bridges.outgoing.torchrl.ShoalEnv for many copies of it."
        )
    return next(iter(spec.groups))


def seat_names(spec: Spec) -> dict[str, Seat]:
    """Every seat under the name of its agent, `<group>_<i>`."""
    return {f"{name}_{i}": (name, i) for name, group in spec.groups.items() for i in range(group.size)}


def check_action(owner: str, whose: str, space: ActionSpace, action: Any, lead: tuple[int, ...] = ()) -> np.ndarray:
    """Actions as the world takes them, `[*lead, ...]`; refuses those outside the space."""
    dtype = action_dtype(space)
    array = np.asarray(action)
    allowed = np.issubdtype(array.dtype, np.number) if isinstance(space, Box) else array.dtype.kind in "iub"
    if not allowed or array.shape != (*lead, *action_shape(space)):
        what = f"{array.dtype} of shape {array.shape}"
        wanted = f"{'numbers' if isinstance(space, Box) else 'whole numbers'} of shape {(*lead, *action_shape(space))}"
        raise OptionError(f"{owner}: the action of {whose} must be {wanted} ({space}), got {what}")
    low, high = _bounds(space)
    cast = array.astype(dtype)
    within = (cast >= low) & (cast <= high)  # false for NaN
    if not within.all():
        got = array if not lead else array[~within.reshape(*lead, -1).all(-1)][0]
        raise OptionError(f"{owner}: an action of {whose} is outside its space {space}: got {np.array2string(got)}")
    return cast


def check_seed(owner: str, seed: Any, why: str = "") -> None:
    """Refuses what is no seed. Keys have 32 bits: other numbers would silently equal one of these."""
    whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    fits = seed is None or (whole and 0 <= seed < 2**32)
    require(bool(fits), owner, "seed", seed, f"None or a whole number from 0 to 2**32 - 1{why}")


def illegal(space: Discrete | MultiDiscrete, action: Any, legal: Any) -> bool:
    """Whether a mask `[num_logits]` forbids an action of the space."""
    sizes = [space.n] if isinstance(space, Discrete) else list(space.sizes)
    starts = np.cumsum([0, *sizes[:-1]])
    return not np.asarray(legal, bool)[starts + np.atleast_1d(np.asarray(action))].all()


def choice(owner: str, whose: str, space: Discrete, action: Any) -> int:
    """One action of a `Discrete` space, quicker than `check_action`."""
    try:
        index = operator.index(action)
    except TypeError:
        return int(check_action(owner, whose, space, action))
    if not 0 <= index < space.n:
        raise OptionError(f"{owner}: an action of {whose} is outside its space {space}: got {index}")
    return index


def own_part(obs: Observation, i: int) -> tuple[PyTree, Any]:
    """What one agent sees, and which actions it may take."""
    view = obs.view[i] if isinstance(obs.view, np.ndarray) else jax.tree.map(lambda leaf: leaf[i], obs.view)
    return view, None if obs.legal is None else obs.legal[i]


def their_mask(space: ActionSpace, legal: Any) -> Any:
    """A mask `[num_logits]` as Gymnasium's `sample(mask)` takes it: a tuple with a part for each of several choices."""
    if legal is None or not isinstance(space, MultiDiscrete):
        return legal
    return tuple(np.split(legal, np.cumsum(space.sizes)[:-1]))


def missing_package_error(package: str) -> OptionError:
    """The error for a package that is not installed."""
    return OptionError(f"this bridge needs the package {package}, which is not installed: pip install {package}")


def _bounds(space: ActionSpace) -> tuple[Any, Any]:
    if isinstance(space, Box):
        return np.array(space.low, space.dtype), np.array(space.high, space.dtype)
    return 0, (space.n if isinstance(space, Discrete) else np.array(space.sizes)) - 1
