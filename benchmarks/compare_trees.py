"""Compares the speed of two source trees of Shoal, in one run that goes back and forth between them.

    python benchmarks/compare_trees.py OLD NEW benchmarks/results/compare_trees.json

OLD and NEW are checkouts (folders with `src/shoal`). Each is asked for `bench env`, `bench train` of three presets, and
what `compare_ippo.py` measures of Shoal; every measurement is a process of its own, its compilation not cached. Which
tree goes first changes from round to round, so that a machine that slows down or is busy meanwhile does both alike.
Ratios are of medians, new to old: a rate (env steps per second, or per CPU second, which a busy machine disturbs less)
above 1 is faster, compile seconds below 1 are quicker. Exit code 1 if a rate's ratio is below `--least`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

RUN = """
import os, sys
if sys.argv[1] == "one core": os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from shoal.cli import main
sys.exit(main(sys.argv[2:]))
"""
IPPO = "reference/simple_spread_ippo"
MEASUREMENTS = {
    "bench env mpe/simple_spread": ("all cores", "env", "mpe/simple_spread"),
    "bench env tag/grid": ("all cores", "env", "tag/grid"),
    "bench train demo": ("all cores", "train", "demo"),
    "bench train tag/grid": ("all cores", "train", "tag/grid"),
    "bench train mappo/simple_spread": ("all cores", "train", "mappo/simple_spread"),
    "compare_ippo, one core": ("one core", "train", IPPO),
    "compare_ippo, all cores": ("all cores", "train", IPPO),
}
FIGURES = ("env_steps_per_s", "env_steps_per_cpu_s", "compile_s")
QUICK = ("--num-envs", "8", "--num-steps", "8")


def environment(tree: Path) -> dict[str, str]:
    """Of a process that imports Shoal from this tree, and compiles everything itself."""
    return os.environ | {"PYTHONPATH": str(tree / "src"), "JAX_ENABLE_COMPILATION_CACHE": "false"}


def output(tree: Path, *arguments: str) -> str:
    """What Python prints, run where no other copy of the package lies about."""
    with tempfile.TemporaryDirectory() as nowhere:
        command = [sys.executable, "-P", *arguments]
        done = subprocess.run(command, env=environment(tree), cwd=nowhere, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{tree}: {' '.join(arguments[2:])} failed:\n{done.stderr}")
    return done.stdout


def describe(tree: Path) -> dict[str, Any]:
    """Which code it is. A tree whose package is not the one that is imported is refused."""
    found = Path(output(tree, "-c", "import shoal; print(shoal.__file__)").strip())
    if not found.is_relative_to(tree / "src"):
        sys.exit(f"{tree} must be a checkout with src/shoal; Python would import {found}")
    git = ["git", "-C", str(tree)]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run([*git, "status", "--porcelain", "src"], capture_output=True, text=True).stdout.strip()
    return {"commit": commit or None, "changed": bool(changed)}


def measure(tree: Path, name: str, seconds: float, quick: bool) -> dict[str, Any]:
    """One measurement of one tree."""
    cores, *what = MEASUREMENTS[name]
    options = ["--seconds", str(seconds), "--json", *(QUICK if quick else ())]
    return json.loads(output(tree, "-c", RUN, cores, "bench", *what, *options))


def compare(trees: dict[str, Path], names: list[str], args: argparse.Namespace) -> dict[str, Any]:
    """Goes back and forth: every round measures everything with both trees."""
    found: dict[str, Any] = {name: {tree: {figure: [] for figure in FIGURES} for tree in trees} for name in names}
    result: dict[str, Any] = {}
    for number in range(args.rounds):
        for name in names:
            for tree in sorted(trees, reverse=bool(number % 2)):
                result = measure(trees[tree], name, args.seconds, args.quick)
                for figure in FIGURES:
                    found[name][tree][figure].append(result[figure])
            row = {figure: ratio(found[name], figure) for figure in FIGURES}
            print(f"round {number + 1}: {name}: {', '.join(f'{k} {v:.3f}' for k, v in row.items())}", flush=True)
    for row in found.values():
        row["ratio"] = {figure: ratio(row, figure) for figure in FIGURES}
    return {"rows": found} | {key: result[key] for key in ("device", "devices", "versions")}


def ratio(row: dict[str, Any], figure: str) -> float:
    """Of medians, new to old."""
    return statistics.median(row["new"][figure]) / statistics.median(row["old"][figure])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=lambda text: Path(text).resolve(), metavar="OLD")
    parser.add_argument("new", type=lambda text: Path(text).resolve(), metavar="NEW")
    parser.add_argument("output", type=Path)
    parser.add_argument("--rounds", type=int, default=5, help="how often each tree is measured")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--only", nargs="+", choices=list(MEASUREMENTS), metavar="NAME")
    parser.add_argument("--by", choices=FIGURES[:2], default=FIGURES[0], help="the rate that --least is about")
    parser.add_argument("--least", type=float, default=0.97, help="the lowest ratio that is good enough")
    parser.add_argument("--quick", action="store_true", help="one short round of small sizes: shows that this works")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.seconds, args.least = 1, 0.2, 0.0
    trees = {"old": args.old, "new": args.new}
    code = {name: describe(tree) for name, tree in trees.items()}
    kept = {"trees": code, "rounds": args.rounds, "seconds": args.seconds, "quick": args.quick}
    kept |= compare(trees, args.only or list(MEASUREMENTS), args)
    args.output.write_text(json.dumps(kept, indent=1) + "\n")
    slow = {name: row["ratio"][args.by] for name, row in kept["rows"].items() if row["ratio"][args.by] < args.least}
    for name, row in kept["rows"].items():
        print(f"{name:34s}" + "".join(f"  {figure} {value:.3f}" for figure, value in row["ratio"].items()))
    print("; ".join(f"too slow: {name} {value:.3f}" for name, value in slow.items()) or f"all at least {args.least}")
    return bool(slow)


if __name__ == "__main__":
    sys.exit(main())
