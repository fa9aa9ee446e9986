"""Spaces of actions and views. Plain frozen data, hashable, so they can be static under `jit`."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp

from shoal.core.errors import require


@dataclasses.dataclass(frozen=True)
class Discrete:
    """One choice out of `n`: an int32 scalar in [0, n)."""

    n: int

    def __post_init__(self):
        require(self.n >= 1, "Discrete", "n", self.n, "at least 1")

    def sample(self, key: jax.Array) -> jax.Array:
        return draw_index(jax.random.uniform(key), self.n)


@dataclasses.dataclass(frozen=True)
class MultiDiscrete:
    """Several independent choices at once: an int32 vector, entry i in [0, sizes[i])."""

    sizes: tuple[int, ...]

    def __post_init__(self):
        object.__setattr__(self, "sizes", tuple(self.sizes))
        require(bool(self.sizes) and min(self.sizes) >= 1, "MultiDiscrete", "sizes", self.sizes, "sizes of at least 1")

    def sample(self, key: jax.Array) -> jax.Array:
        return draw_index(jax.random.uniform(key, (len(self.sizes),)), jnp.array(self.sizes))


@dataclasses.dataclass(frozen=True)
class Box:
    """An array of numbers of one shape within bounds (infinite by default)."""

    shape: tuple[int, ...]
    low: float = -math.inf
    high: float = math.inf
    dtype: str = "float32"

    def __post_init__(self):
        object.__setattr__(self, "shape", tuple(self.shape))
        require(self.low <= self.high, "Box", "low", self.low, f"at most high ({self.high})")

    @property
    def is_bounded(self) -> bool:
        """Whether it has finite bounds that actions can be squashed into."""
        return math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high

    def sample(self, key: jax.Array) -> jax.Array:
        low, high = max(self.low, -1e3), min(self.high, 1e3)
        return jax.random.uniform(key, self.shape, minval=low, maxval=high).astype(self.dtype)


ActionSpace = Discrete | MultiDiscrete | Box


def num_logits(space: Discrete | MultiDiscrete) -> int:
    """Width of a `legal` row for this space: all choices of all parts, one after the other."""
    return space.n if isinstance(space, Discrete) else sum(space.sizes)


ActionNames = dict[str, tuple[str, ...]]
"""What the parts of an action are called and, of each part that is a choice, what its choices are called.

A discrete action is one part, or the product of several, of which the first varies fastest. A part of a box is one of
its numbers: it has a name and no choices.
"""


def number_actions(space: ActionSpace) -> ActionNames:
    """Names for actions that have none: numbers."""
    match space:
        case Discrete(n):
            return {"action": tuple(f"action {i}" for i in range(n))}
        case MultiDiscrete(sizes):
            return {f"choice {i}": tuple(f"action {k}" for k in range(size)) for i, size in enumerate(sizes)}
        case Box():
            return {f"number {i}": () for i in range(math.prod(space.shape))}


def names_fit(space: ActionSpace, names: ActionNames) -> bool:
    """Whether these are names for the actions of a space, each part with as many choices as it has."""
    sizes = tuple(map(len, names.values()))
    match space:
        case Discrete(n):
            return bool(sizes) and math.prod(sizes) == n
        case MultiDiscrete():
            return sizes == space.sizes
        case Box():
            return sizes == (0,) * math.prod(space.shape)


def action_shape(space: ActionSpace) -> tuple[int, ...]:
    """Shape of one agent's action."""
    match space:
        case Discrete():
            return ()
        case MultiDiscrete():
            return (len(space.sizes),)
        case Box():
            return space.shape


def action_dtype(space: ActionSpace) -> str:
    return space.dtype if isinstance(space, Box) else "int32"


def split_parts(space: Discrete | MultiDiscrete, x: jax.Array) -> list[jax.Array]:
    """Numbers for every choice, `[..., num_logits]`, part by part."""
    if isinstance(space, Discrete):
        return [x]
    ends = list(itertools.accumulate(space.sizes))
    return [x[..., end - size : end] for end, size in zip(ends, space.sizes, strict=True)]


def action_width(space: ActionSpace) -> int:
    """Numbers in an action as a vector."""
    return math.prod(space.shape) if isinstance(space, Box) else num_logits(space)


def action_vector(space: ActionSpace, action: jax.Array) -> jax.Array:
    """Actions `[..., shape]` as networks see them, `[..., action_width]`: a box from -1 to 1, choices one-hot."""
    match space:
        case Box():
            unit = (action.astype(jnp.float32) - space.low) / (0.5 * (space.high - space.low)) - 1.0
            return unit.reshape(*action.shape[: action.ndim - len(space.shape)], -1)
        case Discrete():
            return jax.nn.one_hot(action, space.n)
        case MultiDiscrete():
            chosen = [jax.nn.one_hot(action[..., i], size) for i, size in enumerate(space.sizes)]
            return jnp.concatenate(chosen, axis=-1)


def draw_index(uniform: jax.Array, n: jax.Array | int) -> jax.Array:
    """One of `n` equally likely outcomes from a uniform draw in [0, 1)."""
    # One draw per choice; `randint` takes two. The minimum guards against rounding up.
    return jnp.minimum((uniform * n).astype(jnp.int32), n - 1)
