"""Shared by the bridges to other JAX libraries: conversion of views and actions, and the state with both.

Their environments hand out an observation with every step, and some need a random key for it; ours are asked for the
view of a state. So the view is kept in the state.
"""

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shoal.core.errors import OptionError
from shoal.core.keys import is_key
from shoal.core.spaces import ActionSpace, Box, Discrete, MultiDiscrete
from shoal.core.types import PyTree


class WrappedState(NamedTuple):
    """Their state, and its views by group. legal and active are None if the library does not provide them."""

    inner: PyTree
    view: dict[str, PyTree]
    legal: dict[str, jax.Array] | None = None
    active: dict[str, jax.Array] | None = None


class Actions(NamedTuple):
    """An action space as ours, and how one action becomes theirs."""

    space: ActionSpace
    theirs: Callable[[jax.Array], jax.Array]


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Without what is printed meanwhile. Also from modules that put the streams of Python's start back."""
    first, now = sys.__stdout__, (sys.stdout, sys.stderr)
    nothing: Any = io.StringIO()
    sys.__stdout__ = sys.stdout = nothing  # pyright: ignore[reportConstantRedefinition]
    try:
        yield
    finally:
        sys.__stdout__ = first  # pyright: ignore[reportConstantRedefinition]
        sys.stdout, sys.stderr = now


def strengthen_dtypes(tree: PyTree, like: PyTree = None) -> PyTree:
    """A state without Python numbers and weak types; with `like`, of the same types as it: else it would be recompiled.

    Keys are left as they are.
    """

    def one(leaf: Any, old: Any) -> jax.Array:
        leaf, old = jnp.asarray(leaf), jnp.asarray(old)
        return leaf if is_key(leaf) else lax.convert_element_type(leaf, old.dtype)

    return jax.tree.map(one, tree, tree if like is None else like)


def tidy(observation: PyTree) -> PyTree:
    """An array, or a flat dict of arrays named by their path; all float32, scalars as arrays of one entry.

    Integers become floats as they are: none of these libraries has pictures of 0 to 255, which our networks would take
    uint8 for.
    """
    leaves = jax.tree_util.tree_leaves_with_path(observation)
    flat = {path_name(path): jnp.atleast_1d(jnp.asarray(leaf).astype(jnp.float32)) for path, leaf in leaves}
    return flat.get("", flat)


def path_name(path: tuple) -> str:
    """`agent_position.row` for the path of a leaf."""
    return ".".join(str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))) for key in path)


def box_actions(title: str, path: str, low: Any, high: Any, shape: tuple[int, ...], dtype: Any) -> Actions:
    """Continuous actions. Bounds that differ between entries become -1 and 1; actions are clipped to their bounds."""
    if not jnp.issubdtype(dtype, jnp.floating):
        raise OptionError(f"{title}: {path} is a box of {np.dtype(dtype).name}: actions must be floats or choices")
    low, high = np.broadcast_to(np.asarray(low), shape), np.broadcast_to(np.asarray(high), shape)
    if low.size == 0:
        raise OptionError(f"{title}: {path} has the shape {shape}: an action must have at least one entry")
    if (low == low.flat[0]).all() and (high == high.flat[0]).all():
        bounds = float(low.flat[0]), float(high.flat[0])
        return Actions(Box(shape, *bounds), lambda action: jnp.clip(action, *bounds).astype(dtype))
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise OptionError(f"{title}: {path} has bounds that differ between entries, and some of them are infinite")
    middle, half = (low + high) / 2, (high - low) / 2
    return Actions(Box(shape, -1.0, 1.0), lambda action: (middle + half * jnp.clip(action, -1.0, 1.0)).astype(dtype))


def choices(sizes: tuple[int, ...] | int, dtype: Any) -> Actions:
    """One choice, or several at once."""
    space = Discrete(sizes) if isinstance(sizes, int) else MultiDiscrete(sizes)
    return Actions(space, lambda action: action.astype(dtype))


def gym_like_actions(title: str, path: str, space: Any) -> Actions:
    """Action spaces of gymnax and JaxMARL, told apart by their class names; others are named in the error."""
    match type(space).__name__:
        case "Discrete":
            return choices(int(space.n), space.dtype)
        case "MultiDiscrete":
            return choices(tuple(int(n) for n in space.num_categories), space.dtype)
        case "Box":
            shape = space.shape if isinstance(space.shape, tuple | list) else (space.shape,)
            return box_actions(title, path, space.low, space.high, tuple(int(n) for n in shape), space.dtype)
    raise OptionError(f"{title}: {path} is {type(space).__name__}: actions must be Discrete, MultiDiscrete or a Box")


def some_legal(legal: jax.Array) -> jax.Array:
    """Masks `[..., A]` in which every row has a legal action: where theirs has none, all are."""
    legal = legal.astype(bool)
    return legal | ~legal.any(axis=-1, keepdims=True)
