"""Speed of every world that ships, under random actions, views and rewards consumed.

    python benchmarks/worlds_speed.py benchmarks/results/worlds_cpu.json
    python benchmarks/worlds_speed.py benchmarks/results/worlds_h200.json      # where a GPU is

Rows that are measured replace those in the file (`--only ID ...` measures some). `shoal envs` shows these figures: copy
them into the package with `python benchmarks/worlds_speed.py --publish`.
"""

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

import jax

from shoal.training.devices import use_all_cores

use_all_cores()

import shoal  # noqa: E402
import shoal.envs  # noqa: E402
from shoal.core.env import describe  # noqa: E402
from shoal.training.bench import bench_env, versions  # noqa: E402

RESULTS = Path(__file__).parent / "results"
PUBLISHED = Path(shoal.envs.__file__).parent / "speeds.json"
LARGE = {  # beside the defaults: many agents, and many copies
    "mpe/simple_spread, 65,536 copies": ("mpe/simple_spread", {}, 65_536),
    "tag/grid, 2000 x 1000": ("tag/grid", {"num_taggers": 999, "full_view": False}, 2000),
    "tag/continuous, 1000 x 110": ("tag/continuous", {}, 1000),
    "pong, image": ("pong", {"view": "image"}, 4096),
    **{
        f"swarm/{name}, 1,000 agents": (f"swarm/{name}", {"num_agents": 1000}, 100)
        for name in ("coverage", "delivery", "formation", "rendezvous")
    },
    "swarm/pursuit, 1,000 agents": ("swarm/pursuit", {"num_pursuers": 700, "num_evaders": 300}, 100),
    "battle/open, 2 x 1,000 agents": ("battle/open", {"num_agents": 1000, "map_size": 100}, 100),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, nargs="?")
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--publish", action="store_true")
    args = parser.parse_args()
    if args.publish:
        publish()
        return
    on_cpu = jax.default_backend() == "cpu"
    cases = {id: (id, {}, copies(id, on_cpu)) for id in shoal.ids()} | LARGE
    rows = json.loads(args.output.read_text())["rows"] if args.output.exists() else {}
    failed = []
    for name in args.only if args.only is not None else cases:
        id, options, num_envs = cases[name]
        num_envs = min(num_envs, 10_000) if on_cpu else num_envs
        try:
            row = bench_env(id, options, num_envs=num_envs, num_steps=100, seconds=args.seconds)
        except Exception as error:
            failed.append(name)
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            continue
        row.pop("versions")
        rows[name] = row | {"commit": commit()}
        print(
            f"{name:40} {row['env_steps_per_s']:14,.0f} env steps/s {row['agent_steps_per_s']:16,.0f} agent steps/s",
            f"{row['env_steps_per_cpu_s']:14,.0f} a CPU-second, compiled in {row['compile_s']:.1f} s",
            flush=True,
        )
        kept = {"command": " ".join(["python", *sys.argv]), "device": jax.devices()[0].device_kind}
        result = kept | {"versions": versions(), "rows": dict(sorted(rows.items()))}
        args.output.write_text(json.dumps(result, indent=1) + "\n")
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}")


def copies(id: str, on_cpu: bool) -> int:
    """Enough copies to fill the device, not more than its memory: by the size of all views of a copy."""
    groups = describe(shoal.make(id)).groups.values()
    numbers = sum(g.size * sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(g.observation)) for g in groups)
    most, least, room = (1024, 64, 2e6) if on_cpu else (65_536, 1024, 1e8)
    return int(min(max(2 ** math.floor(math.log2(room / numbers)), least), most))


def publish() -> None:
    """Writes what `shoal envs` shows: env steps a CPU-second, and env steps per second on the H200, of each world."""
    cpu, gpu = (json.loads((RESULTS / f"worlds_{name}.json").read_text())["rows"] for name in ("cpu", "h200"))
    speeds = {
        id: {
            "cpu": round(cpu[id]["env_steps_per_cpu_s"]) if id in cpu else None,
            "h200": round(gpu[id]["env_steps_per_s"]) if id in gpu else None,
        }
        for id in shoal.ids()
    }
    PUBLISHED.write_text(json.dumps(speeds, indent=1) + "\n")
    print(f"{PUBLISHED}: {len(speeds)} worlds")


def commit() -> str:
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=RESULTS)
    return asked.stdout.strip()


if __name__ == "__main__":
    main()
