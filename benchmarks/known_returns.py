"""Collects what presets reach from the results of the benchmarks, for `shoal show PRESET`.

    python benchmarks/known_returns.py        # writes src/shoal/presets/known_returns.json

A result counts only if the preset still is what was measured: the same world and options, trained for as long.
"""

import json
from pathlib import Path

from shoal import presets

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FILE = ROOT / "src" / "shoal" / "presets" / "known_returns.json"
SAME = ("env", "env_options", "total_env_steps")


def is_today(name: str, measured: dict) -> bool:
    """Whether a preset still is what was measured."""
    if name not in presets.names():
        return False
    now = presets.get(name).to_dict()
    algorithms = [{learner["algorithm"]["name"] for learner in one["learners"].values()} for one in (now, measured)]
    return all(now[key] == measured[key] for key in SAME) and algorithms[0] == algorithms[1]


def from_algorithms(data: dict) -> dict:
    """From `algorithms_learn.py`: five seeds, with an interval."""
    figures = {group: found["iqm_and_interval"] for group, found in data["greedy"].items()}
    returns = {
        group: {"mean": round(mean, 3), "low": round(low, 3), "high": round(high, 3)}
        for group, (mean, low, high) in figures.items()
    }
    seeds = min(len(found["seeds"]) for found in data["greedy"].values())
    return {"returns": returns, "random": data["random"], "seeds": seeds}


def from_worlds(data: dict) -> dict:
    """From `worlds_learn.py`: one run; the standard error over episodes is not shown."""
    found = data["returns"]
    returns = {group: {"mean": round(mean, 3)} for group, (mean, _) in found["trained"].items()}
    random = {group: round(mean, 3) for group, (mean, _) in found["random"].items()}
    return {"returns": returns, "random": random, "seeds": 1}


def collect() -> dict[str, dict]:
    """By preset; measurements with several seeds take precedence."""
    known = {}
    for folder, read in (("learns", from_worlds), ("algorithms", from_algorithms)):
        for path in sorted((RESULTS / folder).glob("*.json")):
            data = json.loads(path.read_text())
            whole = isinstance(data, dict) and {"preset", "experiment", "random"} <= {*data, *data.get("returns", {})}
            if not whole or not is_today(data["preset"], data["experiment"]):
                continue
            steps = {"env_steps": data["experiment"]["total_env_steps"], "source": str(path.relative_to(ROOT))}
            known[data["preset"]] = read(data) | steps
    return dict(sorted(known.items()))


if __name__ == "__main__":
    FILE.write_text(json.dumps(collect(), indent=1) + "\n")
    print(f"{len(collect())} presets: {FILE.relative_to(ROOT)}")
