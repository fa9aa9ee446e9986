"""Decides which functions may be called to make an environment: only those that evidently make one.

A name such as `subprocess:check_output` must not be called to find out what it returns. So a class must be one of the
library's environments, or look like one; a function must say by its return annotation that it makes one, or, if it is
not annotated, be defined where the library is used: in a module that has something of it, or import it itself.
"""

import functools
import inspect
import re
import types
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple

from shoal.core.errors import OptionError


class Kind(NamedTuple):
    """What environments of a library are: classes, what they have at least, the library's modules, a name for them."""

    classes: tuple[type, ...]
    parts: tuple[str, ...]
    modules: tuple[str, ...]
    title: str

    def is_made_by(self, cls: Any) -> bool:
        """Whether a class, or an annotation, stands for environments of this kind."""
        cls = typing.get_origin(cls) or cls
        return isinstance(cls, type) and (
            issubclass(cls, self.classes) or all(hasattr(cls, part) for part in self.parts)
        )


def check_maker(owner: str, maker: Any, kind: Kind) -> None:
    """Refuses what does not evidently make an environment of that kind."""
    if isinstance(maker, type):
        if kind.is_made_by(maker):
            return
        raise OptionError(f"{owner}: the class {maker.__name__} is not {kind.title}; it was not called")
    functions = list(_functions(maker))
    if not any(_makes(function, kind) for function in functions):
        raise OptionError(
            f"{owner}: nothing shows that it makes {kind.title}, so it was not called. If it does, annotate what it "
            f"returns: def {getattr(maker, '__name__', 'make')}(...) -> {kind.classes[0].__module__.split('.')[0]}."
            f"{kind.classes[0].__name__}"
        )


def _functions(maker: Any) -> Iterator[types.FunctionType]:
    """The Python functions behind something that can be called."""
    while isinstance(maker, functools.partial):
        maker = maker.func
    maker = getattr(maker, "__func__", maker)
    if not isinstance(maker, types.FunctionType | types.BuiltinFunctionType):
        maker = inspect.getattr_static(type(maker), "__call__", None)
    while isinstance(maker, types.FunctionType):
        yield maker
        maker = getattr(maker, "__wrapped__", None)


def _makes(function: types.FunctionType, kind: Kind) -> bool:
    said = function.__annotations__.get("return", Any)
    try:
        said = typing.get_type_hints(function).get("return", Any)
    except Exception:  # names that only a type checker has: then its words count
        named = {cls.__name__ for cls in kind.classes} & set(re.findall(r"\w+", str(said)))
        return bool(named) or _uses(function, kind)
    options = typing.get_args(said) if typing.get_origin(said) in (typing.Union, types.UnionType) else (said,)
    return any(map(kind.is_made_by, options)) or (said is Any and _uses(function, kind))


def _uses(function: types.FunctionType, kind: Kind) -> bool:
    """Whether the module that a function is defined in has something of the library, or its code imports it."""
    inside = {_home(value) for value in function.__globals__.values()} | {function.__module__ or ""}
    return any(name.split(".")[0] in kind.modules for name in (*inside, *_names(function.__code__)))


def _home(value: Any) -> str:
    home = value.__name__ if isinstance(value, types.ModuleType) else inspect.getattr_static(value, "__module__", "")
    return home if isinstance(home, str) else ""


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from _names(part)
