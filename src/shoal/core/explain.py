"""Explains exceptions raised by a user's own code: a world, an algorithm, a torso."""

import dataclasses
import linecache
import os
import traceback
from pathlib import Path

import flax
import jax

from shoal.core.errors import WorldError

_OF_OTHERS = ("<", str(Path(jax.__file__).parent), str(Path(flax.__file__).parent))
_PACKAGE = Path(__file__).parent.parent
_OURS = (str(_PACKAGE / "testing"), str(_PACKAGE / "core"))

_HOST_VALUES: tuple[tuple[type[Exception], str, str], ...] = (
    (
        jax.errors.TracerBoolConversionError,
        "needs the truth of a value that is only known when the program runs (`if`, `while`, `and`, `or`, `bool()`)",
        "Use `jnp.where`, `jnp.logical_and` or `jax.lax.cond`",
    ),
    (
        jax.errors.TracerIntegerConversionError,
        "uses a value that is only known when the program runs as a Python integer (an index of a list, `range`)",
        "Index jax arrays, or loop with `jax.lax.fori_loop`",
    ),
    (
        jax.errors.TracerArrayConversionError,
        "passes a value that is only known when the program runs to numpy",
        "Use `jax.numpy` instead of `numpy`",
    ),
    (
        jax.errors.NonConcreteBooleanIndexError,
        "indexes with a mask, so that a shape depends on values",
        "Use `jnp.where(mask, ..., ...)`, which keeps the shape",
    ),
    (
        jax.errors.UnexpectedTracerError,
        "uses a traced value that an earlier call left behind, on the world or in a global",
        "Keep everything that changes in the state",
    ),
    (
        jax.errors.ConcretizationTypeError,
        "turns a value that is only known when the program runs into a Python number (`float()`, `int()`, `.item()`)",
        "Leave it a jax array",
    ),
)


def explain(error: Exception, method: str) -> tuple[str, str, str, str]:
    """Kind, place, description and remedy of an exception raised by a user's method."""
    where = f"{method}{_line_of(error)}"
    for kind, what, fix in _HOST_VALUES:
        if isinstance(error, kind):
            return "host value", where, f"it {what}", fix
    if isinstance(error, TypeError) and "concrete values" in str(error):
        fix = "Shapes must be known when the program is compiled: take them from the world's fields"
        return "host value", where, "it makes a shape out of a value that is only known when the program runs", fix
    if isinstance(error, dataclasses.FrozenInstanceError):
        fix = "Return a new state: `state.replace(...)`. Everything that changes lives there, not on the world"
        return "mutation", where, f"it changes something that is frozen ({error})", fix
    if isinstance(error, WorldError):
        return "missing", method, str(error), "See the environment contract"
    text = str(error).strip().split("\n")[0]
    return "raises", where, f"it raised {type(error).__name__}: {text}", "Make it run inside and outside of `jax.jit`"


def _line_of(error: Exception) -> str:
    """The deepest line that is not Shoal's or a library's, if any is, such as ` (tag.py, line 12: "if x > 0:")`."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_OF_OTHERS + _OURS)]
    frames = [f for f in frames if not f.filename.startswith(f"{_PACKAGE}{os.sep}")] or frames
    if not frames or frames[-1].lineno is None:
        return ""
    frame = frames[-1]
    line = linecache.getline(frame.filename, frame.lineno).strip()  # pyright: ignore[reportArgumentType]
    return f" ({Path(frame.filename).name}, line {frame.lineno}: `{line}`)"
