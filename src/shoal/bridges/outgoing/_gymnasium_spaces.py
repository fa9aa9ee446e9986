"""Our spaces as Gymnasium's."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.bridges.outgoing._worlds import missing_package_error
from shoal.core.errors import WorldError
from shoal.core.spaces import ActionSpace, Box, Discrete, MultiDiscrete
from shoal.core.types import Group, Observation, PyTree

try:
    from gymnasium import spaces
except ImportError as error:
    raise missing_package_error("gymnasium") from error


def action_space(space: ActionSpace) -> spaces.Space[Any]:
    match space:
        case Discrete():
            return spaces.Discrete(space.n)
        case MultiDiscrete():
            return spaces.MultiDiscrete(list(space.sizes))
        case Box():
            return _box(space)


def view_space(view: PyTree, path: str = "view") -> spaces.Space[Any]:
    """A view is an array or a dict of arrays, at any depth."""
    if isinstance(view, Box):
        return _box(view)
    if isinstance(view, Mapping):
        return spaces.Dict({name: view_space(part, f"{path}[{name!r}]") for name, part in view.items()})
    raise WorldError(f"{path} is {view!r}: only arrays and dicts of arrays can be shown to Gymnasium")


def masked_space(group: Group, observation: Observation) -> spaces.Space[Any]:
    """The view, beside the mask of legal actions in worlds that have one."""
    view = view_space(group.observation)
    if observation.legal is None or isinstance(group.action, Box):
        return view
    return spaces.Dict({"observation": view, "action_mask": _mask_space(group.action)})


def _mask_space(space: Discrete | MultiDiscrete) -> spaces.Space[Any]:
    """What `sample(mask)` of an action space takes: an array, or one for each of several choices."""
    if isinstance(space, Discrete):
        return spaces.Box(0, 1, (space.n,), np.int8)
    return spaces.Tuple([spaces.Box(0, 1, (size,), np.int8) for size in space.sizes])


def _box(box: Box) -> spaces.Box:
    if box.dtype == "bool":  # Gymnasium's boxes are of numbers
        return spaces.Box(0, 1, box.shape, np.int8)
    dtype = np.dtype(box.dtype)
    low, high = box.low, box.high
    if np.issubdtype(dtype, np.integer):  # which have no infinity
        low, high = max(low, np.iinfo(dtype).min), min(high, np.iinfo(dtype).max)
    return spaces.Box(np.array(low, dtype)[()], np.array(high, dtype)[()], box.shape, dtype.type)
