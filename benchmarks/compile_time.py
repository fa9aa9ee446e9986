"""How long the first update takes to compile: cold, and warm from the cache of compiled programs.

    python benchmarks/compile_time.py benchmarks/results/compile_cpu.json [--only PART]
    python benchmarks/compile_time.py benchmarks/results/h200/compile.json            # where there is a GPU

Each target is started twice in processes of its own that share a new, empty cache: the first compiles, the second
reads. `first_update_s` is from the experiment to the end of the first update: tracing, compiling and running it. On a
shared machine seconds say little, so the CPU-seconds of the same span are kept too, and the load of the machine. Rows
of other targets that the file has already are kept.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TARGETS = (
    "demo",
    "reference/simple_spread_ippo",
    "reference/tag_grid_a2c",
    "reference/tag_continuous_a2c",
    "psro/leduc",  # a best response by itself
)
COLD_S, WARM_S = {"cpu": 20.0, "gpu": 12.0}, 2.0
"""What is wanted of a cold start, by platform, and of a warm one."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    kept = json.loads(args.output.read_text())["rows"] if args.output.exists() else []
    rows = {row["target"]: row for row in kept}
    for target in (target for target in TARGETS if args.only in target):
        with tempfile.TemporaryDirectory() as cache:
            row = {"target": target, "cold": start(target, cache), "warm": start(target, cache)}
        rows[target] = row
        for name in ("cold", "warm"):
            found = row[name]
            wanted = COLD_S.get(found["device"].partition(":")[0], COLD_S["cpu"]) if name == "cold" else WARM_S
            spans = ", ".join(f"{key} {found[key]['s']:.1f} s ({found[key]['cpu_s']:.1f} CPU)" for key in SPANS)
            print(f"{target}, {name} (wanted {wanted:g} s): {spans}; load {found['load']:.1f}", flush=True)
        command = f"python benchmarks/compile_time.py {args.output}"
        args.output.write_text(json.dumps({"command": command, "rows": list(rows.values())}, indent=1) + "\n")


SPANS = ("first_update", "trace", "init", "compile", "run")


def start(target: str, cache: str) -> dict:
    env = os.environ | {"JAX_COMPILATION_CACHE_DIR": cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1"}
    command = [sys.executable, __file__, "--measure", target]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env).stdout)


def measure(target: str) -> None:
    """In a process of its own: the spans of a first update, as JSON."""
    import jax

    from shoal.training.devices import use_all_cores

    use_all_cores()
    from shoal import presets
    from shoal.api.suite import commit, device
    from shoal.training.bench import versions
    from shoal.training.fused import make_fused_program

    jax.local_devices()
    marks = [(time.perf_counter(), time.process_time())]

    def mark() -> None:
        marks.append((time.perf_counter(), time.process_time()))

    program = make_fused_program(presets.get(target))
    mark()
    carry = jax.block_until_ready(program.begin())
    mark()
    advance = program.compiled(carry)
    mark()
    jax.block_until_ready(advance(carry, program.counts[1]))
    mark()
    spans = {name: _span(marks[i], marks[i + 1]) for i, name in enumerate(("trace", "init", "compile", "run"))}
    told = {"first_update": _span(marks[0], marks[-1])} | spans | {"load": os.getloadavg()[0], "device": device()}
    print(json.dumps(told | {"devices": program.num_devices, "commit": commit(), "versions": versions()}))


def _span(began: tuple[float, float], ended: tuple[float, float]) -> dict[str, float]:
    return {"s": ended[0] - began[0], "cpu_s": ended[1] - began[1]}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2])
    else:
        main()
