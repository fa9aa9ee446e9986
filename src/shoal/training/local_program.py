"""A traced program as one device runs it, taken out of the `shard_map` that it was traced in."""

import dataclasses
from typing import Any

from jax.extend.core import ClosedJaxpr, jaxpr_as_fun


@dataclasses.dataclass(frozen=True)
class LocalProgram:
    """Operations on one device's share. consts: arrays that the traced code closed over, its first arguments.

    Called where the same axes are in scope, it repeats its operations without the code that they came from.
    """

    jaxpr: Any
    consts: tuple[Any, ...]

    @classmethod
    def of(cls, whole: ClosedJaxpr) -> "LocalProgram":
        """The inside of a program that consists of one `shard_map`."""
        (equation,) = whole.jaxpr.eqns
        known = dict(zip(whole.jaxpr.constvars, whole.consts, strict=True))
        captured = len(equation.invars) - len(whole.jaxpr.invars)
        return cls(equation.params["jaxpr"], tuple(known[var] for var in equation.invars[:captured]))

    def __call__(self, *arguments: Any) -> list[Any]:
        return jaxpr_as_fun(ClosedJaxpr(self.jaxpr, ()))(*self.consts, *arguments)
