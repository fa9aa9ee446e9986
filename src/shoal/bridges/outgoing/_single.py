"""One copy of a world, stepped from Python: what the wrappers for other libraries' single environments stand on.

A step is one call of one compiled program and one array fetched from it: everything the world says is packed into
bytes there and unpacked, without a copy, here. It runs on the CPU even where there is an accelerator, since for one
copy the way to it would take longer than the step.

Keys are those of `Vectorised`: after `reset(seed)`, a copy sees what copy 0 of `Vectorised(env, n).reset(key(seed))`
sees, episode after episode.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.bridges.outgoing._worlds import check_seed
from shoal.core import trees
from shoal.core.env import Env, Spec, action_shapes, describe
from shoal.core.errors import ShoalError
from shoal.core.keys import Use, use_key
from shoal.core.types import Observation, Outcome, PyTree, Scene


class ResetNeeded(ShoalError, RuntimeError):
    """A step was asked for where there is no episode."""


class SingleStep(NamedTuple):
    """What a reset or a step led to, in numpy; flags and legal actions are int8. After a reset all rewards are 0."""

    observation: dict[str, Observation]
    outcome: Outcome


class SingleEnv:
    """One copy of a world. `name` is what errors call it."""

    def __init__(self, env: Env, name: str):
        self.env, self.name = env, name
        self._programs = programs(env)
        self.spec = self._programs.spec
        self._key: Any = None
        self._clock = -1
        self._state: PyTree = None
        self._began = False
        self.over = True

    def reset(self, seed: int | None = None) -> SingleStep:
        """Begins an episode. A seed begins a new chain of episodes, else the next one of the chain begins."""
        check_seed(self.name, seed)
        if seed is not None or self._key is None:
            self._key, self._clock = _key_data(_fresh_seed() if seed is None else int(seed)), 0
        elif self._began:  # the last episode had no step, so that its clock is used up
            self._clock += 1
        self._began, self.over = True, False
        self._state, packed = self._programs.begin(self._key, np.uint32(self._clock))
        return self._programs.unpacked(packed)

    def step(self, actions: dict[str, np.ndarray]) -> SingleStep:
        """One step. Actions are `[n, ...]` by group, checked by the caller."""
        self._clock += 1
        self._began = False
        self._state, packed = self._programs.advance(self._key, np.uint32(self._clock), self._state, actions)
        seen = self._programs.unpacked(packed)
        self.over = bool(seen.outcome.terminated or seen.outcome.truncated)
        return seen

    def require_episode(self) -> None:
        if self.over:
            what = "has not begun" if self._state is None else "is over"
            raise ResetNeeded(f"{self.name}: the episode {what}: call reset() before step()")

    def state(self) -> np.ndarray:
        """The world's global state."""
        if self._state is None:
            raise ResetNeeded(f"{self.name}: there is no state before the first reset()")
        return np.array(self._programs.whole(self._state))

    def scene(self) -> Scene:
        """A picture of the state as arrays."""
        if self._state is None:
            raise ResetNeeded(f"{self.name}: there is nothing to draw before the first reset()")
        return jax.device_get(self._programs.scene(self._state))


class Programs(NamedTuple):
    """A world's compiled parts; `begin` and `advance` return the state and the packed `SingleStep`."""

    spec: Spec
    begin: Callable[..., tuple[PyTree, jax.Array]]
    advance: Callable[..., tuple[PyTree, jax.Array]]
    whole: Callable[[PyTree], jax.Array]
    scene: Callable[[PyTree], Scene]
    unpacked: Callable[[jax.Array], SingleStep]


@functools.lru_cache(maxsize=128)  # a process that makes many wrappers of a world compiles it once
def programs(env: Env) -> Programs:
    """A world's compiled parts. Its default params are constants in them."""
    params = env.default_params()

    def begin(key: jax.Array, clock: jax.Array) -> tuple[PyTree, SingleStep]:
        state = env.reset(use_key(jax.random.wrap_key_data(key), clock, Use.RESET), params)
        _, said = jax.eval_shape(env.step, jax.random.key(0), state, action_shapes(spec.groups), params)
        outcome = trees.zeros(said)
        return state, SingleStep(env.observe(state, params), outcome)

    def advance(key: jax.Array, clock: jax.Array, state: PyTree, actions: PyTree) -> tuple[PyTree, SingleStep]:
        key = use_key(jax.random.wrap_key_data(key), clock, Use.STEP)
        state, outcome = env.step(key, state, actions, params)
        return state, SingleStep(env.observe(state, params), outcome)

    def packing(program: Callable[..., tuple[PyTree, SingleStep]]) -> Callable[..., tuple[PyTree, jax.Array]]:
        def packed(*args: Any) -> tuple[PyTree, jax.Array]:
            state, seen = program(*args)
            return state, _pack(seen)

        return jax.jit(packed)

    spec = describe(env)
    data = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    _, seen = jax.eval_shape(begin, data, jax.ShapeDtypeStruct((), jnp.uint32))
    return Programs(
        spec=spec,
        begin=packing(begin),
        advance=packing(advance),
        whole=jax.jit(lambda state: env.global_state(state, params)),
        scene=jax.jit(lambda state: env.scene(state, params)),
        unpacked=_unpacker(seen),
    )


def _pack(tree: PyTree) -> jax.Array:
    """All leaves as one array of bytes: the widest numbers first, so that all are aligned."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    leaves = [leaf.astype(jnp.int8) if leaf.dtype == bool else leaf for leaf in leaves]
    ordered = [leaves[i] for i in _order(leaves)]
    return jnp.concatenate([jax.lax.bitcast_convert_type(leaf, jnp.uint8).ravel() for leaf in ordered])


def _unpacker(shapes: PyTree) -> Callable[[jax.Array], Any]:
    """The way back from `_pack`: leaves are views of one array that belongs to the caller and may be written to."""
    leaves, structure = jax.tree.flatten(shapes)
    slots: list[Any] = [None] * len(leaves)
    start = 0
    for i in _order(leaves):
        leaf = leaves[i]
        dtype = np.dtype(np.int8) if leaf.dtype == bool else np.dtype(leaf.dtype)
        stop = start + dtype.itemsize * math.prod(leaf.shape)
        slots[i] = (start, stop, dtype, leaf.shape)
        start = stop

    def unpacked(packed: jax.Array) -> Any:
        data = np.array(packed)
        return structure.unflatten([data[a:b].view(dtype).reshape(shape) for a, b, dtype, shape in slots])

    return unpacked


def _order(leaves: list[Any]) -> list[int]:
    width = [1 if leaf.dtype == bool else np.dtype(leaf.dtype).itemsize for leaf in leaves]
    return sorted(range(len(leaves)), key=lambda i: -width[i])


def _key_data(seed: int) -> jax.Array:
    """Key of copy 0, on the CPU: what is computed from it stays there."""
    cpu = jax.local_devices(backend="cpu")[0]
    with jax.default_device(cpu):
        # A compiled seed has 32 bits; it is worth it for those who seed every episode.
        data = _check_seeded(np.int32(seed)) if 0 <= seed < 2**31 else jax.random.key_data(_copy_key(seed))
    return jax.device_put(data, cpu)


def _copy_key(seed: int | jax.Array) -> jax.Array:
    return jax.random.fold_in(jax.random.key(seed), 0)


@jax.jit
def _check_seeded(seed: jax.Array) -> jax.Array:
    return jax.random.key_data(_copy_key(seed))


def _fresh_seed() -> int:
    return int(np.random.SeedSequence().generate_state(1)[0] >> 1)
