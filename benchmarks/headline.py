"""The rows that speed is judged by, on one GPU: env steps per second, the median of several repeats with their spread.

    python benchmarks/headline.py benchmarks/results/h200/headline.json [--only PART] [--repeats 3]

The rows, and how they are measured, are those of `shoal bench suite`, whatever the device is. Rows that the file has
already are kept, but for those that are measured again.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path

from shoal.api.suite import HEADLINE, measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--commit", default="", help="where the checkout has no git history")
    args = parser.parse_args()
    only = f" --only {shlex.quote(args.only)}" if args.only else ""
    command = f"python benchmarks/headline.py {args.output} --repeats {args.repeats}{only}"
    rows = json.loads(args.output.read_text()) if args.output.exists() else []
    for work in (work for work in HEADLINE if args.only in work.name):
        row = measure(work, args.seconds, args.repeats, command)
        row |= {"commit": args.commit or row["commit"]}
        rows = merge(rows, {"peer": None, "peer_env_steps_per_s": None, "ratio": None} | row)
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(rows, indent=1) + "\n")
        print(row.get("refused") or line(row), flush=True)


def merge(rows: list[dict], row: dict) -> list[dict]:
    """The rows with a new one, or with it in the place of an older one, in the order of the suite."""
    found = {one["work"]: one for one in rows} | {row["work"]: row}
    order = {work.name: number for number, work in enumerate(HEADLINE)}
    return sorted(found.values(), key=lambda one: order.get(one["work"], len(order)))


def line(row: dict) -> str:
    low, high = (rate / 1e6 for rate in row["spread"])
    rate = f"{row['env_steps_per_s'] / 1e6:.2f} M ({low:.2f}-{high:.2f})"
    return f"{row['work']}: {rate}, compiled in {row['compile_s']:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
