"""Nearest neighbours in the plane, exact.

`k_nearest` is written for one world and batched by its own `vmap` rule. On CUDA it is a hand-written kernel
(`kernels/`), everywhere else plain JAX; `plain_k_nearest` is the plain form, and the reference.

What the kernel takes on an H200 is in `benchmarks/results/neighbours.json`. The plain form on a CPU, in milliseconds of
one core:

| worlds x agents, k | rounds | `top_k` | two-level rounds | cells, not exact |
|---|---|---|---|---|
| 200 x 16, 5 | 0.55 | 0.85 | 1.2 | |
| 50 x 110, 10 | 3.0 | 6.3 | 5.5 | |
| 20 x 250, 8 | 6.0 | 7.0 | 3.9 | 19 |
| 4 x 1000, 10 | 42 | 13 | 9.1 | 15 |
| 1 x 3000, 8 | 129 | 38 | 34 | 11 |

So: rounds for few agents, `top_k` for many. Sorting into cells only pays from thousands of agents on there, and only in
a form that may miss neighbours where agents crowd.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap

from shoal.core.errors import require, require_positive
from shoal.ops import kernels
from shoal.ops.kernels import choices, trust

PREFIX = "shoal_nearest_"
CAPABILITY = 7.5
"""The least of a device for the kernels: that of the code that they ship as."""
_SHARED_BYTES = 47 * 1024  # available to a block on any CUDA device, less the kernel's own use
_WAITING = 24  # two bytes each: the kernel's WAITING
_MANY = 180  # agents, from which on sorting them into cells pays
_FEW = 200  # agents, up to which the plain form goes by rounds
_CELLS_FOR_SLOTS = 6.0  # cells in the patch that holds as many agents as there are slots


def k_nearest(position: jax.Array, alive: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """The `k` nearest living others of each agent of one world.

    position: float32 `[n, 2]`, finite. alive: bool `[n]`. Returns (index `[n, k]` int32, valid `[n, k]` bool), nearest
    first, equal distances by lower index. An agent is never its own neighbour; a dead one is never a neighbour, though
    its own row is filled like any other. Where fewer than `k` others live, the rest of the row has valid False and
    index 0.

    Distances are compared squared, in float32; two that differ by no more than their rounding may come in either order.
    No gradient flows through the choice.
    """
    require_positive("k_nearest", k=k)
    require(position.ndim == 2 and position.shape[1] == 2, "k_nearest", "position", position.shape, "shape [n, 2]")
    require(alive.shape == position.shape[:1], "k_nearest", "alive", alive.shape, f"shape {position.shape[:1]}")
    choices.report("neighbour search", find_problem(position.shape[0], k))
    index = _batched(k)(lax.stop_gradient(position)[None].astype(jnp.float32), alive[None])[0]
    return jnp.maximum(index, 0), index >= 0


@functools.cache
def _batched(k: int):
    """The search over worlds `[w, n, 2]`; one more axis from `vmap` becomes part of the axis of worlds."""

    @custom_vmap
    def search(position: jax.Array, alive: jax.Array) -> jax.Array:
        plain = jax.vmap(functools.partial(plain_k_nearest, k=k))
        if find_problem(position.shape[1], k) not in (None, trust.NO_DEVICE):
            return plain(position, alive)
        return lax.platform_dependent(position, alive, cuda=functools.partial(_kernel, k=k), default=plain)

    @search.def_vmap
    def _(axis_size: int, in_batched: list[bool], position: jax.Array, alive: jax.Array) -> tuple[jax.Array, bool]:
        def spread(array: jax.Array, batched: bool) -> jax.Array:
            array = array if batched else jnp.broadcast_to(array, (axis_size, *array.shape))
            return array.reshape(axis_size * array.shape[1], *array.shape[2:])

        index = search(spread(position, in_batched[0]), spread(alive, in_batched[1]))
        return index.reshape(axis_size, -1, *index.shape[1:]), True

    return search


def find_problem(n: int, k: int) -> str | None:
    """The reason why worlds of `n` agents are searched by the plain form on this machine; None if by a kernel."""
    return trust.find_problem(make_trial(*_kernel_of(n, k)))


def make_trial(form: str, slots: int) -> trust.Trial:
    """The trial of one kernel of the search."""
    measure = functools.partial(_measure_difference, form, slots)
    name, instead = f"{form}, {slots} slots", "neighbours are searched in plain XLA"
    return trust.Trial("neighbours", name, CAPABILITY, instead, measure, 0.0)


def is_kernel(equation: Any) -> bool:
    """Whether an operation of a traced program is the kernel."""
    name = dict(equation.params.get("attributes", ())).get("name", "") if equation.primitive.name == "ffi_call" else ""
    return str(name).startswith(PREFIX)


def _measure_difference(form: str, slots: int) -> float:
    """The share of neighbours that the kernel finds otherwise than the plain form, among agents on a grid.

    All distances are whole numbers, and many are equal: there is one right answer.
    """
    n = _MANY // 2 if form == "brute" else 2 * _MANY
    random = np.random.default_rng(0)
    drawn = random.integers(0, 30, (5, n, 2)).astype(np.float32), random.random((5, n)) < 0.7
    plain = jax.vmap(functools.partial(plain_k_nearest, k=slots))
    kernel = functools.partial(lax.platform_dependent, cuda=functools.partial(_kernel, k=slots), default=plain)
    found = np.asarray(jax.jit(kernel)(*drawn))
    with trust.on_host():
        expected = np.asarray(jax.jit(plain)(*drawn))
    return float(np.mean(found != expected))


def _kernel_of(n: int, k: int) -> tuple[str, int]:
    """The kernel that searches worlds of `n` agents: its form, and how many neighbours it keeps in registers."""
    slots = next((slots for slots in kernels.SLOTS if slots >= k), kernels.SLOTS[-1])
    fits = _shared_bytes(n, slots) <= _SHARED_BYTES
    return ("cells" if n >= _MANY and fits else "brute"), slots


def _threads(n: int) -> int:
    return min(128 if n <= 128 else 256, 32 * math.ceil(n / 32))


def _side(n: int, slots: int) -> int:
    """Cells along one side of a world."""
    return max(1, round(math.sqrt(n * _CELLS_FOR_SLOTS / slots)))


def _shared_bytes(n: int, slots: int) -> int:
    """What sorting a whole world into cells takes of a block's memory."""
    return 12 * n + 4 * (_side(n, slots) ** 2 + 1) + 2 * _WAITING * _threads(n)


def _kernel(position: jax.Array, alive: jax.Array, k: int) -> jax.Array:
    """The search as a CUDA kernel. Small worlds and those too large for shared memory are searched by brute force."""
    worlds, n, _ = position.shape
    form, slots = _kernel_of(n, k)
    threads = _threads(n)
    sizes = jnp.array([n, k, _side(n, slots)], jnp.int32)
    brute = form == "brute"
    return kernels.call(
        f"{PREFIX}{form}_{slots}",
        jax.ShapeDtypeStruct((worlds, n, k), jnp.int32),
        position,
        alive,
        sizes,
        grid=(worlds, math.ceil(n / threads) if brute else 1),
        threads=threads,
        shared=2 * _WAITING * threads if brute else _shared_bytes(n, slots),
    )


def plain_k_nearest(position: jax.Array, alive: jax.Array, k: int) -> jax.Array:
    """The search of one world in plain JAX: index `[n, k]`, -1 where none is left."""
    n = position.shape[0]
    row = lax.broadcasted_iota(jnp.int32, (n, n), 0)
    column = lax.broadcasted_iota(jnp.int32, (n, n), 1)
    candidate = alive[:, None] & (row != column)
    distance = jnp.where(candidate, _squared_distances(position), jnp.inf)
    rounds = min(k, n)
    index = _by_rounds(distance, rounds) if n < _FEW else _by_top_k(distance, rounds)
    return jnp.pad(index, ((0, 0), (0, k - rounds)), constant_values=-1)


def _by_rounds(distance: jax.Array, k: int) -> jax.Array:
    """Rounds of "take the least away", candidates along axis 0, so that the reductions vectorise over the agents."""
    n = distance.shape[0]
    row = lax.broadcasted_iota(jnp.int32, (n, n), 0)

    def take_nearest(left: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        nearest = jnp.min(left, axis=0)
        index = jnp.min(jnp.where(left == nearest[None], row, n), axis=0)
        return jnp.where(row == index[None], jnp.inf, left), jnp.where(nearest < jnp.inf, index, -1)

    _, index = lax.scan(take_nearest, distance, length=k, unroll=min(k, 16))
    return index.T


def _by_top_k(distance: jax.Array, k: int) -> jax.Array:
    nearness, index = lax.top_k(-distance.T, k)
    return jnp.where(nearness > -jnp.inf, index, -1)


def _squared_distances(position: jax.Array) -> jax.Array:
    """All pairs, from differences (the shorter route over a matrix product cancels, and is not exact)."""
    x, y = position[:, 0], position[:, 1]
    squared = (x[:, None] - x[None, :]) ** 2 + (y[:, None] - y[None, :]) ** 2
    return jnp.minimum(squared, jnp.finfo(position.dtype).max)  # infinity is reserved for agents that do not count
