"""PPO against a bank of opponents: how much longer does an update take than against a single one?

    python benchmarks/bank_speed.py benchmarks/results/h200/bank.json --num-envs 4096 --opponents 1 64

The training is that of a best response in `psro/leduc`, rollout and update: each copy of the game draws its opponent
from the bank when an episode begins. Banks are timed in turns, so that whatever else the machine does hits all of them.
"""

import argparse
import dataclasses
import json
import shlex
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from shoal.api.suite import commit, device
from shoal.core.files import write_atomically
from shoal.populations.game import Game
from shoal.populations.responses import Responses
from shoal.presets import resolve
from shoal.training.bench import versions
from shoal.training.devices import use_all_cores
from shoal.training.program import MAX_UPDATES


class Bank:
    """A response to a uniform mixture of so many policies, compiled."""

    def __init__(self, preset: str, num_envs: int, opponents: int, seconds: float):
        experiment = resolve(preset)
        steps = num_envs * experiment.num_steps
        experiment = dataclasses.replace(experiment, num_envs=num_envs, total_env_steps=1_000_000 * steps)
        game = Game(experiment)
        player = game.players[0]
        self.opponents, self.steps = opponents, steps
        self.program = Responses(game, opponents, learning=(player,)).programs[player]
        self.carry = self._with_mixtures(self.program.init())
        began = time.perf_counter()
        self.advance = self.program.advance.lower(self.carry, self.program.counts[0]).compile()
        self.compile_s = time.perf_counter() - began
        self.update_s: list[float] = []
        self.count = 1
        self.call()  # the first one may allocate
        self.count = max(1, min(MAX_UPDATES, int(seconds / self.call())))

    def _with_mixtures(self, carry: Any) -> Any:
        """Every policy of a bank is drawn as often as any other."""
        uniform = jnp.full(self.opponents, 1 / self.opponents)
        learners = dict(carry.learners)
        for name, learner in self.program.experiment.learners.items():
            if learner.frozen:
                params = {group: bank.replace(mixture=uniform) for group, bank in learners[name].params.items()}
                learners[name] = learners[name].replace(params=params)
        return jax.device_put(carry.replace(learners=learners), self.program.shardings)

    def call(self) -> float:
        """Seconds an update."""
        began = time.perf_counter()
        self.carry, table = self.advance(self.carry, self.program.counts[self.count])
        jax.block_until_ready(table)
        return (time.perf_counter() - began) / self.count

    def row(self, first: float) -> dict[str, Any]:
        median = statistics.median(self.update_s)
        found = {"opponents": self.opponents, "update_s": median, "over_first": median / first}
        found |= {"spread": [min(self.update_s), max(self.update_s)], "updates_a_call": self.count}
        return found | {"env_steps_per_s": self.steps / median, "compile_s": self.compile_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--preset", default="psro/leduc")
    parser.add_argument("--num-envs", type=int, default=4096)
    parser.add_argument("--opponents", type=int, nargs="+", default=[1, 64], help="sizes of banks")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each of the timed calls, about")
    args = parser.parse_args()
    use_all_cores()
    banks = [Bank(args.preset, args.num_envs, opponents, args.seconds) for opponents in args.opponents]
    for _ in range(args.repeats):
        for bank in banks:
            bank.update_s.append(bank.call())
    rows = [bank.row(statistics.median(banks[0].update_s)) for bank in banks]
    for row in rows:
        figures = f"{1000 * row['update_s']:.2f} ms an update, {row['over_first']:.2f} times the first"
        print(f"{row['opponents']:,} opponents: {figures}", flush=True)
    record = {"what": "PPO's best response to a uniform mixture of a bank, an update with its rollout"}
    record |= {"command": shlex.join(["python", *sys.argv]), "preset": args.preset, "num_envs": args.num_envs}
    record |= {"rows": rows, "kernels": banks[-1].program.kernels, "device": device(), "commit": commit()}
    write_atomically(args.output, json.dumps(record | {"versions": versions()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
