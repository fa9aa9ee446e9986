"""Times the preset `reference/simple_spread_ippo` against the plain hand-written loop of `plain_ippo.py`, in one run.

    python benchmarks/compare_ippo.py benchmarks/results/compare_ippo.json

Rates are environment steps per CPU-second of the process and per second of wall time.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import jax
from plain_ippo import NUM_STEPS, Plain

from shoal.training.devices import use_all_cores

use_all_cores()

from shoal import presets  # noqa: E402
from shoal.training.bench import bench_train, versions  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seconds", type=float, default=15.0)
    args = parser.parse_args()
    rows = {}
    result = on_one_core(args.seconds)
    rows["shoal, one core"] = (result["env_steps_per_cpu_s"], result["env_steps_per_s"])
    result = bench_train(presets.get("reference/simple_spread_ippo"), seconds=args.seconds)
    rows[f"shoal, {len(jax.devices())} cores"] = (result["env_steps_per_cpu_s"], result["env_steps_per_s"])
    for shuffle in (True, False):
        rows[f"plain, {'full shuffle' if shuffle else 'no shuffle'}"] = plain(shuffle, args.seconds)
    for name, (cpu, wall) in rows.items():
        print(f"{name:24s} {cpu / 1e3:8.1f} k env steps per CPU-s {wall / 1e3:8.1f} k per s")
    names = list(rows)
    ratio = rows[names[1]][0] / rows["plain, full shuffle"][0]
    cores = rows[names[1]][1] / rows[names[0]][1]
    print(f"against the plain loop with a full shuffle: {ratio:.2f}x per CPU-second")
    print(f"all cores against one: {cores:.2f}x in wall time")
    kept = {"rows": rows, "ratio_per_cpu_s": ratio, "ratio_cores": cores, "versions": versions()}
    args.output.write_text(json.dumps(kept, indent=1) + "\n")


def on_one_core(seconds: float) -> dict:
    """The same in a process that may use one core only; with one device alone, XLA would still use others."""
    script = "import os, sys; os.sched_setaffinity(0, {0}); from shoal.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["bench", "train", "reference/simple_spread_ippo", "--json", "--seconds", str(seconds)]
    done = subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def plain(shuffle: bool, seconds: float) -> tuple[float, float]:
    loop = Plain(shuffle=shuffle)
    update = jax.jit(loop.update, donate_argnums=0)
    carry = jax.block_until_ready(update(jax.jit(loop.init)(jax.random.key(0))))
    calls, cpu, wall = 0, time.process_time(), time.perf_counter()
    while time.perf_counter() - wall < seconds:
        carry = jax.block_until_ready(update(carry))
        calls += 1
    steps = calls * loop.num_envs * NUM_STEPS
    return steps / (time.process_time() - cpu), steps / (time.perf_counter() - wall)


if __name__ == "__main__":
    main()
