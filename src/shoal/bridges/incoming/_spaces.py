"""Gymnasium's spaces, which PettingZoo has too, as parts that ours can be made of (see `_parts`)."""

import dataclasses
import functools
from typing import Any

import numpy as np
from gymnasium import spaces

from shoal.bridges.incoming._conversion import legal_row
from shoal.bridges.incoming._parts import (
    WIDEST,
    ActionDecoder,
    Choices,
    Misfit,
    Numbers,
    Path,
    Tree,
    ViewEncoder,
    place_of,
    seen_or_chosen,
)
from shoal.core.errors import OptionError
from shoal.core.spaces import Box, num_logits

_SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"
_MASK = "action_mask"


@dataclasses.dataclass(frozen=True, eq=False)
class Spaces:
    """An agent's two spaces and what they become here.

    Of an observation `{"observation": X, "action_mask": M}` X is seen, and M says what is legal; parts beyond those two
    are seen as well. `carried`: whether observations carry such a mask. `alone`: whether X is all there is beside it.
    """

    observation: Any
    action: Any
    view: ViewEncoder
    acts: ActionDecoder
    carried: bool
    alone: bool

    @staticmethod
    def of(observation: Any, action: Any, owner: str) -> "Spaces":
        inside = observation.spaces if isinstance(observation, spaces.Dict) else {}
        carried, alone = _MASK in inside, set(inside) == {"observation", _MASK}
        tree = _tree(observation, owner, "observation", ())
        if carried:
            tree = {key: part for key, part in tree.items() if key != _MASK}
        view = ViewEncoder.of(tree["observation"] if alone else tree, owner)
        return Spaces(
            observation, action, view, ActionDecoder.of(_tree(action, owner, "action", ()), owner), carried, alone
        )

    @property
    def width(self) -> int:
        """Entries in a row of `legal`; 0 for actions that are numbers."""
        return 0 if isinstance(self.acts.space, Box) else num_logits(self.acts.space)

    def see(self, value: Any, lead: int = 0, check: bool = False) -> Any:
        """The view of an observation."""
        return self.view.encode(value, lead, check)

    def mask(self, value: Any, info: Any) -> Any:
        """Their mask of legal actions, out of an observation or its info; None if there is none."""
        source = value if self.carried else info
        return source.get(_MASK) if isinstance(source, dict) else None

    def legal(self, value: Any, info: Any) -> np.ndarray:
        """A row of `legal`; all true without a mask."""
        mask = self.mask(value, info)
        return np.ones(self.width, bool) if mask is None else legal_row(mask, self.width)


def same_space(role: str, declared: Any, now: Any) -> None:
    """Refuses a space that is no longer what it was."""
    if now is not declared and now != declared:
        raise Misfit(f"the {role} space was {declared} and is {now} now: spaces must not change")


def _tree(space: Any, owner: str, role: str, path: Path) -> Tree:
    match space:
        case spaces.Box():
            return _box(space, owner, role, path)
        case spaces.Discrete():
            sizes, starts = np.array(int(space.n)), np.array(int(space.start))
            return _narrow(Choices(path, sizes, starts, np.dtype(space.dtype)), space, owner, role)
        case spaces.MultiDiscrete():
            sizes, starts = np.asarray(space.nvec, np.int64), np.asarray(space.start, np.int64)
            return _narrow(Choices(path, sizes, starts, np.dtype(space.dtype)), space, owner, role)
        case spaces.MultiBinary():
            return _binary(space, role, path)
        case spaces.Dict():
            return {key: _tree(part, owner, role, (*path, key)) for key, part in space.spaces.items()}
        case spaces.Tuple():
            return tuple(_tree(part, owner, role, (*path, i)) for i, part in enumerate(space.spaces))
    raise _unmappable(space, owner, role, path, f"a {type(space).__name__} space has no fixed array form")


def _box(space: spaces.Box, owner: str, role: str, path: Path) -> Tree:
    numbers = Numbers(path, np.asarray(space.low), np.asarray(space.high), np.dtype(space.dtype))
    return seen_or_chosen(numbers, role, functools.partial(_unmappable, space, owner, role, path))


def _binary(space: spaces.MultiBinary, role: str, path: Path) -> Tree:
    zeros, dtype = np.zeros(space.shape, np.int64), np.dtype(space.dtype)
    if role == "action":
        return Choices(path, zeros + 2, zeros, dtype)
    return Numbers(path, zeros, zeros + 1, np.dtype(np.int8))


def _narrow(choices: Choices, space: Any, owner: str, role: str) -> Choices:
    if choices.sizes.sum() > WIDEST:
        raise _unmappable(space, owner, role, choices.path, f"it has more than {WIDEST} choices")
    return choices


def _unmappable(space: Any, owner: str, role: str, path: Path, why: str) -> OptionError:
    return OptionError(f"{owner}: {role} space{place_of(path)} is {space}: {why}; supported: {_SUPPORTED}")
