"""The memory that is predicted for presets, beside what XLA plans.

    python benchmarks/memory.py benchmarks/results/memory_cpu.json [--only cards/leduc tag/grid]

Of each preset: the prediction (`training/memory.py`, from the trace alone), and the plan of the compiled program:
arguments, temporary buffers, and results that do not overwrite arguments. Memory for compiling is in neither of them:
the prediction that a run is checked against adds `PROGRAM_BYTES` for it.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax

from shoal import presets
from shoal.api.suite import commit, device
from shoal.core.files import write_atomically
from shoal.training.bench import versions
from shoal.training.fused import FusedProgram, make_fused_program

PRESETS = (
    "reference/simple_spread_ippo",
    "control/cartpole",
    "qmix/simple_spread",
    "r2d2/simple_spread",
    "maddpg/simple_tag",
    "sac/pendulum",
    "pong/image",
    "tag/grid",
    "swarm/rendezvous",
    "cards/leduc",
)
"""On-policy and from a replay, with memory and with images, few agents and many, taking turns."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--only", nargs="+", default=PRESETS, help="these presets")
    args = parser.parse_args()
    rows = {}
    for name in args.only:
        rows[name] = measure(make_fused_program(presets.get(name), 1))
        print(f"{name:32s}", json.dumps(rows[name]), flush=True)
    ratios = [row["ratio"] for row in rows.values()]
    record = {
        "rows": rows,
        "ratio": {"least": min(ratios), "most": max(ratios)},
        "command": "python benchmarks/memory.py benchmarks/results/memory_cpu.json",
        "commit": commit(),
        "device": device(),
        "versions": versions(),
    }
    write_atomically(args.output, json.dumps(record, indent=1) + "\n")


def measure(program: FusedProgram) -> dict[str, Any]:
    """Bytes predicted and planned; `ratio` is the one over the other, `ratio_made` that of what updates take."""
    need, shapes = program.need, program.shapes()
    placed = jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), shapes, program.shardings
    )
    plan = program.advance.lower(placed, program.counts[1]).compile().memory_analysis()
    assert plan is not None
    held = plan.argument_size_in_bytes
    made = plan.temp_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes
    row = {"held": need.held, "made": need.made, "planned_held": held, "planned_made": made}
    return row | {"ratio": (need.held + need.made) / (held + made), "ratio_made": need.made / made}


if __name__ == "__main__":
    main()
