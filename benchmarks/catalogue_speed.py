"""How long it takes to open a catalogue of many long runs; the aim for 200 of 1e5 lines is 1 s cold and 0.2 s warm.

    python benchmarks/catalogue_speed.py benchmarks/results/catalogue.json [--runs 200] [--lines 100000]

Makes that many run folders in a temporary folder, each with that many lines of metrics, and times in new processes:

- cold: `Catalogue(root).entries()` without a cache on disk, and with the pages of all files dropped from the system's;
- read before: the same with the files in the system's cache, still without ours;
- warm, new process: with the cache that the first left on disk; warm, same process: a second call;
- series: one metric of one run, read whole (its first time, and again); best return: all its lines searched.

Seconds are of the wall clock, the best and the worst of several repetitions; importing is counted apart. `load` is that
of the machine while it was measured: on a machine that others use, the CPU-seconds count.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPEATS = 5
CONFIG = {
    "format": 1,
    "shoal": "0.1.0",
    "kind": "training",
    "experiment": {
        "env": "mpe/simple_spread",
        "env_options": {},
        "wrappers": [],
        "learners": {"team": {"algorithm": {"name": "ppo", "critic": "global"}}},
        "num_envs": 100,
        "num_steps": 10,
        "total_env_steps": 10**8,
        "num_seeds": 1,
    },
}
CHILD = """
import json, sys, time
began = time.perf_counter()
from shoal.training.catalogue import Catalogue
imported, worked = time.perf_counter(), time.process_time()
runs = Catalogue(sys.argv[1])
found = runs.entries()
opened, worked = time.perf_counter(), time.process_time() - worked
again = runs.entries()
end = time.perf_counter()
assert [entry.name for entry in found] == [entry.name for entry in again] and len(found) == int(sys.argv[2]), len(found)
assert all(entry.status == "finished" and len(entry.curve) == 24 for entry in found)
times = {"import": imported - began, "open": opened - imported, "open_cpu": worked, "again": end - opened}
if len(sys.argv) > 3:
    began = time.perf_counter(); runs.series(found[0].name, "return")
    middle = time.perf_counter(); runs.series(found[0].name, "return")
    times |= {"series": middle - began, "series_again": time.perf_counter() - middle}
    left = [entry.name for entry in again if not entry.best_is_known]
    began = time.perf_counter(); assert not left or runs.entry(left[0]).best_is_known
    times["best"] = time.perf_counter() - began
assert "jax" not in sys.modules
print(json.dumps(times))
"""


def make(root: Path, runs: int, lines: int) -> int:
    """Makes the run folders; returns the bytes of one file of metrics."""
    size = 0
    for number in range(runs):
        folder = root / f"run_{number:03d}"
        (folder / "checkpoints").mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
        if number % 20 == 0:  # some that differ: the rest are copies, each with blocks of its own on the disk
            rows = (
                f'{{"update": {i + 1}, "env_steps": {(i + 1) * 1000}, "episodes": 40.0, '
                f'"return": {-80 + 40 * i / lines + (i * (number + 7)) % 97 / 97:.6f}, "length": 25.0, '
                f'"loss/agent": {1 / (i + 1):.6f}, "entropy/agent": 1.386294, "seconds": {i / 100:.3f}}}\n'
                for i in range(lines)
            )
            text = "".join(rows).encode()
        (folder / "metrics.jsonl").write_bytes(text)
        size = len(text)
    return size


def drop_pages(root: Path) -> None:
    """Asks the system to forget the content of all files; what it knows of folders may stay."""
    for path in root.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(root: Path, cache: Path, runs: int, *more: str) -> dict[str, float]:
    """The times of a new process."""
    setting = os.environ | {"XDG_CACHE_HOME": str(cache)}
    words = [sys.executable, "-c", CHILD, str(root), str(runs), *more]
    done = subprocess.run(words, env=setting, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def spread(times: list[float]) -> dict[str, float]:
    """The best, the median and the worst."""
    ordered = sorted(times)
    return {"best": ordered[0], "median": ordered[len(ordered) // 2], "worst": ordered[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--lines", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as where:
        root, cache = Path(where, "runs"), Path(where, "cache")
        size = make(root, options.runs, options.lines)
        found: dict[str, list[float]] = {}

        def keep(name: str, seconds: float) -> None:
            found.setdefault(name, []).append(seconds)

        for _ in range(REPEATS):
            shutil.rmtree(cache, ignore_errors=True)
            drop_pages(root)
            keep("cold", measure(root, cache, options.runs)["open"])
            shutil.rmtree(cache)
            times = measure(root, cache, options.runs)
            keep("read before, no cache on disk", times["open"])
            keep("read before, no cache on disk, CPU-seconds", times["open_cpu"])
            times = measure(root, cache, options.runs, "series")
            keep("warm, new process", times["open"])
            keep("warm, new process, CPU-seconds", times["open_cpu"])
            keep("warm, same process", times["again"])
            keep("import", times["import"])
            keep("series of one run", times["series"])
            keep("series again", times["series_again"])
            keep("best return of one run", times["best"])
        kept = sum(path.stat().st_size for path in cache.rglob("*.json"))
    result = {
        "command": "python benchmarks/catalogue_speed.py",
        "date": time.strftime("%Y-%m-%d"),
        "runs": options.runs,
        "lines": options.lines,
        "bytes_of_metrics": size * options.runs,
        "bytes_of_cache": kept,
        "seconds": {name: spread(times) for name, times in found.items()},
        "load": os.getloadavg()[0],
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["seconds"], indent=1))


if __name__ == "__main__":
    main()
