"""The k nearest neighbours on a GPU: the kernel against its plain twin, right first, then fast.

`python benchmarks/neighbours.py results/neighbours.json`. Needs CUDA. Every case must agree entry by entry, but for
pairs whose distances are equal up to rounding: there the two may round differently, and order them differently.
"""

import functools
import json
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from shoal.ops.neighbours import _kernel, plain_k_nearest
from shoal.training.bench import versions

CHECKED = [
    (9, 1, 4),
    (7, 5, 3),
    (5, 33, 40),
    (7, 110, 10),
    (3, 257, 12),
    (4, 300, 70),
    (3, 1000, 10),
    (1, 2500, 8),
    (1, 5000, 6),
]
TIMED = [(1000, 110, 10), (100, 110, 10), (2000, 1000, 10), (100, 1000, 8), (1000, 256, 8), (10_000, 16, 4)]


def make(worlds, n, k, kind):
    """Scattered agents, agents on a coarse grid (ties everywhere), or a crowd with a few far away; a fifth is dead."""
    place, dead = jax.random.split(jax.random.key(n + k))
    position = 20.0 * jax.random.uniform(place, (worlds, n, 2))
    if kind == "grid":
        position = jnp.floor(position)
    if kind == "crowd":
        position = jnp.where(jnp.arange(n)[:, None] % 9 == 0, 100.0 * position, position)
    return position, jax.random.uniform(dead, (worlds, n)) > 0.2


def differences(worlds, n, k, kind):
    """How many entries differ, and how many of them by more than rounding."""
    position, alive = make(worlds, n, k, kind)
    plain = np.asarray(jax.jit(jax.vmap(functools.partial(plain_k_nearest, k=k)))(position, alive))
    kernel = np.asarray(jax.jit(functools.partial(_kernel, k=k))(position, alive))
    place = np.asarray(position, np.float64)

    def distances(index):
        other = place[np.arange(worlds)[:, None, None], np.maximum(index, 0)]
        return np.where(index < 0, np.inf, np.sum((other - place[:, :, None]) ** 2, axis=-1))

    same = np.isclose(distances(plain), distances(kernel), rtol=3e-7, atol=0.0)
    return {"differences": int(np.sum(plain != kernel)), "beyond_rounding": int(np.sum((plain != kernel) & ~same))}


def microseconds(search, position, alive, steps=50):
    """A search, as one of many steps in a loop: what it takes there, with the loop's own few microseconds."""

    def step(position, _):
        index = search(position, alive)
        return position + (jnp.sum(index, axis=(1, 2), keepdims=True) == -5), None

    loop = jax.jit(lambda position: jax.lax.scan(step, position, length=steps)[0])
    jax.block_until_ready(loop(position))
    began = time.perf_counter()
    for _ in range(3):
        result = loop(position)
    jax.block_until_ready(result)
    return (time.perf_counter() - began) / (3 * steps) * 1e6


def main(path):
    checked = []
    for case in CHECKED:
        for kind in ("scattered", "grid", "crowd"):
            checked.append({"worlds, n, k": case, "kind": kind} | differences(*case, kind))
    timed = []
    for worlds, n, k in TIMED:
        position, alive = make(worlds, n, k, "scattered")
        alive = jnp.ones_like(alive)
        kernel = microseconds(functools.partial(_kernel, k=k), position, alive)
        plain = microseconds(jax.vmap(functools.partial(plain_k_nearest, k=k)), position, alive, steps=10)
        timed.append({"worlds, n, k": (worlds, n, k), "kernel_us": kernel, "plain_us": plain})
        print(timed[-1])
    result = {"device": jax.devices()[0].device_kind, "versions": versions(), "checked": checked, "timed": timed}
    Path(path).write_text(json.dumps(result, indent=1) + "\n")
    wrong = [case for case in checked if case["beyond_rounding"]]
    print(f"{len(checked)} cases checked, {len(wrong)} differ: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
