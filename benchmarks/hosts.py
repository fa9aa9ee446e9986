"""Two processes on one machine, joined as two hosts, against one process with as many devices: the same weights?

    python benchmarks/hosts.py benchmarks/results/hosts_cpu.json [--updates 5] [--num-envs 128]

The preset `reference/simple_spread_ippo`, one CPU device a process, Gloo over loopback. Kept are the weights' hashes,
their largest difference, bytes per update (counted in the traced program, see docs/several-devices.md), and times. The
times are of two processes that share the cores with one that is alone there: they say what joining costs, not what a
second machine gains.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--num-envs", type=int, default=128)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        alone = finish(start(folder, args, 1, 0, 2, port))
        both = [start(folder, args, 2, index, 1, port) for index in range(2)]
        first, second = (finish(process) for process in both)
        files = [np.load(Path(folder, f"{name}.npz")) for name in ("1-0", "2-0", "2-1")]
        largest = max(float(np.max(np.abs(files[0][n] - other[n]))) for other in files[1:] for n in files[0].files)
    same = first["weights_sha256"] == second["weights_sha256"] == alone["weights_sha256"]
    kept = {"updates": args.updates, "num_envs": args.num_envs, "num_steps": alone["num_steps"]}
    kept |= {"same_bits": same, "largest_difference": largest, "bytes_per_update": first["bytes_per_update"]}
    kept |= {"one_process": alone, "host_0": first, "host_1": second, "load": os.getloadavg()}
    kept |= {"command": f"python benchmarks/hosts.py {args.output} --updates {args.updates} --num-envs {args.num_envs}"}
    args.output.write_text(json.dumps(kept | {"date": time.strftime("%Y-%m-%d")}, indent=1) + "\n")
    print(f"the same weights to the bit: {same}, largest difference {largest:g}; {kept['bytes_per_update']:,} bytes")


def start(folder: str, args: argparse.Namespace, count: int, index: int, devices: int, port: int) -> subprocess.Popen:
    words = [folder, args.updates, args.num_envs, count, index, devices, port]
    command = [sys.executable, __file__, "--worker", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen) -> dict:
    out, _ = process.communicate()
    if process.returncode:
        sys.exit(f"{process.args} ended with {process.returncode}")
    return json.loads(out.strip().splitlines()[-1])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def work(folder: str, updates: int, num_envs: int, count: int, index: int, devices: int, port: int) -> None:
    import jax

    jax.config.update("jax_num_cpu_devices", devices)
    from shoal import presets
    from shoal.api.suite import commit
    from shoal.training.bench import versions
    from shoal.training.hosts import bytes_per_update
    from shoal.training.roll import Hosts
    from shoal.training.run import weights_sha256
    from shoal.training.runner import Local, run

    experiment = presets.get("reference/simple_spread_ippo").replace(num_envs=num_envs)
    experiment = experiment.replace(total_env_steps=updates * num_envs * experiment.num_steps)
    place = Hosts(count, index, f"127.0.0.1:{port}") if count > 1 else None
    on = Local(devices, hosts=place).prepare(experiment)
    counted = bytes_per_update(on.program)
    result = run(experiment, on=on)
    leaves = jax.tree.leaves(result.policies)
    np.savez(Path(folder, f"{count}-{index}.npz"), *map(np.asarray, leaves))
    told = {"weights_sha256": weights_sha256(result.policies), "bytes_per_update": counted, "seconds": result.seconds}
    told |= {"compile_s": result.compile_seconds, "num_steps": experiment.num_steps}
    print(json.dumps(told | {"versions": versions(), "commit": commit()}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(sys.argv[2], *map(int, sys.argv[3:]))
    else:
        main()
