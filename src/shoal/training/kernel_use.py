"""Which parts of a traced program run as hand-written kernels on this machine, in one line.

    networks: fused kernel; neighbour search: kernel
    networks: fused kernel in bfloat16
    networks: plain XLA (256 units: the kernel holds up to 64)

Whether there is a kernel is read off the trace, with the rule by which it is compiled; the reason why there is none is
that of whoever chose while it was traced (`ops.kernels.choices`).
"""

from collections.abc import Iterator
from typing import Any

from shoal.ops import mlp, neighbours
from shoal.ops.kernels import trust
from shoal.ops.kernels.choices import Choices, Part
from shoal.training import liveness

PARTS: tuple[Part, ...] = ("networks", "neighbour search")


def describe_kernels(jaxpr: Any, choices: Choices) -> str:
    """One line about a traced program; empty if it has no part that there is a kernel for."""
    used = find_kernels(jaxpr)
    told = {part: _describe(part, used.get(part), choices) for part in PARTS if part in used or part in choices}
    return "; ".join(f"{part}: {what}" for part, what in told.items())


def find_kernels(jaxpr: Any) -> dict[Part, str]:
    """The parts of a traced program that are compiled to kernels here, and what these are called."""
    operations = list(_operations(getattr(jaxpr, "jaxpr", jaxpr)))
    used: dict[Part, str] = {}
    networks = filter(mlp.takes_kernel, operations) if liveness.platform_name() == "cuda" else ()
    if precisions := {equation.params["dtype"] for equation in networks}:
        usual = precisions == {"float32"}
        used["networks"] = "fused kernel" if usual else f"fused kernel in {' and '.join(sorted(precisions))}"
    if any(map(neighbours.is_kernel, operations)):
        used["neighbour search"] = "kernel"
    return used


def _describe(part: Part, used: str | None, choices: Choices) -> str:
    reasons = sorted(reason for reason in choices.get(part, ()) if reason is not None)
    if reasons and liveness.platform_name() != "cuda":
        reasons = [trust.NO_DEVICE]  # whatever else there may be
    told = f"plain XLA ({'; '.join(reasons)})" if reasons else "plain XLA"
    if not used:
        return told
    return f"{used}, others {told}" if reasons else used


def _operations(jaxpr: Any) -> Iterator[Any]:
    """All operations of a program as this platform compiles it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in liveness.programs_of(equation):
            yield from _operations(inner)
