"""How much memory a traced program needs while it runs, from its jaxpr: nothing is compiled or allocated.

A value is counted from the operation that makes it to the last one that reads it. As in XLA, results of elementwise
operations are assumed to be fused into the operations that read them: they take memory only where they must be
materialised, as an argument of a product, a sort or a loop, or as a result. Updates of an array are made in place, and
so are the carries of a loop. Of what is written anew for some platforms, the form of this one counts.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend import core as jax_core

IN_PLACE = {"dynamic_update_slice", "scatter", "scatter-add", "scatter_add", "scatter-min", "scatter-max"}
"""Operations that write into their first argument."""
REDUCING = ("reduce", "arg")
"""Prefixes of the names of operations that read fused arguments, but whose results are materialised."""
WHOLE = {
    "dot_general", "conv_general_dilated", "sort", "top_k", "cumsum", "cumprod", "cummax", "cumlogsumexp", "gather",
    "concatenate", "pad", "random_bits", "random_split", "random_wrap", "threefry2x32", "custom_call", "ffi_call",
    "pure_callback", "io_callback", "qr", "geqrf", "householder_product", "cholesky", "triangular_solve", "eigh", "svd",
    "lu", "scan", "while", "cond", "copy", "all_gather", "psum", "all_to_all",
}  # fmt: skip
"""Operations whose arguments and results are materialised; all others are elementwise, or only views."""


def num_bytes(tree: Any) -> int:
    """Bytes of the arrays of a tree, from their shapes."""
    return sum(_size(leaf) for leaf in jax.tree.leaves(tree))


def peak_bytes(jaxpr: Any) -> int:
    """Peak bytes that a program allocates, without its arguments and including its results."""
    return _Program(getattr(jaxpr, "jaxpr", jaxpr)).peak()


def _size(aval: Any) -> int:
    # In Python's own integers: sizes beyond 2^63 must be reported, not wrap around.
    return math.prod(int(axis) for axis in aval.shape) * aval.dtype.itemsize


class _Program:
    """One walk over a jaxpr. roots: for each value, the materialised values that it is computed from when read."""

    def __init__(self, jaxpr: Any):
        self.jaxpr = jaxpr
        self.roots: dict[Any, frozenset] = {var: frozenset([var]) for var in (*jaxpr.invars, *jaxpr.constvars)}
        self.given = set(self.roots)
        self.made: dict[Any, int] = {}  # materialised values, and the operation that makes each
        self.inner: list[int] = []

    def peak(self) -> int:
        reads: list[frozenset] = []
        forced = self._find_materialised()
        for number, equation in enumerate(self.jaxpr.eqns):
            reads.append(self._of(equation.invars))
            self.inner.append(_inner(equation))
            self._results(number, equation, forced)
        last = dict.fromkeys(self.made, -1)
        for number, read in enumerate(reads):
            last |= {var: number for var in read if var in last}
        for var in self._of(self.jaxpr.outvars):
            if var in last:
                last[var] = len(reads)
        return self._most(last)

    def _of(self, variables: Sequence[Any]) -> frozenset:
        known = [self.roots[var] for var in variables if not isinstance(var, jax_core.Literal)]
        return frozenset().union(*known)

    def _find_materialised(self) -> set:
        """Values that must be materialised because of the operations that read them."""
        forced = {var for var in self.jaxpr.outvars if not isinstance(var, jax_core.Literal)}
        for equation in self.jaxpr.eqns:
            if equation.primitive.name in WHOLE or programs_of(equation):
                forced |= {var for var in equation.invars if not isinstance(var, jax_core.Literal)}
        return forced

    def _results(self, number: int, equation: Any, forced: set) -> None:
        name = equation.primitive.name
        carried = _carried(equation)
        whole = name in WHOLE or bool(programs_of(equation)) or name.startswith(REDUCING)
        for i, var in enumerate(equation.outvars):
            if name in IN_PLACE:
                self.roots[var] = self._of(equation.invars[:1])
            elif i in carried:
                self.roots[var] = self._of([equation.invars[carried[i]]])
            elif whole or var in forced:
                self.roots[var], self.made[var] = frozenset([var]), number
            else:
                self.roots[var] = self._of(equation.invars)

    def _most(self, last: dict[Any, int]) -> int:
        count = len(self.jaxpr.eqns)
        change = [0] * (count + 2)
        for var, number in self.made.items():
            size = _size(var.aval)
            change[number] += size
            change[max(last[var], number) + 1] -= size
        most = alive = 0
        for number in range(count + 1):
            alive += change[number]
            most = max(most, alive + (self.inner[number] if number < count else 0))
        return most


def programs_of(equation: Any) -> list[Any]:
    """The programs inside an operation: of a loop, a branch, a function."""
    found = []
    for value in equation.params.values():
        for one in value if isinstance(value, tuple | list) else [value]:
            if hasattr(one, "eqns") or hasattr(getattr(one, "jaxpr", None), "eqns"):
                found.append(getattr(one, "jaxpr", one))
    platforms = equation.params.get("branches_platforms")
    return found if platforms is None else [found[_branch(platforms)]]


def _branch(platforms: Sequence[Sequence[str] | None]) -> int:
    """Which of the branches of `jax.lax.platform_dependent` this machine compiles; None is the one for all others."""
    return next(i for i, names in enumerate(platforms) if names is None or platform_name() in names)


@functools.cache
def platform_name() -> str:
    """The platform of this machine, by the name that programs are lowered for."""
    device = jax.local_devices()[0]
    if device.platform != "gpu":
        return device.platform
    return "rocm" if "rocm" in device.client.platform_version.lower() else "cuda"


def _inner(equation: Any) -> int:
    """Memory that an operation needs while it runs, besides its results."""
    programs = programs_of(equation)
    if not programs:
        return 0
    most = max(peak_bytes(program) for program in programs)
    if equation.primitive.name in ("scan", "while"):
        return most
    return max(0, most - sum(_size(var.aval) for var in equation.outvars))


def _carried(equation: Any) -> dict[int, int]:
    """For the carried results of a loop, the arguments that they start from."""
    params = equation.params
    if equation.primitive.name == "scan":
        # By their axes, because versions of jax differ in their parameters: scanned arrays have one more axis outside.
        (body,) = programs_of(equation)
        count = sum(_rank(out) == _rank(new) for out, new in zip(equation.outvars, body.outvars, strict=True))
        scanned = sum(_rank(given) > _rank(one) for given, one in zip(equation.invars, body.invars, strict=True))
        first = len(equation.invars) - scanned - count
        return {i: first + i for i in range(count)}
    if equation.primitive.name == "while":
        before = params["cond_nconsts"] + params["body_nconsts"]
        return {i: before + i for i in range(len(equation.outvars))}
    return {}


def _rank(var: Any) -> int:
    return len(var.aval.shape)
