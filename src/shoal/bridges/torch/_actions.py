"""Actions that come as PyTorch tensors: whether they are what a group takes, and errors that say why not."""

from typing import Any

import torch

from shoal.core.errors import OptionError
from shoal.core.spaces import ActionSpace, Box, Discrete


def type_name(value: Any) -> str:
    """`numpy.ndarray`, `torch.Tensor`, `NoneType`."""
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def check_kind(owner: str, group: str, space: ActionSpace, action: Any) -> None:
    """Refuses what is no tensor, and numbers of another kind than the space has; needs no look at the values."""
    if not isinstance(action, torch.Tensor):
        raise OptionError(f"{owner}: the actions of {group!r} must be a torch tensor, got {type_name(action)}")
    box = isinstance(space, Box)
    wrong = action.dtype == torch.bool if box else action.dtype.is_floating_point
    if wrong or action.dtype.is_complex:
        kind = "numbers" if box else "whole numbers"
        raise OptionError(f"{owner}: the actions of {group!r} must be {kind} ({space}), got {action.dtype}")


def check_values(owner: str, group: str, space: ActionSpace, action: torch.Tensor) -> None:
    """Refuses actions `[..., *shape]` outside their space, and NaN. On a GPU this waits for the actions."""
    if not action.numel():
        return
    action = action.detach()
    if isinstance(space, Box):
        action = action.to(getattr(torch, space.dtype))
        low, most = (torch.tensor(bound).to(action.dtype).item() for bound in (space.low, space.high))
        if not action.dtype.is_floating_point:  # which have no infinity
            low, most = space.low, space.high
    else:
        low, most = 0, (space.n if isinstance(space, Discrete) else max(space.sizes)) - 1
        action = action.to(torch.int64)  # the small kinds have no minimum of their own everywhere
    least, largest = (bound.item() for bound in action.aminmax())  # NaN if any is
    inside = least >= low and largest <= most
    if inside and not isinstance(space, Box | Discrete):  # parts with fewer choices than the largest has
        tops = action.reshape(-1, len(space.sizes)).amax(0).tolist()
        wrong = [top for top, size in zip(tops, space.sizes, strict=True) if top >= size]
        inside, largest = not wrong, wrong[0] if wrong else largest
    if not inside:
        got = largest if largest != largest or largest > most or least >= low else least
        raise OptionError(f"{owner}: an action of {group!r} is outside its space {space}: got {got:g}")
