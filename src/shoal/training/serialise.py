"""Settings as plain JSON data and back: frozen dataclasses of numbers, texts, mappings and each other.

Where a field may hold any class of a family (an algorithm, a wrapper, an evolution strategy), the data begins with the
class's name, which the family maps to the class.
"""

import collections.abc
import dataclasses
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from shoal.algorithms import algorithm_class
from shoal.algorithms.registry import check_registered
from shoal.core.algorithm import Algorithm
from shoal.core.errors import OptionError, UnknownNameError, require, unknown_name
from shoal.core.origin import DATA, Origin
from shoal.envs.wrappers import Wrapper, wrapper_class

_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
UNSTORED = {"stored": False}
"""Marks a field that does not go into JSON."""

_FAMILIES: dict[Any, Callable[[str], type]] = {Algorithm: algorithm_class, Wrapper: wrapper_class}


def register_family(base: Any, find: Callable[[str], type]) -> None:
    """Fields of the type `base` hold objects of any class that `find` knows by its name."""
    _FAMILIES[base] = find


def to_plain(value: Any) -> Any:
    """Settings as plain JSON data; refuses objects that would be read back as another class."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = typing.get_type_hints(type(value))
        for field in stored_fields(type(value)):
            _check_kept(hints[field.name], getattr(value, field.name), f"{type(value).__name__}.{field.name}")
        named: dict[str, Any] = {"name": getattr(value, "name", None)} if isinstance(value, tuple(_FAMILIES)) else {}
        return named | {field.name: to_plain(getattr(value, field.name)) for field in stored_fields(type(value))}
    if isinstance(value, Mapping):
        return {key: to_plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        for entry in value:
            _check_kept(Any, entry, "wrappers")
        return [to_plain(entry) for entry in value]
    return value


def from_plain(cls: Any, data: Any, where: str, origin: Origin = DATA) -> Any:
    """The inverse of `to_plain`; where: prefix of errors about entries that are unknown or of the wrong type.

    origin: where the data comes from, for the experiments in it.
    """
    if cls in _FAMILIES:
        data = dict(_expect(data, Mapping, where))
        name = data.pop("name", None)
        cls = _FAMILIES[cls](str(name))
        data |= {"name": name} if "name" in _names(cls) else {}
    hints, names, renamed = typing.get_type_hints(cls), _names(cls), getattr(cls, "renamed", {})
    data = {renamed.get(key, key): entry for key, entry in _expect(data, Mapping, where).items()}
    for key in data:
        if key not in names:
            raise OptionError(f"{where}: {unknown_name('entry', key, names)}")
    values = {key: _convert(hints[key], entry, f"{where}.{key}", origin) for key, entry in data.items()}
    told = {"origin": origin} if any(field.name == "origin" for field in dataclasses.fields(cls)) else {}
    return cls(**values, **told)


def _check_kept(hint: Any, value: Any, where: str) -> None:
    """Refuses an object that would be read back as one of another class: a run must continue as it began."""
    if hint is Algorithm:
        check_registered(value, where)
        return
    family = next((base for base in _FAMILIES if isinstance(value, base)), None)
    kept = _is_known(family, value) if family else not dataclasses.is_dataclass(hint) or type(value) is hint
    if not kept:
        raise OptionError(
            f"{where} is of the class {type(value).__qualname__}, which a run folder cannot name: it would be "
            "resumed as another. Train it without a run folder (shoal.train without run_dir), or use one of Shoal's "
            "own classes"
        )


def _is_known(family: Any, value: Any) -> bool:
    try:
        return _FAMILIES[family](str(value.name)) is type(value)
    except UnknownNameError:
        return False


def stored_fields(cls: Any) -> list[dataclasses.Field]:
    """The fields of a dataclass that are stored: all except those marked, and the world that a wrapper wraps."""
    is_wrapper = isinstance(cls, type) and issubclass(cls, Wrapper)
    stored = [field for field in dataclasses.fields(cls) if field.metadata.get("stored", True)]
    return [field for field in stored if not (is_wrapper and field.name == "env")]


def _names(cls: Any) -> list[str]:
    return [field.name for field in stored_fields(cls)]


def _convert(hint: Any, data: Any, where: str, source: Origin) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in _FAMILIES or dataclasses.is_dataclass(hint):
        built = dataclasses.is_dataclass(hint) and isinstance(data, hint)  # pyright: ignore[reportArgumentType]
        return data if built else from_plain(hint, data, where, source)
    if origin in (typing.Union, types.UnionType):
        return None if data is None else _convert(_member(args, data), data, where, source)
    if hint is Any:
        return data
    if origin is typing.Literal:
        require(data in args, where, "value", data, " or ".join(repr(arg) for arg in args))
        return data
    if origin in (tuple, collections.abc.Sequence):
        entries = enumerate(_expect(data, list, where))
        return tuple(_convert(args[0], entry, f"{where}[{i}]", source) for i, entry in entries)
    if origin is Mapping or (isinstance(origin, type) and issubclass(origin, Mapping)):
        entries = _expect(data, Mapping, where).items()
        return {str(key): _convert(args[1], entry, f"{where}.{key}", source) for key, entry in entries}
    if hint is float and isinstance(data, int) and not isinstance(data, bool):
        require(-1e300 < data < 1e300, where, "value", f"one of {data.bit_length()} bits", "a number of usual size")
        return float(data)
    return _expect(data, hint, where)


def _member(args: tuple[Any, ...], data: Any) -> Any:
    """The member of a union that data belongs to: a list is not a dataclass."""
    others = [arg for arg in args if arg is not type(None) and not dataclasses.is_dataclass(arg)]
    return others[0] if isinstance(data, list) and others else args[0]


def _expect(data: Any, kind: type, where: str) -> Any:
    if not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
        got = repr(data) if isinstance(data, str) else json.dumps(data, default=repr)
        raise OptionError(f"{where} must be {_WORDS.get(kind, kind.__name__)}, got {got}")
    return data
