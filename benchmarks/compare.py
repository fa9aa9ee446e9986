"""Shoal against the peers that are installed, on the same work, by turns in one process.

    python benchmarks/compare.py benchmarks/results/compare_cpu.json [--num-envs 256] [--seconds 2] [--repeats 3]

Two kinds of work on `simple_spread` with three agents:

- random: every copy is stepped with random actions that were drawn before, and all views and rewards are summed up;
- IPPO: rollouts of 128 steps, then four epochs of four minibatches; actor and critic of 64-64 tanh units, the same for
  all. JaxMARL's package holds worlds, and no training loop: its world runs in the plain loop of `plain_ippo.py`, with a
  full shuffle and without bootstrapping at the end of an episode, as its own scripts have it.

Before a clock is read, all that was asked of the device is finished. Nothing is compiled within a measurement. Rates
are medians over the repeats, with their spread; peers that are not installed are named and left out.
"""

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mpe_against_peers as stepping
from plain_ippo import NUM_STEPS, Plain

from shoal.training.devices import use_all_cores

use_all_cores()

from shoal import presets  # noqa: E402
from shoal.api.suite import commit, device, precision  # noqa: E402
from shoal.training.bench import versions  # noqa: E402
from shoal.training.fused import make_fused_program  # noqa: E402

PEERS = {"jaxmarl": ("random", "IPPO"), "vmas": ("random",)}
"""Packages that can do the same work, and which of it."""
OTHERS = ("mava", "pufferlib", "warp_drive", "benchmarl")
"""Peers that this script would have to learn to drive; named so that nobody takes them for compared."""

Call = Callable[[], int]
"""Does some of the work, waits until it is done, and returns the number of env steps."""


@dataclasses.dataclass(frozen=True)
class MarlIppo(Plain):
    """The plain loop on JaxMARL's world, which starts a finished copy anew by itself."""

    def __post_init__(self):
        super().__post_init__()
        import jaxmarl

        object.__setattr__(self, "env", jaxmarl.make("MPE_simple_spread_v3"))

    def reset(self, keys):
        views, state = jax.vmap(self.env.reset)(keys)
        return state, self._stack(views)

    def transition(self, step_key, reset_key, state, action):
        keys = jax.random.split(step_key, self.num_envs)
        actions = {name: action[:, i] for i, name in enumerate(self.env.agents)}
        views, state, rewards, dones, _ = jax.vmap(self.env.step)(keys, state, actions)
        return state, self._stack(views), self._stack(rewards), dones["__all__"], None

    def _stack(self, by_agent):
        return jnp.stack([by_agent[name] for name in self.env.agents], axis=1)


def shoal_ippo(num_envs: int) -> Call:
    program = make_fused_program(presets.get("reference/simple_spread_ippo").replace(num_envs=num_envs))
    carry = program.init()
    advance = program.compiled(carry)
    kept = [carry]

    def call() -> int:
        kept[0], table = advance(kept[0], program.counts[1])
        jax.block_until_ready((kept[0], table))
        return num_envs * NUM_STEPS

    return call


def plain_ippo(loop: Plain) -> Call:
    update = jax.jit(loop.update, donate_argnums=0)
    kept = [jax.jit(loop.init)(jax.random.key(0))]

    def call() -> int:
        kept[0] = jax.block_until_ready(update(kept[0]))
        return loop.num_envs * NUM_STEPS

    return call


def random_steps(framework: str) -> Call:
    make = {"shoal": stepping.shoal_call, "jaxmarl": stepping.jaxmarl_call, "vmas": stepping.vmas_call}[framework]
    step = make("simple_spread", False)

    def call() -> int:
        step()  # it waits for its own end, as it returns a number
        return stepping.NUM_ENVS * stepping.STEPS_A_CALL

    return call


def timed(call: Call, seconds: float) -> tuple[float, float]:
    """Env steps per second, and per CPU-second of the process."""
    steps, cpu, wall = 0, time.process_time(), time.perf_counter()
    while time.perf_counter() - wall < seconds:
        steps += call()
    return steps / (time.perf_counter() - wall), steps / (time.process_time() - cpu)


def compare(calls: dict[str, Call], seconds: float, repeats: int) -> dict[str, Any]:
    """All frameworks on one kind of work, by turns."""
    rates = {name: [] for name in calls}
    for call in calls.values():
        call()  # compiles
    for _ in range(repeats):
        for name, call in calls.items():
            rates[name].append(timed(call, seconds))
    found = {}
    for name, turns in rates.items():
        wall, cpu = ([turn[i] for turn in turns] for i in range(2))
        found[name] = {"env_steps_per_s": statistics.median(wall), "spread": [min(wall), max(wall)], "repeats": wall}
        found[name] |= {"env_steps_per_cpu_s": statistics.median(cpu)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    installed = [name for name in PEERS if importlib.util.find_spec(name)]
    absent = [name for name in (*PEERS, *OTHERS) if not importlib.util.find_spec(name)]
    unknown = [name for name in OTHERS if importlib.util.find_spec(name)]
    if absent:
        print(f"not installed, left out: {', '.join(absent)}")
    if unknown:
        print(f"installed, but this script cannot drive them: {', '.join(unknown)}")
    stepping.NUM_ENVS = args.num_envs
    work = {
        "random": {name: random_steps(name) for name in ("shoal", *installed)},
        "IPPO": {"shoal": shoal_ippo(args.num_envs)},
    }
    if "jaxmarl" in installed:
        work["IPPO"]["jaxmarl"] = plain_ippo(MarlIppo(args.num_envs))
    work["IPPO"]["plain loop on our world"] = plain_ippo(Plain(args.num_envs))
    rows = {}
    for kind, calls in work.items():
        rows[kind] = compare(calls, args.seconds, args.repeats)
        for name, row in rows[kind].items():
            ours = rows[kind]["shoal"]["env_steps_per_s"] / row["env_steps_per_s"]
            low, high = (rate / 1e3 for rate in row["spread"])
            figures = f"{row['env_steps_per_s'] / 1e3:10.1f} k env steps/s ({low:.1f} to {high:.1f})"
            print(f"simple_spread, {kind}, {args.num_envs} copies: {name:24s} {figures}, ours {ours:.2f}x", flush=True)
    kept = {"what": "simple_spread, three agents; rates are env steps", "num_envs": args.num_envs, "rows": rows}
    kept |= {"left_out": absent, "seconds": args.seconds, "repeats": args.repeats, "precision": precision()}
    kept |= {"command": f"python benchmarks/compare.py {args.output} --num-envs {args.num_envs}", "commit": commit()}
    kept |= {"device": device(), "load": os.getloadavg(), "date": time.strftime("%Y-%m-%d")}
    peers = {name: importlib.metadata.version(name) for name in installed}
    args.output.write_text(json.dumps(kept | {"versions": versions() | peers}, indent=1) + "\n")


if __name__ == "__main__":
    main()
