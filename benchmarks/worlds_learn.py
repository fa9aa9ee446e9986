"""Does the default preset of a world learn? Trained policies against random ones, for one world or all of them.

    python benchmarks/worlds_learn.py results/learns mpe/simple_push cards/leduc
    python benchmarks/worlds_learn.py results/learns                 # all worlds, one after the other

For each world a JSON: the experiment, the learning curve, and greedy returns over 1,024 episodes (256 where a copy has
hundreds of agents): all at random, all trained, and each learner trained against the others at random.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path

import numpy as np

import shoal
from shoal import presets
from shoal.execution.bench import versions
from shoal.execution.evaluate import evaluate
from shoal.execution.experiment import cast
from shoal.execution.train import train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("worlds", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.worlds or shoal.ids():
        result = learn(name, args.seed)
        (args.folder / f"{name.replace('/', '_')}.json").write_text(json.dumps(result, indent=1) + "\n")
        print(name, json.dumps(result["returns"]), f"{result['cpu_s']} CPU-s", flush=True)


def learn(name: str, seed: int) -> dict:
    experiment = dataclasses.replace(presets.resolve(name), seed=seed)
    roles = cast(experiment)
    episodes = 1024 if sum(group.size for group in roles.spec.groups.values()) < 50 else 256
    cpu, wall = time.process_time(), time.perf_counter()
    trained = train(experiment, devices=1)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall

    def returns(policies) -> dict:
        outcome = evaluate(roles, policies, episodes, seed=1000)
        return {
            group: [round(value, 4), round(outcome.standard_error[group], 4)]
            for group, value in outcome.mean_return.items()
        }

    table = {"random": returns(None), "trained": returns(trained.policies)}
    if len(trained.policies) > 1:
        for policy, weights in trained.policies.items():
            table[f"{policy} trained, others random"] = returns({policy: weights})
    curve = [
        {key: value for key, value in line.items() if key in ("env_steps", "length") or key.startswith("return")}
        for line in trained.lines[:: max(1, len(trained.lines) // 40)]
    ]
    return {
        "preset": name,
        "experiment": experiment.to_dict(),
        "returns": table,
        "episodes": episodes,
        "cpu_s": round(cpu, 1),
        "wall_s": round(wall, 1),
        "versions": versions(),
        "curve": json.loads(json.dumps(curve, default=lambda value: np.asarray(value).tolist())),
    }


if __name__ == "__main__":
    main()
