"""Times one copy of `mpe/simple_spread` as a PettingZoo environment against `mpe2`, whose world it is.

    python benchmarks/pettingzoo_speed.py benchmarks/results/pettingzoo_speed.json

Both live in one process that is held to one core, and take turns, so that whatever else the machine does hits both
alike; what counts is the median. A step is `parallel_env.step` with an action for each of three agents; episodes last
25 steps, and the time of `reset` is part of it. Actions are drawn before the clock starts. Steps per second of wall
time and of the process's CPU time are both kept: on a busy machine the second says what an idle one would do.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before JAX counts the cores

import numpy as np
from mpe2 import simple_spread_v3

from shoal.bridges.outgoing.pettingzoo import parallel_env

EPISODE = 25
GOAL = 3_700


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--episodes", type=int, default=80, help="of one measurement")
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    envs = {"shoal": parallel_env("mpe/simple_spread"), "mpe2": simple_spread_v3.parallel_env(max_cycles=EPISODE)}
    for env in envs.values():
        play(env, 2)  # compiles, warms up
    runs = {name: [] for name in envs}
    for _ in range(args.repeats):
        for name, env in envs.items():
            runs[name].append(measured(env, args.episodes))
    rows = {
        name: {
            "steps_per_second": statistics.median(wall for wall, _ in measurements),
            "steps_per_cpu_second": statistics.median(cpu for _, cpu in measurements),
            "all_steps_per_second": [wall for wall, _ in measurements],
            "all_steps_per_cpu_second": [cpu for _, cpu in measurements],
        }
        for name, measurements in runs.items()
    }
    report = {
        "command": f"python benchmarks/pettingzoo_speed.py {args.output}",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}; the process held to one core",
        "load": os.getloadavg()[0],
        "versions": {
            name: importlib.metadata.version(name) for name in ("shoal", "jax", "pettingzoo", "mpe2", "numpy")
        },
        "episodes": args.episodes,
        "repeats": args.repeats,
        "goal_steps_per_second": GOAL,
        "speed_up": rows["shoal"]["steps_per_second"] / rows["mpe2"]["steps_per_second"],
        "rows": rows,
    }
    args.output.write_text(json.dumps(report, indent=1) + "\n")
    for name, row in rows.items():
        print(f"{name:6} {row['steps_per_second']:8.0f} steps/s {row['steps_per_cpu_second']:8.0f} steps/CPU-s")


def measured(env, episodes: int) -> tuple[float, float]:
    """Steps per second of wall time, and of CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    steps = play(env, episodes)
    return steps / (time.perf_counter() - wall), steps / (time.process_time() - cpu)


def play(env, episodes: int) -> int:
    names = env.possible_agents
    actions = [dict(zip(names, row, strict=True)) for row in DRAWN]
    for episode in range(episodes):
        env.reset(seed=episode)
        for chosen in actions:
            env.step(chosen)
        assert not env.agents
    return episodes * EPISODE


DRAWN = np.random.default_rng(0).integers(5, size=(EPISODE, 3)).tolist()


if __name__ == "__main__":
    main()
