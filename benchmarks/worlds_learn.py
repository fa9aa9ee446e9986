"""Does the default preset of a world learn? Trained policies against random ones, for one world or all of them.

    python benchmarks/worlds_learn.py results/learns mpe/simple_push cards/leduc
    python benchmarks/worlds_learn.py results/learns                 # all worlds, one after the other
    python benchmarks/worlds_learn.py results/learns --draw          # what is there as one picture, results/learns.png

For each world a JSON: the experiment, the learning curve, and mean returns with standard errors over 1,024 episodes
(256 where a copy has 50 agents or more): all at random, all trained, each side trained against the others at random.
Policies play greedily; in card and matrix games, whose solutions are mixed, they play as in training.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path

import numpy as np

import shoal
from shoal import presets
from shoal.batching.regroup import return_groups
from shoal.training.bench import versions
from shoal.training.evaluate import evaluate
from shoal.training.runner import Local, run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("worlds", nargs="*")
    parser.add_argument("--seed", type=int, default=None, help="instead of the preset's")
    parser.add_argument("--draw", action="store_true")
    args = parser.parse_args()
    if args.draw:
        draw(args.folder)
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.worlds or shoal.ids():
        result = learn(name, args.seed)
        (args.folder / f"{name.replace('/', '_')}.json").write_text(json.dumps(result, indent=1) + "\n")
        print(name, json.dumps(result["returns"]), f"{result['cpu_s']} CPU-s", flush=True)


def learn(name: str, seed: int | None) -> dict:
    experiment = presets.resolve(name)
    if seed is not None:
        experiment = dataclasses.replace(experiment, seed=seed)
    setup = experiment.setup
    episodes = 1024 if sum(group.size for group in setup.spec.groups.values()) < 50 else 256
    cpu, wall = time.process_time(), time.perf_counter()
    trained = run(experiment, on=Local(devices=1))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall

    def returns(setup, policies) -> dict:
        outcome = evaluate(setup, policies, episodes, seed=1000, explore=name.startswith(("cards/", "matrix/")))
        return {
            side: [round(value, 4), round(outcome.standard_error[side], 4)]
            for side, value in outcome.mean_return.items()
        }

    table = {"random": returns(setup, None), "trained": returns(setup, trained.policies)}
    policies = trained.policies
    if len(policies) == 1 and len(return_groups(setup.env)) > 1:  # self-play: seat each side on its own
        (weights,) = policies.values()
        setup = presets.share(experiment, "none").setup
        policies = dict.fromkeys(setup.spec.groups, weights)
    if len(policies) > 1:
        for policy, weights in policies.items():
            table[f"{policy} trained, others random"] = returns(setup, {policy: weights})
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


def draw(folder: Path) -> None:
    """The curves of all worlds, one small panel each."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    results = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    columns = 5
    figure, axes = plt.subplots(-(-len(results) // columns), columns, figsize=(14, 1.9 * -(-len(results) // columns)))
    for panel in axes.flat[len(results) :]:
        panel.axis("off")
    for panel, result in zip(axes.flat, results, strict=False):
        panel.set_title(result["preset"], fontsize=8)
        panel.tick_params(labelsize=6)
        for number, (side, (random, _)) in enumerate(result["returns"]["random"].items()):
            points = [(line["env_steps"], line.get(f"return/{side}")) for line in result["curve"]]
            points = [point for point in points if point[1] is not None]
            panel.plot(*zip(*points, strict=True), color=f"C{number}", label=side, linewidth=1)
            panel.axhline(random, color=f"C{number}", linestyle=":", linewidth=0.8)
        panel.legend(fontsize=5, frameon=False)
    figure.suptitle("Mean returns while training; dotted: random play", fontsize=9)
    figure.tight_layout()
    figure.savefig(folder.with_suffix(".png"), dpi=80)


if __name__ == "__main__":
    main()
