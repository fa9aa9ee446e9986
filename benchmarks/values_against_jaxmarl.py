"""QMIX and VDN on simple_spread at JaxMARL's settings: environment steps a CPU-second, by turns with its own programs.

    taskset -c 0 python benchmarks/values_against_jaxmarl.py OUT.json --jaxmarl CHECKOUT [--updates 200] [--repeats 5]

CHECKOUT is one of JaxMARL's repository, as its package holds worlds and no training programs: `qmix_rnn.py` and
`vdn_ff.py` are run as they are, with their own settings; they need flashbax. Settings are those of its `ql_rnn_mpe`
(8 copies x 26 steps, GRU of 64, 32 sequences of 25 steps a gradient step, mixer made by layers of 128) and `vdn_ff_mpe`
(32 x 16, 64-64, 32 single steps a gradient step). Learning starts at once and nothing is evaluated, so that all that is
timed plays and learns, on both sides; QMIX's buffer of theirs is told that it may be drawn from at once as well.

A call makes `--updates` updates, and nothing is compiled within it. Theirs begins anew in each call: with few updates,
making its buffer weighs on its rate, which matters for VDN (buffer of 100,000, calls of a fraction of a second).
Rates are medians over the repeats, with their spread; the ratio is the median of those of the turns.
"""

import argparse
import json
import statistics
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from shoal.algorithms import DQN
from shoal.api.suite import commit
from shoal.core.files import write_atomically
from shoal.networks.torsos import Network
from shoal.training.bench import versions
from shoal.training.experiment import Experiment, Learner
from shoal.training.fused import make_fused_program

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
CASES = {"qmix": (QMIX, 8, 26, "qmix_rnn", "ql_rnn_mpe"), "vdn": (VDN, 32, 16, "vdn_ff", "vdn_ff_mpe")}
"""Algorithm, copies, steps between updates, and JaxMARL's program and settings."""

Call = Callable[[], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--jaxmarl", type=Path, required=True, help="a checkout of JaxMARL's repository")
    parser.add_argument("--updates", type=int, default=200, help="of a call")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    args = parser.parse_args()
    results = {}
    for name in args.only:
        algorithm, num_envs, num_steps, program, settings = CASES[name]
        calls = {
            "shoal": make_own(algorithm, num_envs, num_steps, args.updates),
            "jaxmarl": make_theirs(args.jaxmarl, program, settings, args.updates),
        }
        rates = measure_by_turns(calls, args.updates * num_envs * num_steps, args.repeats)
        ratios = [own / theirs for own, theirs in zip(*rates.values(), strict=True)]
        results[name] = {side: summarise(list(found)) for side, found in rates.items()} | {"ratio": summarise(ratios)}
        print(name, json.dumps(results[name]), flush=True)
    record = {
        "results": results,
        "unit": "env steps per CPU-second",
        "command": f"python benchmarks/values_against_jaxmarl.py --updates {args.updates} --repeats {args.repeats}",
        "commit": commit(),
        "device": jax.devices()[0].device_kind,
        "versions": versions(),
    }
    write_atomically(args.output, json.dumps(record, indent=1) + "\n")


def make_own(algorithm: DQN, num_envs: int, num_steps: int, updates: int) -> Call:
    learners = {"team": Learner(algorithm)}
    sizes: dict[str, Any] = {"num_envs": num_envs, "num_steps": num_steps, "total_env_steps": 10_000_000}
    program = make_fused_program(Experiment("mpe/simple_spread", learners=learners, **sizes), 1)
    carry = program.init()
    advance = program.advance.lower(carry, program.counts[updates]).compile()
    kept = [carry]

    def call() -> Any:
        kept[0], table = advance(kept[0], program.counts[updates])
        return table

    return call


def make_theirs(checkout: Path, program: str, settings: str, updates: int) -> Call:
    """JaxMARL's own training program, as one compiled call that begins anew each time."""
    import yaml

    folder = checkout / "baselines" / "QLearning"
    sys.path.insert(0, str(folder))
    for name in ("hydra", "wandb", "omegaconf"):  # of its command line and its logs: not used by what is timed
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules["hydra"].main = lambda **_: lambda function: function  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules["omegaconf"].OmegaConf = object  # pyright: ignore[reportAttributeAccessIssue]
    module = __import__(program)
    if program == "qmix_rnn":
        make = module.fbx.make_trajectory_buffer
        module.fbx.make_trajectory_buffer = lambda **options: make(**options | {"min_length_time_axis": 1})
    config = yaml.safe_load((folder / "config" / "alg" / f"{settings}.yaml").read_text())
    steps = updates * config["NUM_ENVS"] * config["NUM_STEPS"]
    config |= {"TOTAL_TIMESTEPS": steps, "LEARNING_STARTS": 0, "TEST_DURING_TRAINING": False}
    config |= {"ALG_NAME": program, "WANDB_MODE": "disabled"}
    config["BUFFER_SIZE"] = int(float(config["BUFFER_SIZE"]))  # written as 1e5, which YAML reads as text
    env = module.MPELogWrapper(module.make(config["ENV_NAME"], **config["ENV_KWARGS"]))
    key = jax.random.PRNGKey(0)
    compiled = jax.jit(module.make_train(config, env)).lower(key).compile()
    return lambda: compiled(key)


def measure_by_turns(calls: dict[str, Call], steps: int, repeats: int) -> dict[str, list[float]]:
    """Steps a CPU-second of each, one after the other in every turn."""
    rates: dict[str, list[float]] = {side: [] for side in calls}
    for call in calls.values():
        jax.block_until_ready(call())
    for _ in range(repeats):
        for side, call in calls.items():
            began = time.process_time()
            jax.block_until_ready(call())
            rates[side].append(steps / (time.process_time() - began))
    return rates


def summarise(numbers: list[float]) -> dict[str, float]:
    return {"median": statistics.median(numbers), "least": min(numbers), "most": max(numbers)}


if __name__ == "__main__":
    main()
