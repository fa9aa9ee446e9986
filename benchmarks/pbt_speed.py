"""What does population-based training cost, next to as many seeds and next to one training? Wall time, not compilation.

    python benchmarks/pbt_speed.py benchmarks/results/pbt_speed.json --members 64

Members and seeds are one program with as many trainings side by side; that of members compares and copies them every
few updates. All are timed in turns, so that whatever else the machine does hits all, and the medians are compared.
Every timed call has whole intervals, so that each has its share of comparisons.
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
import numpy as np

from shoal.populations.pbt.plan import PBT, Range
from shoal.training.devices import use_all_cores
from shoal.training.serialise import to_plain

use_all_cores()

from shoal import presets  # noqa: E402
from shoal.core.files import write_atomically  # noqa: E402
from shoal.populations.pbt.program import SOURCE  # noqa: E402
from shoal.training.bench import versions  # noqa: E402
from shoal.training.fused import make_fused_program  # noqa: E402
from shoal.training.program import MAX_UPDATES  # noqa: E402

ENDLESS = 1_000_000
"""Updates of a run that is not over while it is timed."""


class Timed:
    """A compiled program that is called with whole intervals of updates that take about `seconds`."""

    def __init__(self, program: Any, interval: int, seconds: float):
        self.program = program
        self.carry = program.init()
        began = time.perf_counter()
        self.advance = program.advance.lower(self.carry, program.counts[0]).compile()
        self.compile_s = time.perf_counter() - began
        self.per_update: list[float] = []
        self.copied = 0
        self.count = interval
        self.call()  # the first one may allocate
        most = MAX_UPDATES // interval
        self.count = interval * max(1, min(most, int(seconds / (self.call() * interval))))

    def call(self) -> float:
        """Seconds an update."""
        began = time.perf_counter()
        self.carry, table = self.advance(self.carry, self.program.counts[self.count])
        jax.block_until_ready(table)
        took = (time.perf_counter() - began) / self.count
        if SOURCE in self.program.names:
            source = np.asarray(table)[:, : self.count, self.program.names.index(SOURCE)]
            self.copied += int((source != np.arange(len(source))[:, None]).sum())
        return took

    def result(self) -> dict[str, Any]:
        median = statistics.median(self.per_update)
        figures = {"update_s": median, "update_s_each": self.per_update, "updates_a_call": self.count}
        return figures | {"compile_s": round(self.compile_s, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--preset", default="mpe/simple_spread")
    parser.add_argument("--members", type=int, default=64)
    parser.add_argument("--interval", type=int, default=20)
    parser.add_argument("--num-envs", type=int, default=None, help="copies of the world of each member")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each of the timed calls, about")
    parser.add_argument("--devices", type=int, default=None)
    args = parser.parse_args()
    experiment = presets.get(args.preset)
    copies = args.num_envs or experiment.num_envs
    steps = copies * experiment.num_steps
    experiment = dataclasses.replace(experiment, num_envs=copies, total_env_steps=steps * ENDLESS)
    plan = PBT(experiment, {"learning_rate": Range(1e-4, 1e-2, log=True)}, args.members, args.interval)
    seeds = dataclasses.replace(experiment, num_seeds=args.members)
    independent = Timed(make_fused_program(seeds, args.devices), args.interval, args.seconds)
    population = Timed(plan.program(args.devices), args.interval, args.seconds)
    population.count = independent.count
    alone = Timed(make_fused_program(experiment, args.devices), args.interval, args.seconds)
    for _ in range(args.repeats):
        for timed in (alone, independent, population):
            timed.per_update.append(timed.call())
    median = statistics.median(population.per_update)
    ratio, over_one = (median / statistics.median(timed.per_update) for timed in (independent, alone))
    mesh = independent.program.mesh
    device = mesh.devices.flat[0]
    print(
        f"an update of {args.members} members takes {ratio:.3f} times as long as one of {args.members} seeds "
        f"and {over_one:.2f} times as long as one of a single training "
        f"({population.copied} copies were made); {device.device_kind}"
    )
    result = {
        "what": "wall time of an update of population-based training, next to as many independent seeds in one program",
        "command": shlex.join(["python", *sys.argv]),
        "preset": args.preset,
        "experiment": experiment.to_dict(),
        "pbt": to_plain(plan),
        "ratio": ratio,
        "over_one": over_one,
        "copies_made": population.copied,
        "one": alone.result(),
        "seeds": independent.result(),
        "population": population.result(),
        "env_steps_per_s": {
            name: steps * args.members / statistics.median(timed.per_update)
            for name, timed in (("seeds", independent), ("population", population))
        },
        "device": f"{mesh.size} x {device.platform}: {device.device_kind}",
        "versions": versions(),
    }
    write_atomically(args.output, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
