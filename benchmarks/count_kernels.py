"""How many kernels a step and an update take on an H200, counted in what XLA compiles for it: no GPU is needed.

    pip install 'jax[cuda13]'        # the compiler; a driver or a device is not needed
    python benchmarks/count_kernels.py benchmarks/results/h200/kernels.json [--only PART]

A loop's kernels are divided by the steps that are unrolled in it. The branches of conditionals are not counted. Small
programs are bound by launching kernels, so that their number tells most of their speed, but time is measured by
`headline.py` on the device itself.
"""

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"  # there is no driver to be found

import jax
import jax.numpy as jnp
from jax._src import xla_bridge
from jax.experimental import topologies

from shoal import presets
from shoal.batching.vectorise import Vectorised
from shoal.ops.kernels import trust
from shoal.training.bench import random_rollout, versions
from shoal.training.experiment import Experiment, make_world
from shoal.training.fused import FusedProgram

H200 = """
platform_name: "CUDA"
device_description_str: "NVIDIA H200"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 13 minor: 0 }
gpu_device_info {
  cuda_compute_capability { major: 9 }
  core_count: 132  fpus_per_core: 128  clock_rate_ghz: 1.98
  threads_per_block_limit: 1024  threads_per_warp: 32  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  registers_per_core_limit: 65536  registers_per_block_limit: 65536
  shared_memory_per_block: 49152  shared_memory_per_core: 233472  shared_memory_per_block_optin: 232448
  memory_bandwidth: 4800000000000  l2_cache_size: 62914560  device_memory_size: 150000000000
}
"""
FREE = {"parameter", "get-tuple-element", "tuple", "bitcast", "constant", "after-all", "partition-id", "opt-barrier"}
"""Instructions that launch nothing."""


class Instruction(NamedTuple):
    name: str
    kind: str
    rest: str


def compile_for_h200(program: Callable[..., Any], *shapes: Any) -> str:
    """The optimised program, as text. It is traced as on a GPU whose kernels are trusted."""
    jax.default_backend = lambda: "gpu"
    trust.find_problem = lambda trial: None
    known = xla_bridge.canonicalize_platform
    xla_bridge.canonicalize_platform = lambda name: "cuda" if name in ("gpu", "cuda") else known(name)
    topology = topologies.get_topology_desc(platform="cuda", target_config=H200, topology="1x1x1")
    mesh = topologies.make_mesh(topology, (1,), ("device",))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    placed = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=whole), shapes)
    return jax.jit(program, donate_argnums=0).lower(*placed).compile().as_text()


def parse(text: str) -> dict[str, list[Instruction]]:
    """The instructions of each computation; those of the whole program under "ENTRY"."""
    found, current = {}, None
    for line in text.splitlines():
        if start := re.match(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{", line):
            current = found[start[2]] = []
            if start[1]:
                found["ENTRY"] = current
        elif line.startswith("}"):
            current = None
        elif current is not None and (one := re.match(r"^  (?:ROOT )?%?([\w.\-]+) = .*? ([\w\-]+)\((.*)$", line)):
            current.append(Instruction(*one.groups()))
    return found


def kernels(computations: dict[str, list[Instruction]], name: str = "ENTRY") -> list[Instruction]:
    """What a computation launches; loops and conditionals are in the list, what is inside them is not."""
    found = []
    for one in computations[name]:
        if one.kind == "call":
            found += kernels(computations, _named(one.rest, "to_apply"))
        elif one.kind not in FREE:
            found.append(one)
    return found


def loops(computations: dict[str, list[Instruction]], name: str = "ENTRY") -> list[tuple[int, str]]:
    """Trip count and body of every loop, outer ones first; trips of inner loops are those of one round outside."""
    found = []
    for one in kernels(computations, name):
        if one.kind == "while":
            trips = re.search(r'known_trip_count":\{"n":"(\d+)"', one.rest)
            body = _named(one.rest, "body")
            found += [(int(trips[1]) if trips else 0, body), *loops(computations, body)]
    return found


def _named(rest: str, what: str) -> str:
    return re.findall(rf"{what}=%?([\w.\-]+)", rest)[0]


def total(computations: dict[str, list[Instruction]], name: str = "ENTRY") -> int:
    """All launches of a computation: those in loops as often as they run."""
    count = 0
    for one in kernels(computations, name):
        if one.kind == "while":
            trips = re.search(r'known_trip_count":\{"n":"(\d+)"', one.rest)
            count += (int(trips[1]) if trips else 1) * total(computations, _named(one.rest, "body"))
        else:
            count += one.kind != "conditional"
    return count


def train(preset: str, **changes: Any) -> tuple[str, int]:
    experiment = dataclasses.replace(presets.get(preset), **changes)
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("copies",))
    program = FusedProgram(experiment.setup, mesh)
    jax.default_backend = lambda: "gpu"
    return compile_for_h200(lambda carry: program.step(carry, None), program.shapes()), experiment.num_steps


def step(id: str, num_envs: int, num_steps: int, **options: Any) -> tuple[str, int]:
    copies = Vectorised(make_world(Experiment(env=id, env_options=options)), num_envs)
    shapes = jax.eval_shape(copies.reset, jax.random.key(0))

    def program(worlds: Any) -> Any:
        worlds, sums = random_rollout(copies, worlds, num_steps)
        return worlds, jax.tree.map(jnp.sum, sums)

    return compile_for_h200(program, shapes), num_steps


ROWS: dict[str, Callable[[], tuple[str, int]]] = {
    "simple_spread PPO reference, 1,024 copies": lambda: train("reference/simple_spread_ippo"),
    "simple_spread PPO reference, 4,096 copies": lambda: train("reference/simple_spread_ippo", num_envs=4096),
    "simple_spread PPO reference, 16,384 copies": lambda: train("reference/simple_spread_ippo", num_envs=16384),
    "tag/grid 2000 x 5, A2C reference": lambda: train("reference/tag_grid_a2c"),
    "tag/continuous 100 x 110, A2C reference": lambda: train("reference/tag_continuous_a2c"),
    "tag/continuous 900 x 110, A2C, batch 54,000": lambda: train(
        "reference/tag_continuous_a2c", num_envs=900, num_steps=60
    ),
    "tag/grid 2000 x 5, random": lambda: step("tag/grid", 2000, 500),
    "tag/grid 2000 x 1000, partial view, random": lambda: step("tag/grid", 2000, 200, num_taggers=999, full_view=False),
    "tag/continuous 1000 x 110, random": lambda: step("tag/continuous", 1000, 100),
    "tag/continuous 2000 x 1000, random": lambda: step("tag/continuous", 2000, 20, num_taggers=100, num_runners=900),
    "simple_spread random, 262,144 copies": lambda: step("mpe/simple_spread", 262144, 250),
}


def count(work: str) -> dict[str, Any]:
    text, num_steps = ROWS[work]()
    computations = parse(text)
    inner = max(loops(computations), key=lambda loop: len(kernels(computations, loop[1])) * loop[0])
    rollout = next(body for trips, body in [inner, *loops(computations)] if trips)
    rounds = next(trips for trips, body in loops(computations) if body == rollout)
    outer = [trips for trips, body in loops(computations) if any(b == rollout for _, b in loops(computations, body))]
    unrolled = max(1, num_steps // (rounds * (outer[0] if outer else 1)))
    in_loop = len(kernels(computations, rollout))
    return {"work": work, "kernels_per_step": in_loop / unrolled, "unrolled": unrolled, "kernels": total(computations)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    rows = json.loads(args.output.read_text()) if args.output.exists() else []
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    about = {"command": f"python benchmarks/count_kernels.py {args.output}", "commit": commit, "versions": versions()}
    for work in ROWS:
        if args.only in work:
            found = count(work) | about
            print(f"{found['kernels_per_step']:6.1f} kernels per step, {found['kernels']:6d} per program  {work}")
            rows = [row for row in rows if row["work"] != work] + [found]
            args.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
