"""Algorithm classes by the names that run folders store, and the registration of your own."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from shoal.core.algorithm import Algorithm
from shoal.core.errors import OptionError
from shoal.core.extensions import Registry

FROZEN = "`@dataclasses.dataclass(frozen=True)`"
_PLAIN = (bool, int, float, str, type(None))
Class = TypeVar("Class", bound=type[Algorithm])


def check_class(name: str, cls: Any) -> None:
    """Refuses classes that are not algorithms, or that could not be built, stored and rebuilt."""

    def refuse(what: str) -> typing.NoReturn:
        raise OptionError(f"the algorithm {name!r} ({getattr(cls, '__qualname__', repr(cls))}): {what}")

    if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
        refuse("it must be a class derived from shoal.core.algorithm.Algorithm, or from an algorithm such as shoal.PPO")
    if _lacks_decorator(cls):
        refuse(f"its options are not visible: write {FROZEN} above the class, below @shoal.register_algorithm")
    if not cls.__dataclass_params__.frozen:  # pyright: ignore[reportAttributeAccessIssue]
        refuse(f"it is not frozen: write {FROZEN} above the class")
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        refuse(f"it lacks {', '.join(missing)}: see `help(shoal.core.algorithm.Algorithm.{missing[0]})`")
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if field.default is field.default_factory is dataclasses.MISSING:
            refuse(f"its option {field.name} has no default")
        if not _storable(hints[field.name]):
            refuse(
                f"its option {field.name} is a {hints[field.name]}, which a run folder cannot store: use numbers, "
                "text, flags, tuples of these, or a frozen dataclass"
            )


ALGORITHMS = Registry("algorithm", "shoal.algorithms", (r"[a-z][a-z0-9_]*", "kl_ppo"), check_class)
"""The classes, by the names that run folders store."""


def register_algorithm(name: str) -> typing.Callable[[Class], Class]:
    """Registers an algorithm of your own: `@shoal.register_algorithm("kl_ppo")`, above its dataclass.

    Run folders store it by that name; `--algo kl_ppo` trains with it. It must be registered wherever such a run is
    opened: by `--import FILE`, by importing its module, or by an entry point of the group `shoal.algorithms`.
    """

    def register(cls: Class) -> Class:
        check_class(name, cls)
        own = vars(cls).get("name", name)
        if own != name:
            raise OptionError(f"{cls.__qualname__} is called {own!r} already: it cannot be registered as {name!r} too")
        ALGORITHMS.register(name, cls)
        cls.name = name
        return cls

    return register


def check_registered(algorithm: Algorithm, where: str) -> None:
    """Refuses an algorithm that would be restored as another class, such as a subclass of PPO called `ppo`."""
    cls, name = type(algorithm), getattr(algorithm, "name", None)
    known = ALGORITHMS.table.get(str(name))
    if known is cls:
        return
    if known is not None and "name" in vars(cls):
        why = f"which was registered as {name!r} before {known.__qualname__} was: make the algorithm from the new class"
        raise OptionError(f"{where} is of an older class {cls.__qualname__}, {why}")
    inherits = f" and inherits the name {name!r} of {known.__qualname__}" if known else ""
    raise OptionError(
        f"{where} is of the class {cls.__qualname__}, which is not registered{inherits}: it could not be restored "
        f'from a run folder. Write @shoal.register_algorithm("{_suggest(cls)}") above the class, or train it without '
        "a run folder (shoal.train without run_dir)"
    )


def _suggest(cls: type) -> str:
    """A class's name in our spelling: KLPenaltyPPO, kl_penalty_ppo."""
    letters = cls.__name__
    parts = [
        f"_{letter}"
        if i and letter.isupper() and (not letters[i - 1].isupper() or letters[i + 1 : i + 2].islower())
        else letter
        for i, letter in enumerate(letters)
    ]
    return "".join(parts).lower().strip("_")


def _lacks_decorator(cls: type) -> bool:
    """Whether a class has options of its own but is not a dataclass: they would be lost."""
    if not dataclasses.is_dataclass(cls):
        return True
    options = [hint for hint in vars(cls).get("__annotations__", {}).values() if "ClassVar" not in str(hint)]
    return bool(options) and "__dataclass_params__" not in vars(cls)


def _storable(hint: Any) -> bool:
    """Whether a value of that annotation round-trips to JSON."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in _PLAIN or hint is Any or origin is typing.Literal or dataclasses.is_dataclass(hint):
        return True
    if origin in (typing.Union, types.UnionType):
        return all(map(_storable, args))
    if origin is tuple:
        return len(args) == 2 and args[1] is ... and _storable(args[0])
    return isinstance(origin, type) and issubclass(origin, Mapping) and args[0] is str and _storable(args[1])
