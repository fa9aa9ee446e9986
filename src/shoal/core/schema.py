"""Schemas of plain data in a run folder, themselves plain data: `{"update": Whole(0, 9), "seconds": float}`.

A spec is a type (`int` no boolean, `float` any finite number, `str`, `bool`), a `Whole` number between two, a `Maybe`
that may be None, `[spec]` for a list, `{str: spec}` for a mapping of any names, or a mapping of the names that must be
there; with a `?` at its end a name may be missing. Other names are ignored: later versions may write them.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple


class Whole(NamedTuple):
    """A whole number from `least` to `most`."""

    least: int = 0
    most: int = 2**62


class Maybe(NamedTuple):
    """None, or a value of `spec`."""

    spec: Any


def check(value: Any, spec: Any, where: str) -> None:
    """Raises `ValueError` that names the place where a value does not match the spec."""
    if isinstance(spec, Maybe):
        if value is not None:
            check(value, spec.spec, where)
    elif isinstance(spec, list):
        for i, entry in enumerate(_of(value, list, "a list", where)):
            check(entry, spec[0], f"{where}[{i}]")
    elif isinstance(spec, Mapping):
        _check_mapping(_of(value, Mapping, "a mapping", where), spec, where)
    elif isinstance(spec, Whole):
        _of(value, int, "a whole number", where)
        if not spec.least <= value <= spec.most:
            raise ValueError(f"{where} must be between {spec.least} and {spec.most}, got {_show(value)}")
    elif spec is float:
        number = value if isinstance(value, float) else _of(value, int, "a number", where)
        if not -1e300 < number < 1e300 or not math.isfinite(number):
            raise ValueError(f"{where} must be a finite number, got {_show(value)}")
    elif spec is not Any:
        _of(value, spec, {int: "a whole number", str: "a text", bool: "true or false"}[spec], where)


def _check_mapping(value: Mapping[str, Any], spec: Mapping[Any, Any], where: str) -> None:
    if str in spec:
        for name, entry in value.items():
            check(entry, spec[str], f"{where}.{name}")
        return
    for wanted, each in spec.items():
        name = wanted.removesuffix("?")
        if name in value:
            check(value[name], each, f"{where}.{name}")
        elif name == wanted:
            raise ValueError(f"{where} has no entry {name!r}")


def _of(value: Any, kind: Any, name: str, where: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{where} must be {name}, got {_show(value)}")
    return value


def _show(value: Any) -> str:
    """A value for a message: one short line, whatever the file contains."""
    text = repr(value) if isinstance(value, bool | int | float | str | None) else f"a {type(value).__name__}"
    return text if len(text) <= 40 else f"{text[:37]}..."
