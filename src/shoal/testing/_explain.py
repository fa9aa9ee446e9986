"""Running a world's own code, and putting what it raises into words."""

import dataclasses
import linecache
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from shoal.core.errors import WorldError
from shoal.testing.report import Findings

FAILED = object()
"""In place of the result of a method that raised; what it raised has been noted."""

_CALLBACK = re.compile(r"\b(pure_callback|io_callback|debug_callback|debug_print)\[")
_NOT_USER_CODE = ("<", str(Path(jax.__file__).parent), str(Path(__file__).parent))

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
        "hands a value that is only known when the program runs to numpy",
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


def trace(findings: Findings, method: str, function: Callable, *args: Any) -> Any:
    """The spec of what a method returns, or `FAILED` after noting why it cannot be traced."""
    traced = attempt(findings, method, jax.make_jaxpr(function, return_shape=True), *args)
    if traced is FAILED:
        return FAILED
    jaxpr, out = traced
    for name in sorted(set(_CALLBACK.findall(str(jaxpr)))):
        what = f"it calls back to the host from inside the program ({name})"
        fix = "Every step of every copy would wait for the host: remove the call, or compute it with `jax.numpy`"
        findings.add("callback", method, what, fix, is_warning=name.startswith("debug"))
    return out


def attempt(findings: Findings, method: str, function: Callable, *args: Any) -> Any:
    """What a world's method returns, or `FAILED` after noting what it raised."""
    try:
        return function(*args)
    except Exception as error:  # whatever the world's own code raises
        findings.add(*explain(error, method))
        return FAILED


def explain(error: Exception, method: str) -> tuple[str, str, str, str]:
    """Kind, place, words and remedy for an exception that a world's method raised."""
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
    """The deepest line of the world's own code, such as ` (tag.py, line 12: "if x > 0:")`."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_NOT_USER_CODE)]
    if not frames or frames[-1].lineno is None:
        return ""
    frame = frames[-1]
    line = linecache.getline(frame.filename, frame.lineno).strip()  # pyright: ignore[reportArgumentType]
    return f" ({Path(frame.filename).name}, line {frame.lineno}: `{line}`)"
