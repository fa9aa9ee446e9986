"""Torsos of your own: flax modules from one agent's observation to a vector of features, registered by name.

    @shoal.register_torso("set_attention")
    class SetAttention(nn.Module):
        heads: int = 4

        @nn.compact
        def __call__(self, seen):  # one agent's observation, without batch axes
            ...
            return features  # [F]

Its fields are options: `Network(torso="set_attention", torso_options={"heads": 8})`. One with a memory derives from
`MemoryTorso`. Run folders store an algorithm's network by these names.
"""

import abc
import contextlib
import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import FrozenDict

from shoal.core.checks import check_value
from shoal.core.errors import OptionError, ShoalError, unknown_name
from shoal.core.extensions import Registry
from shoal.core.types import PyTree

MLP = "mlp"
"""The built-in torso: convolutions for images, everything else flattened; then the MLP."""
Class = TypeVar("Class", bound=type[nn.Module])
_OF_FLAX = ("parent", "name")


class MemoryTorso(nn.Module):
    """A torso with a memory: `__call__(seen, memory)` returns features and the memory after the step.

    The memory is reset where an episode begins, and kept over steps in which an agent is inactive; the framework does
    both. It runs step by step, so put computations that do not depend on the memory elsewhere.
    """

    @abc.abstractmethod
    def initial_memory(self) -> PyTree:
        """The memory at the start of an episode: arrays, of the shapes and types that `__call__` returns."""


def check_class(name: str, cls: Any) -> None:
    """Refuses a class that is not a torso."""

    def refuse(what: str) -> typing.NoReturn:
        raise OptionError(f"the torso {name!r} ({getattr(cls, '__qualname__', repr(cls))}): {what}")

    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        refuse("it must be a class derived from flax.linen.Module")
    if issubclass(cls, MemoryTorso) and cls.initial_memory is MemoryTorso.initial_memory:
        refuse("it lacks initial_memory(): the memory at the start of an episode")
    wanted = ("seen", "memory") if issubclass(cls, MemoryTorso) else ("seen",)
    if "__call__" not in dir(cls) or not _takes(cls.__call__, len(wanted)):
        refuse(
            f"its method must be `__call__(self, {', '.join(wanted)})`. One that has a memory derives from "
            "shoal.networks.MemoryTorso, and takes and returns it"
        )
    for field in _options(cls):
        if field.default is field.default_factory is dataclasses.MISSING:
            refuse(f"its option {field.name} has no default")


TORSOS = Registry("torso", "shoal.torsos", (r"[a-z][a-z0-9_]*", "set_attention"), check_class)
TORSOS.reserved.add(MLP)


def register_torso(name: str) -> Callable[[Class], Class]:
    """Registers a torso of your own: `@shoal.register_torso("set_attention")`, above a `flax.linen.Module`.

    It must be registered wherever a run with it is opened: by `--import FILE`, by importing its module, or by an entry
    point of the group `shoal.torsos`.
    """

    def register(cls: Class) -> Class:
        check_class(name, cls)
        TORSOS.register(name, cls)
        return cls

    return register


def check_options(name: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of a registered torso, hashable and plain; raises for unknown options or wrong types."""
    if name not in TORSOS:
        raise unknown_name("torso", name, [MLP, *TORSOS])
    cls = TORSOS[name]
    hints = _hints(cls)
    plain = {}
    for option, value in options.items():
        if option not in hints:
            raise OptionError(f"torso {name!r}: {unknown_name('option', option, hints)}")
        plain[option] = check_value(hints[option], _hashable(value), f"torso {name!r}", option)
        if not _is_plain(plain[option]):
            raise OptionError(f"torso {name!r}: {option} must be numbers, text, flags or tuples, got {value!r:.100}")
    with _blame(name, "being made"):
        cls(**plain)
    return FrozenDict(plain)


def encode(name: str, torso: nn.Module, seen: PyTree, *memory: PyTree) -> Any:
    """Applies a registered torso to one agent's observation: features and, if it has one, its memory after."""
    both = " (the global state, and the view)" if isinstance(seen, tuple) else ""
    with _blame(name, f"seeing {jax.tree.map(_shape, seen)}{both}"):
        out = torso(seen, *memory)  # pyright: ignore[reportCallIssue]
    if memory:
        if not (isinstance(out, tuple) and len(out) == 2):
            raise OptionError(f"torso {name!r}: it has a memory, so it must return (features, memory)")
        before, after = (jax.tree.map(_shape, tree) for tree in (memory[0], out[1]))
        if before != after:
            raise OptionError(
                f"torso {name!r}: its memory must keep its structure, shapes and types: initial_memory() gives {before}"
                f", and after a step it is {after}"
            )
    features: Any = out[0] if memory else out
    vector = hasattr(features, "ndim") and features.ndim == 1 and jnp.issubdtype(features.dtype, jnp.floating)
    if not vector:
        got = _shape(features) if hasattr(features, "shape") else type(features).__name__
        raise OptionError(f"torso {name!r}: it must return one vector of floats [F] for one observation, got {got}")
    others = sorted(set(torso.variables) - {"params"}) if torso.is_initializing() else []
    if others:
        raise OptionError(
            f"torso {name!r}: it has variables besides its weights ({', '.join(others)}), which would never be "
            "updated: use layers without any, such as LayerNorm in place of BatchNorm"
        )
    return out


def encode_sequence(name: str, torso: nn.Module, seen: PyTree) -> jax.Array:
    """Features of `T` consecutive observations, for a torso without memory."""
    each = nn.vmap(
        lambda torso, seen: encode(name, torso, seen), variable_axes={"params": None}, split_rngs={"params": False}
    )
    return each(torso, seen)


@contextlib.contextmanager
def _blame(name: str, doing: str) -> Iterator[None]:
    """Turns an exception of a torso's code into an `OptionError` that names the torso."""
    try:
        yield
    except ShoalError:
        raise
    except Exception as error:
        text = str(error).strip().partition("\n")[0]
        raise OptionError(f"torso {name!r}, {doing}: {type(error).__name__}: {text}") from error


def torso_options(cls: type[nn.Module]) -> dict[str, Any]:
    """The options of a torso, and their defaults."""
    made = cls()
    return {field.name: getattr(made, field.name) for field in _options(cls)}


def _options(cls: type[nn.Module]) -> list[dataclasses.Field]:
    return [field for field in dataclasses.fields(cls) if field.init and field.name not in _OF_FLAX]


def _hints(cls: type[nn.Module]) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(cls)
    except NameError:  # a class defined inside a function, whose annotations cannot be resolved here
        hints = {}
    return {field.name: hints.get(field.name, Any) for field in _options(cls)}


def _takes(method: Callable, count: int) -> bool:
    """Whether a method can be called with that many arguments besides `self`."""
    try:
        inspect.signature(method).bind(*range(count + 1))
    except TypeError:
        return False
    return True


def _shape(leaf: Any) -> str:
    return f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}"


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)
