"""Sizes into which the views and actions of all groups fit: what `wrappers.Pad` works out."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from shoal.core.errors import OptionError
from shoal.core.spaces import ActionSpace, Box, Discrete, MultiDiscrete
from shoal.core.types import Group, PyTree


def common_action(groups: Mapping[str, Group]) -> ActionSpace:
    """The smallest space that has room for the actions of all groups."""
    (first, *_), spaces = groups, [group.action for group in groups.values()]
    for name, space in zip(groups, spaces, strict=True):
        if _form(space) != _form(spaces[0]):
            raise OptionError(
                f"pad: the actions of {first!r} and {name!r} differ in more than size ({spaces[0]} against {space}), "
                "no policy can play both"
            )
    if isinstance(spaces[0], Box):
        shapes = [space.shape for space in spaces if isinstance(space, Box)]
        return dataclasses.replace(spaces[0], shape=_largest(shapes))
    sizes = [sizes_of(space) for space in spaces]
    length = max(map(len, sizes))
    common = _largest((*own, *(1,) * (length - len(own))) for own in sizes)
    return Discrete(common[0]) if isinstance(spaces[0], Discrete) else MultiDiscrete(common)


def own_action(space: ActionSpace, action: jax.Array) -> jax.Array:
    """A group's own actions out of padded ones `[n, ...]`."""
    match space:
        case Box(shape):
            return action[(slice(None), *(slice(length) for length in shape))]
        case Discrete(n):
            return jnp.where(action < n, action, 0)
        case MultiDiscrete(sizes):
            own = action[:, : len(sizes)]
            return jnp.where(own < jnp.array(sizes), own, 0)


def own_legal(space: ActionSpace, size: int, legal: jax.Array | None, common: ActionSpace) -> jax.Array:
    """A group's legal actions `[size, ...]`, none of them among those that are there for other groups."""
    own, wanted = sizes_of(space), sizes_of(common)
    legal = jnp.ones((size, sum(own)), bool) if legal is None else legal
    parts = jnp.split(legal, ends(own), axis=1) + [jnp.ones((size, 1), bool)] * (len(wanted) - len(own))
    return jnp.concatenate([pad_to(part, (width,)) for part, width in zip(parts, wanted, strict=True)], axis=1)


def common_shapes(views: Mapping[str, PyTree]) -> PyTree:
    """Shapes of one agent's view, as large as the largest of any group, in the structure of the views."""
    (first, *_), trees = views, list(views.values())
    leaves, structure = jax.tree.flatten(trees[0])
    for name, tree in views.items():
        if jax.tree.structure(tree) != structure or _forms(jax.tree.leaves(tree)) != _forms(leaves):
            raise OptionError(
                f"pad: the views of {first!r} and {name!r} differ in more than size, no policy can see both"
            )
    shapes = [[leaf.shape[1:] for leaf in jax.tree.leaves(tree)] for tree in trees]
    return jax.tree.unflatten(structure, [_largest(same) for same in zip(*shapes, strict=True)])


def pad_to(array: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """An array `[n, ...]` with zeros at its ends, to `[n, *shape]`."""
    if array.shape[1:] == shape:
        return array
    missing = [(0, wanted - length) for wanted, length in zip(shape, array.shape[1:], strict=True)]
    return jnp.pad(array, [(0, 0), *missing])


def ends(sizes: Iterable[int]) -> list[int]:
    """Where all parts but the last end."""
    found = [0]
    for size in sizes:
        found.append(found[-1] + size)
    return found[1:-1]


def sizes_of(space: ActionSpace) -> tuple[int, ...]:
    """How many choices each part of a discrete action has."""
    assert not isinstance(space, Box)
    return (space.n,) if isinstance(space, Discrete) else space.sizes


def _form(space: ActionSpace) -> Any:
    """What must be the same for two spaces to fit into one."""
    own = (len(space.shape), space.low, space.high, space.dtype) if isinstance(space, Box) else ()
    return type(space), own


def _forms(leaves: list[jax.Array]) -> list[Any]:
    return [(leaf.ndim, leaf.dtype) for leaf in leaves]


def _largest(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(max, zip(*shapes, strict=True)))
