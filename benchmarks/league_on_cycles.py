"""Is a league harder to exploit than plain self-play, where self-play cycles and the answer is known?

    python benchmarks/league_on_cycles.py benchmarks/results/league_on_cycles.json --jobs 8

In rock-paper-scissors and in Kuhn poker the best answer to the newest opponent is beaten by another one, so plain
self-play (`--meta-solver last`) goes round in circles; the equilibria have an exploitability of 0. For each seed a
league (main agents in every iteration, exploiters beside them in some) and plain self-play are trained with as many env
steps in all; after every iteration the exploitability of the newest main agents, or of the newest self-play agents, is
worked out exactly from their policies. Kept: its curve, its mean over the second half, and its last value.
"""

import argparse
import concurrent.futures
import dataclasses
import itertools
import json
import multiprocessing
import statistics
import subprocess
import sys
import time
from pathlib import Path

GAMES = ("psro/rock_paper_scissors", "psro/kuhn")
SOLVERS = ("league", "last")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--games", nargs="*", default=GAMES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--exploit-every", type=int, default=4)
    parser.add_argument("--episodes", type=int, default=1000, help="of an entry of the league's payoff table")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    cases = list(itertools.product(args.games, range(args.seeds), SOLVERS))
    with concurrent.futures.ProcessPoolExecutor(args.jobs, multiprocessing.get_context("spawn")) as pool:
        curves = list(pool.map(grow, *zip(*((args, *case) for case in cases), strict=True)))
    record = {
        "command": " ".join(["python", *sys.argv]),
        "commit": _commit(),
        "settings": {name: value for name, value in vars(args).items() if name not in ("output", "jobs")},
        "rows": [
            dict(zip(("game", "seed", "solver"), case, strict=True)) | row
            for case, row in zip(cases, curves, strict=True)
        ],
    }
    record["summary"] = {
        game: {solver: _summary(record["rows"], game, solver) for solver in SOLVERS} for game in args.games
    }
    args.output.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record["summary"], indent=1))


def grow(args: argparse.Namespace, preset: str, seed: int, solver: str) -> dict:
    """Trains one population, and measures its newest agents after every iteration."""
    from shoal.populations import league
    from shoal.populations.population import PopulationConfig
    from shoal.populations.psro import PSRO
    from shoal.presets import resolve
    from shoal.training.devices import use_compilation_cache
    from shoal.training.runner import run

    use_compilation_cache()
    alone = solver == "last"
    num_parallel = (
        sum(len(league.trained_roles(i + 1, args.exploit_every)) for i in range(args.iterations)) / args.iterations
    )
    experiment = dataclasses.replace(resolve(preset), seed=seed)
    steps = round(experiment.num_updates * (num_parallel if alone else 1)) * experiment.num_envs * experiment.num_steps
    experiment = dataclasses.replace(experiment, total_env_steps=steps)
    options = {} if alone else {"exploit_every": args.exploit_every}
    plan = PSRO(solver, options, iterations=args.iterations, episodes=0 if alone else args.episodes)
    began = time.perf_counter()
    state = run(PopulationConfig(experiment, plan, warm_start=alone)).standing["state"]
    curve = [round(line["exploitability"], 5) for line in state.history]
    half = curve[len(curve) // 2 :]
    row = {"curve": curve, "second_half": statistics.mean(half), "last": curve[-1], "env_steps_an_iteration": steps}
    print(f"{preset} seed {seed} {solver}: {row['second_half']:.3f} in {time.perf_counter() - began:.0f} s", flush=True)
    return row


def _summary(rows: list[dict], game: str, solver: str) -> dict:
    found = [row for row in rows if row["game"] == game and row["solver"] == solver]
    by_seed = [round(row["second_half"], 4) for row in found]
    return {"second_half": by_seed, "mean": round(statistics.mean(by_seed), 4), "last": [row["last"] for row in found]}


def _commit() -> str:
    asked = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent
    )
    return asked.stdout.strip()


if __name__ == "__main__":
    main()
