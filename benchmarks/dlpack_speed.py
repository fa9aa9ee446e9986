"""How long a tensor takes from JAX to PyTorch and back, whatever its size.

    python benchmarks/dlpack_speed.py benchmarks/results/dlpack_cpu.json
    python benchmarks/dlpack_speed.py benchmarks/results/dlpack_cuda.json --device cuda

One round trip is `to_jax(to_torch(array))`. Times are CPU time of the host, on one core, so that whatever else the
machine does counts for little; on a GPU nothing waits for the device. Every size is measured in many short rounds; the
median and the best round are kept, and the pointers are compared.
"""

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs room too

import jax
import jax.numpy as jnp
import torch

from shoal.bridges.torch import to_jax, to_torch

SIZES = [2**10, 2**14, 2**18, 2**20, 2**24, 2**28, 2**30]
LIMIT_US = 50.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=100)
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    device = jax.local_devices(backend=args.device)[0]
    rows = [measure(size, device, args.rounds) for size in SIZES]
    result = {
        "what": "round trip of an array from JAX to PyTorch and back through DLPack, microseconds of CPU time",
        "device": device.device_kind if args.device == "cuda" else f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {"jax": jax.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "limit_us": LIMIT_US,
        "rows": rows,
    }
    args.output.write_text(json.dumps(result, indent=2) + "\n")


def measure(size: int, device: jax.Device, rounds: int, repeats: int = 20) -> dict[str, float]:
    array = jax.device_put(jnp.zeros(size // 4, jnp.float32), device).block_until_ready()
    assert to_jax(to_torch(array), copy=False).unsafe_buffer_pointer() == array.unsafe_buffer_pointer()
    there, trip = [], []
    for _ in range(rounds):
        start = time.process_time()
        for _ in range(repeats):
            to_torch(array)
        middle = time.process_time()
        for _ in range(repeats):
            to_jax(to_torch(array))
        there.append((middle - start) / repeats * 1e6)
        trip.append((time.process_time() - middle) / repeats * 1e6)
    row = {
        "bytes": size,
        "to_torch_us": round(statistics.median(there), 2),
        "round_trip_us": round(statistics.median(trip), 2),
        "best_round_trip_us": round(min(trip), 2),
    }
    print(f"{size:>12,} bytes: to_torch {row['to_torch_us']} us, round trip {row['round_trip_us']} us", flush=True)
    return row


if __name__ == "__main__":
    main()
