"""Faults, injected at random moments into real runs on Ray: how long until the run goes on, and what is lost.

    python benchmarks/cluster_faults.py benchmarks/results/faults.json --times 2
    python benchmarks/cluster_faults.py OUT.json --only actor,learner --times 1
    python benchmarks/cluster_faults.py benchmarks/results/faults.json --only killer --seconds 300

Each run has a Ray cluster of its own. A fault hits after a random number of updates. `recover_s` is the time until an
update is made after it, `updates_lost` counts committed updates that are not there any more, `ended` is how many of all
updates the run made in the end. Processes are shot with SIGKILL. `killer` shoots any process of a population that grows
on a cluster, Ray's own and the driver's too, for `--seconds`, goes on with `shoal resume` whenever the driver is gone,
and compares banks and payoff table with those of a run that nobody disturbed. `disk full` needs to be root: it fills a
small disk in memory. Rows of a file that exists are kept, but for those that are measured again.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import random
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from shoal.cluster import training as runner
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.run import Cluster
from shoal.cluster.services.journal import read
from shoal.cluster.transport.service import WorkerError
from shoal.core.files import write_atomically
from shoal.core.origin import USER
from shoal.presets import resolve
from shoal.training import checkpoint, run_kinds
from shoal.training.experiment import Experiment, to_plain
from shoal.training.run import open_run
from shoal.training.runner import resume

UPDATES = 400
SERVICES = {
    "actor": "actor-1",
    "learner": "learner-0",
    "inference server": "inference",
    "parameter service": "parameters",
    "dataset shard": "dataset",
    "coordinator": "coordinator",
}
ENVIRONMENT = {
    "environment raises once": "raise",
    "environment always raises": "always",
    "environment hangs": "hang",
    "environment gives NaN": "nan",
}
PATIENCE = 5.0
"""Seconds after which an environment counts as hung, here."""
WORLD = Path(__file__).with_name("faulty_world.py")


def experiment_of(seed: int, updates: int = UPDATES, num_envs: int = 16, preset: str = "mpe/simple_spread", **changes):
    chosen = dataclasses.replace(resolve(preset), num_envs=num_envs, num_steps=8, seed=seed, **changes)
    return dataclasses.replace(chosen, total_env_steps=num_envs * 8 * updates)


class Fault:
    """Hits once, after some updates, and watches what becomes of the run."""

    def __init__(self, hit: Callable[["runner.TrainingSupervisor"], None], after: int):
        self.hit, self.after = hit, after
        self.at: float | None = None
        self.update = self.committed = 0
        self.recovered: float | None = None
        self.least: int | None = None

    def __call__(self, site: "runner.TrainingSupervisor") -> None:
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

    @property
    def lost(self) -> int:
        """Committed updates that were undone."""
        return max(0, self.committed - (self.least if self.least is not None else self.committed))


def shoot(name: str) -> Callable[["runner.TrainingSupervisor"], None]:
    """SIGKILL for the process of a service or a worker."""

    def hit(site: "runner.TrainingSupervisor") -> None:
        service = site.services.get(name) or site.workers[name].service
        os.kill(service.handle.call("pid"), signal.SIGKILL)

    return hit


def begun(
    experiment: Experiment, plan: ClusterPlan, folder: Path, launcher: "runner.Launcher"
) -> "runner.TrainingSupervisor":
    """A run in a new folder."""
    run_kinds.create(folder, run_kinds.TRAINING, experiment=experiment.to_dict(), cluster=to_plain(plan))
    return runner.TrainingSupervisor(open_run(folder), plan, launcher)


def on_ray(plan: ClusterPlan, **more):
    from shoal.cluster.transport.ray_launcher import RayLauncher

    return RayLauncher("local", runner.needs(plan), **more)


def row(kind: str, seed: int, fault: Fault, ended: int, total: int, **more) -> dict:
    return {
        "fault": kind,
        "seed": seed,
        "at_update": fault.update,
        "committed": fault.committed,
        "recover_s": None if fault.recovered is None else round(fault.recovered, 2),
        "updates_lost": fault.lost,
        "ended": [ended, total],
    } | more


def service(kind: str, seed: int, root: Path, updates: int = UPDATES) -> dict:
    """A process of one role is shot."""
    random.seed(seed)
    recipe, preset = ("seed", "impala/simple_spread") if kind == "inference server" else ("sync", "mpe/simple_spread")
    plan, experiment = ClusterPlan(recipe, actors=2, commit_seconds=0.5), experiment_of(seed, updates, preset=preset)
    site = begun(experiment, plan, root / f"{kind}-{seed}", on_ray(plan))
    fault = Fault(shoot(SERVICES[kind]), random.randrange(5, updates // 2))
    site.hooks.append(fault)
    result = site.run()
    return row(kind, seed, fault, result.update, experiment.num_updates)


def node(kind: str, seed: int, root: Path, updates: int = UPDATES) -> dict:
    """A cluster of two nodes on this machine: one is removed while it works, another one added."""
    from ray.cluster_utils import Cluster

    from shoal.cluster.transport.ray_launcher import RayLauncher

    random.seed(seed)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    doomed = [cluster.add_node(num_cpus=2)]
    plan, experiment = ClusterPlan(actors=3, commit_seconds=0.5), experiment_of(seed, updates, num_envs=24)
    site = begun(experiment, plan, root / f"{kind}-{seed}", RayLauncher(cluster.address, runner.needs(plan)))

    def swap(_: "runner.TrainingSupervisor") -> None:
        cluster.remove_node(doomed.pop(), allow_graceful=False)
        cluster.add_node(num_cpus=2)

    fault = Fault(swap, random.randrange(5, updates // 2))
    site.hooks.append(fault)
    try:
        result = site.run()
    finally:
        cluster.shutdown()
    moved = sum(worker.restarts for worker in site.workers.values()) > 0
    return row(kind, seed, fault, result.update, experiment.num_updates, moved=moved)


def environment(kind: str, seed: int, root: Path, updates: int = UPDATES) -> dict:
    """An environment in Python goes wrong, once or for ever."""
    from shoal.cluster.transport.ray_launcher import setting_for

    random.seed(seed)
    runpy.run_path(str(WORLD))
    where = root / f"{kind}-{seed} told"
    where.mkdir()
    learners = resolve("control/cartpole").learners
    world = {"env": "gymnasium:FaultyWalk-v0", "env_options": {"where": str(where)}, "learners": learners}
    experiment = dataclasses.replace(Experiment(**world), num_envs=16, num_steps=8, seed=seed)
    experiment = dataclasses.replace(experiment, total_env_steps=16 * 8 * updates)
    USER.admit(experiment.env, experiment.env_options)  # a run folder alone may not name them
    plan = ClusterPlan(actors=2, commit_seconds=0.5, task_timeout=PATIENCE)
    launcher = on_ray(plan, setting=setting_for([str(WORLD)]))
    site = begun(experiment, plan, root / f"{kind}-{seed}", launcher)
    fault = Fault(lambda _: (where / ENVIRONMENT[kind]).touch(), random.randrange(5, updates // 2))
    site.hooks.append(fault)
    more, ended = {}, None
    try:
        ended = site.run().update
    except WorkerError as error:
        more = {"said_after_s": round(time.monotonic() - (fault.at or 0.0), 2), "said": str(error).splitlines()[0]}
    newest = checkpoint.read_meta(checkpoint.latest(root / f"{kind}-{seed}" / "checkpoints"))["update"]
    if kind == "environment gives NaN":
        workers = json.loads((root / f"{kind}-{seed}" / "cluster.json").read_text())["workers"]
        more["nan_resets"] = sum(worker["nan_resets"] for worker in workers.values())
    told = row(kind, seed, fault, newest if ended is None else ended, updates, **more)
    return told | {"updates_lost": max(told["updates_lost"], fault.committed - newest)}


def disk(kind: str, seed: int, root: Path, updates: int = UPDATES) -> dict:
    """A disk in memory is filled up while a run writes to it; then there is room again, and the run is resumed."""
    random.seed(seed)
    small = root / f"disk-{seed}"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(small)], check=True)
    try:
        plan, experiment = ClusterPlan(actors=2, commit_seconds=0.5, retries=2), experiment_of(seed, updates)
        site = begun(experiment, plan, small / "run", on_ray(plan))

        def fill(_: "runner.TrainingSupervisor") -> None:
            with contextlib.suppress(OSError), open(small / "filler", "wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))

        fault, said = Fault(fill, random.randrange(5, updates // 2)), ""
        site.hooks.append(fault)
        try:
            site.run()
        except Exception as error:
            said = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        safe = checkpoint.read_meta(checkpoint.latest(small / "run" / "checkpoints"))["update"]
        (small / "filler").unlink()
        began = time.monotonic()
        result = resume(small / "run", on=Cluster(launcher=on_ray(plan)))
        told = row(kind, seed, fault, result.update, experiment.num_updates, said=said)
        return told | {
            "updates_lost": max(0, fault.committed - safe),
            "recover_s": None,
            "resumed_run_s": round(time.monotonic() - began, 1),
        }
    finally:
        subprocess.run(["umount", "-l", str(small)], check=False)


def driver(kind: str, seed: int, root: Path, updates: int = UPDATES) -> dict:
    """The driver is shot, and with it all of its Ray; `shoal resume` goes on."""
    random.seed(seed)
    updates *= 5  # it takes some commits, one every two seconds, before there is something to lose
    folder, after = root / f"driver-{seed}", random.randrange(5, updates // 5)
    sizes = ["--num-envs", "16", "--num-steps", "8", "--total-env-steps", str(16 * 8 * updates), "--seed", str(seed)]
    process = shoal("train", "mpe/simple_spread", "--cluster", "auto", "--run-dir", str(folder), *sizes)
    while committed_in(folder) < after:
        if process.poll() is not None:
            raise SystemExit("the driver ended before it could be shot")
        time.sleep(0.1)
    process.kill()
    process.wait()
    committed, began = committed_in(folder), time.monotonic()
    time.sleep(3)  # Ray notices, and ends what belonged to the driver
    newest = checkpoint.read_meta(checkpoint.latest(folder / "checkpoints"))["update"]
    process, recovered = shoal("resume", str(folder)), None
    while process.poll() is None:
        if recovered is None and committed_in(folder) > committed:
            recovered = round(time.monotonic() - began, 2)
        time.sleep(0.1)
    ended = checkpoint.read_meta(checkpoint.latest(folder / "checkpoints"))["update"]
    return {
        "fault": kind,
        "seed": seed,
        "committed": committed,
        "recover_s": recovered,
        "updates_lost": max(0, committed - newest),
        "ended": [ended, updates],
    }


def shoal(*args: str, stderr: int = subprocess.DEVNULL) -> subprocess.Popen:
    """The command, in a process of its own."""
    command = [sys.executable, "-m", "shoal", *args]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, text=True)


def committed_in(folder: Path) -> int:
    """Updates that are safe, as the journal says."""
    with contextlib.suppress(OSError):
        return max([entry.get("committed", 0) for entry in read(folder / "journal.jsonl")], default=0)
    return 0


POPULATION = ("psro", "cards/kuhn", "--num-envs", "64", "--total-env-steps", "40960", "--episodes", "2000")


def killer(kind: str, seed: int, root: Path, seconds: float = 300.0, iterations: int = 24) -> dict:
    """Any process of a growing population is shot, again and again."""
    random.seed(seed)
    args = (*POPULATION, "--iterations", str(iterations), "--seed", str(seed), "--cluster", "auto", "--workers", "2")
    calm, shot = root / f"calm-{seed}", root / f"killer-{seed}"
    began = time.monotonic()
    process = shoal(*args, "--run-dir", str(calm), stderr=subprocess.PIPE)
    said = process.communicate()[1]
    if process.returncode:
        raise SystemExit(f"the undisturbed run failed: {said}")
    undisturbed = time.monotonic() - began
    process, began, shots, resumed = shoal(*args, "--run-dir", str(shot)), time.monotonic(), {}, 0
    following = began + random.uniform(10, 20)
    while True:
        if process.poll() is not None:
            if process.returncode == 0 or not (shot / "config.json").exists():
                break
            resumed += 1
            process = shoal("resume", str(shot), "--cluster", "auto")
        if following <= time.monotonic() < began + seconds:
            victims = family(process.pid)
            if victims:
                pid, name = random.choice(victims)
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                    shots[name] = shots.get(name, 0) + 1
            following = time.monotonic() + random.uniform(2, 10)
        time.sleep(0.1)
    own, other = hashes(shot), hashes(calm)
    return {
        "fault": f"any process, for {seconds:.0f} s",
        "seed": seed,
        "shots": shots,
        "resumed": resumed,
        "undisturbed_s": round(undisturbed, 1),
        "took_s": round(time.monotonic() - began, 1),
        "ended": [own["iteration"], iterations],
        "policies_lost": other["policies"] - own["policies"],
        "payoff_entries_lost": other["entries"] - own["entries"],
        "bank_sha256": [own["bank"], other["bank"]],
        "payoff_sha256": [own["table"], other["table"]],
        "equal": own["bank"] == other["bank"] and own["table"] == other["table"],
    }


def family(pid: int) -> list[tuple[int, str]]:
    """All processes that descend from one, it included, and what they are."""
    parents, names = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            head, _, rest = path.read_text().rpartition(")")
            own = int(path.parent.name)
            parents[own], names[own] = int(rest.split()[1]), head.partition("(")[2]
    found, size = {pid}, 0
    while size != len(found):
        size = len(found)
        found |= {child for child, parent in parents.items() if parent in found}
    return [(one, "driver" if one == pid else names.get(one, "?")) for one in sorted(found) if one in parents]


def hashes(folder: Path) -> dict:
    """Digests of banks and payoff table, and how much there is of both."""
    newest = checkpoint.latest(folder / "checkpoints")
    arrays, meta = checkpoint.read_arrays(newest), checkpoint.read_meta(newest)
    digests = {}
    for part in ("banks", "table"):
        digest = hashlib.sha256()
        for name in sorted(name for name in arrays if name.startswith(f"{part}/")):
            digest.update(name.encode() + arrays[name].tobytes())
        digests[part] = digest.hexdigest()
    sizes = [len(members) for members in meta["members"].values()]
    entries = 1
    for size in sizes:
        entries *= size
    return {
        "bank": digests["banks"],
        "table": digests["table"],
        "policies": sum(sizes),
        "entries": entries,
        "iteration": meta["history"][-1]["iteration"],
    }


KINDS: dict[str, Callable[..., dict]] = {
    **dict.fromkeys(SERVICES, service),
    "node removed and another added": node,
    **dict.fromkeys(ENVIRONMENT, environment),
    "disk full": disk,
    "driver killed and resumed": driver,
    "killer": killer,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--seconds", type=float, default=300.0, help="of the killer")
    args = parser.parse_args()
    rows = json.loads(args.out.read_text())["faults"] if args.out.exists() else []
    with tempfile.TemporaryDirectory() as root:
        for kind in args.only.split(","):
            rows = [old for old in rows if old["fault"] != kind and not (kind == "killer" and "shots" in old)]
            for seed in range(1 if kind == "killer" else args.times):
                more = {"seconds": args.seconds} if kind == "killer" else {}
                rows.append(KINDS[kind](kind, seed, Path(root), **more))
                print(rows[-1], flush=True)
                record = {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "faults": rows}
                write_atomically(args.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
