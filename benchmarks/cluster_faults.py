"""Faults, injected at random moments into real runs on Ray: how long until the run goes on, and what is lost.

    python benchmarks/cluster_faults.py benchmarks/results/faults.json --times 3
    python benchmarks/cluster_faults.py OUT.json --only actor,learner --times 1

Each run trains mpe/simple_spread with two actors on a Ray cluster of its own. A fault hits after a random number of
updates; `recover_s` is the time until an update is made that would not have been made without the cluster healing
itself, `updates_lost` counts committed updates that are not there any more, `ended` is how many of all updates the run
made in the end. Every process of the run is fair game: they are shot with SIGKILL from outside.
"""

import argparse
import dataclasses
import json
import os
import platform
import random
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from shoal.core.files import write_atomically
from shoal.execution import run_kinds
from shoal.execution.cluster import runner
from shoal.execution.cluster.plan import Plan
from shoal.execution.experiment import Experiment, to_plain
from shoal.execution.run import open_run
from shoal.presets import resolve

UPDATES = 400
SERVICES = {
    "actor": "actor-1",
    "learner": "learner-0",
    "parameter service": "parameters",
    "dataset shard": "dataset",
    "coordinator": "coordinator",
}


def experiment_of(seed: int, updates: int = UPDATES) -> Experiment:
    chosen = dataclasses.replace(resolve("mpe/simple_spread"), num_envs=16, num_steps=8, seed=seed)
    return dataclasses.replace(chosen, total_env_steps=16 * 8 * updates)


class Fault:
    """Hits once, after some updates, and watches what becomes of the run."""

    def __init__(self, hit: Callable[["runner.Supervisor"], None], after: int):
        self.hit, self.after = hit, after
        self.at: float | None = None
        self.update = self.committed = 0
        self.recovered: float | None = None
        self.least: int | None = None

    def __call__(self, site: "runner.Supervisor") -> None:
        learner = site.status.get("learner", {})
        update = learner.get("update", 0)
        if self.at is None:
            if update >= self.after:
                self.update, self.committed, self.at = update, learner.get("committed", 0), time.monotonic()
                self.hit(site)
            return
        version = site.status.get("version", -1)
        if version >= 0:
            self.least = version if self.least is None else min(self.least, version)
        if self.recovered is None and update > self.update + 1:
            self.recovered = time.monotonic() - self.at


def shoot(name: str) -> Callable[["runner.Supervisor"], None]:
    """SIGKILL for the process of a service or a worker."""

    def hit(site: "runner.Supervisor") -> None:
        handle = site.services.get(name) or site.workers[name].handle
        os.kill(handle.call("pid"), signal.SIGKILL)

    return hit


def one(kind: str, seed: int, root: Path, fabric: runner.Fabric | None = None, updates: int = UPDATES) -> dict:
    """One run with one fault."""
    from shoal.execution.cluster.ray_fabric import RayFabric

    random.seed(seed)
    plan, experiment, folder = Plan(actors=2, commit_seconds=0.5), experiment_of(seed, updates), root / f"{kind}-{seed}"
    run_kinds.create(folder, run_kinds.TRAINING, experiment=experiment.to_dict(), cluster=to_plain(plan))
    fabric = fabric or RayFabric("local", runner.needs(plan))
    site = runner.Supervisor(open_run(folder), plan, fabric)
    fault = Fault(shoot(SERVICES[kind]), random.randrange(5, updates // 2))
    site.hooks.append(fault)
    result = site.run()
    lost = max(0, fault.committed - (fault.least if fault.least is not None else fault.committed))
    return {
        "fault": kind,
        "seed": seed,
        "at_update": fault.update,
        "committed": fault.committed,
        "recover_s": None if fault.recovered is None else round(fault.recovered, 2),
        "updates_lost": lost,
        "policies_lost": 0 if result.policies else 1,
        "ended": [result.update, experiment.num_updates],
    }


def nodes(seed: int, root: Path, updates: int = UPDATES) -> dict:
    """A cluster of three nodes on this machine: one is removed while it works, another one added later."""
    from ray.cluster_utils import Cluster

    from shoal.execution.cluster.ray_fabric import RayFabric

    random.seed(seed)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    doomed = [cluster.add_node(num_cpus=2)]
    plan, experiment, folder = Plan(actors=3, commit_seconds=0.5), experiment_of(seed, updates), root / f"nodes-{seed}"
    experiment = dataclasses.replace(experiment, num_envs=24, total_env_steps=24 * 8 * updates)
    run_kinds.create(folder, run_kinds.TRAINING, experiment=experiment.to_dict(), cluster=to_plain(plan))
    site = runner.Supervisor(open_run(folder), plan, RayFabric(cluster.address, runner.needs(plan)))

    def swap(_: "runner.Supervisor") -> None:
        cluster.remove_node(doomed.pop(), allow_graceful=False)
        cluster.add_node(num_cpus=2)

    fault = Fault(swap, random.randrange(5, updates // 2))
    site.hooks.append(fault)
    try:
        result = site.run()
    finally:
        cluster.shutdown()
    restarts = sum(worker.restarts for worker in site.workers.values())
    lost = max(0, fault.committed - (fault.least if fault.least is not None else fault.committed))
    return {
        "fault": "a node removed, another added",
        "seed": seed,
        "at_update": fault.update,
        "committed": fault.committed,
        "recover_s": None if fault.recovered is None else round(fault.recovered, 2),
        "updates_lost": lost,
        "policies_lost": 0 if result.policies else 1,
        "moved": restarts > 0,
        "ended": [result.update, experiment.num_updates],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--only", default=",".join([*SERVICES, "node"]))
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as root:
        for kind in args.only.split(","):
            for seed in range(args.times):
                rows.append(nodes(seed, Path(root)) if kind == "node" else one(kind, seed, Path(root)))
                print(rows[-1], flush=True)
                record = {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "faults": rows}
                write_atomically(args.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
