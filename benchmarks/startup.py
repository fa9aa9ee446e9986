"""How long the commands take that people wait for before anything happens.

    python benchmarks/startup.py benchmarks/results/startup.json [--repeats 11]

Each repetition starts a new Python process for each of these, one after the other, so that whatever else the machine
does hits all alike; the first round fills the system's file cache and is not counted.

- `help`: `shoal --help`, whole; the aim is 0.3 s. `envs`: `shoal envs`, whole; 0.6 s.
- `import`: `import shoal` in Python, and `import jax` in another one; the aim is a ratio of at most 1.2.
- `ui`: `shoal ui` on a folder with ten runs, until its page is answered; 1 s.

Seconds are of the wall clock: the median, the least and the most of all repetitions, CPU-seconds beside them. On a
machine that others use, the CPU-seconds count.
"""

import argparse
import http.client
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

SHOAL = [sys.executable, "-m", "shoal"]
RUNS = 10
AIMS = {"help": 0.3, "envs": 0.6, "ui": 1.0, "import_ratio": 1.2}
"""Seconds, and `import shoal` over `import jax`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--repeats", type=int, default=11)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = measure(ways(Path(place)), args.repeats)
    from shoal.training.bench import versions

    medians = {name: told["seconds"]["median"] for name, told in found.items()}
    ratios = [b / a for a, b in zip(found["import_jax"]["all"], found["import_shoal"]["all"], strict=True)]
    report = {
        "command": " ".join(["python", *sys.argv]),
        "cores": os.cpu_count(),
        "load": [round(each, 1) for each in os.getloadavg()],
        "versions": versions(),
        "repeats": args.repeats,
        "aims": AIMS,
        "import_ratio": spread(ratios),
        "commands": found,
    }
    args.output.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(medians | {"import_ratio": report["import_ratio"]["median"]}, indent=2))


def ways(place: Path) -> dict[str, Callable[[], tuple[float, float]]]:
    """What is timed, by name: each returns its seconds, of the wall clock and of the CPU."""
    from tests.ui.folders import make_run

    for number in range(RUNS):
        make_run(place / "runs" / f"run_{number}", lines=200)
    return {
        "help": lambda: finished([*SHOAL, "--help"]),
        "envs": lambda: finished([*SHOAL, "envs"]),
        "import_jax": lambda: finished([sys.executable, "-c", "import jax"]),
        "import_shoal": lambda: finished([sys.executable, "-c", "import shoal"]),
        "ui": lambda: answered(place),
    }


def measure(timed: dict[str, Callable[[], tuple[float, float]]], repeats: int) -> dict[str, Any]:
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in timed}
    for turn in range(repeats + 1):
        for name, once in timed.items():
            took = once()
            if turn:
                times[name].append(took)
    return {
        name: {
            "seconds": spread([wall for wall, _ in each]),
            "cpu_seconds": spread([cpu for _, cpu in each]),
            "all": [round(wall, 4) for wall, _ in each],
        }
        for name, each in times.items()
    }


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 4),
        "least": round(min(values), 4),
        "most": round(max(values), 4),
    }


def finished(command: list[str]) -> tuple[float, float]:
    """A command from its start to its end."""
    began, used = time.perf_counter(), children()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began, children() - used


def answered(place: Path) -> tuple[float, float]:
    """`shoal ui` from its start to the first answer, which is the page."""
    began, used = time.perf_counter(), children()
    command = [*SHOAL, "ui", str(place / "runs"), "--json"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(place / "cache")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        try:
            said = "".join(iter(server.stdout.readline, "}\n")) + "}"
            host, _, path = json.loads(said)["address"].removeprefix("http://").partition("/")
            connection = http.client.HTTPConnection(host, timeout=30)
            connection.request("GET", "/", headers={"Authorization": f"Bearer {path.partition('token=')[2]}"})
            assert b"shoal" in connection.getresponse().read().lower()
            took = time.perf_counter() - began
            connection.close()
        finally:
            server.terminate()
    return took, children() - used


def children() -> float:
    """CPU-seconds of processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
