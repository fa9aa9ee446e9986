"""Times the particle worlds against VMAS and JaxMARL, on one core, in one run.

    python benchmarks/mpe_against_peers.py /path/to/peers/bin/python benchmarks/results/mpe_against_peers.json

The peers need an environment of their own: `pip install jaxmarl==0.2.0 vmas==1.5.2 torch==2.13.0`. Each framework runs
in a process of its own, all on the same core; they take turns, scenario by scenario and several times over, so that
whatever else the machine does hits all alike. What counts is environment steps per CPU-second of that process; per
second of wall time they are kept too. In every step each copy gets random actions, which are drawn before the clock
starts: drawing them is not the world's work. Every number of the views and rewards is summed up over the copies.
Episodes last 25 steps (26 in JaxMARL) and finished copies start anew. JaxMARL is compiled with `jit` and `scan` as its
own training scripts do, one key a copy and step. VMAS runs on one thread (several on one core would wait for each
other) and resets all copies at once, as all finish at once: its fastest way.
"""

import argparse
import functools
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUM_ENVS = 10_000
EPISODE = 25
STEPS_A_CALL = 50
SCENARIOS = {  # JaxMARL's versions of the names
    "simple": "v3",
    "simple_adversary": "v3",
    "simple_crypto": "v3",
    "simple_push": "v3",
    "simple_reference": "v3",
    "simple_speaker_listener": "v4",
    "simple_spread": "v3",
    "simple_tag": "v3",
    "simple_world_comm": "v3",
}
GOALS = dict.fromkeys(SCENARIOS, 5.0) | {"simple_spread": 2.0}
KINDS = {"discrete": False, "continuous": True}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peers", help="Python interpreter that has JaxMARL and VMAS")
    parser.add_argument("output", type=Path)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    workers = {
        "shoal": Worker(sys.executable, "shoal"),
        "jaxmarl": Worker(args.peers, "jaxmarl"),
        "vmas": Worker(args.peers, "vmas"),
    }
    rows = []
    for scenario in SCENARIOS:
        for kind in KINDS:
            rows.append(compare(workers, scenario, kind, args.seconds, args.repeats))
            print(line(rows[-1]), flush=True)
    kept = {
        "command": " ".join(["python benchmarks/mpe_against_peers.py PEERS", *sys.argv[2:]]),
        "num_envs": NUM_ENVS,
        "seconds": args.seconds,
        "repeats": args.repeats,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}; every process held to the same one core",
        "versions": {name: worker.versions for name, worker in workers.items()},
        "rows": rows,
    }
    args.output.write_text(json.dumps(kept, indent=1) + "\n")
    missed = [row for row in rows if row["ratio_per_cpu_s"] < GOALS[row["scenario"]]]
    print("all goals met" if not missed else f"below their goals: {[(r['scenario'], r['actions']) for r in missed]}")


def compare(workers: dict[str, "Worker"], scenario: str, kind: str, seconds: float, repeats: int) -> dict[str, Any]:
    """All frameworks on one scenario, by turns; rates are medians over the repeats."""
    timings: dict[str, list[dict[str, float]]] = {name: [] for name in workers}
    for _ in range(repeats):
        for name, worker in workers.items():
            timings[name].append(worker.measure(scenario, KINDS[kind], seconds))
    rates = {
        name: {
            "env_steps_per_cpu_s": statistics.median(t["steps"] / t["cpu_s"] for t in turns),
            "env_steps_per_s": statistics.median(t["steps"] / t["wall_s"] for t in turns),
            "mean_reward": statistics.mean(t["reward"] for t in turns),
            "turns": turns,
        }
        for name, turns in timings.items()
    }
    best = max((name for name in rates if name != "shoal"), key=lambda name: rates[name]["env_steps_per_cpu_s"])
    ratio = rates["shoal"]["env_steps_per_cpu_s"] / rates[best]["env_steps_per_cpu_s"]
    return {
        "scenario": scenario,
        "actions": kind,
        "faster_peer": best,
        "ratio_per_cpu_s": ratio,
        "goal": GOALS[scenario],
        "rates": rates,
    }


def line(row: dict[str, Any]) -> str:
    rates = (f"{name} {rate['env_steps_per_cpu_s'] / 1e6:7.3f} M" for name, rate in row["rates"].items())
    return f"{row['scenario']:24s} {row['actions']:10s} {', '.join(rates)}: {row['ratio_per_cpu_s']:5.1f}x"


class Worker:
    """A framework in a process of its own, which times a scenario when told to."""

    def __init__(self, interpreter: str, framework: str):
        command = [interpreter, __file__, "--worker", framework]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.versions = self._answer()

    def measure(self, scenario: str, continuous: bool, seconds: float) -> dict[str, float]:
        assert self.process.stdin is not None
        print(json.dumps([scenario, continuous, seconds]), file=self.process.stdin, flush=True)
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            if text.startswith("{"):  # all else is what the frameworks print of their own accord
                return json.loads(text)
        raise RuntimeError(f"{self.process.args} ended without an answer")


def work(framework: str) -> None:
    """The worker's side: one line in, one line out, until the input ends."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    make = {"shoal": shoal_call, "jaxmarl": jaxmarl_call, "vmas": vmas_call}[framework]
    make = functools.lru_cache(maxsize=1)(make)  # the turns on one scenario follow each other
    packages = {"shoal": ("shoal", "jax", "numpy"), "jaxmarl": ("jaxmarl", "jax"), "vmas": ("vmas", "torch")}
    versions = {name: importlib.metadata.version(name) for name in packages[framework]}
    print(json.dumps({"python": platform.python_version()} | versions), flush=True)
    for text in sys.stdin:
        scenario, continuous, seconds = json.loads(text)
        print(json.dumps(timed(make(scenario, continuous), seconds)), flush=True)


def timed(call: Callable[[], float], seconds: float) -> dict[str, float]:
    """Calls, each `STEPS_A_CALL` steps of all copies, until `seconds` have passed."""
    call()
    calls, reward, cpu, wall = 0, 0.0, time.process_time(), time.perf_counter()
    while time.perf_counter() - wall < seconds:
        reward += call()
        calls += 1
    return {
        "steps": calls * STEPS_A_CALL * NUM_ENVS,
        "cpu_s": time.process_time() - cpu,
        "wall_s": time.perf_counter() - wall,
        "reward": reward / calls,
    }


def shoal_call(scenario: str, continuous: bool) -> Callable[[], float]:
    """Steps of all copies with random actions; returns the mean reward, summed over agents."""
    import jax

    import shoal
    from shoal.batching.vectorise import Vectorised
    from shoal.core.spaces import action_shape

    env = shoal.make(f"mpe/{scenario}", continuous=continuous)
    copies = Vectorised(env, NUM_ENVS)
    sizes = {
        name: ((group.size, *action_shape(group.action)), None if continuous else group.action.n)
        for name, group in env.groups.items()
    }

    def step(worlds, actions, key):
        del key  # each copy has its own
        worlds, outcome, _ = copies.step(worlds, actions)
        return worlds, (worlds.observation, outcome.reward)

    return compiled_call(jax.jit(copies.reset)(jax.random.key(0)), step, sizes)


def jaxmarl_call(scenario: str, continuous: bool) -> Callable[[], float]:
    import jax
    import jaxmarl

    kind = "Continuous" if continuous else "Discrete"
    env = jaxmarl.make(f"MPE_{scenario}_{SCENARIOS[scenario]}", action_type=kind)
    spaces = {name: env.action_space(name) for name in env.agents}
    sizes = {name: (space.shape, None) if continuous else ((), space.n) for name, space in spaces.items()}

    def step(state, actions, key):
        views, state, rewards, _, _ = jax.vmap(env.step)(jax.random.split(key, NUM_ENVS), state, actions)
        return state, (views, {name: rewards[name] for name in env.agents})

    _, state = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), NUM_ENVS))
    return compiled_call(state, step, sizes)


def compiled_call(state: Any, step: Callable, sizes: dict[str, tuple[tuple[int, ...], Any]]) -> Callable[[], float]:
    """`STEPS_A_CALL` steps as one compiled program; all that a step hands out is summed up.

    sizes: the shape of each group's or agent's actions in one copy, and of how many they choose (None: from 0 to 1).
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    numbers = np.random.default_rng(0)

    def draw(shape, n):
        shape = (STEPS_A_CALL, NUM_ENVS, *shape)
        return numbers.random(shape, np.float32) if n is None else numbers.integers(n, size=shape, dtype=np.int32)

    actions = {name: jnp.asarray(draw(shape, n)) for name, (shape, n) in sizes.items()}

    def consume(state, given):
        state, handed_out = step(state, *given)
        return state, jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), handed_out)

    @functools.partial(jax.jit, donate_argnums=0)
    def run(state, actions, key):
        return jax.lax.scan(consume, state, (actions, jax.random.split(key, STEPS_A_CALL)))

    kept = [state, 0]

    def call() -> float:
        kept[1] += 1
        kept[0], (_, earned) = jax.block_until_ready(run(kept[0], actions, jax.random.key(kept[1])))
        return sum(float(np.sum(leaf)) for leaf in jax.tree.leaves(earned)) / (STEPS_A_CALL * NUM_ENVS)

    return call


def vmas_call(scenario: str, continuous: bool) -> Callable[[], float]:
    import torch
    import vmas

    torch.set_num_threads(1)
    env = vmas.make_env(
        scenario=scenario, num_envs=NUM_ENVS, device="cpu", continuous_actions=continuous, seed=0, max_steps=EPISODE
    )
    env.reset()
    actions = [env.get_random_actions() for _ in range(STEPS_A_CALL)]

    def call() -> float:
        seen, earned = [], 0.0
        for given in actions:
            views, rewards, done, _ = env.step(given)
            if bool(done.all()):
                views = env.reset()
            seen.append([view.sum(0) for view in views])
            earned += sum(float(reward.sum(0)) for reward in rewards)
        return earned / (STEPS_A_CALL * NUM_ENVS)

    return call


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2])
    else:
        main()
