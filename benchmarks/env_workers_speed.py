"""Times environments of other libraries stepped in worker processes, beside those libraries' own vector environments.

    python benchmarks/env_workers_speed.py benchmarks/results/env_workers_speed.json

One step of a batch is one action for each copy; ends of episodes, where the next one begins in the same step, are part
of it. No policy is asked: actions are drawn before the clock starts. The ways to step a batch take turns in one run, so
that whatever else the machine does hits all alike; what counts is the median of the rounds.

- `CartPole-v1`, 8 copies: a step takes a few microseconds, so that messages are what is measured.
- the same, with 300 microseconds of numpy in every step (`--work`): what workers are for.
- `mpe2`'s simple_spread, three agents, 8 copies. PettingZoo has no vector environment of its own (SuperSuit's, which
  were, are not maintained for its newest version), so a plain loop over the copies is the peer.

Ours check every observation (`check=True` for the first 1,000 steps of a copy, NaN always); theirs do not.
"""

import argparse
import functools
import importlib.metadata
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import gymnasium  # what is imported here, Gymnasium's processes import as well: nothing of ours
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

TIMEOUT = 120.0
SPREAD = "pettingzoo:mpe2.simple_spread_v3"


class Worked(gymnasium.Wrapper):
    """So many microseconds of numpy more in every step."""

    def __init__(self, env, work=0.0):
        super().__init__(env)
        self.work, self.matrix = work * 1e-6, np.ones((16, 16))

    def step(self, action):
        until = time.perf_counter() + self.work
        while time.perf_counter() < until:
            self.matrix @ self.matrix
        return self.env.step(action)


def worked(work: float = 0.0):
    return Worked(gymnasium.make("CartPole-v1", disable_env_checker=True), work)


if "WorkedCartPole-v0" not in gymnasium.registry:
    gymnasium.register("WorkedCartPole-v0", worked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=200, help="of the batch, in one measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=float, default=300.0, help="microseconds of numpy in a step of the slow one")
    args = parser.parse_args()
    from shoal.core.registry import import_file

    import_file(__file__)
    cases = {
        "CartPole-v1, 8 copies": functools.partial(cartpole, 0.0),
        f"CartPole-v1 with {args.work:g} us of work a step, 8 copies": functools.partial(cartpole, args.work),
        "mpe2 simple_spread_v3, 8 copies": spread,
    }
    report = {
        "command": f"python benchmarks/env_workers_speed.py {args.output}",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "load": os.getloadavg()[0],
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("shoal", "jax", "gymnasium", "pettingzoo", "mpe2", "numpy")
        },
        "steps": args.steps,
        "env_steps_per_second": {name: measured(case, args.steps, args.rounds) for name, case in cases.items()},
    }
    args.output.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report["env_steps_per_second"], indent=2))


def measured(case: Callable[[], tuple[dict, int]], steps: int, rounds: int) -> dict:
    """Steps of single environments a second, by way of stepping: the median, and all rounds."""
    ways, copies = case()
    for step, _ in ways.values():
        play(step, 20)
    rates = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (step, _) in ways.items():
            rates[name].append(round(copies * steps / play(step, steps)))
    for _, close in ways.values():
        close()
    return {name: {"median": statistics.median(found), "all": found} for name, found in rates.items()}


def play(step: Callable[[int], None], steps: int) -> float:
    began = time.perf_counter()
    for t in range(steps):
        step(t)
    return time.perf_counter() - began


def cartpole(work: float, copies: int = 8) -> tuple[dict, int]:
    actions = np.random.default_rng(0).integers(0, 2, (64, copies))
    makers = [functools.partial(worked, work)] * copies
    theirs = {
        "Gymnasium SyncVectorEnv": SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP),
        f"Gymnasium AsyncVectorEnv, {copies} processes": AsyncVectorEnv(
            makers, context="spawn", autoreset_mode=AutoresetMode.SAME_STEP
        ),
    }
    ways = {}
    for name, env in theirs.items():
        env.reset(seed=0)
        ways[name] = (lambda t, env=env: env.step(actions[t % 64]), env.close)
    return ways | ours("gymnasium:WorkedCartPole-v0", {"work": work}, copies, {"agent": actions[:, :, None]}), copies


def spread(copies: int = 8) -> tuple[dict, int]:
    from mpe2 import simple_spread_v3

    actions = np.random.default_rng(0).integers(0, 5, (64, copies, 3)).astype(np.int32)
    envs = [simple_spread_v3.parallel_env() for _ in range(copies)]
    for i, env in enumerate(envs):
        env.reset(seed=i)

    def step(t: int) -> None:
        for env, chosen in zip(envs, actions[t % 64], strict=True):
            env.step(dict(zip(env.agents, chosen, strict=True)))
            if not env.agents:
                env.reset()

    plain = {"plain loop over PettingZoo": (step, lambda: [env.close() for env in envs])}
    return plain | ours(SPREAD, {}, copies, {"agent": actions}), copies


def ours(id: str, options: dict, copies: int, actions: dict[str, np.ndarray]) -> dict:
    """The host runner's ways: in its own process, and in one to eight others."""
    from shoal.core.registry import make
    from shoal.training.env_workers import EnvSource, WorkerEnvs
    from shoal.training.host_stages import SeparateEnvs

    env, seeds = make(id, **options), list(range(copies))
    stages = {"Shoal, in one process": SeparateEnvs(env, env.open(copies).envs, seeds)}
    for workers in (1, 2, 4, 8):
        stages[f"Shoal, --env-workers {workers}"] = WorkerEnvs(env, EnvSource.of(id, options), seeds, workers, TIMEOUT)
    ways = {}
    for name, stage in stages.items():
        stage.reset()
        ways[name] = (
            lambda t, stage=stage: stage.step({group: rows[t % 64] for group, rows in actions.items()}),
            stage.close,
        )
    return ways


if __name__ == "__main__":
    main()
