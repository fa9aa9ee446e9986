"""Programs compiled side by side: XLA leaves the interpreter alone meanwhile, so threads are enough."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax

from shoal.core.types import PyTree

Call = tuple[Any, tuple[Any, ...]]
"""A function under `jax.jit`, and the arguments that it will be called with: arrays, or shapes laid out as they are."""


def compile_together(*calls: Call) -> None:
    """Compiles programs for calls that are to come, which then find them compiled. They are traced one by one."""
    lowered = [program.lower(*arguments) for program, arguments in calls]
    with ThreadPoolExecutor(len(lowered)) as threads:
        list(threads.map(lambda one: one.compile(), lowered))


def lay_out(shapes: PyTree, shardings: PyTree) -> PyTree:
    """Shapes of arrays that will lie on devices in this way."""

    def one(x: Any, where: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where, weak_type=x.weak_type)

    return jax.tree.map(one, shapes, shardings)
