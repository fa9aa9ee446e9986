"""Worlds for PyTorch: tensors in, tensors out, on one device, without a copy.

`to_torch` and `to_jax` hand an array over through DLPack: the receiver gets the same memory. `TorchWorlds` are copies
of a world whose whole step (physics, auto-reset, keys, views) is one compiled program; a PyTorch learner sees tensors
only.

**Memory.** What a step hands out is written by that step into memory of its own, and no later step is given it: a
tensor keeps its values for as long as it is referenced, and may be written to. What a step takes over from the one
before (the worlds' states and keys) is donated, so it is updated in place, and is never handed out.

**Order.** On a GPU both sides work in streams of their own. DLPack makes JAX wait for what PyTorch's current stream had
been given when an action was handed over, and PyTorch's current stream wait for the step that made a tensor; the host
waits for neither. So with one PyTorch stream everything happens in the order in which it was written down, also when
memory that a dropped tensor leaves is used again. Tensors that are used in other streams need a `wait_stream` as ever.
On a CPU, handing out waits until the step is done.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from shoal.batching.vectorise import Vectorised
from shoal.bridges.outgoing._worlds import check_seed
from shoal.bridges.torch import _dlpack
from shoal.bridges.torch._actions import check_kind, check_values, type_name
from shoal.bridges.torch._program import TorchProgram, compile_program
from shoal.core.algorithm import Algorithm
from shoal.core.env import Env, describe
from shoal.core.errors import OptionError, require, require_positive, unknown_name
from shoal.core.host import HostEnvProxy
from shoal.core.registry import make
from shoal.core.spaces import action_dtype, action_shape
from shoal.core.types import Group, Observation, PyTree

Policy = tuple[Algorithm, PyTree]
"""A Shoal policy: the algorithm that acts, and the params of one group."""

_WIDE = {torch.int64: "int()", torch.uint64: "int()", torch.float64: "float()", torch.complex128: "to(torch.complex64)"}


def to_torch(array: jax.Array) -> torch.Tensor:
    """The tensor that shares the array's memory. Write to it only if the array is no longer read.

    Every dtype of JAX goes through but those of fewer than 8 bits. Random keys do not: they are no numbers.
    """
    if not isinstance(array.dtype, np.dtype):  # keys have a dtype of their own kind
        raise OptionError("to_torch: random keys stay with JAX; hand over jax.random.key_data(key) if you must")
    own, *more = array.devices()
    if more:
        raise OptionError(f"to_torch: takes an array on one device, this one is spread over {len(more) + 1}")
    if own.platform == "cpu":
        return _dlpack.to_torch(array)
    return _dlpack.to_torch(array, _dlpack.stream_of(torch.cuda.current_stream(own.local_hardware_id)))


def to_jax(tensor: torch.Tensor, copy: bool | None = None) -> jax.Array:
    """The array that shares the tensor's memory; gradients do not flow through it. Do not write to the tensor later.

    Memory that JAX cannot take as it is (with gaps, transposed, or on a CPU not at a multiple of 64 bytes, as a slice
    may be) is copied on its device, or refused with `copy=False`. 64-bit numbers are refused unless `jax_enable_x64`
    is set.
    """
    if not isinstance(tensor, torch.Tensor):
        raise OptionError(f"to_jax: takes a torch tensor, got {type_name(tensor)}")
    if tensor.dtype in _WIDE and not jax.config.jax_enable_x64:  # pyright: ignore[reportAttributeAccessIssue]
        raise OptionError(
            f"to_jax: JAX has no {tensor.dtype} unless jax_enable_x64 is set; convert it first: "
            f"tensor.{_WIDE[tensor.dtype]}"
        )
    if copy is False and not tensor.is_contiguous():
        raise OptionError(f"to_jax: strides {tensor.stride()} of a {tuple(tensor.shape)} tensor need a copy")
    try:
        tensor = tensor.detach() if tensor.requires_grad else tensor
        if copy is None:
            return _dlpack.to_jax(tensor, torch.cuda.current_stream(tensor.device) if tensor.is_cuda else None)
        return jax.dlpack.from_dlpack(tensor.contiguous(), copy=copy)
    except (ValueError, BufferError) as error:
        raise OptionError(f"to_jax: {error}") from error


class Infos:
    """What else a step brought. Handed over when asked for, as every tensor takes a few microseconds.

    metrics: the world's, `[E]` by name. returns, length: of the episode so far, that step included, `[E]`; returns by
    side. final: by group, what was seen at the end of episodes that ended, elsewhere as what is seen now; only with the
    option `finals`.
    """

    def __init__(self, raw: dict[str, PyTree]):
        self._raw = raw

    @functools.cached_property
    def metrics(self) -> dict[str, torch.Tensor]:
        return jax.tree.map(to_torch, self._raw["metrics"])

    @functools.cached_property
    def returns(self) -> dict[str, torch.Tensor]:
        return jax.tree.map(to_torch, self._raw["returns"])

    @functools.cached_property
    def length(self) -> torch.Tensor:
        return to_torch(self._raw["length"])

    @functools.cached_property
    def final(self) -> dict[str, Observation]:
        require("final" in self._raw, "TorchWorlds", "finals", False, "True if `infos.final` is to be read")
        return jax.tree.map(to_torch, self._raw["final"])


class Step(NamedTuple):
    """A step of `TorchWorlds`: tensors `[E, ...]`. Where an episode ended, `observation` is of the next."""

    observation: dict[str, Observation]
    reward: dict[str, torch.Tensor]
    terminated: torch.Tensor
    truncated: torch.Tensor
    infos: Infos


class TorchWorlds:
    """`num_envs` copies of a world that are stepped together, for PyTorch.

    env: a world or its id. device: as PyTorch names it; None: JAX's default device. finals: whether `infos.final` is
    made, which costs about as much as the views of the copies that end. with_state: whether observations have the
    global state. policies: groups that Shoal policies play inside the step; `step` is not given actions for these.
    explore: whether these policies draw their actions, or take the best. check: whether actions outside their space are
    refused; None: on a CPU, since on a GPU a look at the values would wait for them (shapes and dtypes always are).

        worlds = TorchWorlds("mpe/simple_spread", 4096, device="cuda")
        observation = worlds.reset()
        observation, reward, terminated, truncated, infos = worlds.step({"agent": actions})  # [E, n]
    """

    def __init__(
        self,
        env: Env | str,
        num_envs: int,
        device: torch.device | str | None = None,
        seed: int = 0,
        *,
        finals: bool = False,
        with_state: bool = False,
        policies: Mapping[str, Policy] | None = None,
        explore: bool = True,
        check: bool | None = None,
    ):
        self.env = make(env) if isinstance(env, str) else env
        self.name = env if isinstance(env, str) else type(env).__name__
        if isinstance(self.env, HostEnvProxy):
            raise OptionError(f"TorchWorlds: {self.env.id} lives on the host and cannot be compiled; step it itself")
        require_positive("TorchWorlds", num_envs=num_envs)
        check_seed(self.name, seed)
        self.num_envs, self.seed = num_envs, seed
        self.groups = describe(self.env).groups
        self.device, self._device = _devices(device)
        policies = dict(policies or {})
        for name in policies:
            if name not in self.groups:
                raise unknown_name("group", name, self.groups)
        self._params = jax.device_put({name: params for name, (_, params) in policies.items()}, self._device)
        algorithms = {name: algorithm for name, (algorithm, _) in policies.items()}
        hidden = any(algorithm.traits.needs_global_state for algorithm in algorithms.values())
        vectorised = Vectorised(self.env, num_envs, with_state=with_state or hidden)
        self._compiled = compile_program(
            TorchProgram(vectorised, tuple(algorithms.items()), explore, finals, with_state)
        )
        looks = self.device.type == "cpu" if check is None else check
        self._wanted = {
            name: _Wanted(self.name, name, num_envs, group, looks)
            for name, group in self.groups.items()
            if name not in policies
        }
        self._carry: Any = None
        self._resets = 0

    def reset(self, seed: int | None = None) -> dict[str, Observation]:
        """Fresh episodes in all copies. Without a seed, other ones each time, as the first seed has it."""
        check_seed(self.name, seed)
        if seed is not None:
            self.seed, self._resets = seed, 0
        if self.device.type == "cuda":  # nothing was handed to JAX that it could wait for
            torch.cuda.current_stream(self.device).synchronize()
        key = jax.random.key(self.seed)
        key = jax.random.fold_in(key, self._resets) if self._resets else key
        self._resets += 1
        self._carry, observation = self._compiled.begin(jax.device_put(key, self._device), self._params)
        return jax.tree.map(to_torch, observation)

    def step(self, actions: Mapping[str, torch.Tensor]) -> Step:
        """One step of all copies with actions `[E, n, ...]` by group. Where an episode ends, a new one begins."""
        if self._carry is None:
            raise OptionError("TorchWorlds: call reset() before step()")
        if not isinstance(actions, Mapping) or actions.keys() != self._wanted.keys():
            got = list(actions) if isinstance(actions, Mapping) else type_name(actions)
            raise OptionError(f"TorchWorlds: {self.name}: step needs actions of {sorted(self._wanted)}, got {got}")
        stream = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        given = {name: wanted.taken(actions[name], self.device, stream) for name, wanted in self._wanted.items()}
        self._carry, leaves, infos = self._compiled.step(self._carry, self._params, given)
        return self._handed(leaves, infos, stream)

    def _handed(self, leaves: list[jax.Array], infos: dict[str, PyTree], current: Any) -> Step:
        """As `to_torch` does it, but that PyTorch's stream is known."""
        tensors = _dlpack.all_to_torch(leaves, None if current is None else _dlpack.stream_of(current))
        seen, reward, ends = self._compiled.whole(tensors)
        terminated, truncated = ends.unbind()
        return Step(seen, reward, terminated, truncated, Infos(infos))


class _Wanted:
    """The actions of a group: their shape and dtype, and with `looks`, their values."""

    def __init__(self, world: str, name: str, num_envs: int, group: Group, looks: bool):
        self.owner, self.name, self.space, self.looks = f"TorchWorlds: {world}", name, group.action, looks
        self.shape = (num_envs, group.size, *action_shape(group.action))
        self.dtype = getattr(torch, action_dtype(group.action))

    def taken(self, action: torch.Tensor, device: torch.device, stream: Any) -> jax.Array | np.ndarray:
        """The action as JAX takes it. Samples of PyTorch are int64, so they are converted."""
        check_kind(self.owner, self.name, self.space, action)
        if action.shape != self.shape or action.device != device:
            raise OptionError(
                f"{self.owner}: actions of {self.name!r} must be {self.shape} on {device}, "
                f"got {tuple(action.shape)} on {action.device}"
            )
        if self.looks:
            check_values(self.owner, self.name, self.space, action)
        action = action if action.dtype == self.dtype else action.to(self.dtype)
        action = action.detach() if action.requires_grad else action
        if stream is not None:
            return _dlpack.to_jax(action, stream)
        # On a CPU a compiled program takes numpy arrays, which share the memory too, at a tenth of DLPack's time.
        return to_jax(action) if self.dtype == torch.bfloat16 else action.numpy()  # which numpy does not have


def _devices(device: torch.device | str | None) -> tuple[torch.device, Any]:
    """One device, as PyTorch and as JAX know it."""
    if device is None:
        own = jax.local_devices()[0]
        named = "cpu" if own.platform == "cpu" else "cuda"
        return torch.device(named) if named == "cpu" else torch.device(named, own.local_hardware_id or 0), own
    wanted = torch.device(device)
    require(wanted.type in ("cpu", "cuda"), "TorchWorlds", "device", str(device), "on 'cpu' or 'cuda'")
    index = wanted.index or 0
    try:
        found = [own for own in jax.local_devices(backend=wanted.type) if (own.local_hardware_id or 0) == index]
    except RuntimeError as error:
        raise OptionError(f"TorchWorlds: JAX has no device {str(device)!r}: {error}") from error
    require(bool(found), "TorchWorlds", "device", str(device), f"one that JAX has: {jax.local_devices()}")
    return torch.device(wanted.type) if wanted.type == "cpu" else torch.device("cuda", index), found[0]
