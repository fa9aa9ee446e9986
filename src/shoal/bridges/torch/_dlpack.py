"""DLPack between JAX and PyTorch: the calls in which both libraries end, without most of what they do before.

`jax.dlpack` spends nearly all of its time in Python, more than a small step of a world takes. What is skipped here are
checks of what callers know already. JAX does not promise to keep the two functions that are called here: whether they
do what they should is tried once, and if not, the public ones do the same, slower. If they refuse an array, the public
functions are called, whose errors say why.
"""

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch

try:
    from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]

    _exported: Any = _jax.buffer_to_dlpack_managed_tensor
    _imported: Any = _jax.dlpack_managed_tensor_to_buffer
except (ImportError, AttributeError):  # a JAX that has moved them
    _exported = _imported = None

PLAIN = frozenset(
    {torch.float32, torch.float16, torch.bfloat16, torch.bool}
    | {torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32}
)
"""Dtypes that are the same on both sides, whatever `jax_enable_x64` says."""
REFUSALS = (RuntimeError, ValueError, TypeError, BufferError)
"""Errors for memory that cannot be shared directly; the public functions are then called, whose errors explain why."""


@functools.cache
def direct() -> bool:
    """Whether both functions are there and hand over memory as they should."""
    if _exported is None or _imported is None:
        return False
    try:
        array = jax.device_put(np.arange(16, dtype=np.float32), jax.local_devices(backend="cpu")[0])
        tensor = torch.from_dlpack(_exported(array, None))
        back = _imported(torch.to_dlpack(tensor), array.device, None, None)
        shared = tensor.data_ptr() == array.unsafe_buffer_pointer() == back.unsafe_buffer_pointer()
        return shared and bool((np.asarray(back) == np.arange(16)).all())
    except (*REFUSALS, AttributeError):  # other arguments, or other results: they are not what they were
        return False


def to_torch(array: Any, stream: int | None = None) -> torch.Tensor:
    """The tensor that shares the memory of a JAX array on one device.

    stream: of PyTorch on a GPU, which is to wait for the array, as DLPack numbers it.
    """
    return all_to_torch([array], stream)[0]


def all_to_torch(arrays: Sequence[Any], stream: int | None) -> list[torch.Tensor]:
    """`to_torch` of several."""
    if direct():
        with contextlib.suppress(*REFUSALS):
            return [torch.from_dlpack(_exported(array, stream)) for array in arrays]
    return [torch.from_dlpack(array.__dlpack__(stream=stream)) for array in arrays]


def stream_of(current: Any) -> int:
    """The number that DLPack has for a stream of PyTorch; the default one is 1."""
    return current.cuda_stream or 1


def to_jax(tensor: torch.Tensor, current: Any = None) -> jax.Array:
    """The array that shares the memory of a tensor, or of a copy where that is not possible.

    current: PyTorch's stream on a GPU, for whose work up to now JAX is to wait.
    """
    if direct() and tensor.dtype in PLAIN and tensor.is_contiguous() and not tensor.is_neg():
        with contextlib.suppress(*REFUSALS):
            device, stream, waiting, event = _place(tensor.device.type, tensor.device.index)
            if stream is not None:
                event.record(current)
                waiting.wait_event(event)
            return _imported(torch.to_dlpack(tensor), device, stream, None)
    return jax.dlpack.from_dlpack(tensor.resolve_conj().resolve_neg().contiguous())


@functools.cache
def _place(kind: str, index: Any) -> tuple[Any, int | None, Any, Any]:
    """A device of PyTorch as JAX knows it; on a GPU also the stream in which JAX receives, twice, and an event."""
    if kind == "cpu":
        return jax.local_devices(backend="cpu")[0], None, None, None
    (found,) = (device for device in jax.local_devices(backend=kind) if (device.local_hardware_id or 0) == index)
    stream = found.get_stream_for_external_ready_events()
    return found, stream, torch.cuda.ExternalStream(stream, torch.device(kind, index)), torch.cuda.Event()
