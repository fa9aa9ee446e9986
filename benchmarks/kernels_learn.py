"""Do the kernels of small networks harm learning? Greedy returns with and without them, in both precisions, on a GPU.

    python benchmarks/kernels_learn.py benchmarks/results/h200/learning.json --seeds 5 [--only PART]

Several seeds of each world; of Leduc poker, the NashConv of PSRO with learnt responses after so many iterations.
Rows that the file has already are kept, but for those measured again.
"""

import argparse
import dataclasses
import json
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import shoal
from shoal.core.files import write_atomically
from shoal.ops import mlp
from shoal.ops.kernels import trust
from shoal.populations.population import PopulationConfig
from shoal.populations.psro import PSRO
from shoal.presets import resolve
from shoal.training.bench import versions
from shoal.training.runner import run

WORK = {  # target: total env steps
    "mpe/simple_spread": 2_000_000,
    "control/cartpole": 500_000,
    "tag/grid": 4_000_000,
}
LEDUC, ITERATIONS = "psro/leduc", 20
WAYS = {
    "with kernels": (True, "float32"),
    "without": (False, "float32"),
    "bfloat16, with kernels": (True, "bfloat16"),
    "bfloat16, without": (False, "bfloat16"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="targets, or targets and ways, whose names contain this")
    parser.add_argument("--scale", type=float, default=1.0, help="less than 1 to try the script")
    parser.add_argument("--commit", default="", help="where the checkout has no git history")
    args = parser.parse_args()
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = args.commit or subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    rows = json.loads(args.output.read_text()) if args.output.exists() else []
    for target in (*WORK, LEDUC):
        for way, (kernels, dtype) in WAYS.items():
            if args.only not in f"{target} {way}":
                continue
            trust.find_problem = (lambda trial: None) if kernels else leave_out
            began = time.perf_counter()
            measure = measure_leduc if target == LEDUC else measure_world
            row = {"target": target, "kernels": kernels, "dtype": dtype}
            row |= measure(target, dtype, args.seeds, args.scale)
            row |= {"seconds": time.perf_counter() - began, "versions": versions(), "commit": commit}
            row["command"] = f"python benchmarks/kernels_learn.py {args.output} --seeds {args.seeds}"
            rows = [one for one in rows if sizes(one) != sizes(row)] + [row]
            write_atomically(args.output, json.dumps(rows, indent=1) + "\n")
            print(f"{target} {way}: {dict(told(row))} in {row['seconds']:.1f} s", flush=True)


def leave_out(trial: trust.Trial) -> str | None:
    return "left out for comparison" if trial.source in mlp.SOURCES.values() else None


def sizes(row: dict[str, Any]) -> tuple[Any, ...]:
    """What tells rows apart."""
    return row["target"], row["kernels"], row.get("dtype", "float32")


def told(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, values in (row.get("returns") or {"NashConv": row["nash_conv"]}).items():
        spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
        yield name, f"{statistics.mean(values):.3f}{spread}"


def measure_world(target: str, dtype: str, seeds: int, scale: float) -> dict[str, Any]:
    """Greedy returns, by group, one for each seed."""
    total = int(scale * WORK[target])
    made = shoal.train(target, total_env_steps=total, num_seeds=seeds, progress=False, dtype=dtype)
    return {"env_steps": total, "returns": made.evaluate(episodes=1024).mean_return}


def measure_leduc(target: str, dtype: str, seeds: int, scale: float) -> dict[str, Any]:
    """NashConv after so many iterations, one for each seed, exact."""
    iterations, found = max(1, int(scale * ITERATIONS)), []
    for seed in range(seeds):
        experiment = dataclasses.replace(resolve(target), seed=seed)
        learners = {name: with_dtype(learner, dtype) for name, learner in experiment.learners.items()}
        plan = PSRO("fictitious_play", iterations=iterations, episodes=2000)
        made = run(PopulationConfig(dataclasses.replace(experiment, learners=learners), plan))
        found.append(made.lines[-1]["nash_conv"])
    return {"iterations": iterations, "nash_conv": found}


def with_dtype(learner: Any, dtype: str) -> Any:
    network = dataclasses.replace(learner.algorithm.network, dtype=dtype)
    return dataclasses.replace(learner, algorithm=dataclasses.replace(learner.algorithm, network=network))


if __name__ == "__main__":
    main()
