"""Running a user's own code, and noting what it raises."""

import re
from collections.abc import Callable
from typing import Any

import jax

from shoal.core.explain import explain
from shoal.testing.report import Findings

FAILED = object()
"""In place of the result of a method that raised; what it raised has been noted."""

_CALLBACK = re.compile(r"\b(pure_callback|io_callback|debug_callback|debug_print)\[")


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
