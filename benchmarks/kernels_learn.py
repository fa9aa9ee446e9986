"""Do the kernels of small networks harm learning? Greedy returns with and without them, several seeds each, on a GPU.

python benchmarks/kernels_learn.py benchmarks/results/h200/learning.json --seeds 5
"""

import argparse
import json
import statistics
import subprocess
import time
from pathlib import Path

import shoal
from shoal.ops.kernels import trust
from shoal.training.bench import versions

WORK = {  # target: total env steps
    "mpe/simple_spread": 2_000_000,
    "control/cartpole": 500_000,
    "tag/grid": 4_000_000,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--commit", default="", help="where the checkout has no git history")
    args = parser.parse_args()
    commit = (
        args.commit
        or subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True
        ).stdout.strip()
    )
    rows = []
    for target, total in WORK.items():
        for kernels in (True, False):
            trust.find_problem = (lambda: None) if kernels else (lambda: "left out for comparison")
            began = time.perf_counter()
            run = shoal.train(target, total_env_steps=total, num_seeds=args.seeds, progress=False)
            seconds = time.perf_counter() - began
            returns = run.evaluate(episodes=1024).mean_return  # by group, one for each seed
            rows.append({"target": target, "kernels": kernels, "env_steps": total, "returns": returns})
            rows[-1] |= {"seconds": seconds, "versions": versions(), "commit": commit}
            rows[-1]["command"] = f"python benchmarks/kernels_learn.py {args.output} --seeds {args.seeds}"
            args.output.parent.mkdir(parents=True, exist_ok=True)
            args.output.write_text(json.dumps(rows, indent=1) + "\n")
            means = {name: f"{statistics.mean(v):.3f} ± {statistics.stdev(v):.3f}" for name, v in returns.items()}
            print(f"{target} {'with' if kernels else 'without'} kernels: {means} in {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
