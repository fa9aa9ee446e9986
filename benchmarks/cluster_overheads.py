"""What the cluster's services cost by themselves: tasks per second, a pull of weights, a push of a rollout.

    python benchmarks/cluster_overheads.py            # writes benchmarks/results/cluster_overheads.json

All through Ray, in processes of their own, on this machine. Tasks do nothing, so that what is measured is the board:
every worker hands in what it has done and is given what is next; results are on disk before they count. Workers ask
for several short tasks at a time (up to `pool.MOST`); so what a run gets is the rows with the most. Beside it stands
`ray.util.ActorPool`, Ray's own pool, with and without results that are on disk (a journal, flushed) before they count.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np

from shoal.cluster.services.dataset import Item, Queue
from shoal.cluster.services.journal import Journal
from shoal.cluster.services.parameters import ParameterService
from shoal.cluster.tasks.board import Task, TaskBoard
from shoal.cluster.tasks.pool import MOST, PoolConfig, WorkerPool
from shoal.cluster.transport.ray_launcher import RayLauncher
from shoal.cluster.transport.service import Service, Store
from shoal.core.version import VERSION

RESULTS = Path(__file__).parent / "results" / "cluster_overheads.json"
GOALS = {"tasks_per_s": 2000, "pull_1mb_ms": 3.0, "push_10mb_ms": 30.0}


class Nothing:
    """Carries out tasks that are nothing to do."""

    def run(self, task: Task, board: Service[TaskBoard]) -> tuple[dict, None]:
        return {"n": task.payload}, None


def dispatch(launcher: RayLauncher, workers: int, most: int, tasks: int) -> dict:
    """Tasks per second from the first to the last result, workers being up."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text("{}")  # a pool stops when its run folder is gone
        pool = WorkerPool(folder, launcher, PoolConfig(workers=workers, cpus=0.0), Nothing, most=most)
        pool.run([Task(f"warm/{n}", "k", n) for n in range(200 * workers)])
        while any(told["done"] == 0 for told in pool.board.once.status().values()):
            pool.run([Task(f"more/{time.monotonic_ns()}/{n}", "k", n) for n in range(50)])
        todo = [Task(f"task/{n}", "k", n) for n in range(tasks)]
        pool.board.once.add(todo)
        began = time.perf_counter()
        pool.run(todo)
        seconds = time.perf_counter() - began
        calls = pool.board.messages().get("worker>report_and_fetch", 0)
        pool.close()
    return {
        "workers": workers,
        "most_tasks_a_message": most,
        "tasks": tasks,
        "seconds": round(seconds, 3),
        "tasks_per_s": round(tasks / seconds),
        "trades": calls,
    }


def dispatch_by_ray(workers: int, tasks: int, folder: Path | None) -> dict:
    """The same with `ray.util.ActorPool`; results are written to a journal in `folder`, if there is one."""
    import ray
    from ray.util import ActorPool

    @ray.remote(num_cpus=0)
    class Idle:
        def run(self, number: int) -> dict:
            return {"n": number}

    pool = ActorPool([Idle.remote() for _ in range(workers)])
    list(pool.map_unordered(lambda actor, n: actor.run.remote(n), range(200 * workers)))
    journal = Journal(folder) if folder else None
    began = time.perf_counter()
    for figures in pool.map_unordered(lambda actor, n: actor.run.remote(n), range(tasks)):
        if journal is not None:
            journal.write({"done": f"task/{figures['n']}", "figures": figures})
    seconds = time.perf_counter() - began
    return {
        "pool": "ray.util.ActorPool",
        "results_on_disk": folder is not None,
        "workers": workers,
        "tasks": tasks,
        "seconds": round(seconds, 3),
        "tasks_per_s": round(tasks / seconds),
    }


class Puller:
    """Pulls weights as an actor does."""

    def __init__(self, service: Service[ParameterService], store: Store):
        self.service, self.store = service, store

    def pull(self, first: int, count: int) -> list[float]:
        times, known = [], -1
        zeros = np.zeros(1 << 18, np.float32)  # 1 MB
        for version in range(first, first + count):
            self.service.once.push("policies", version, zeros + version)
            began = time.perf_counter()
            found = self.service.once.pull("policies", known)
            value = self.store.get(found.ref)
            times.append(1000 * (time.perf_counter() - began))
            assert value[0] == version
            known = version
        return times


class Pusher:
    """Pushes rollouts as an actor does."""

    def __init__(self, queue: Service[Queue], store: Store):
        self.queue, self.store = queue, store

    def push(self, first: int, count: int) -> list[float]:
        times = []
        for number in range(first, first + count):
            made = {"steps": np.full(10 * (1 << 20) // 4, number, np.float32)}  # 10 MB
            began = time.perf_counter()
            assert self.queue.once.push(Item("bench", 0, number, 0, self.store.put(made)), 5.0)
            times.append(1000 * (time.perf_counter() - began))
            self.queue.once.take(1)
        return times


def spread(times: list[float]) -> dict:
    """Of milliseconds."""
    ordered = sorted(times)
    return {
        "median_ms": round(statistics.median(ordered), 3),
        "p90_ms": round(ordered[int(0.9 * len(ordered))], 3),
        "largest_ms": round(ordered[-1], 3),
        "times": len(ordered),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    load = os.getloadavg()
    launcher = RayLauncher("local", {"CPU": 2})
    try:
        rows = []
        for workers, most in ((2, 1), (4, 1), (2, 4), (4, 4), (2, MOST), (4, MOST)):
            rows.append(dispatch(launcher, workers, most, options.tasks))
            print(rows[-1], flush=True)
        for workers in (2, 4):
            rows.append(dispatch_by_ray(workers, options.tasks, None))
            with tempfile.TemporaryDirectory() as folder:
                rows.append(dispatch_by_ray(workers, options.tasks, Path(folder)))
            print(rows[-2], rows[-1], flush=True)
        service = launcher.start("parameters", ParameterService, launcher.store)
        puller = launcher.start("puller", Puller, service, launcher.store)
        puller.once.pull(0, 10)
        queue = launcher.start("queue", Queue, 8)
        pusher = launcher.start("pusher", Pusher, queue, launcher.store)
        pusher.once.push(0, 5)
        pull, push = spread(puller.once.pull(10, 200)), spread(pusher.once.push(5, 50))
    finally:
        launcher.stop()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    result = {
        "what": "overheads of the cluster's services through Ray, all processes on one machine",
        "command": " ".join(["python", *sys.argv]),
        "commit": commit.stdout.strip(),
        "versions": {"shoal": VERSION, "jax": jax.__version__, "python": platform.python_version()},
        "cores": os.cpu_count(),
        "load_before": [round(value, 2) for value in load],
        "load_after": [round(value, 2) for value in os.getloadavg()],
        "goals": GOALS,
        "dispatch": rows,
        "pull_1mb": pull,
        "push_10mb": push,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({"pull_1mb": pull, "push_10mb": push, "load": result["load_after"]}, indent=1))


if __name__ == "__main__":
    main()
