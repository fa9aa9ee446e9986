"""Do the recipes learn? Greedy returns of what each has trained on a Ray of this machine.

    python benchmarks/cluster_learns.py benchmarks/results/cluster_learns.json
    python benchmarks/cluster_learns.py OUT.json --only impala/cartpole,appo/simple_spread

A row is a recipe, a preset, and env steps if not the preset's. `share_of_ppo` on simple_spread is the gain over random
play as a share of that of the fused PPO (`ippo/simple_spread`, 1 M env steps). IMPALA makes one gradient step of a
rollout where PPO makes 16, so it is given more of them; R2D2, which must learn what to remember too, twice as many.
"""

import argparse
import dataclasses
import functools
import json
import platform
import tempfile
import time
from pathlib import Path

from shoal.cluster.run import Cluster
from shoal.training.devices import num_cores, use_all_cores, use_compilation_cache
from shoal.training.runner import run

ROWS = {
    "impala/cartpole": ("impala", "impala/cartpole"),
    "impala/simple_spread": ("impala", "impala/simple_spread", 12_000_000),
    "appo/simple_spread": ("appo", "appo/simple_spread", 4_000_000),
    "stale/simple_spread": ("stale", "mpe/simple_spread"),
    "seed/cartpole": ("seed", "impala/cartpole"),
    "appo/cartpole": ("appo", "appo/cartpole"),
    "apex/cartpole": ("apex", "dqn/cartpole"),
    "r2d2/cartpole": ("r2d2", "r2d2/cartpole"),
    "a3c/cartpole": ("a3c", "a2c/cartpole"),
    "gorila/cartpole": ("gorila", "dqn/cartpole"),
    "apex/simple_spread": ("apex", "iql/simple_spread"),
    "r2d2/simple_spread": ("r2d2", "r2d2/simple_spread", 2_000_000),
}


RATES = {"impala/simple_spread": 2e-3, "appo/simple_spread": 1e-3}
"""Learning rates, where those of the presets are too high for experience that is some updates old."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default=",".join(ROWS))
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--steps", type=int, default=None, help="env steps; the preset's by default")
    args = parser.parse_args()
    use_all_cores()
    use_compilation_cache()
    rows = json.loads(args.out.read_text())["rows"] if args.out.exists() else {}
    for name in args.only.split(","):
        rows[name] = learn(name, args)
        print(name, rows[name], flush=True)
        record = {"machine": f"{platform.machine()}, {num_cores()} cores", "rows": rows}
        args.out.write_text(json.dumps(record, indent=1) + "\n")


def learn(name: str, args: argparse.Namespace) -> dict:
    from shoal.cluster.plan import ClusterPlan
    from shoal.presets import resolve

    recipe, preset, *steps = ROWS[name]
    experiment = resolve(preset)
    steps = args.steps or (steps[0] if steps else experiment.total_env_steps)
    learners = {
        name: dataclasses.replace(learner, algorithm=dataclasses.replace(learner.algorithm, prioritised=True))
        if recipe == "apex"
        else learner
        for name, learner in experiment.learners.items()
    }
    experiment = dataclasses.replace(experiment, total_env_steps=steps, learners=learners)
    if name in RATES:  # what is old goes further astray with large steps
        experiment = with_rate(experiment, RATES[name])
    plan, began = ClusterPlan(recipe, actors=args.actors), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        result = run(experiment, path, on=Cluster("local", plan))
        status = json.loads((path / "cluster.json").read_text())
    seconds = time.perf_counter() - began
    row = {
        "recipe": recipe,
        "preset": preset,
        "env_steps": experiment.total_env_steps,
        "seconds": round(seconds, 1),
        "return": played(experiment, result.policies),
        "random": played(experiment, None),
        "staleness": status.get("staleness"),
    }
    if experiment.env == "mpe/simple_spread":
        row["ppo"] = fused_ppo()
        row["share_of_ppo"] = round((row["return"] - row["random"]) / (row["ppo"] - row["random"]), 3)
    return row


def with_rate(experiment, rate: float):
    def slower(learner):
        return dataclasses.replace(learner, algorithm=dataclasses.replace(learner.algorithm, learning_rate=rate))

    learners = {name: slower(learner) for name, learner in experiment.learners.items()}
    return dataclasses.replace(experiment, learners=learners)


def played(experiment, policies) -> float:
    """Mean greedy return of 512 episodes, all groups together."""
    from shoal.training.evaluate import evaluate

    found = evaluate(experiment.setup, policies, episodes=512)
    return round(float(sum(values.mean() for values in found.returns.values())), 2)


@functools.cache
def fused_ppo() -> float:
    from shoal.presets import resolve

    experiment = resolve("ippo/simple_spread")
    return played(experiment, run(experiment).policies)


if __name__ == "__main__":
    main()
