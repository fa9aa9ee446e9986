"""QMIX and VDN on simple_spread at JaxMARL's settings: environment steps a CPU-second, against its own.

    taskset -c 0 python benchmarks/values_against_jaxmarl.py benchmarks/results/values_against_jaxmarl.json

Settings are those of its `ql_rnn_mpe` (8 copies x 26 steps, GRU of 64, 32 sequences of 25 steps a gradient step, mixer
made by layers of 128) and `vdn_ff_mpe` (32 x 16, 64-64, 32 single steps a gradient step). Its figures are those of the
reference machine, one CPU; on another machine only the ratio between the two algorithms means something. Learning
starts at once, so that all that is timed learns.
"""

import argparse
import json
from pathlib import Path

import jax

from shoal.algorithms import DQN
from shoal.core.files import write_atomically
from shoal.networks.torsos import Network
from shoal.training.bench import bench_train, versions
from shoal.training.experiment import Experiment, Learner

COMMON = {
    "gamma": 0.9,
    "learning_rate": 5e-3,
    "max_grad_norm": 25.0,
    "batch_size": 32,
    "gradient_steps": 1,
    "warm_up": 0,
}
QMIX = DQN(
    sequence=25,
    buffer_size=125_000,
    mixer="monotonic",
    mixer_hidden=128,
    network=Network((64,), "relu", "gru", 64),
    **COMMON,
)
VDN = DQN(buffer_size=100_000, mixer="sum", network=Network((64, 64), "relu"), **COMMON)
CASES = {"qmix": (QMIX, 8, 26, 10_000), "vdn": (VDN, 32, 16, 126_000)}
"""Algorithm, copies, steps between updates, and JaxMARL's environment steps a CPU-second."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0, help="to measure each for")
    args = parser.parse_args()
    results = {}
    for name, (algorithm, num_envs, num_steps, theirs) in CASES.items():
        experiment = Experiment(
            "mpe/simple_spread",
            learners={"team": Learner(algorithm)},
            num_envs=num_envs,
            num_steps=num_steps,
            total_env_steps=10_000_000,
        )
        result = bench_train(experiment, devices=1, seconds=args.seconds)
        results[name] = result | {"jaxmarl": theirs, "ratio": round(result["env_steps_per_cpu_s"] / theirs, 2)}
        shown = {key: round(results[name][key], 2) for key in ("env_steps_per_cpu_s", "ratio", "compile_s")}
        print(name, json.dumps(shown), flush=True)
    record = {"results": results, "device": jax.devices()[0].device_kind, "versions": versions()}
    write_atomically(args.output, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
