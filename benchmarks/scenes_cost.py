"""What watching a run costs it: training speed with scenes along the learning curve, and without.

    python benchmarks/scenes_cost.py benchmarks/results/scenes_cost.json

Every training is a process of its own, so that it compiles everything itself, without a cache of programs; those with
scenes and those without take turns, so that whatever else the machine does hits all alike. The speed is that of the
training, from the end of its compilation to its last update: episodes that are played before it ends are part of it.
`after_seconds` is what it then takes to play those that waited. The cost of a round is the share of the speed of its
run without scenes that is missing; what counts is the median of the rounds.

- `compiled`: the particle world simple_spread; scenes as by default, and 20 asked for.
- `host`: CartPole of Gymnasium with a picture that is drawn with numpy, as by `render_mode="rgb_array"`; 20 asked for.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"

ASKED = 20
WAYS = {"compiled": {"none": 0, "default": None, "asked": ASKED}, "host": {"none": 0, "asked": ASKED}}
"""Scenes by case and way."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--seconds", type=float, default=150.0, help="that one training takes, about")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=WAYS, help="one of the cases")
    parser.add_argument("--one", nargs=3, metavar=("CASE", "WAY", "STEPS"), help="make one training, and print it")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(train(args.one[0], WAYS[args.one[0]][args.one[1]], int(args.one[2]))))
        return
    from shoal.training.bench import versions

    report: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]),
        "cores": os.cpu_count(),
        "load": [round(each, 1) for each in os.getloadavg()],
        "versions": versions(),
        "seconds": args.seconds,
        "cases": {},
    }
    for case in [args.only] if args.only else WAYS:
        report["cases"][case] = measure(args.output, case, args.seconds, args.rounds)
        print(json.dumps({case: report["cases"][case]["cost"]}), flush=True)
        args.output.write_text(json.dumps(report, indent=2) + "\n")


def measure(output: Path, case: str, seconds: float, rounds: int) -> dict[str, Any]:
    """All rounds of a case, and the share of the speed that scenes cost."""
    steps = calibrated(output, case, seconds)
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS[case]}
    for turn in range(rounds):
        ways = [*found]
        for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
            found[way].append(in_a_process(output, case, way, steps))
            print(f"{case} {way}: {found[way][-1]}", file=sys.stderr, flush=True)
    speeds = {way: [each["env_steps_per_second"] for each in runs] for way, runs in found.items()}
    cost = {}
    for way in [way for way in speeds if way != "none"]:
        shares = [round(1 - with_ / without, 4) for with_, without in zip(speeds[way], speeds["none"], strict=True)]
        cost[way] = {"median": round(statistics.median(shares), 4), "all": shares}
    return {"env_steps": steps, "cost": cost, "runs": found}


def calibrated(output: Path, case: str, seconds: float) -> int:
    """The env steps of a training of so many seconds."""
    steps, took = 20_000, 0.0
    while took < min(3.0, seconds / 2):
        steps *= 3
        told = in_a_process(output, case, "none", steps)
        took = told["seconds"]
    return round(told["env_steps_per_second"] * seconds)


def in_a_process(output: Path, case: str, way: str, steps: int) -> dict[str, Any]:
    command = [sys.executable, __file__, str(output), "--one", case, way, str(steps)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def train(case: str, scenes: int | None, steps: int) -> dict[str, Any]:
    """Trains, and tells how fast; with `case`'s world, for so many env steps, with that many scenes."""
    from shoal.training.runner import run
    from shoal.training.scene_files import read_scenes

    with tempfile.TemporaryDirectory() as place:
        folder, begun = Path(place) / "run", time.perf_counter()
        result = run(experiment(case, steps), folder, scenes=scenes)
        ended = time.perf_counter()
        points = read_scenes(folder)
        before = (folder / "metrics.jsonl").stat().st_mtime_ns
        live = sum(point.path.stat().st_mtime_ns < before for point in points)
    return {
        "env_steps_per_second": round(result.lines[-1]["env_steps"] / result.seconds, 1),
        "seconds": round(result.seconds, 3),
        "compile_seconds": round(result.compile_seconds, 3),
        "after_seconds": round(ended - begun - result.seconds - result.compile_seconds, 3),
        "points": len(points),
        "points_while_training": live,
    }


def experiment(case: str, steps: int) -> Any:
    from shoal import presets

    if case == "compiled":
        return presets.resolve("mpe/simple_spread").replace(total_env_steps=steps)
    import gymnasium

    from shoal import PPO, Network
    from shoal.training.experiment import Experiment, Learner

    if "DrawnCartPole-v0" not in gymnasium.registry:
        gymnasium.register("DrawnCartPole-v0", drawn)
    learners = {"agent": Learner(PPO(network=Network(hidden=(64, 64))), {"agent": ("agent",)})}
    return Experiment("gymnasium:DrawnCartPole-v0", learners=learners, num_envs=8, num_steps=128, total_env_steps=steps)


def drawn(render_mode: str | None = None) -> Any:
    """CartPole, drawn without pygame: a picture of its usual size, the cart, and the pole as a row of squares."""
    import gymnasium
    import numpy as np

    class Drawn(gymnasium.Wrapper):
        metadata = {"render_modes": ["rgb_array"], "render_fps": 50}
        render_mode = "rgb_array"

        def render(self) -> np.ndarray:
            picture = np.full((400, 600, 3), 255, np.uint8)
            x, _, angle, _ = self.unwrapped.state  # pyright: ignore[reportAttributeAccessIssue]
            middle = int(np.clip(300 + 125 * x, 30, 570))
            picture[300:330, middle - 25 : middle + 25] = 0
            for far in range(0, 125, 4):
                row, column = int(300 - far * np.cos(angle)), int(np.clip(middle + far * np.sin(angle), 4, 595))
                picture[row - 4 : row + 4, column - 4 : column + 4] = (200, 150, 100)
            return picture

    return Drawn(gymnasium.make("CartPole-v1", disable_env_checker=True))


if __name__ == "__main__":
    main()
