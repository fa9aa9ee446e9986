"""How does speed grow with the copies of a world, and with its agents? Rows as JSON, and a picture of them.

    python benchmarks/growth.py benchmarks/results/h200/growth.json
    python benchmarks/growth.py benchmarks/results/h200/growth.json --plot benchmarks/results/h200/growth.png

Worlds are stepped with random actions and trained with PPO at more and more copies; then one world gets more and more
agents, with as many copies as keep the agents in all the same. A size that does not fit is a row with its refusal. Rows
that the file has already are kept.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from shoal import presets
from shoal.core.errors import ShoalError
from shoal.core.files import write_atomically
from shoal.training.bench import bench_env, bench_train, versions
from shoal.training.devices import use_all_cores

COPIES = (1024, 4096, 16_384, 65_536, 131_072)
AGENTS = (10, 100, 1000, 10_000, 100_000)
ALL_AGENTS = 1_000_000
SPREAD, TRAINED, TAG, SWARM = "mpe/simple_spread", "reference/simple_spread_ippo", "tag/continuous", "swarm/formation"
TITLES = {
    "copies, random": f"{SPREAD}, random actions",
    "copies, PPO": f"{SPREAD}, PPO",
    "agents, tag": TAG,
    "agents, swarm": SWARM,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--commit", default="", help="of the code that is measured")
    parser.add_argument("--plot", type=Path, help="draw what the file has instead of measuring")
    args = parser.parse_args()
    if args.plot:
        plot(json.loads(args.file.read_text())["rows"], args.plot)
        return
    use_all_cores()
    record: dict[str, Any] = {"command": "python benchmarks/growth.py FILE", "commit": args.commit, "rows": []}
    record |= {
        "device": jax.devices()[0].device_kind,
        "versions": versions(),
    }
    rows = json.loads(args.file.read_text())["rows"] if args.file.exists() else []
    known = {sizes(row): row for row in rows if "refused" not in row}
    for work in works(args.seconds):
        record["rows"].append(known.get(sizes(work.row)) or measure(work))
        print(record["rows"][-1], flush=True)
        write_atomically(args.file, json.dumps(record, indent=1) + "\n")


class Work(NamedTuple):
    """A row before it is measured: the line that it belongs to with its sizes, and the call."""

    row: dict[str, Any]
    bench: Callable[[], dict[str, Any]]


def works(seconds: float) -> Iterator[Work]:
    timing: dict[str, Any] = {"seconds": seconds, "repeats": 3}
    for copies in (*COPIES, 1_000_000):
        row = {"line": "copies, random", "num_envs": copies, "agents": 3}
        yield Work(row, partial(bench_env, SPREAD, num_envs=copies, num_steps=25, **timing))
    for copies in COPIES:
        experiment = dataclasses.replace(presets.get(TRAINED), num_envs=copies)
        yield Work(row | {"line": "copies, PPO", "num_envs": copies}, partial(bench_train, experiment, **timing))
    for agents in AGENTS:
        row = {"num_envs": max(1, ALL_AGENTS // agents), "agents": agents}
        taggers = agents // 10
        tag = {"num_taggers": taggers, "num_runners": agents - taggers, "num_neighbours": min(10, agents - 1)}
        for line, world, options in (("agents, tag", TAG, tag), ("agents, swarm", SWARM, {"num_agents": agents})):
            bench = partial(bench_env, world, options, num_envs=row["num_envs"], num_steps=10, **timing)
            yield Work({"line": line} | row, bench)


def sizes(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["line"], row["num_envs"], row["agents"]


def measure(work: Work) -> dict[str, Any]:
    try:
        found = work.bench()
    except ShoalError as error:
        return work.row | {"refused": str(error)}
    names = ("env_steps_per_s", "agent_steps_per_s", "compile_s")
    return work.row | {name: found[name] for name in names} | {"spread": [min(found["repeats"]), max(found["repeats"])]}


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Agent steps per second by copies and by agents."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    for panel, across in zip(panels, ("copies", "agents"), strict=True):
        for line, title in TITLES.items():
            found = [one for one in rows if one["line"] == line and "refused" not in one]
            if line.startswith(across) and found:
                along = [one["num_envs" if across == "copies" else "agents"] for one in found]
                panel.plot(along, [one["agent_steps_per_s"] for one in found], marker="o", label=title)
        panel.set(xscale="log", yscale="log", xlabel="copies of the world" if across == "copies" else "agents per copy")
        panel.grid(alpha=0.3)
        panel.legend(frameon=False)
    panels[0].set_ylabel("agent steps per second")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
