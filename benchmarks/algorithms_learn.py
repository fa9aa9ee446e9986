"""Learning curves of algorithms, several seeds side by side in one program, with interquartile means and intervals.

    python benchmarks/algorithms_learn.py results/algorithms qmix/simple_spread ppo/cartpole     # presets by name
    python benchmarks/algorithms_learn.py results/algorithms qmix/simple_spread --steps 10_000_000
    python benchmarks/algorithms_learn.py results/algorithms --draw        # what is there: plots, and table.md

For each a JSON: the experiment, for each seed the training return along the run and the greedy return at its end over
1,024 episodes by side of the world, that of random play, and their interquartile mean over the seeds (the mean of the
middle half) with a 95 % interval by bootstrap over seeds (Agarwal et al. 2021). Card and matrix games apart, trained
policies play greedily.
"""

import argparse
import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from shoal import presets
from shoal.training.bench import versions
from shoal.training.compared_runs import read_compared
from shoal.training.comparison import compare
from shoal.training.devices import use_all_cores
from shoal.training.evaluate import evaluate
from shoal.training.runner import Local, run
from shoal.training.statistics import interval, iqm

EPISODES = 1024
POINTS = 100  # of a curve, at most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=lambda text: int(float(text.replace("_", ""))), default=None)
    parser.add_argument("--draw", action="store_true")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.draw:
        draw(args.folder)
        return
    use_all_cores()
    for name in args.names:
        result = learn(name, args.seeds, args.steps)
        suffix = f"_{args.steps}" if args.steps else ""
        path = args.folder / f"{name.replace('/', '-')}{suffix}.json"
        path.write_text(json.dumps(result, separators=(",", ":")) + "\n")
        shown = {side: [round(v, 2) for v in values["iqm_and_interval"]] for side, values in result["greedy"].items()}
        print(name, json.dumps(shown), f"random {result['random']}, {result['wall_s']} s", flush=True)


def learn(name: str, seeds: int, steps: int | None) -> dict:
    experiment = dataclasses.replace(presets.resolve(name), num_seeds=seeds)
    if steps:
        experiment = dataclasses.replace(experiment, total_env_steps=steps)
    wall, cpu = time.perf_counter(), time.process_time()
    trained = run(experiment, on=Local(devices=1))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    setup = dataclasses.replace(experiment, num_seeds=1).setup
    played = [evaluate(setup, _seed(trained.policies, i), EPISODES, seed=1000).mean_return for i in range(seeds)]
    random = evaluate(setup, None, EPISODES, seed=1000).mean_return
    greedy = {side: summary([returns[side] for returns in played]) for side in random}
    if len(setup.spec.groups) > 1:
        greedy |= against_random(setup, trained.policies, seeds)
    lines = trained.lines[:: -(-len(trained.lines) // POINTS)]
    columns = [column for column in trained.lines[0] if column == "return" or column.startswith("return/")]
    return {
        "preset": name,
        "experiment": experiment.to_dict(),
        "greedy": greedy,
        "random": {side: round(value, 3) for side, value in random.items()},
        "curve": {
            "env_steps": [line["env_steps"] for line in lines],
            **{column: [[v and round(v, 3) for v in line[column]] for line in lines] for column in columns},
        },
        "wall_s": round(wall, 1),
        "compile_s": round(trained.compile_seconds, 1),
        "cpu_s": round(cpu, 1),
        "device": jax.devices()[0].device_kind,
        "versions": versions(),
    }


def against_random(setup, policies, seeds: int) -> dict:
    """Each group trained, all others at random."""
    results = {}
    for group in setup.spec.groups:
        played = [
            evaluate(setup, {group: _seed(policies[group], i)}, EPISODES, seed=1000).mean_return for i in range(seeds)
        ]
        results[f"{group}, others random"] = summary([returns[group] for returns in played])
    return results


def summary(values: list[float]) -> dict:
    """The seeds' values, their interquartile mean, and a 95 % interval of it."""
    low, high = interval(np.array(values))
    return {"seeds": values, "iqm_and_interval": [float(iqm(np.array(values))), float(low), float(high)]}


def _seed(policies, i: int):
    return jax.tree.map(lambda leaf: leaf[i], policies)


def draw(folder: Path) -> None:
    """One picture for each world, and a table of all."""
    import matplotlib

    matplotlib.use("Agg")
    paths = sorted(folder.glob("*.json"))
    results = [json.loads(path.read_text()) for path in paths]
    worlds = sorted({result["experiment"]["env"] for result in results})
    for world in worlds:
        _draw_world(folder, world, [result for result in results if result["experiment"]["env"] == world])
    (folder / "table.md").write_text(table(paths))


def _draw_world(folder: Path, world: str, results: list[dict]) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    for number, result in enumerate(results):
        curve = np.array([[np.nan if v is None else v for v in row] for row in result["curve"]["return"]], float)
        steps = np.array(result["curve"]["env_steps"])
        known = ~np.isnan(curve).any(axis=1)
        middle = iqm(curve[known])
        line = {"color": f"C{number % 10}", "linestyle": "-" if number < 10 else "--"}
        axes.plot(steps[known], middle, label=result["preset"].split("/")[0], **line)
        low, high = np.min(curve[known], axis=1), np.max(curve[known], axis=1)
        axes.fill_between(steps[known], low, high, color=line["color"], alpha=0.12, linewidth=0)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("return while training, all agents")
    axes.set_title(f"{world}: interquartile mean and range of {len(results[0]['curve']['return'][0])} seeds")
    axes.legend(fontsize="small", ncols=2)
    axes.grid(alpha=0.3)
    figure.savefig(folder / f"{world.replace('/', '-')}.png", dpi=110)
    plt.close(figure)


def table(paths: Sequence[Path]) -> str:
    """Greedy returns as a table in Markdown; the figures of `shoal compare`, from the seeds that were kept."""
    rows = [
        "| preset | env steps | side | random | trained: IQM | 95 % interval | worst seed |",
        "|---|---|---|---|---|---|---|",
    ]
    runs = [(json.loads(path.read_text()), read_compared(path)) for path in paths]
    for result, seeds in sorted(runs, key=lambda pair: (pair[0]["experiment"]["env"], pair[0]["preset"])):
        for side in result["greedy"]:
            (final,) = compare([seeds], metric=f"eval/return/{side}", by="preset").final.values()
            steps = result["experiment"]["total_env_steps"]
            random = result["random"][side.partition(",")[0]]
            numbers = f"{random:.1f} | {final.iqm:.1f} | {final.low:.1f} to {final.high:.1f} | {final.worst:.1f}"
            rows.append(f"| {result['preset']} | {steps:,} | {side} | {numbers} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    main()
