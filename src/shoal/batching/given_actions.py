"""Actions that somebody hands to a vectorised world: checked by their groups, shapes and dtypes, never their values.

That is known while a program is traced, so a compiled loop checks nothing.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from shoal.core.env import Group, action_shapes
from shoal.core.errors import OptionError

_OWNER = "Vectorised.step"


def check_actions(groups: Mapping[str, Group], count: int, actions: Any) -> None:
    """Refuses anything but one array of actions `[count, n, ...]` for each group."""
    wanted = {name: jax.ShapeDtypeStruct((count, *one.shape), one.dtype) for name, one in action_shapes(groups).items()}
    form = "actions must be a dict with an array for each group: " + ", ".join(
        f"{name!r}: {_in_words(one)}" for name, one in wanted.items()
    )
    if not isinstance(actions, Mapping):
        raise OptionError(f"{_OWNER}: {form}; got {_in_words(actions)}")
    if set(actions) != set(wanted):
        raise OptionError(f"{_OWNER}: {form}; got the groups {', '.join(map(repr, actions)) or 'none'}")
    for name, one in wanted.items():
        _check_group(name, one, groups[name], actions[name])


def _check_group(name: str, wanted: jax.ShapeDtypeStruct, group: Group, got: Any) -> None:
    where = f"{_OWNER}: the actions of {name!r} must be {_in_words(wanted)}, by copy and agent"
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
