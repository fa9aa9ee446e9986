"""What was chosen while a program was traced: a kernel, or plain XLA, and why.

`ops.mlp.fuse`, `ops.neighbours` and networks that no kernel takes report here; `training.kernel_use` says it of a
program. Nobody listens by default.
"""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Literal

Part = Literal["networks", "neighbour search"]
"""The parts of a program that there are kernels for."""
Choices = dict[Part, set[str | None]]
"""By part, the reasons why plain XLA was chosen; None stands for a kernel."""

_heard: contextvars.ContextVar[Choices | None] = contextvars.ContextVar("choices of kernels", default=None)


@contextlib.contextmanager
def record_choices() -> Iterator[Choices]:
    """What is chosen while this is open, in this thread."""
    found: Choices = {}
    token = _heard.set(found)
    try:
        yield found
    finally:
        _heard.reset(token)


def report(part: Part, reason: str | None) -> None:
    """Reports that a part goes the plain way, for a reason, or by a kernel (None)."""
    found = _heard.get()
    if found is not None:
        found.setdefault(part, set()).add(reason)
