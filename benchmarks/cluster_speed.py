"""Training on a cluster of this machine against the fused runner: env steps per second, in turns.

    python benchmarks/cluster_speed.py benchmarks/results/cluster_speed.json
    python benchmarks/cluster_speed.py OUT.json --preset appo/pong_image --recipe appo --actors 2

Both train the same experiment for about the same time, the cluster with `--copies` copies an actor. Rates are taken
after the first updates, when everything is compiled.
"""

import argparse
import dataclasses
import json
import platform
import tempfile
import time
from pathlib import Path

import jax

from shoal.cluster.run import Cluster
from shoal.training.devices import num_cores, use_all_cores, use_compilation_cache
from shoal.training.runner import run

SKIPPED = 5
"""Updates before the clock starts."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--preset", default="mpe/simple_spread")
    parser.add_argument("--recipe", default="stale")
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--copies", type=int, default=2048)
    parser.add_argument("--num-steps", type=int, default=None)
    parser.add_argument("--learner-cpus", type=int, default=num_cores())
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--alone", action="store_true", help="the cluster only")
    args = parser.parse_args()
    use_all_cores()
    use_compilation_cache()
    rows = [measure(args) for _ in range(args.rounds)]
    best = {kind: max(row[kind] for row in rows) for kind in rows[0]}
    record = {
        "what": "env steps per second: training on Ray on this machine, and by the fused runner",
        "settings": {name: value for name, value in vars(args).items() if name != "out"},
        "machine": f"{platform.machine()}, {num_cores()} cores",
        "jax": jax.__version__,
        "rounds": rows,
        "best": best,
        "ratio": round(best["cluster"] / best["fused"], 3) if not args.alone else None,
    }
    print(json.dumps(record))
    args.out.write_text(json.dumps(record, indent=1) + "\n")


def measure(args: argparse.Namespace) -> dict[str, float]:
    from shoal.presets import resolve

    experiment = dataclasses.replace(resolve(args.preset), num_envs=args.actors * args.copies)
    experiment = dataclasses.replace(experiment, num_steps=args.num_steps or experiment.num_steps)
    each = experiment.num_envs * experiment.num_steps
    experiment = dataclasses.replace(experiment, total_env_steps=each * args.updates)
    row = {"cluster": on_cluster(args, experiment)}
    if not args.alone:
        row["fused"] = fused(experiment)
    print({name: round(rate) for name, rate in row.items()}, flush=True)
    return row


class Clock:
    """A listener that takes the time from some update on."""

    def __init__(self) -> None:
        self.first: tuple[float, int] | None = None
        self.last = (0.0, 0)

    def __call__(self, progress) -> None:
        now = (time.perf_counter(), progress.env_steps)
        if progress.update >= SKIPPED and self.first is None:
            self.first = now
        if now[1] > self.last[1]:
            self.last = now

    @property
    def rate(self) -> float:
        assert self.first is not None
        return (self.last[1] - self.first[1]) / (self.last[0] - self.first[0])


def on_cluster(args: argparse.Namespace, experiment) -> float:
    from shoal.cluster.plan import ClusterPlan

    plan, clock = ClusterPlan(args.recipe, actors=args.actors, learner_cpus=args.learner_cpus), Clock()
    with tempfile.TemporaryDirectory() as folder:
        run(
            experiment,
            Path(folder) / "run",
            on=Cluster("local", plan),
            listener=clock,
        )
        status = json.loads((Path(folder) / "run" / "cluster.json").read_text())
    print({"spent": status["learner"]["spent"], "actor": status["workers"]["actor-0"]["seconds"]}, flush=True)
    return clock.rate


def fused(experiment) -> float:

    clock = Clock()
    run(experiment, listener=clock)
    return clock.rate


if __name__ == "__main__":
    main()
