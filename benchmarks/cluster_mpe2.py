"""Trains PPO on `mpe2`'s simple_spread, an environment in Python, on a cluster of this machine; beside RLlib's PPO.

    python benchmarks/cluster_mpe2.py benchmarks/results/cluster_mpe2.json --peer PYTHON

Both learn one shared policy of 64 x 64 units in 4 epochs with 2 actors, and take turns `--rounds` times. PYTHON is one
that has `ray[rllib]`, torch, pettingzoo and mpe2; RLlib has 8 environments an actor and a batch of 2,000 env steps.
Counted are env steps (all three agents act in one) over at least `--seconds` seconds, after as many to warm up, and the
CPU seconds that all processes of the run took meanwhile: on a busy machine those say what an idle one would do.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

ACTORS = 2
EPOCHS = 4
HIDDEN = (64, 64)
GOAL = 4_000
PEER = {"environments": 8, "batch": 2000, "minibatch": 500}


def main() -> None:
    args = arguments()
    if args.side:
        print(json.dumps({"shoal": ours, "rllib": theirs}[args.side](args)))
        return
    sides = {"shoal": sys.executable} | ({"rllib": args.peer} if args.peer else {})
    runs = {name: [] for name in sides}
    for _ in range(args.rounds):
        for name, python in sides.items():
            runs[name].append(apart(name, python, args))
            print(name, {key: round(value, 1) for key, value in runs[name][-1].items()}, flush=True)
    args.output.write_text(json.dumps(report(args, runs), indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--peer", help="a Python that has RLlib")
    parser.add_argument("--side", choices=["shoal", "rllib"], help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--warm-up", type=float, default=15.0)
    parser.add_argument("--num-envs", type=int, default=64, help="of both actors together")
    parser.add_argument("--num-steps", type=int, default=64)
    parser.add_argument("--minibatches", type=int, default=4)
    parser.add_argument("--recipe", default="sync")
    return parser.parse_args()


def apart(side: str, python: str, args: argparse.Namespace) -> dict[str, float]:
    """One measurement in a process of its own."""
    options = [f"--{name.replace('_', '-')}={getattr(args, name)}" for name in SETTINGS]
    command = [python, __file__, str(args.output), f"--side={side}", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


SETTINGS = ("seconds", "warm_up", "num_envs", "num_steps", "minibatches", "recipe")


class Clock:
    """Rates from a count of env steps that is looked at now and then: between the end of the warm-up and the end."""

    def __init__(self, warm_up: float, seconds: float):
        self.warm_up, self.seconds = warm_up, seconds
        self.start: float | None = None
        self.first: tuple[float, float, float] | None = None
        self.last = (0.0, 0.0, 0.0)

    def look(self, steps: float) -> bool:
        """Whether it is enough. The time of the warm-up begins when the first steps are there."""
        now = time.perf_counter()
        self.start = now if self.start is None and steps else self.start
        if self.start is None or now - self.start < self.warm_up:
            return False
        if self.first is None:
            self.first = (now, steps, cpu_seconds())
            return False
        if steps > self.last[1]:
            self.last = (now, steps, cpu_seconds())
        return self.last[0] - self.first[0] >= self.seconds

    def rates(self) -> dict[str, float]:
        assert self.first is not None
        wall, steps, cpu = (end - begin for end, begin in zip(self.last, self.first, strict=True))
        return {
            "steps_per_second": steps / wall,
            "steps_per_cpu_second": steps / cpu,
            "cores_used": cpu / wall,
            "seconds": wall,
            "load": os.getloadavg()[0],
        }


def cpu_seconds() -> float:
    """CPU time of this process and of all that it has started, alive or not."""
    rows = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        rows[int(path.parent.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    mine, size = {os.getpid()}, 0
    while size != len(mine):
        size = len(mine)
        mine |= {pid for pid, (parent, _) in rows.items() if parent in mine}
    return sum(rows[pid][1] for pid in mine) / os.sysconf("SC_CLK_TCK")


def ours(args: argparse.Namespace) -> dict[str, float]:
    from shoal.algorithms import PPO
    from shoal.cluster.plan import ClusterPlan
    from shoal.cluster.run import Cluster
    from shoal.networks.torsos import Network
    from shoal.training import runner
    from shoal.training.experiment import Experiment, Learner

    learner = Learner(PPO(epochs=EPOCHS, minibatches=args.minibatches, network=Network(hidden=HIDDEN)))
    experiment = Experiment(
        "pettingzoo:mpe2.simple_spread_v3",
        env_options={"check": False},  # as it is anyway after the first 1,000 steps of each copy
        learners={"learner": learner},
        num_envs=args.num_envs,
        num_steps=args.num_steps,
        total_env_steps=10**9,
    )
    plan, clock = ClusterPlan(recipe=args.recipe, actors=ACTORS, commit_seconds=5.0), Clock(args.warm_up, args.seconds)

    def listener(progress) -> None:
        if clock.look(progress.env_steps):
            raise KeyboardInterrupt

    on = Cluster("local", plan)
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
        runner.run(experiment, Path(folder) / "run", on=on, listener=listener)
    return clock.rates()


def theirs(args: argparse.Namespace) -> dict[str, float]:
    import logging
    import warnings

    import ray
    from mpe2 import simple_spread_v3
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec
    from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
    from ray.tune.registry import register_env

    warnings.simplefilter("ignore")
    ray.init(num_cpus=ACTORS + 1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    register_env("spread", lambda _: ParallelPettingZooEnv(simple_spread_v3.parallel_env()))
    model = DefaultModelConfig(fcnet_hiddens=list(HIDDEN), fcnet_activation="tanh", vf_share_layers=False)
    config = (
        PPOConfig()
        .environment("spread")
        .env_runners(num_env_runners=ACTORS, num_envs_per_env_runner=PEER["environments"])
        .multi_agent(policies={"shared"}, policy_mapping_fn=lambda agent, episode, **_: "shared")
        .rl_module(rl_module_spec=RLModuleSpec(model_config=model))
        .training(train_batch_size_per_learner=PEER["batch"], minibatch_size=PEER["minibatch"], num_epochs=EPOCHS)
    )
    algorithm, clock = config.build_algo(), Clock(args.warm_up, args.seconds)
    steps = 0.0
    while not clock.look(steps):
        steps = float(algorithm.train()["env_runners"]["num_env_steps_sampled_lifetime"])
    rates = clock.rates()
    algorithm.stop()
    ray.shutdown()
    return rates


def report(args: argparse.Namespace, runs: dict[str, list[dict[str, float]]]) -> dict:
    rows: dict[str, dict] = {
        name: {key: statistics.median(run[key] for run in own) for key in own[0]} | {"runs": own}
        for name, own in runs.items()
    }
    versions = {
        name: importlib.metadata.version(name) for name in ("shoal", "jax", "ray", "pettingzoo", "mpe2", "numpy")
    }
    found = {
        "command": "python " + " ".join(sys.argv),
        "machine": f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}",
        "versions": versions,
        "actors": ACTORS,
        "epochs": EPOCHS,
        "hidden": HIDDEN,
        "settings": {name: getattr(args, name) for name in SETTINGS},
        "rllib_settings": PEER,
        "goal_steps_per_second": GOAL,
        "rows": rows,
    }
    if "rllib" in rows:
        for key in ("steps_per_second", "steps_per_cpu_second"):
            found[f"times_rllib_{key}"] = rows["shoal"][key] / rows["rllib"][key]
    return found


if __name__ == "__main__":
    main()
