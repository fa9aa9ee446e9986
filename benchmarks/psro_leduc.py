"""PSRO on Leduc poker with learnt responses and sampled payoffs: how long until NashConv is 1.0, and 0.5?

    python benchmarks/psro_leduc.py results/psro_leduc_cpu --seeds 3

    python benchmarks/psro_leduc.py benchmarks/results/psro_leduc --draw     # all JSONs there, as psro_leduc.png

For each seed the run folder (`FOLDER/seed-0`) and a line for every iteration; FOLDER/result.json has them all, with the
seconds, compilation included, at which each goal was reached. NashConv is exact, worked out from the saved policies.
"""

import argparse
import dataclasses
import json
import shlex
import sys
import time
from pathlib import Path

import jax

from shoal.populations.population import PopulationConfig
from shoal.training.devices import use_all_cores, use_compilation_cache
from shoal.training.runner import run
from shoal.training.serialise import to_plain

GOALS = (1.0, 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--uniform-share", type=float, default=None)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--meta-solver", default="fictitious_play")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--num-envs", type=int, default=None)
    parser.add_argument("--updates", type=int, default=None)
    parser.add_argument("--greedy", action="store_true")
    parser.add_argument("--warm-start", action="store_true")
    parser.add_argument("--commit", default="", help="where the checkout has no git history")
    parser.add_argument("--draw", action="store_true", help="draw what was measured before, and measure nothing")
    args = parser.parse_args()
    if args.draw:
        draw(args.folder)
        return
    use_all_cores()
    use_compilation_cache()
    seeds = [grow(args, seed) for seed in range(args.first_seed, args.first_seed + args.seeds)]
    args.folder.mkdir(parents=True, exist_ok=True)
    from shoal.api.suite import commit
    from shoal.training.bench import versions

    record = {"command": shlex.join(["python", *sys.argv]), "commit": args.commit or commit(), "seeds": seeds}
    record |= {"device": jax.devices()[0].device_kind, "devices": len(jax.devices())}
    (args.folder / "result.json").write_text(json.dumps(record | {"versions": versions()}, indent=1) + "\n")


def grow(args: argparse.Namespace, seed: int) -> dict:
    from shoal.populations.psro import PSRO
    from shoal.presets import resolve

    experiment = dataclasses.replace(resolve("psro/leduc"), seed=seed)
    num_envs = args.num_envs or experiment.num_envs
    total = num_envs * experiment.num_steps * (args.updates or experiment.num_updates)
    experiment = dataclasses.replace(experiment, num_envs=num_envs, total_env_steps=total)
    plan = PSRO(
        args.meta_solver,
        uniform_share=args.uniform_share,
        iterations=args.iterations,
        episodes=args.episodes,
        target_nash_conv=GOALS[-1],
    )
    settings = PopulationConfig(experiment, plan, warm_start=args.warm_start, greedy=args.greedy)
    began, reached = time.perf_counter(), {}

    def listen(progress) -> None:
        line = progress.line
        seconds = round(time.perf_counter() - began, 1)
        for goal in GOALS:
            if line["nash_conv"] <= goal:
                reached.setdefault(str(goal), seconds)
        print(
            seed,
            seconds,
            {key: line.get(key) for key in ("iteration", "nash_conv", "gain", "respond_s", "evaluate_s")},
            flush=True,
        )

    lines = run(settings, args.folder / f"seed-{seed}", listener=listen).lines
    print(seed, "reached", reached, flush=True)
    return {"seed": seed, "reached_s": reached, "history": lines, "settings": to_plain(settings)}


def draw(folder: Path) -> None:
    """NashConv over time, a line for each seed; files named alike but for the seed share a colour."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120)
    colours: dict[str, str] = {}
    for file in sorted(folder.glob("*.json")):
        name = file.stem.rpartition("_seed")[0]
        new = name not in colours
        colour = colours.setdefault(name, f"C{len(colours)}")
        for seed in json.loads(file.read_text())["seeds"]:
            lines = seed["history"]
            times, distances = [line["seconds"] for line in lines], [line["nash_conv"] for line in lines]
            axes.plot(times, distances, color=colour, alpha=0.8, label=name.replace("_", " ") if new else None)
    for goal in GOALS:
        axes.axhline(goal, color="grey", linewidth=0.8, linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="seconds, compilation included", ylabel="NashConv, exact")
    axes.set_title("PSRO on Leduc poker, learnt responses, sampled payoffs", loc="left")
    axes.legend(frameon=False)
    figure.savefig(folder.parent / f"{folder.name}.png", bbox_inches="tight")


if __name__ == "__main__":
    main()
