"""Different policies for the copies of a batch: weights gathered for each copy, blocks of copies, or everything by all?

    python benchmarks/opponents_speed.py OUT.json

Milliseconds of one forward pass of a two-layer network (64, 64) on Leduc's view for every copy, by the number of copies
and of policies, by the kernel that networks run on where there is one. `blocks` sorts the copies by their policy and
gives each policy whole blocks; `gather` moves the weights of each copy's policy; `all` runs every policy on every copy
and picks; `shoal` is what `batching.grouped` chooses; `one` is a single policy for all, the least that it can take.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp

from shoal.batching.grouped import apply_all, apply_gathered, apply_grouped_by_policy, apply_in_blocks
from shoal.core.files import write_atomically
from shoal.ops.mlp import fuse, plain_mlp
from shoal.training.bench import versions

VIEW, HIDDEN, ACTIONS = 30, 64, 3
SIZES = [*((copies, policies) for copies in (1024, 4096, 32_768) for policies in (8, 64)), (4096, 10_000)]
STEPS = 20
"""Passes in a call, each fed by the one before, so that none is thrown away."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    rows = [compare(copies, policies) for copies, policies in SIZES]
    record = {
        "what": " ".join(__doc__.split("\n\n")[2].split()),
        "command": "python benchmarks/opponents_speed.py OUT.json",
    }
    record |= {"rows": rows, "device": jax.devices()[0].device_kind, "versions": versions()}
    write_atomically(args.out, json.dumps(record, indent=1) + "\n")


def compare(copies: int, policies: int) -> dict[str, float]:
    keys = jax.random.split(jax.random.key(0), 5)
    shapes = (VIEW, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, ACTIONS)
    bank = [jax.random.normal(key, (policies, *shape)) * 0.1 for key, shape in zip(keys, shapes, strict=False)]
    index = jax.random.randint(keys[3], (copies,), 0, policies)
    seen = jax.random.normal(keys[4], (copies, VIEW))
    ways = {"one": one, "blocks": blocks, "gather": gather, "all": everything, "shoal": chosen}
    if policies > copies:
        del ways["all"]  # terabytes, or nearly
    took = {name: milliseconds(way, bank, index, seen) for name, way in ways.items()}
    row = {"copies": copies, "policies": policies} | took | {"over_one": round(took["shoal"] / took["one"], 2)}
    print(row, flush=True)
    return row


def forward(weights: list[jax.Array], seen: jax.Array) -> jax.Array:
    layers = [(kernel, jnp.zeros(kernel.shape[-1])) for kernel in weights]

    def act(view: jax.Array) -> jax.Array:
        fused = fuse([(view, layers)], "relu")
        return plain_mlp(view, layers, "relu") if fused is None else fused[0]

    return jax.vmap(act)(seen)


def one(bank, index, seen):
    return forward([leaf[0] for leaf in bank], seen)


def blocks(bank, index, seen):
    return apply_in_blocks(forward, bank, index, seen)


def gather(bank, index, seen):
    return apply_gathered(forward, bank, index, seen)


def everything(bank, index, seen):
    return apply_all(forward, bank, index, seen)


def chosen(bank, index, seen):
    return apply_grouped_by_policy(forward, bank, index, seen)


def milliseconds(way, bank, index, seen) -> float:
    @jax.jit
    def several(bank, index, seen):
        def step(_, carry):
            index, seen = carry
            out = way(bank, index, seen)
            return (index + (out[:, 0] > 0)) % len(bank[0]), seen + out.mean()

        return jax.lax.fori_loop(0, STEPS, step, (index, seen))

    jax.block_until_ready(several(bank, index, seen))
    took = []
    for _ in range(5):
        began = time.perf_counter()
        jax.block_until_ready(several(bank, index, seen))
        took.append((time.perf_counter() - began) / STEPS)
    return round(statistics.median(took) * 1000, 4)


if __name__ == "__main__":
    main()
