"""Makes the run folders that docs/compare.md compares, from kept results, and its picture: docs/images/compare.png.

    python docs/build_compare.py

The runs are `benchmarks/results/algorithms/*-simple_spread_10000000.json`: five seeds each, 10 M env steps. Their
curves have 100 points, so figures of the last tenth of training come from ten lines.
"""

import json
import tempfile
from pathlib import Path

from shoal import compare

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "benchmarks" / "results" / "algorithms"
NAMES = ("ippo", "mappo", "qmix", "vdn")


def make_runs(folder: Path) -> list[Path]:
    """A run folder for each of `NAMES`: settings and metrics, without checkpoints."""
    made = []
    for name in NAMES:
        kept = json.loads((KEPT / f"{name}-simple_spread_10000000.json").read_text())
        curve = kept["curve"]
        steps = [step for step in curve["env_steps"] if step < kept["experiment"]["total_env_steps"]]
        lines = [
            {"update": i + 1, "env_steps": step, "return/agent": curve["return/agent"][i], "return": curve["return"][i]}
            for i, step in enumerate(steps)
        ]
        greedy = kept["greedy"]["agent"]["seeds"]
        end = {"update": len(lines) + 1, "env_steps": kept["experiment"]["total_env_steps"]}
        lines.append(end | {"eval/return/agent": greedy, "eval/return": greedy})
        run = folder / name
        (run / "checkpoints").mkdir(parents=True)
        config = {"format": 1, "shoal": kept["versions"]["shoal"], "kind": "training", "experiment": kept["experiment"]}
        (run / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        made.append(run)
    return made


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        compare(make_runs(Path(folder))).save(ROOT / "docs" / "images" / "compare.png", "curves")


if __name__ == "__main__":
    main()
