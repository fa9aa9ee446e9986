"""The parts of other libraries' spaces, and the conversion of values in both directions.

A space of theirs is a tree: dicts and tuples whose leaves are arrays of `Numbers` or of `Choices`. `ViewEncoder` turns
observations into one array or a flat dict of arrays, `ActionDecoder` turns our actions into theirs. Both take values
with leading axes (a batch of environments) as well as without.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from shoal.core.errors import OptionError
from shoal.core.spaces import ActionSpace, Box, Discrete, MultiDiscrete

WIDEST = 65_536
"""Choices beyond this many are refused: their one-hot form would be wider than any network takes."""

_SLACK = 1e-5  # bounds are compared after rounding to float32

Path = tuple[Any, ...]
Tree = Any  # dict or tuple of trees, or Numbers, or Choices


class Misfit(Exception):
    """A value that is not of its space; the text says how. Environments add their name and step."""


class NotFinite(Misfit):
    """A value that is NaN or infinite."""


@dataclasses.dataclass(frozen=True, eq=False)
class Numbers:
    """An array of numbers within bounds, at a path inside a space."""

    path: Path
    low: np.ndarray
    high: np.ndarray
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.low.shape

    @functools.cached_property
    def box(self) -> Box:
        """As we see it: uint8 stays, every other type becomes float32."""
        low = float(np.float32(np.min(self.low))) if self.low.size else -math.inf
        high = float(np.float32(np.max(self.high))) if self.high.size else math.inf
        return Box(self.shape, low, high, "uint8" if self.dtype == np.uint8 else "float32")

    def encode(self, value: Any, lead: int = 0) -> np.ndarray:
        """The value as a new array of ours. Refuses what has another shape or is not finite."""
        array = _array(value, self.path)
        if array.shape[lead:] != self.shape:
            raise Misfit(f"{show_path(self.path)} has the shape {array.shape[lead:]}, but its space {self.shape}")
        if self.dtype == np.uint8:
            if array.dtype != np.uint8 and ((array < 0) | (array > 255) | (array != np.floor(array))).any():
                raise Misfit(f"{show_path(self.path)} is of the type {array.dtype}, but its space of uint8")
            return array.astype(np.uint8)
        array = array.astype(np.float32)
        if not np.isfinite(array).all():
            where, wrong = self._first(array, ~np.isfinite(array))
            raise NotFinite(f"{show_path(self.path)} is {'NaN' if np.isnan(wrong) else wrong}{where}")
        return array

    def check(self, encoded: np.ndarray) -> None:
        """Refuses what lies outside of the bounds by more than rounding."""
        if (encoded >= self.low).all() and (encoded <= self.high).all():
            return
        slack = _SLACK * np.maximum(1.0, np.abs(encoded, dtype=np.float64))
        outside = (encoded < self.low - slack) | (encoded > self.high + slack)
        if outside.any():
            where, wrong = self._first(encoded, outside)
            low, high = (np.broadcast_to(bound, encoded.shape)[outside][0] for bound in (self.low, self.high))
            raise Misfit(f"{show_path(self.path)} is {wrong:g}{where}, outside of its space: {low:g} to {high:g}")

    def _first(self, array: np.ndarray, wrong: np.ndarray) -> tuple[str, Any]:
        """The first value that is wrong, and where it is."""
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        lead = len(at) - len(self.shape)
        place = f" at {list(at[lead:])}" if at[lead:] else ""
        return place + (f" in copy {at[0]}" if lead else ""), array[at]


@dataclasses.dataclass(frozen=True, eq=False)
class Choices:
    """An array of choices, each out of `sizes` that begin at `starts`, at a path inside a space."""

    path: Path
    sizes: np.ndarray
    starts: np.ndarray
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.sizes.shape

    @functools.cached_property
    def box(self) -> Box:
        """As we see it: one-hot, choice after choice."""
        return Box((int(self.sizes.sum()),), 0.0, 1.0)

    def encode(self, value: Any, lead: int = 0) -> np.ndarray:
        """One-hot vectors. Refuses what is not one of the choices."""
        array = _array(value, self.path)
        if array.shape[lead:] != self.shape:
            raise Misfit(f"{show_path(self.path)} has the shape {array.shape[lead:]}, but its space {self.shape}")
        index = array - self.starts
        if ((index < 0) | (index >= self.sizes) | (index != np.floor(index))).any():
            choices = [f"{a} to {a + n - 1}" for a, n in zip(self.starts.flat, self.sizes.flat, strict=True)]
            raise Misfit(f"{show_path(self.path)} is {array.tolist()}, but the choices are {', '.join(choices)}")
        ahead = np.cumsum(self.sizes) - self.sizes.ravel()
        at = index.astype(np.int64).reshape((*array.shape[:lead], -1)) + ahead
        hot = np.zeros((*array.shape[:lead], int(self.sizes.sum())), np.float32)
        np.put_along_axis(hot, at, 1.0, -1)
        return hot

    def check(self, encoded: np.ndarray) -> None:
        """Nothing is left to check: `encode` refuses what lies outside."""


def show_path(path: Path) -> str:
    """`observation['camera']['label']`."""
    return "observation" + keys(path)


def keys(path: Path) -> str:
    return "".join(f"[{key!r}]" for key in path)


def place_of(path: Path) -> str:
    """Where a part of a space is, in an error; nothing for the whole."""
    return f" {keys(path)}" if path else ""


def leaves(tree: Tree) -> list[Numbers | Choices]:
    """The leaves of a tree, in order."""
    if isinstance(tree, Numbers | Choices):
        return [tree]
    return [leaf for part in (tree.values() if isinstance(tree, dict) else tree) for leaf in leaves(part)]


@dataclasses.dataclass(frozen=True, eq=False)
class ViewEncoder:
    """How observations of a space become views. parts: by the names of the view, or the only one under `None`."""

    parts: dict[str | None, Numbers | Choices]

    @staticmethod
    def of(tree: Tree, owner: str) -> "ViewEncoder":
        """The view of a tree of parts; refuses one without parts, or with two of the same name."""
        if isinstance(tree, Numbers | Choices):
            return ViewEncoder({None: tree})
        parts: dict[str | None, Numbers | Choices] = {}
        for leaf in leaves(tree):
            name = "/".join(str(key) for key in leaf.path)
            if name in parts:
                raise OptionError(f"{owner}: two parts of the observation space would both be called {name!r}")
            parts[name] = leaf
        if not parts:
            raise OptionError(f"{owner}: the observation space is empty")
        return ViewEncoder(parts)

    @property
    def observation(self) -> Any:
        """What our groups declare: a `Box`, or a dict of them."""
        return self._tree({name: part.box for name, part in self.parts.items()})

    def blank(self, size: int) -> Any:
        """Zeros for `size` agents."""
        parts = self.parts.items()
        return self._tree({name: np.zeros((size, *part.box.shape), part.box.dtype) for name, part in parts})

    def encode(self, value: Any, lead: int = 0, check: bool = False) -> Any:
        """An observation as a view: new arrays, of the declared types and shapes."""
        encoded = {}
        for name, part in self.parts.items():
            encoded[name] = part.encode(_at(value, part.path), lead)
            if check:
                part.check(encoded[name])
        return self._tree(encoded)

    def rows(self, values: list[Any]) -> np.ndarray | None:
        """The views of several agents at once, if each is an array of finite numbers of the right shape; None if not.

        It is how nearly all steps look, and takes a third of the time of one after the other.
        """
        part = self.parts.get(None)
        if not isinstance(part, Numbers) or part.dtype == np.uint8:
            return None
        if not all(isinstance(value, np.ndarray) and value.shape == part.shape for value in values):
            return None
        if not all(value.dtype.kind in "biuf" for value in values):
            return None
        view = np.array(values).astype(np.float32)
        return view if np.isfinite(view).all() else None

    def _tree(self, named: dict) -> Any:
        return named.get(None, named)


@dataclasses.dataclass(frozen=True, eq=False)
class ActionDecoder:
    """Our actions as theirs. space: ours. decode: an action, or a batch of them, of ours to one of theirs."""

    space: ActionSpace
    decode: Callable[[np.ndarray], Any]

    @staticmethod
    def of(tree: Tree, owner: str) -> "ActionDecoder":
        """Choices become `Discrete` or `MultiDiscrete`, numbers a `Box`; refuses a mixture."""
        parts = leaves(tree)
        choices = [part for part in parts if isinstance(part, Choices)]
        numbers = [part for part in parts if isinstance(part, Numbers)]
        if not parts:
            raise OptionError(f"{owner}: the action space is empty")
        if choices and numbers:
            raise OptionError(
                f"{owner}: action space{keys(numbers[0].path)} has numbers and action space{keys(choices[0].path)} "
                "choices: actions can be all numbers or all choices, not both"
            )
        return _choosing(tree, choices) if choices else _scaling(tree, numbers)


def _choosing(tree: Tree, parts: list[Choices]) -> ActionDecoder:
    sizes = tuple(int(n) for part in parts for n in part.sizes.flat)
    if isinstance(tree, Choices) and not tree.shape:
        return ActionDecoder(
            Discrete(sizes[0]), lambda action: (np.asarray(action) + tree.starts).astype(tree.dtype)[()]
        )
    ends = np.cumsum([part.sizes.size for part in parts])[:-1]

    def decode(action: np.ndarray) -> Any:
        flat = np.asarray(action)
        pieces = iter(np.split(flat, ends, axis=-1))

        def leaf(part: Choices) -> Any:
            piece = next(pieces)
            return (piece.reshape((*flat.shape[:-1], *part.shape)) + part.starts).astype(part.dtype)[()]

        return _rebuild(tree, leaf)

    return ActionDecoder(MultiDiscrete(sizes), decode)


def _scaling(tree: Tree, parts: list[Numbers]) -> ActionDecoder:
    """One box. Our boxes have one low and one high: where theirs differ, -1 to 1 stands for each element's own range.

    With a side that is open, nothing can be scaled: actions are then unbounded, and cut off at the bounds there are.
    """
    low = np.concatenate([part.low.ravel() for part in parts]).astype(np.float64)
    high = np.concatenate([part.high.ravel() for part in parts]).astype(np.float64)
    shape = parts[0].shape if isinstance(tree, Numbers) else low.shape
    ends = np.cumsum([part.low.size for part in parts])[:-1]
    finite = bool(np.isfinite(low).all() and np.isfinite(high).all())
    alike = finite and len(set(low)) == 1 and len(set(high)) == 1 and low[0] < high[0]
    scaled = finite and not alike
    bounds = (float(low[0]), float(high[0])) if alike else (-1.0, 1.0) if scaled else (-math.inf, math.inf)

    def decode(action: np.ndarray) -> Any:
        flat = np.asarray(action)
        lead = flat.shape[: flat.ndim - len(shape)]
        flat = flat.reshape((*lead, -1))
        if scaled:
            flat = low + 0.5 * (high - low) * (flat.astype(np.float64) + 1.0)
        pieces = iter(np.split(flat, ends, axis=-1))

        def leaf(part: Numbers) -> Any:
            piece = next(pieces).reshape((*lead, *part.shape))
            return np.asarray(np.clip(piece.astype(part.dtype), part.low, part.high), part.dtype)

        return _rebuild(tree, leaf)

    return ActionDecoder(Box(shape, *bounds), decode)


def _rebuild(tree: Tree, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(tree, dict):
        return {key: _rebuild(part, leaf) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_rebuild(part, leaf) for part in tree)
    return leaf(tree)


def seen_or_chosen(numbers: Numbers, role: str, refusal: Callable[[str], OptionError]) -> Numbers | Choices:
    """Numbers as they are; but an action of whole numbers as choices, which must have bounds and not be too many."""
    if role == "observation" or np.issubdtype(numbers.dtype, np.floating):
        return numbers
    finite = np.isfinite(numbers.low).all() and np.isfinite(numbers.high).all()
    if np.issubdtype(numbers.dtype, np.integer) and finite and numbers.low.size:
        sizes = numbers.high.astype(np.int64) - numbers.low.astype(np.int64) + 1
        if sizes.sum() <= WIDEST:
            return Choices(numbers.path, sizes, numbers.low.astype(np.int64), numbers.dtype)
    raise refusal(f"whole numbers can be chosen among {WIDEST} at most, and within bounds")


def _at(value: Any, path: Path) -> Any:
    for depth, key in enumerate(path):
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            raise Misfit(f"{show_path(path[:depth])} has no part {key!r}, which its space has") from None
    return value


def _array(value: Any, path: Path) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:
        raise Misfit(f"{show_path(path)} is not an array but {type(value).__name__}") from None
    if array.dtype.kind not in "biuf":
        raise Misfit(f"{show_path(path)} is not numbers but {type(value).__name__} {str(value)[:60]!r}")
    return array
