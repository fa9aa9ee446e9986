"""Payoff tensors as users give them: checked, and brought into one form."""

from typing import Any

import numpy as np

from shoal.core.errors import OptionError, require

ALLOWED = (
    "a tensor of finite numbers: [players, actions of player 0, actions of player 1, ...], or for two players one "
    "matrix, what player 0 wins of player 1"
)


def payoff_tensor(owner: str, payoffs: Any) -> np.ndarray:
    """Payoffs as float64 `[n, a1, ..., an]`; an `OptionError` says what is wrong with them."""
    try:
        tensor = np.asarray(payoffs)
    except ValueError:  # numpy's word for it is "inhomogeneous"
        raise _refusal(owner, "rows of different lengths") from None
    if tensor.dtype.kind not in "iuf":
        raise _refusal(owner, _short(payoffs))
    with np.errstate(over="ignore"):
        finite = np.isfinite(tensor.astype(np.float32))
    if not finite.all():
        where = tuple(int(i) for i in np.argwhere(~finite)[0])
        require(False, owner, f"payoffs[{', '.join(map(str, where))}]", float(tensor[where]), "a finite number")
    if tensor.ndim < 2 or tensor.size == 0:
        raise _refusal(owner, f"a tensor of shape {tensor.shape}" if tensor.ndim else _short(payoffs))
    if tensor.ndim == 2:
        tensor = np.stack([tensor, -tensor])
    n = tensor.ndim - 1
    allowed = f"{n}, one entry for each of the {n} players whose actions the other axes are (shape {tensor.shape})"
    require(tensor.shape[0] == n, owner, "the first axis of payoffs", tensor.shape[0], allowed)
    return tensor.astype(np.float64) + 0.0  # no negative zeros


def as_tuples(value: Any) -> Any:
    """Lists and arrays as nested tuples of floats, so that a world stays hashable."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return tuple(map(as_tuples, value)) if isinstance(value, list | tuple) else float(value)


def _refusal(owner: str, got: str) -> OptionError:
    return OptionError(f"{owner}: payoffs must be {ALLOWED}; got {got}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
