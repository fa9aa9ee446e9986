"""How rates and returns change with the number of actors: MADDPG on simple_adversary and APPO on pong, 1 to 8 actors.

    python benchmarks/cluster_sweep.py benchmarks/results/cluster_sweep.json [--peer PYTHON]

Each training has the same copies and the same env steps, dealt to the actors of a Ray on this machine. Rates are env
steps per second after the first updates. Returns are greedy: of all agents together against each other in
simple_adversary; of pong's left player against random play on the right. PYTHON is one that has `ray[rllib]` and torch,
and Shoal's pong through its PettingZoo wrapper: RLlib's APPO is then trained for `--peer-seconds` with as many env
runners, its policy played in the same way. RLlib has no MADDPG any more.
"""

import argparse
import dataclasses
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

ACTORS = (1, 2, 4, 8)
ROWS = {"maddpg": ("maddpg/simple_adversary", "stale", 200_000), "appo": ("appo/pong", "appo", 2_000_000)}
EPISODES = 256
COPIES = 32
"""Environments of all of RLlib's runners together."""


def main() -> None:
    args = arguments()
    if args.side:
        print(json.dumps(theirs(args)))
        return
    from shoal.training.devices import num_cores, use_all_cores, use_compilation_cache

    use_all_cores()
    use_compilation_cache()
    rows = json.loads(args.out.read_text())["rows"] if args.out.exists() else {}
    for name in args.only.split(","):
        for actors in args.actors:
            if name == "rllib_appo":
                rows[f"{name}/{actors}"] = apart(args, actors)
            else:
                rows[f"{name}/{actors}"] = ours(name, actors, args.steps)
            print(name, actors, rows[f"{name}/{actors}"], flush=True)
            record = {"machine": f"{platform.machine()}, {num_cores()} cores", "rows": rows}
            args.out.write_text(json.dumps(record, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default=",".join(ROWS), help="of maddpg, appo, rllib_appo")
    parser.add_argument("--actors", type=int, nargs="+", default=ACTORS)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--peer", help="a Python that has RLlib")
    parser.add_argument("--peer-seconds", type=float, default=60.0)
    parser.add_argument("--side", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def ours(name: str, actors: int, steps: int | None) -> dict:
    from cluster_speed import Clock

    from shoal.cluster.plan import ClusterPlan
    from shoal.cluster.run import Cluster
    from shoal.presets import resolve
    from shoal.training.runner import run

    preset, recipe, total = ROWS[name]
    experiment = dataclasses.replace(resolve(preset), total_env_steps=steps or total)
    plan, clock, began = ClusterPlan(recipe, actors=actors), Clock(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        result = run(experiment, path, on=Cluster("local", plan), listener=clock)
        status = json.loads((path / "cluster.json").read_text())
    return {
        "actors": actors,
        "copies_each": experiment.num_envs // actors,
        "env_steps": experiment.total_env_steps,
        "env_steps_per_s": round(clock.rate),
        "seconds": round(time.perf_counter() - began, 1),
        "return": played(experiment, result.policies),
        "random": played(experiment, {}),
        "staleness": status["staleness"],
        "load": round(os.getloadavg()[0], 1),
    }


def played(experiment, policies) -> dict[str, float]:
    """Mean greedy returns of each group; in pong the right player plays at random."""
    from shoal.training.evaluate import evaluate

    chosen = {name: policy for name, policy in policies.items() if name != "right"} if policies else {}
    found = evaluate(experiment.setup, chosen or None, episodes=EPISODES)
    return {group: round(float(values.mean()), 3) for group, values in found.returns.items()}


def apart(args: argparse.Namespace, actors: int) -> dict:
    """RLlib, in a process of its own."""
    command = [args.peer, __file__, str(args.out), f"--side={actors}", f"--peer-seconds={args.peer_seconds}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"RLlib failed:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def theirs(args: argparse.Namespace) -> dict:
    """RLlib's APPO on the same pong, one policy for each side as ours has."""
    import logging
    import warnings

    import numpy as np
    import ray
    import torch
    from ray.rllib.algorithms.appo import APPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec
    from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
    from ray.tune.registry import register_env

    warnings.simplefilter("ignore")
    ray.init(num_cpus=args.side + 1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)

    def make(_=None):
        from shoal.bridges.outgoing.pettingzoo import parallel_env

        return ParallelPettingZooEnv(parallel_env("pong"))

    register_env("pong", make)
    model = DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
    config = (
        APPOConfig()
        .environment("pong")
        .env_runners(num_env_runners=args.side, num_envs_per_env_runner=max(1, COPIES // args.side))
        .multi_agent(policies={"left", "right"}, policy_mapping_fn=lambda agent, episode, **_: agent.split("_")[0])
        .rl_module(rl_module_spec=RLModuleSpec(model_config=model))
        .training(train_batch_size_per_learner=1024, lr=1e-3)
    )
    algorithm, steps, began, first = config.build_algo(), 0.0, time.perf_counter(), None
    while time.perf_counter() - began < args.peer_seconds:
        steps = float(algorithm.train()["env_runners"]["num_env_steps_sampled_lifetime"])
        if first is None and time.perf_counter() - began > 15:
            first = (time.perf_counter(), steps)
    seconds = time.perf_counter() - first[0]
    module, env, draws = algorithm.get_module("left"), make().par_env, np.random.default_rng(0)
    left, right = env.possible_agents
    returns = []
    for seed in range(32):
        seen, total = env.reset(seed=seed)[0], 0.0
        while env.agents:
            view = torch.as_tensor(np.asarray(seen[left], np.float32))[None]
            action = int(module.forward_inference({"obs": view})["action_dist_inputs"].argmax())
            seen, reward, *_ = env.step({left: action, right: int(draws.integers(env.action_space(right).n))})
            total += reward[left]
        returns.append(total)
    algorithm.stop()
    ray.shutdown()
    return {
        "actors": args.side,
        "copies_each": max(1, COPIES // args.side),
        "env_steps": steps,
        "env_steps_per_s": round((steps - first[1]) / seconds),
        "return": {"left": float(np.mean(returns))},
        "load": round(os.getloadavg()[0], 1),
    }


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
