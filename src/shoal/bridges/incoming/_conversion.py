"""Converts the values that environments return to our types: numpy in, numpy out."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shoal.bridges.incoming._parts import Misfit, NotFinite
from shoal.core.types import Observation, Outcome


def make_observation(view: Any, legal: Any = None, active: Any = None, present: Any = None) -> Observation:
    """An `Observation` whose leaves are numpy arrays."""
    return Observation(view, legal, active, present)


def make_outcome(reward: dict[str, Any], terminated: Any, truncated: Any) -> Outcome:
    """An `Outcome` whose leaves are numpy arrays; ends may be bools."""
    ends: list[Any] = [np.asarray(end, bool)[()] for end in (terminated, truncated)]
    return Outcome(reward, ends[0], ends[1])


def to_reward(value: Any, owner: str = "the reward") -> float:
    """A reward as a finite float."""
    if isinstance(value, float) and math.isfinite(value):  # np.float64 is one too
        return float(value)
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise Misfit(f"{owner} is {value!r}, not a number")
    number = float(array.reshape(())[()])
    if not math.isfinite(number):
        raise NotFinite(f"{owner} is {'NaN' if math.isnan(number) else number}")
    return number


def map_view(function: Callable[[np.ndarray], np.ndarray], view: Any) -> Any:
    """The function of each array of a view."""
    return {name: function(leaf) for name, leaf in view.items()} if isinstance(view, dict) else function(view)


def legal_row(mask: Any, width: int) -> np.ndarray:
    """A mask of theirs (an array, or a tuple or dict of them) as a row of `legal`; without a true entry, all are."""
    parts = _flat(mask)
    row = np.concatenate([np.asarray(part).ravel() for part in parts]) if len(parts) > 1 else np.asarray(parts[0])
    if row.shape != (width,):
        raise Misfit(f"the action mask has the shape {row.shape}, but there are {width} choices")
    row = row.astype(bool)
    return row if row.any() else np.ones(width, bool)


def _flat(mask: Any) -> Sequence[Any]:
    if isinstance(mask, dict | tuple):
        return [leaf for part in (mask.values() if isinstance(mask, dict) else mask) for leaf in _flat(part)]
    return [mask]
