"""Numbers that a world draws while it is traced: to the compiled program they are constants, the same in every episode.

Whoever writes `numpy.random.normal()` in `reset` gets one draw for all copies, all episodes and the whole run. Traced
once more, the program has other constants.
"""

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from shoal.core.env import Env, action_shapes
from shoal.core.types import Group
from shoal.testing._explain import FAILED, attempt
from shoal.testing._trees import on_host
from shoal.testing.report import Findings

HIDDEN_FIX = (
    "Draw randomness from `key` only (not `random`, `numpy.random` or the clock), and keep everything that changes in "
    "the state (not on `self`, in globals or in a `nonlocal`)"
)
_ADDRESS = re.compile(r"0x[0-9a-f]+")


def check_hidden_draws(env: Env, groups: dict[str, Group], findings: Findings) -> None:
    """Traces `reset` and `step` twice each and compares the programs. Both must be known to be traceable."""
    key, params = jax.eval_shape(lambda: jax.random.key(0)), env.default_params()
    state = jax.eval_shape(env.reset, key, params)
    _check(findings, "reset", env.reset, key, params)
    _check(findings, "step", env.step, key, state, action_shapes(groups), params)


def _check(findings: Findings, method: str, function: Callable[..., Any], *args: Any) -> None:
    programs = [attempt(findings, method, _traced, function, args) for _ in range(2)]
    if FAILED not in programs and not _same(*programs):
        what = (
            "traced twice, it gives two different programs: what it draws, or keeps, outside of its arguments is a "
            "constant in a compiled one, the same in all copies and episodes"
        )
        findings.add("hidden state", method, what, HIDDEN_FIX)


def _traced(function: Callable[..., Any], args: Any) -> tuple[str, list[np.ndarray]]:
    """A program as text, without addresses in memory, and its constants."""
    found = jax.make_jaxpr(lambda *args: function(*args))(*args)  # a new function: traces are kept by function
    return _ADDRESS.sub("", str(found.jaxpr)), jax.tree.leaves(on_host(found.consts))


def _same(one: tuple[str, list[np.ndarray]], other: tuple[str, list[np.ndarray]]) -> bool:
    equal = len(one[1]) == len(other[1]) and all(map(_same_bits, one[1], other[1]))
    return one[0] == other[0] and equal


def _same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes()
