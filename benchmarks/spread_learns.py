"""How quickly does a preset learn `mpe/simple_spread`? Greedy return over CPU-seconds of training, several seeds.

    python benchmarks/spread_learns.py benchmarks/results/simple_spread_ppo --seeds 5

Compilation and evaluation are not counted. Returns are summed over the three agents and averaged over 1,024 episodes of
25 steps that are played greedily.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path

import jax
import numpy as np

from shoal.training.devices import use_all_cores

use_all_cores()

from shoal import presets  # noqa: E402
from shoal.training.bench import versions  # noqa: E402
from shoal.training.evaluate import evaluate  # noqa: E402
from shoal.training.fused import make_fused_program, policies_of  # noqa: E402
from shoal.training.program import MAX_UPDATES  # noqa: E402

POINTS = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="path without suffix")
    parser.add_argument("--preset", default="mpe/simple_spread")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--goal", type=float, default=-62.0)
    parser.add_argument("--devices", type=int, default=None)
    args = parser.parse_args()
    curves = [train(args.preset, seed, args.devices) for seed in range(args.seeds)]
    reached = [next((p["cpu_s"] for p in curve if p["return"] >= args.goal), None) for curve in curves]
    print(f"goal {args.goal} after CPU-seconds:", reached)
    print("final return:", [curve[-1]["return"] for curve in curves])
    result = {"preset": args.preset, "experiment": presets.get(args.preset).to_dict(), "versions": versions()}
    result |= {"goal": args.goal, "cpu_s_to_goal": reached, "curves": curves}
    args.output.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    draw(args.output.with_suffix(".png"), curves, args.goal)


def train(preset: str, seed: int, devices: int | None) -> list[dict[str, float]]:
    experiment = dataclasses.replace(presets.get(preset), seed=seed)
    program = make_fused_program(experiment, devices)
    carry = program.init()
    advance = program.advance.lower(carry, program.counts[0]).compile()
    marks = np.unique(np.linspace(0, experiment.num_updates, POINTS + 1).astype(int))
    done, cpu, wall, curve = 0, 0.0, 0.0, []
    for mark in marks:
        cpu_before, wall_before = time.process_time(), time.perf_counter()
        while done < mark:
            count = min(int(mark) - done, MAX_UPDATES)
            carry, table = advance(carry, program.counts[count])
            done += count
            jax.block_until_ready(table)
        cpu, wall = cpu + time.process_time() - cpu_before, wall + time.perf_counter() - wall_before
        outcome = evaluate(program.setup, jax.device_get(policies_of(carry.learners)), 1024, seed=1000)
        point = {"env_steps": done * experiment.num_envs * experiment.num_steps, "cpu_s": round(cpu, 2)}
        point |= {"wall_s": round(wall, 2), "return": round(outcome.total_mean_return, 3)}
        curve.append(point)
        print(seed, point, flush=True)
    return curve


def draw(path: Path, curves: list[list[dict[str, float]]], goal: float) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4))
    for seed, curve in enumerate(curves):
        axes.plot([p["cpu_s"] for p in curve], [p["return"] for p in curve], label=f"seed {seed}")
    axes.axhline(goal, linestyle=":", color="grey")
    axes.set(xlabel="CPU-seconds of training", ylabel="greedy return", title="mpe/simple_spread")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    main()
