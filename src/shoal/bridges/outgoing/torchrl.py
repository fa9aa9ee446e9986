"""A Shoal world as a TorchRL environment: many copies at once, agents in groups, tensors without a copy.

    env = ShoalEnv("mpe/simple_spread", num_envs=64, seed=0)
    rollout = env.rollout(100)

Entries are laid out as in TorchRL's own wrapper of VMAS, under the world's groups: `(group, "observation")`
`[E, n, ...]`, `(group, "action")` `[E, n, ...]` (int64 where it is a choice), `(group, "reward")` `[E, n, 1]`; `done`,
`terminated` and `truncated` `[E, 1]` are the copies'. Worlds that say who may do what have `(group, "action_mask")`
`[E, n, actions]`, `(group, "active")` and `(group, "present")` `[E, n]` as well, all bool.

All copies are stepped in one compiled call on JAX's default device, and its memory is handed to PyTorch by DLPack. An
action outside its space is refused on a CPU; on a GPU, where looking would mean waiting, the world's own rule applies.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.batching.vectorise import Vectorised, Worlds
from shoal.bridges.outgoing._single import ResetNeeded
from shoal.bridges.outgoing._worlds import check_seed, make_env_of, missing_package_error
from shoal.core import trees
from shoal.core.env import Env, describe
from shoal.core.errors import OptionError, require_positive
from shoal.core.spaces import ActionSpace, Box, Discrete, MultiDiscrete, action_shape, num_logits
from shoal.core.types import Group, Observation, PyTree

try:
    import torch
    from tensordict import TensorDict, TensorDictBase
    from torchrl.data import Binary, Bounded, Categorical, Composite, MultiCategorical, TensorSpec, Unbounded
    from torchrl.envs import EnvBase
except ImportError as error:
    raise missing_package_error("torchrl") from error

from shoal.bridges.torch._actions import check_kind, check_values
from shoal.bridges.torch.env import to_jax, to_torch

Observations = dict[str, Observation]

# Names that TorchRL's Composite has for itself; a part of a view that is called so gets a "_" behind it.
_RESERVED = {"self", "shape", "device", "names", "batch_size", "data_cls", "step_mdp_static"}


class ShoalEnv(EnvBase):
    """`num_envs` copies of a world, given by its id and options or made already; see the module."""

    def __init__(self, world: str | Env, num_envs: int, *, seed: int | None = None, **options: Any):
        env, self._name = make_env_of("ShoalEnv", world, options)
        require_positive("ShoalEnv", num_envs=num_envs)
        device = to_torch(jnp.zeros(1)).device
        super().__init__(device=device, batch_size=torch.Size([num_envs]))
        self._groups = describe(env).groups
        self._programs = _programs(Vectorised(env, num_envs))
        self._worlds: Worlds | None = None
        self.group_map = {name: [f"{name}_{i}" for i in range(group.size)] for name, group in self._groups.items()}
        self._make_specs(num_envs, describe(env).observations)
        self._set_seed(seed)

    def _make_specs(self, num_envs: int, seen: Observations) -> None:
        def together(parts: dict[str, dict[str, TensorSpec]]) -> Composite:
            groups = {
                name: Composite(part, shape=torch.Size([num_envs, self._groups[name].size]))
                for name, part in parts.items()
            }
            return Composite(groups, shape=self.batch_size, device=self.device)

        lead = {name: torch.Size((num_envs, group.size)) for name, group in self._groups.items()}
        groups = self._groups.items()
        self.observation_spec = together({name: _view_specs(group, seen[name], lead[name]) for name, group in groups})
        self.action_spec = together(
            {name: {"action": _action_spec(group.action, lead[name])} for name, group in groups}
        )
        self.reward_spec = together(
            {name: {"reward": Unbounded(torch.Size((*lead[name], 1)))} for name in self._groups}
        )
        flags = {
            flag: Binary(1, torch.Size((num_envs, 1)), dtype=torch.bool) for flag in ("done", "terminated", "truncated")
        }
        self.done_spec = Composite(flags, shape=self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        check_seed(self._name, seed)
        seed = int(np.random.SeedSequence().generate_state(1)[0] >> 1) if seed is None else seed
        # On its device for good, as actions from PyTorch are: else the step would be compiled once for each kind.
        self._key, self._resets = jax.device_put(jax.random.key(seed), jax.local_devices()[0]), 0

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        key = self._key if self._resets == 0 else jax.random.fold_in(self._key, self._resets)
        self._resets += 1
        if mask is None or self._worlds is None:
            self._worlds, told = self._programs.begin(key)
        else:
            self._worlds, told = self._programs.renew(self._worlds, key, to_jax(mask.reshape(self.batch_size)))
        return self._tensors(told)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self._worlds is None:
            raise ResetNeeded(f"{self._name}: no episode has begun: call reset() before step()")
        actions = {name: self._action(name, tensordict.get((name, "action"), None)) for name in self._groups}
        self._worlds, told = self._programs.advance(self._worlds, actions)
        return self._tensors(told)

    def _action(self, name: str, action: torch.Tensor | None) -> jax.Array:
        space, lead = self._groups[name].action, (*self.batch_size, self._groups[name].size)
        wanted = (*lead, *action_shape(space))
        if action is None:
            agents = ", ".join(self.group_map[name])
            raise OptionError(
                f"{self._name}: no actions of {name!r} ({agents}): the tensordict must have ({name!r}, 'action') "
                f"of shape {wanted}"
            )
        check_kind(self._name, name, space, action)
        if tuple(action.shape) != wanted:
            raise OptionError(
                f"{self._name}: the actions of {name!r} must have shape {wanted}, got {tuple(action.shape)}"
            )
        if action.device.type == "cpu":
            check_values(self._name, name, space, action)
        return to_jax(action.to(torch.float32 if isinstance(space, Box) else torch.int32).contiguous())

    def _tensors(self, told: PyTree) -> TensorDict:
        tensors = jax.tree.map(to_torch, told)
        for name, group in self._groups.items():
            size = torch.Size([*self.batch_size, group.size])
            tensors[name] = TensorDict(tensors[name], batch_size=size, device=self.device)
        return TensorDict(tensors, batch_size=self.batch_size, device=self.device)


class Programs(NamedTuple):
    """Functions that start copies, restart some of them, and step them; each also returns the observations."""

    begin: Callable[[jax.Array], tuple[Worlds, PyTree]]
    renew: Callable[[Worlds, jax.Array, jax.Array], tuple[Worlds, PyTree]]
    advance: Callable[[Worlds, dict[str, jax.Array]], tuple[Worlds, PyTree]]


@functools.lru_cache(maxsize=128)  # copies that are made again are not compiled again
def _programs(worlds: Vectorised) -> Programs:
    count = worlds.num_envs
    never = jnp.zeros((count, 1), bool)

    def carried(state: Worlds) -> Worlds:
        # What was handed out is PyTorch's, which may write to it; views are recomputed from the state.
        return state.replace(observation={})

    def started(state: Worlds) -> tuple[Worlds, PyTree]:
        seen = worlds.observe(state.params, state.state, count)
        return carried(state), {**_to_tensordict(seen), "done": never, "terminated": never, "truncated": never}

    def begin(key: jax.Array) -> tuple[Worlds, PyTree]:
        return started(worlds.reset(key))

    def renew(state: Worlds, key: jax.Array, mask: jax.Array) -> tuple[Worlds, PyTree]:
        """Copies whose episode ended have their next one already; others restart when they are asked to."""
        fresh = carried(worlds.reset(key))
        return started(trees.where(mask & ~state.first, fresh, state))

    def advance(state: Worlds, actions: dict[str, jax.Array]) -> tuple[Worlds, PyTree]:
        state, outcome, ended = worlds.step(state, actions)
        told = _to_tensordict(worlds.observe(ended.params, ended.state, count))
        for name, reward in outcome.reward.items():
            told[name]["reward"] = reward[..., None].astype(jnp.float32)
        ends = {"terminated": outcome.terminated, "truncated": outcome.truncated, "done": ended.mask}
        return carried(state), {**told, **{name: flag[:, None] for name, flag in ends.items()}}

    return Programs(jax.jit(begin), jax.jit(renew), jax.jit(advance))


def _to_tensordict(seen: Observations) -> dict[str, dict[str, PyTree]]:
    told = {}
    for name, obs in seen.items():
        parts = {
            "observation": _rename(obs.view),
            "action_mask": obs.legal,
            "active": obs.active,
            "present": obs.present,
        }
        told[name] = {part: value for part, value in parts.items() if value is not None}
    return told


def _rename(view: PyTree) -> PyTree:
    if not isinstance(view, Mapping):
        return view
    return {f"{name}_" if name in _RESERVED else name: _rename(part) for name, part in view.items()}


def _view_specs(group: Group, obs: Observation, lead: torch.Size) -> dict[str, TensorSpec]:
    specs = {"observation": _view_spec(_rename(group.observation), lead)}
    if obs.legal is not None and not isinstance(group.action, Box):
        width = num_logits(group.action)
        specs["action_mask"] = Binary(width, torch.Size((*lead, width)), dtype=torch.bool)
    for flag in ("active", "present"):
        if getattr(obs, flag) is not None:
            specs[flag] = Binary(lead[1], lead, dtype=torch.bool)
    return specs


def _view_spec(view: PyTree, lead: torch.Size) -> TensorSpec:
    if isinstance(view, Mapping):
        return Composite({name: _view_spec(part, lead) for name, part in view.items()}, shape=lead)
    shape, dtype = torch.Size((*lead, *view.shape)), getattr(torch, view.dtype)
    if np.isinf(view.low) and np.isinf(view.high):
        return Unbounded(shape, dtype=dtype)
    return Bounded(view.low, view.high, shape, dtype=dtype)


def _action_spec(space: ActionSpace, lead: torch.Size) -> TensorSpec:
    match space:
        case Discrete():
            return Categorical(space.n, lead, dtype=torch.int64)
        case MultiDiscrete():
            return MultiCategorical(space.sizes, torch.Size((*lead, len(space.sizes))), dtype=torch.int64)
        case Box():
            return Bounded(space.low, space.high, torch.Size((*lead, *space.shape)), dtype=getattr(torch, space.dtype))
