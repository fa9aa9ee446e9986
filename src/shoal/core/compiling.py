"""Whether JAX is making a program at this moment. JAX itself is not needed to ask."""

import sys

COMPILERS = {"jax._src.compiler", "jax._src.interpreters.mlir", "jax._src.interpreters.partial_eval"}
"""Modules in which a thread is found while JAX compiles a program, or traces and lowers it before."""


def is_compiling() -> bool:
    """Whether JAX is making a program in some thread."""
    for frame in sys._current_frames().values():
        while frame is not None:
            if frame.f_globals.get("__name__") in COMPILERS:
                return True
            frame = frame.f_back
    return False
