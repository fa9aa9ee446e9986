"""OpenAI-ES with thousands of members on cartpole and pendulum: is the world solved, and how long does it take?

    python benchmarks/evolution_learns.py results/evolution.json                       # 4,096 members, 3 seeds
    python benchmarks/evolution_learns.py results/evolution.json --population 512 --seeds 1 --worlds control/pendulum
    python benchmarks/evolution_learns.py results/evolution.json --hidden 64 64 --std 0.1        # on an accelerator

Solved: a mean return of at least 475 (cartpole) or -200 (pendulum) over 1,024 greedy episodes of the mean policy, on
starts that no generation has met. One JSON: for each world and seed the plan, the curve, the return with its standard
error, time to compile and to run, and env steps per second; and command, device and versions.
"""

import argparse
import dataclasses
import json
import shlex
import sys
import time
from pathlib import Path

import jax

from shoal import presets
from shoal.populations.evolution.program import Evolution
from shoal.populations.evolution.strategies import make_strategy
from shoal.training.bench import versions
from shoal.training.devices import use_all_cores
from shoal.training.evaluate import evaluate
from shoal.training.experiment import Experiment
from shoal.training.runner import run
from shoal.training.serialise import to_plain

EPISODES = 1024
WORLDS = {
    "control/cartpole": {"solved": 475.0, "generations": 15, "episodes": 1},
    "control/pendulum": {"solved": -200.0, "generations": 100, "episodes": 4},
}
OPTIONS = {"open_es": {"std": 0.5, "learning_rate": 0.2}}  # for a hidden layer of 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS), choices=list(WORLDS))
    parser.add_argument("--strategy", default="open_es")
    parser.add_argument("--population", type=int, default=4096)
    parser.add_argument("--generations", type=int, default=None)
    parser.add_argument("--hidden", type=int, nargs="*", default=[16])
    parser.add_argument("--std", type=float, default=None)
    parser.add_argument("--learning-rate", type=float, default=None)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    use_all_cores()
    results = []
    for world in args.worlds:
        for seed in range(args.seeds):
            results.append(learn(world, seed, args))
            shown = {key: results[-1][key] for key in ("world", "seed", "mean_return", "solved", "wall_s", "compile_s")}
            print(json.dumps(shown), flush=True)
            write(args.out, results)  # as far as it has come


def learn(world: str, seed: int, args: argparse.Namespace) -> dict:
    settings = WORLDS[world]
    experiment = dataclasses.replace(with_hidden(presets.get(world), tuple(args.hidden)), seed=seed)
    generations = args.generations or settings["generations"]
    options = {name: value for name, value in (("std", args.std), ("learning_rate", args.learning_rate)) if value}
    strategy = make_strategy(args.strategy, **OPTIONS.get(args.strategy, {}) | options)
    plan = Evolution(experiment, strategy, args.population, generations, episodes=settings["episodes"])
    began = time.perf_counter()
    result = run(plan)
    wall = time.perf_counter() - began
    played = evaluate(plan.played.setup, result.policies, EPISODES, seed=1_000_000 + seed)
    mean = played.mean_return["agent"]
    steps = result.lines[-1]["env_steps"]
    columns = ("update", "env_steps", "seconds", "fitness/mean", "fitness/best", "fitness/policy")
    return {
        "world": world,
        "seed": seed,
        "mean_return": round(mean, 3),
        "standard_error": round(played.standard_error["agent"], 3),
        "solved": mean >= settings["solved"],
        "wall_s": round(wall, 2),
        "compile_s": round(result.compile_seconds, 2),
        "run_s": round(result.seconds, 2),
        "env_steps": steps,
        "env_steps_per_s": round(steps / result.seconds),
        "first_generation_solved": first_solved(result.lines, settings["solved"]),
        "plan": to_plain(plan) | {"hidden": args.hidden},
        "curve": {column: [line.get(column) for line in result.lines] for column in columns},
    }


def first_solved(lines: list[dict], enough: float) -> int | None:
    """The first generation whose members do well enough in the mean."""
    return next((line["update"] for line in lines if line["fitness/mean"] >= enough), None)


def with_hidden(experiment: Experiment, hidden: tuple[int, ...]) -> Experiment:
    def changed(learner):
        network = dataclasses.replace(learner.algorithm.network, hidden=hidden)
        return dataclasses.replace(learner, algorithm=dataclasses.replace(learner.algorithm, network=network))

    return dataclasses.replace(
        experiment, learners={name: changed(learner) for name, learner in experiment.learners.items()}
    )


def write(path: Path, results: list[dict]) -> None:
    device = jax.local_devices()[0]
    whole = {
        "command": shlex.join(["python", *sys.argv]),
        "device": f"{jax.local_device_count()} x {device.platform}: {device.device_kind}",
        "versions": versions(),
        "results": results,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
