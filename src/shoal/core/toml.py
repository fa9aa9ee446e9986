"""Writes TOML: plain data with comments. The standard library reads it (`tomllib`) and does not write it.

TOML has no null: what is None stands there as a comment, for those who read it to know that it can be set, so only
entries that are None by default may be.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


@dataclasses.dataclass(frozen=True)
class Item:
    """An entry: its name, a value of plain data or the items of a table, and what it is."""

    name: str
    value: Any
    comment: str = ""

    @property
    def is_table(self) -> bool:
        return isinstance(self.value, list) and bool(self.value) and isinstance(self.value[0], Item)


def write_toml(items: Sequence[Item], head: Sequence[str] = ()) -> str:
    """The text of a file of these items. head: lines of comment above them."""
    lines = [f"# {_one_line(line)}".rstrip() for line in head]
    lines += ["" for _ in lines[:1]]
    lines += _table(items, ())
    return "\n".join(lines).rstrip("\n") + "\n"


def _table(items: Sequence[Item], path: tuple[str, ...]) -> list[str]:
    """Values come first: behind the head of an inner table they would belong to that."""
    lines = [_line(item, path) for item in items if not item.is_table]
    for item in items:
        if not item.is_table:
            continue
        inner = (*path, item.name)
        held = _table(item.value, inner)
        if item.comment:
            lines += ["", f"# {_one_line(item.comment)}"]
        if any(not each.is_table for each in item.value):
            lines += [*([] if item.comment else [""]), f"[{'.'.join(map(write_key, inner))}]"]
        lines += held
    return lines


def _line(item: Item, path: tuple[str, ...]) -> str:
    if item.value is None:
        said = f": {_one_line(item.comment)}" if item.comment else ""
        return f"# {write_key(item.name)} is not set{said}"
    try:
        text = f"{write_key(item.name)} = {write_value(item.value)}"
    except ValueError as error:
        raise ValueError(f"{'.'.join((*path, item.name))}: {error}") from None
    return f"{text}  # {_one_line(item.comment)}" if item.comment else text


def write_key(name: str) -> str:
    """A name, in quotes if it needs them."""
    return name if _BARE.fullmatch(name) else _quoted(name)


def write_value(value: Any) -> str:
    """A value in one line. Raises `ValueError` for what TOML cannot express."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{write_key(str(name))} = {write_value(entry)}" for name, entry in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(write_value, value))}]"
    if value is None:
        raise ValueError("TOML has no null; JSON has")
    raise ValueError(f"TOML has nothing for a {type(value).__name__}")


def _number(value: float) -> str:
    if math.isnan(value):
        return "nan"
    return repr(value) if math.isfinite(value) else ("inf" if value > 0 else "-inf")


def _quoted(text: str) -> str:
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("it has half a character in it")
    return '"' + "".join(map(_letter, text)) + '"'


def _letter(letter: str) -> str:
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    if letter.isprintable() or letter == " ":
        return letter
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"


def _one_line(text: str) -> str:
    """A comment without what would end it, or steer a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in " ".join(text.split()))
