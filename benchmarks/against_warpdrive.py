"""Speed of all worlds and of training on one GPU, beside the figures that WarpDrive 2.7.1 reached on the same one.

    python benchmarks/against_warpdrive.py benchmarks/results/h200.json

Figures of peers, in environment steps per second on one H200: WarpDrive 2.7.1 (Numba backend) and JaxMARL 0.2.0.
"""

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path

from shoal import presets
from shoal.training.bench import bench_env, bench_train

WORLDS = [  # id, options, copies, steps a call, the peer's env steps per second, who
    ("tag/grid", {}, 2000, 500, 11.1e6, "WarpDrive"),
    ("tag/grid", {"num_taggers": 999, "full_view": False}, 2000, 200, 3.19e6, "WarpDrive"),
    ("tag/continuous", {}, 1000, 100, 1.05e6, "WarpDrive"),
    ("tag/continuous", {}, 100, 200, 0.29e6, "WarpDrive"),
    ("mpe/simple_spread", {}, 1024, 1000, 24.3e6, "JaxMARL"),
    ("mpe/simple_spread", {}, 16384, 1000, 206e6, "JaxMARL"),
    ("mpe/simple_spread", {}, 262144, 250, 391e6, "JaxMARL"),
    ("mpe/simple_tag", {}, 16384, 500, None, None),
]
TRAINING = [  # preset, changes, the peer's env steps per second, who
    ("reference/tag_grid_a2c", {}, 1.71e6, "WarpDrive"),
    ("reference/tag_continuous_a2c", {}, 29.4e3, "WarpDrive"),
    ("reference/tag_continuous_a2c", {"num_envs": 900, "num_steps": 60}, 123e3, "WarpDrive"),
    ("reference/simple_spread_ippo", {}, 7.8e6, "JaxMARL"),
    ("reference/simple_spread_ippo", {"num_envs": 4096}, 17.0e6, "JaxMARL"),
    ("reference/simple_spread_ippo", {"num_envs": 16384}, 23.6e6, "JaxMARL"),
    ("mpe/simple_tag", {"num_envs": 4096}, None, None),
    ("tag/grid", {"num_envs": 2048}, None, None),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", default="", help="measure rows whose name contains this; keep the other rows")
    args = parser.parse_args()
    rows = {}
    if args.only and args.output.exists():
        rows = {(row["kind"], row["name"]): row for row in json.loads(args.output.read_text())["rows"]}
    for id, options, num_envs, num_steps, peer, who in WORLDS:
        if args.only not in id:
            continue
        result = bench_env(id, options, num_envs=num_envs, num_steps=num_steps, seconds=args.seconds)
        _add(args.output, rows, "step", f"{id} {options or ''} x {num_envs}", result, peer, who)
    for name, changes, peer, who in TRAINING:
        experiment = dataclasses.replace(presets.get(name), **changes)
        if args.only not in experiment.env:
            continue
        result = bench_train(experiment, seconds=args.seconds)
        _add(args.output, rows, "train", f"{name} {changes or ''}", result, peer, who)


def _add(output, rows, kind, name, result, peer, who):
    ratio = result["env_steps_per_s"] / peer if peer else None
    rows[kind, name] = {"kind": kind, "name": name, "peer": who, "peer_env_steps_per_s": peer, "ratio": ratio} | result
    rates = f"{result['env_steps_per_s'] / 1e6:10.3f} M env/s {result['agent_steps_per_s'] / 1e6:10.1f} M agent/s"
    kept = {"command": " ".join(["python", *sys.argv]), "date": time.strftime("%Y-%m-%d"), "rows": list(rows.values())}
    output.write_text(json.dumps(kept, indent=1) + "\n")
    shown = f"{ratio:6.1f}x {who}" if ratio else ""
    print(f"{kind:6s} {name:70s} {rates}  compile {result['compile_s']:5.1f} s  {shown}", flush=True)


if __name__ == "__main__":
    main()
