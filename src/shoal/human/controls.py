"""What a person may press: the actions of a seat as parts, choices, keys and sliders, and back to an action."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.core.env import Env
from shoal.core.errors import OptionError, WorldError, require
from shoal.core.spaces import ActionSpace, Box, Discrete, MultiDiscrete, action_dtype, names_fit

ARROWS = {"left": "ArrowLeft", "right": "ArrowRight", "up": "ArrowUp", "down": "ArrowDown"}
LETTERS = {"left": "a", "right": "d", "up": "w", "down": "s"} | {
    "up left": "q",
    "up right": "e",
    "down left": "z",
    "down right": "c",
}
DIRECTIONS = {"faster": "up", "slower": "down", "clockwise": "right", "counterclockwise": "left"}
"""Names that ask for the keys of a direction."""
NEUTRAL = ("stay", "nothing", "none")
"""Names of choices that are made while no key is held."""
DIGITS = "1234567890"
UNBOUNDED = 1.0
"""How far sliders go where a box has no bounds."""


@dataclasses.dataclass(frozen=True)
class Part:
    """One thing to choose. choices: their names; none for a number between `low` and `high`.

    keys: those of each choice or, for a number, of its low and its high end. neutral: what holds while no key does;
    None: the last choice.
    """

    name: str
    choices: tuple[str, ...]
    keys: tuple[tuple[str, ...], ...]
    neutral: float | None
    low: float = 0.0
    high: float = 0.0


@dataclasses.dataclass(frozen=True)
class Controls:
    """The parts of an action. What the page sends is a list with one entry per part."""

    space: ActionSpace
    parts: tuple[Part, ...]

    def describe(self) -> dict[str, Any]:
        """For the page."""
        kind = "numbers" if isinstance(self.space, Box) else "choices"
        return {"kind": kind, "parts": [dataclasses.asdict(part) for part in self.parts]}

    def read(self, given: Any, legal: np.ndarray | None = None) -> np.ndarray:
        """The action that a list of choices or numbers stands for; refuses, in words, what is no legal action."""
        sound = isinstance(given, list) and len(given) == len(self.parts)
        require(sound, "action", "it", given, f"a list with {len(self.parts)} entries: {', '.join(self._names())}")
        entries = [self._entry(part, entry) for part, entry in zip(self.parts, given, strict=True)]
        if isinstance(self.space, Box):
            return np.asarray(entries, self.space.dtype).reshape(self.space.shape)
        if legal is not None and not self._is_legal(entries, legal):
            raise OptionError(f"{self.words(entries)} is not legal now. Legal: {', '.join(self._legal_words(legal))}.")
        return self._join(entries)

    def neutral(self, legal: np.ndarray | None = None) -> list[Any]:
        """What is done while no key is held, as the page would send it; the first legal action if that is illegal."""
        entries = [0 if part.neutral is None else part.neutral for part in self.parts]
        if isinstance(self.space, Box) or legal is None or self._is_legal(entries, legal):
            return entries
        return next(choice for choice in self._every() if self._is_legal(choice, legal))

    def legal_choices(self, legal: np.ndarray | None) -> list[list[bool]]:
        """By part, whether each choice is legal, at least with some choice of the other parts."""
        sizes = [len(part.choices) for part in self.parts]
        if legal is None or isinstance(self.space, Box):
            return [[True] * size for size in sizes]
        if isinstance(self.space, MultiDiscrete):
            ends = np.cumsum(sizes)
            return [legal[end - size : end].tolist() for end, size in zip(ends, sizes, strict=True)]
        table = np.asarray(legal).reshape(sizes[::-1])  # the first part varies fastest
        axes = range(len(sizes))
        return [list(np.any(table, axis=tuple(a for a in axes if a != len(sizes) - 1 - i)).tolist()) for i in axes]

    def words(self, entries: Sequence[Any]) -> str:
        """An action in words, as the page sends it."""
        said = [
            p.choices[int(e)] if p.choices else f"{p.name} {e:.3g}" for p, e in zip(self.parts, entries, strict=True)
        ]
        return ", ".join(said)

    def split(self, action: np.ndarray) -> list[Any]:
        """An action as the page would send it."""
        if not isinstance(self.space, Discrete):
            return np.ravel(action).tolist()
        entries, rest = [], min(max(int(action), 0), self.space.n - 1)
        for part in self.parts:
            rest, entry = divmod(rest, len(part.choices))
            entries.append(entry)
        return entries

    def _names(self) -> list[str]:
        return [part.name for part in self.parts]

    def _entry(self, part: Part, entry: Any) -> float:
        if not part.choices:
            number = isinstance(entry, int | float) and not isinstance(entry, bool) and math.isfinite(entry)
            require(number, "action", part.name, entry, f"a number from {part.low:g} to {part.high:g}")
            return min(max(float(entry), part.low), part.high)
        last = len(part.choices) - 1
        require(type(entry) is int and 0 <= entry <= last, "action", part.name, entry, f"a choice from 0 to {last}")
        return entry

    def _join(self, entries: Sequence[Any]) -> np.ndarray:
        if isinstance(self.space, MultiDiscrete):
            return np.asarray(entries, np.int32)
        number, stride = 0, 1
        for part, entry in zip(self.parts, entries, strict=True):
            number, stride = number + stride * int(entry), stride * len(part.choices)
        return np.asarray(number, action_dtype(self.space))

    def _is_legal(self, entries: Sequence[Any], legal: np.ndarray) -> bool:
        if isinstance(self.space, MultiDiscrete):
            rows = self.legal_choices(legal)
            return all(row[int(entry)] for row, entry in zip(rows, entries, strict=True))
        return bool(legal[int(self._join(entries))])

    def _every(self) -> list[list[int]]:
        sizes = [len(part.choices) for part in self.parts]
        return [[int(i) for i in index] for index in np.ndindex(*sizes)]

    def _legal_words(self, legal: np.ndarray, most: int = 12) -> list[str]:
        if isinstance(self.space, MultiDiscrete) or len(legal) > most:
            rows = zip(self.parts, self.legal_choices(legal), strict=True)
            return [name for part, row in rows for name, is_legal in zip(part.choices, row, strict=True) if is_legal]
        return [self.words(entries) for entries in self._every() if self._is_legal(entries, legal)]


def controls_of(env: Env, group: str) -> Controls:
    """The controls of a group's actions, by the names that the world gives them."""
    space, names = env.groups[group].action, env.action_names(group)
    if not names_fit(space, names):
        raise WorldError(
            f"{type(env).__name__}.action_names({group!r}) is {names}, which does not fit {space}: it must map the "
            "name of each part to a tuple of the names of its choices (a box: of each number to an empty tuple)"
        )
    if isinstance(space, Box):
        return Controls(space, tuple(_number(space, name, i, len(names)) for i, name in enumerate(names)))
    taken: set[str] = set()
    return Controls(space, tuple(_choice(name, choices, taken) for name, choices in names.items()))


def _choice(name: str, choices: tuple[str, ...], taken: set[str]) -> Part:
    keys = [_direction_keys(choice) for choice in choices]
    if not any(keys) and not set(DIGITS) & taken:
        initials = [choice[:1].lower() for choice in choices]
        keys = [
            (*DIGITS[i : i + 1], *(first for first in [initials[i]] if first.isalpha() and initials.count(first) == 1))
            for i in range(len(choices))
        ]
    kept = tuple(tuple(key for key in own if key not in taken) for own in keys)
    taken |= {key for own in kept for key in own}
    neutral = next((i for i, choice in enumerate(choices) if choice in NEUTRAL), None)
    return Part(name, choices, kept, neutral)


def _direction_keys(choice: str) -> tuple[str, ...]:
    """Arrows and letters for a direction; arrows alone to move there, letters alone to attack there."""
    verb, _, rest = choice.partition(" ")
    way = DIRECTIONS.get(choice, choice)
    if verb == "move" and rest in ARROWS:
        return (ARROWS[rest],)
    if verb == "attack" and rest in LETTERS:
        return (LETTERS[rest],)
    return (ARROWS[way], LETTERS[way]) if way in ARROWS else ()


def _number(space: Box, name: str, index: int, count: int) -> Part:
    low = space.low if math.isfinite(space.low) else -UNBOUNDED
    high = space.high if math.isfinite(space.high) else UNBOUNDED
    ends: tuple[tuple[str, ...], ...] = ((), ())
    if name in ARROWS:
        ends = ((), (ARROWS[name], LETTERS[name]))
    elif name == "x" or (index == 0 and count == 1):
        ends = ((ARROWS["left"], "a"), (ARROWS["right"], "d"))
    elif name == "y":
        ends = ((ARROWS["down"], "s"), (ARROWS["up"], "w"))
    elif name == "thrust":
        ends = (("s",), ("w",))
    elif name == "yaw":
        ends = (("a",), ("d",))
    elif name in ("roll", "pitch"):
        ends = ((ARROWS["left"],), (ARROWS["right"],)) if name == "roll" else ((ARROWS["down"],), (ARROWS["up"],))
    return Part(name, (), ends, min(max(0.0, low), high), low, high)
