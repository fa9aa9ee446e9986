"""Checks of options, made where the user passes them: by their limits, and by the annotations of a dataclass.

The command line parses text by these annotations too; here are values from Python.
"""

import dataclasses
import functools
import math
import operator
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import jax
import numpy as np
from jax.core import Tracer

from shoal.core.errors import require
from shoal.core.keys import is_key

MAX_WHOLE = 2**31 - 1
"""Whole numbers are int32."""
MAX_COUNT = 100_000
"""The most agents, landmarks and the like; more is taken for a typing error."""
_IN_WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "text", type(None): "None"}


def require_whole(owner: str, at_least: int, *, at_most: int = MAX_WHOLE, **options: int) -> None:
    """Each option must be a whole number from `at_least` to `at_most`."""
    for option, got in options.items():
        whole = isinstance(got, int) and not isinstance(got, bool)
        require(whole and got >= at_least, owner, option, got, f"a whole number, at least {at_least}")
        require(got <= at_most, owner, option, got, f"at most {at_most}")


def require_finite(owner: str, **options: float) -> None:
    """Each option must be a finite number."""
    for option, got in options.items():
        require(is_number(got) and math.isfinite(got), owner, option, got, "a finite number")


def require_not_negative(owner: str, **options: float) -> None:
    """Each option must be a finite number of at least 0."""
    require_finite(owner, **options)
    for option, got in options.items():
        require(got >= 0, owner, option, got, "at least 0")


def require_above_zero(owner: str, **options: float) -> None:
    """Each option must be a finite number greater than 0."""
    require_finite(owner, **options)
    for option, got in options.items():
        require(got > 0, owner, option, got, "greater than 0")


def require_flag(owner: str, **options: bool) -> None:
    """Each option must be True or False."""
    for option, got in options.items():
        require(isinstance(got, bool), owner, option, got, "True or False")


def require_counts(owner: str, **counts: int) -> None:
    """Refuses numbers of copies and the like that 32 bits cannot count."""
    for name, count in counts.items():
        require(count <= MAX_WHOLE, owner, name, count, f"less than 2^31, {MAX_WHOLE + 1:,}")


def check_floats(owner: Any, **limits: tuple[float, float | None]) -> None:
    """Each named option of `owner` must be within its limits, from the first to the second (None: any finite number).

    Arrays pass: an option that is swept is a tracer, which must not be inspected.
    """
    for option, (low, high) in limits.items():
        got = getattr(owner, option)
        if isinstance(got, int | float):
            fits = low <= got and (math.isfinite(got) if high is None else got <= high)
            bounds = f"at least {low}" + (" and finite" if high is None and got == math.inf else "")
            bounds += "" if high is None else f" and at most {high}"
            require(fits, type(owner).__name__, option, got, bounds)


def check_positive(owner: Any, *options: str) -> None:
    """Each named option of `owner` must be greater than 0 and finite; arrays pass."""
    for option in options:
        got = getattr(owner, option)
        if isinstance(got, int | float):
            fits = not isinstance(got, bool) and 0 < got < math.inf
            require(fits, type(owner).__name__, option, got, "greater than 0" + " and finite" * (got == math.inf))


def check_whole(owner: Any, **least: int) -> None:
    """Each named option of `owner` must be a whole number of at least the given size."""
    for option, low in least.items():
        got = getattr(owner, option)
        whole = isinstance(got, int) and not isinstance(got, bool) and got >= low
        require(whole, type(owner).__name__, option, got, f"a whole number, at least {low}")


def check_types(settings: Any, owner: str | None = None) -> None:
    """Refuses fields of a frozen dataclass that do not match their annotations; call it first in `__post_init__`.

    A float may be a tracer, as under `vmap`, which is not inspected. Numbers of numpy and JAX become plain ones, and
    lists become tuples where tuples are expected, so that settings can be hashed and stored.
    """
    for name, hint in _hints(type(settings)).items():
        got = getattr(settings, name)
        value = check_value(hint, got, owner or type(settings).__name__, name)
        if value is not got:
            object.__setattr__(settings, name, value)


def check_value(hint: Any, got: Any, owner: str, name: str) -> Any:
    """A value that fits its annotation, made plain (see `check_types`); raises if it does not fit."""
    value = _plain(hint, got)
    require(_fits(hint, value), owner, name, got, _in_words(hint))
    return value


def is_number(value: object) -> bool:
    """Whether a value is a plain number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


@functools.cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    """The annotations of the fields of `__init__`."""
    try:
        hints = get_type_hints(cls)
    except NameError:  # a class defined inside a function, whose annotations cannot be resolved here
        hints = {field.name: Any for field in dataclasses.fields(cls)}
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def _plain(hint: Any, value: Any) -> Any:
    if isinstance(value, Tracer):
        return value
    if isinstance(value, np.generic | np.ndarray | jax.Array) and np.ndim(value) == 0 and not is_key(value):
        return value.item()
    if get_origin(hint) is tuple and isinstance(value, tuple | list):
        inner = get_args(hint)[0] if get_args(hint) else Any
        plain = tuple(_plain(inner, entry) for entry in value)
        return value if type(value) is tuple and all(map(operator.is_, plain, value)) else plain
    if _is_mapping(hint) and isinstance(value, Mapping):
        plain = {key: _plain(get_args(hint)[1], entry) for key, entry in value.items()}
        return value if all(map(operator.is_, plain.values(), value.values())) else plain
    return value


def _is_mapping(hint: Any) -> bool:
    origin = get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _fits(hint: Any, value: Any) -> bool:
    """Whether a value matches an annotation; annotations that settings do not use allow everything."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _fits(args[0], value)
    if origin in (Union, types.UnionType):
        return any(_fits(kind, value) for kind in args)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in args)
    if hint in (int, float):
        tracer = hint is float and isinstance(value, Tracer)
        allowed = int if hint is int else int | float
        return tracer or (isinstance(value, allowed) and not isinstance(value, bool))
    if origin is tuple:
        return isinstance(value, tuple) and (len(args) != 2 or args[1] is not ... or _all_fit(args[0], value))
    kind = origin or hint
    if kind is Any or not isinstance(kind, type):
        return True
    if _is_mapping(hint):
        return isinstance(value, Mapping) and _all_fit(args[0], value) and _all_fit(args[1], value.values())
    if getattr(kind, "_is_protocol", False):  # an object, not its class, with all members
        return not isinstance(value, type) and all(hasattr(type(value), name) for name in _asked(kind))
    return isinstance(value, kind)


def _all_fit(hint: Any, values: Any) -> bool:
    return all(_fits(hint, value) for value in values)


def _asked(protocol: type) -> list[str]:
    return [name for name, entry in vars(protocol).items() if not name.startswith("_") and callable(entry)]


def _in_words(hint: Any) -> str:
    """What an annotation allows."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _in_words(args[0])
    if origin in (Union, types.UnionType):
        return _either([_in_words(kind) for kind in args])
    if origin is Literal:
        return _either([repr(choice) for choice in args])
    if origin is tuple:
        return f"a tuple, each entry {_in_words(args[0])}" if args else "a tuple"
    kind = origin or hint
    if _is_mapping(hint):
        return f"a mapping, each entry {_in_words(args[1])}"
    if hint is Any:
        return "anything"
    name = getattr(kind, "__name__", str(kind))
    return _IN_WORDS.get(kind, f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")


def _either(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]
