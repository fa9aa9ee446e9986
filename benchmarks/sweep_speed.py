"""What does a sweep cost, next to one training? Wall time per update of both, in steady state; compilation apart.

    python benchmarks/sweep_speed.py benchmarks/results/sweep_speed.json

Both are the programs that `shoal train` and `shoal sweep` run. They are timed in turns, so that whatever else the
machine does hits both, and the medians are compared.
"""

import argparse
import json
import shlex
import statistics
import sys
import time
from pathlib import Path

import jax

from shoal.training.devices import use_all_cores

use_all_cores()

from shoal import presets  # noqa: E402
from shoal.core.files import write_atomically  # noqa: E402
from shoal.training.bench import versions  # noqa: E402
from shoal.training.fused import FusedProgram, make_fused_program  # noqa: E402
from shoal.training.program import MAX_UPDATES  # noqa: E402
from shoal.training.sweep import Range, Sweep  # noqa: E402


class Timed:
    """A compiled program that is called with about as many updates as take `seconds`."""

    def __init__(self, program: FusedProgram, seconds: float):
        self.program = program
        carry = program.init()
        began = time.perf_counter()
        self.advance = program.advance.lower(carry, program.counts[0]).compile()
        self.compile_s = time.perf_counter() - began
        self.carry = carry
        self.count = 1
        self.per_update: list[float] = []
        self.call()  # the first one may allocate
        self.count = max(1, min(MAX_UPDATES, int(seconds / self.call())))

    def call(self) -> float:
        """Seconds an update."""
        began = time.perf_counter()
        self.carry, table = self.advance(self.carry, self.program.counts[self.count])
        jax.block_until_ready(table)
        return (time.perf_counter() - began) / self.count

    def result(self) -> dict[str, float | list[float]]:
        median = statistics.median(self.per_update)
        figures = {"update_s": median, "update_s_each": self.per_update, "updates_a_call": self.count}
        return figures | {"compile_s": round(self.compile_s, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--preset", default="mpe/simple_spread")
    parser.add_argument("--points", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each of the timed calls, about")
    parser.add_argument("--devices", type=int, default=None)
    args = parser.parse_args()
    experiment = presets.get(args.preset)
    plan = Sweep(experiment, {"learning_rate": Range(1e-4, 1e-2, args.points, log=True)})
    one = Timed(make_fused_program(experiment, args.devices), args.seconds)
    all_points = Timed(make_fused_program(experiment, args.devices, plan.overrides), args.seconds)
    for _ in range(args.repeats):
        for timed in (one, all_points):
            timed.per_update.append(timed.call())
    ratio = statistics.median(all_points.per_update) / statistics.median(one.per_update)
    mesh = one.program.mesh
    device = mesh.devices.flat[0]
    print(f"{args.points} points take {ratio:.2f} times as long as one, an update; {device.device_kind}")
    steps = experiment.num_envs * experiment.num_steps
    result = {
        "what": "wall time of an update of a sweep over learning rates, next to one training",
        "command": shlex.join(["python", *sys.argv]),
        "preset": args.preset,
        "experiment": experiment.to_dict(),
        "learning_rates": [point["learning_rate"] for point in plan.points],
        "points": args.points,
        "ratio": ratio,
        "one": one.result(),
        "sweep": all_points.result(),
        "env_steps_per_s": {
            "one": steps / statistics.median(one.per_update),
            "sweep": steps * args.points / statistics.median(all_points.per_update),
        },
        "device": f"{mesh.size} x {device.platform}: {device.device_kind}",
        "versions": versions(),
    }
    write_atomically(args.output, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
