"""Figures of speed: on a CPU, on a GPU, beside what the chip allows, and over the bridges to other libraries."""

import statistics
from collections.abc import Sequence
from typing import Any

from figures.forms import figure, read, short, spread, table

# Speed on the CPU.


@figure
def cpu_worlds() -> str:
    rows = read("worlds_cpu")["rows"]
    shown = ("mpe/simple_spread", "mpe/simple_tag", "tag/grid", "tag/continuous", "cards/leduc", "pong", "pong, image",
             "control/cartpole", "swarm/rendezvous")  # fmt: skip
    lines = [(f"`{name}`", f"{rows[name]['num_envs']:,}", short(rows[name]["env_steps_per_cpu_s"])) for name in shown]
    return table(("world, random actions", "copies", "env steps per CPU-second"), lines)


@figure
def cpu_training() -> str:
    rows = {name: short(per_cpu_second) for name, (per_cpu_second, _) in read("compare_ippo")["rows"].items()}
    return (
        f"{rows['shoal, 2 cores']} env steps per CPU-second on two cores, {rows['shoal, one core']} on one; the same, "
        f"written by hand as a plain JAX loop with a full shuffle, {rows['plain, full shuffle']}"
    )


# Speed on the GPU.


def _rates(row: dict[str, Any]) -> tuple[str, str, str]:
    ratio = f"{row['ratio']:.3g} × {row['peer']}" if row.get("ratio") else ""
    return short(row["env_steps_per_s"]), short(row["agent_steps_per_s"]), ratio


def _sizes(row: dict[str, Any]) -> str:
    return f"{row['num_envs']:,} copies, {row['agents']:,} {'agent' if row['agents'] == 1 else 'agents'}"


MEASURED_AGAIN = {
    "tag/grid  x 2000": "tag/grid 2000 x 5, random",
    "tag/grid {'num_taggers': 999, 'full_view': False} x 2000": "tag/grid 2000 x 1000, partial view, random",
    "tag/continuous  x 1000": "tag/continuous 1000 x 110, random",
    "mpe/simple_spread  x 262144": "simple_spread random, 262,144 copies",
}
"""Rows of `h200.json` that are headlines as well: the same work, measured since."""


def stepped() -> list[dict[str, Any]]:
    """Worlds beside peers on one GPU, each as it was measured last."""
    newest = {row["work"]: row for row in read("h200/headline")}
    rows = [row for row in read("h200")["rows"] if row["kind"] == "step"]
    figures = "env_steps_per_s", "agent_steps_per_s", "ratio"
    for row in rows:
        again = newest.get(MEASURED_AGAIN.get(row["name"], ""), row)
        row |= {name: again[name] for name in figures if name in again}
    return rows


@figure
def gpu_worlds() -> str:
    worlds = read("worlds_h200")["rows"]
    chosen = stepped()
    names = [name for name in worlds if name.endswith("1,000 agents")] + ["cards/leduc", "pong", "pong, image"]
    chosen += [worlds[name] for name in names]
    lines = [(f"`{row['env']}`, {_sizes(row)}{_view(row)}", *_rates(row)) for row in chosen]
    return table(("random actions", "env steps/s", "agent steps/s", "ratio"), lines)


def _view(row: dict[str, Any]) -> str:
    options = row["options"]
    return ", partial view" if options.get("full_view") is False else ", image" if options.get("view") else ""


def _compile_s(row: dict[str, Any]) -> float:
    """Seconds to compile a row; files of before the suite have one figure for each repeat."""
    return row["compile_s"][0] if isinstance(row["compile_s"], list) else row["compile_s"]


@figure
def gpu_training() -> str:
    chosen = [row for row in read("h200/headline") if "random" not in row["work"]]
    lines = []
    for row in chosen:
        spread = f"{short(row['spread'][0])} to {short(row['spread'][1])}"
        ratio = f"{row['ratio']:.3g} × {row['peer']}" if row["ratio"] else ""
        lines.append((row["work"], short(row["env_steps_per_s"]), spread, f"{_compile_s(row):.1f} s", ratio))
    return table(("training", "env steps/s, median of three", "from, to", "compiling", "ratio"), lines)


@figure
def compile_times() -> str:
    """Seconds from the command to the end of the first update on a CPU, and how much of the CPU they took."""
    lines = []
    for row in read("compile_cpu")["rows"]:
        first = [row[how]["first_update"] for how in ("cold", "warm")]
        cells = [f"{one['cpu_s']:.1f} s ({one['s']:.1f} s)" for one in first]
        lines.append((f"`{row['target']}`", *cells, f"{row['warm']['run']['cpu_s']:.1f} s"))
    head = "first update on a CPU", "nothing compiled before", "read from the cache", "of which running it"
    return table(head, lines)


@figure
def growth_of_copies() -> str:
    by_line = _grown("num_envs", "copies, random", "copies, PPO")
    lines = []
    for copies in by_line["copies, random"]:
        cells = [short(found[copies]["env_steps_per_s"]) if copies in found else "" for found in by_line.values()]
        lines.append((f"{copies:,}", *cells))
    return table(("copies of `mpe/simple_spread`", "random actions, env steps/s", "PPO, env steps/s"), lines)


@figure
def growth_of_agents() -> str:
    by_line = _grown("agents", "agents, tag", "agents, swarm")
    lines = []
    for agents, row in by_line["agents, tag"].items():
        cells = [short(found[agents]["agent_steps_per_s"]) if agents in found else "" for found in by_line.values()]
        lines.append((f"{agents:,}", f"{row['num_envs']:,}", *cells))
    head = "agents a world", "copies", "`tag/continuous`, agent steps/s", "`swarm/formation`, agent steps/s"
    return table(head, lines)


def _grown(size: str, *lines: str) -> dict[str, dict[int, dict[str, Any]]]:
    """Rows of the growth by line, then by size."""
    rows = read("h200/growth")["rows"]
    return {line: {row[size]: row for row in rows if row["line"] == line} for line in lines}


@figure
def opponents() -> str:
    """A forward pass for all copies against a bank of policies."""
    lines = []
    for row in read("opponents_h200")["rows"]:
        each = [f"{row[way] * 1000:.0f}" if way in row else "" for way in ("one", "all", "blocks", "gather")]
        lines.append((f"{row['copies']:,}", f"{row['policies']:,}", *each))
    head = "copies", "policies", "one for all, µs", "every policy on every copy", "blocks", "gathered weights"
    return table(head, lines)


@figure
def bank_speed() -> str:
    found = read("h200/bank")
    one, bank = found["rows"]
    return (
        f"an update of PPO on `{found['preset']}` with {found['num_envs']:,} copies takes "
        f"{one['update_s'] * 1000:.1f} ms against one opponent, "
        f"and {bank['over_first']:.2f} times that against a bank of {bank['opponents']}"
    )


@figure
def pbt_speed() -> str:
    found = read("pbt_speed_h200")
    one, population = (found[name]["update_s"] * 1000 for name in ("one", "population"))
    return (
        f"an update of {found['pbt']['members']} members of `{found['preset']}` takes {population:.1f} ms, "
        f"{found['over_one']:.1f} times one member's {one:.1f} ms, and {found['ratio']:.2f} times that of as many "
        "seeds that are never compared"
    )


@figure
def peers_on_a_cpu() -> str:
    found = read("compare_cpu")
    lines = [
        (f"{work}: {name}", short(row["env_steps_per_s"]), f"{short(row['spread'][0])} to {short(row['spread'][1])}",
         short(row["env_steps_per_cpu_s"]))
        for work, rows in found["rows"].items()
        for name, row in rows.items()
    ]  # fmt: skip
    head = f"simple_spread, {found['num_envs']:,} copies", "env steps/s", "from, to", "env steps per CPU-second"
    return table(head, lines)


@figure
def neighbour_times() -> str:
    lines = []
    for row in read("neighbours")["timed"]:
        worlds, n, k = row["worlds, n, k"]
        times = (f"{row[way] / 1000:.2g} ms" for way in ("kernel_us", "plain_us"))
        lines.append((f"{worlds:,} x {n:,}", str(k), *times))
    return table(("worlds x agents, one H200", "k", "kernel", "`lax.top_k`, or rounds of a few agents"), lines)


@figure
def hosts_bytes() -> str:
    found = read("hosts_cpu")
    return f"{found['bytes_per_update']:,} bytes"


# How near to what the chip allows.

LAUNCH_S = 2e-6, 4e-6
"""Seconds that a kernel inside a loop takes at least, launching included: about."""


@figure
def roofline() -> str:
    lines = []
    for row in read("h200/roofline")["rows"]:
        shares = [row[f"share_of_{name}"] for name in ("bandwidth", "products", "float32")]
        counted = [short(row["products"]), short(row["elementwise"]), short(sum(row["bytes"].values()))]
        lines.append((row["work"], *counted, *map(_percent, shares)))
    head = "an env step of", "products", "other float32", "bytes", "of memory", "of products", "of float32"
    return table(head, lines)


@figure
def limits() -> str:
    """What each row waits for: launches of kernels, or the rate that it comes nearest to."""
    launched = {row["work"]: row["kernels"] for row in read("h200/kernels")}
    lines = []
    for row in read("h200/roofline")["rows"]:
        seconds, kernels = row["env_steps_a_call"] / row["env_steps_per_s"], launched.get(row["work"])
        launching = [each * kernels / seconds for each in LAUNCH_S] if kernels else None
        cells = [f"{1000 * seconds:.3g} ms", "", "", ""]
        if kernels and launching:
            share = " to ".join(dict.fromkeys(_percent(min(1, part)) for part in launching))
            cells[1:] = f"{kernels:,}", f"{1e6 * seconds / kernels:.1f} µs", share
        lines.append((row["work"], *cells, row["kernels"], _limit(row, launching)))
    head = "work", "one call", "kernels", "time of each", "launching, at 2 to 4 µs", "hand-written kernels", "limit"
    return table(head, lines)


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else "100 %"


def _limit(row: dict[str, Any], launching: Sequence[float] | None) -> str:
    shares = {name: row[f"share_of_{name}"] for name in ("bandwidth", "products", "float32")}
    nearest = max(shares, key=lambda name: shares[name])
    if launching and launching[0] >= 0.5:
        return "launching kernels"
    if launching and launching[1] >= 0.5:
        return "launching kernels, in part"
    if shares[nearest] >= 0.5:
        return {"bandwidth": "memory", "products": "products", "float32": "float32 operations"}[nearest]
    return "no rate alone" if launching else "no rate alone; launches not counted"


@figure
def kernels_learn() -> str:
    rows = [row for row in read("h200/learning") if row["target"] == "mpe/simple_spread"]
    rows = [row for row in rows if row.get("dtype", "float32") == "float32"]
    means = {row["kernels"]: row["returns"]["agent"] for row in rows}
    with_them, without = (
        f"{statistics.mean(v):.1f} ± {statistics.stdev(v):.1f}".replace("-", "−") for v in (means[True], means[False])
    )
    return f"{with_them} with the kernels, {without} without, over {len(means[True])} seeds"


@figure
def kernels() -> str:
    row = next(row for row in read("h200/kernels") if row["work"] == "simple_spread PPO reference, 4,096 copies")
    before = row["before"]
    return (
        f"A step of `mpe/simple_spread` with PPO takes {row['kernels_per_step']:.1f} kernels instead of "
        f"{before['kernels_per_step']:.1f}, a whole update {row['kernels']:,} instead of {before['kernels']:,} "
        "(4,096 copies)"
    )


# Bridges.


@figure
def torch_speeds() -> str:
    rows = {
        "one H200": "torch_ppo_cuda",
        "one H200, the policy a CUDA graph for both": "torch_ppo_cuda_graph",
        "one CPU core": "torch_ppo_cpu",
    }
    lines = []
    for words, name in rows.items():
        found = read(name)
        cells = [
            f"{short(both['shoal'])}, VMAS {short(both['vmas'])}: {found['ratio'][part]:.2g} times"
            for part, both in found["steps_per_second"].items()
        ]
        lines.append((words, *cells))
    return table(("", "environment alone", "rollout, policy included", "rollout and update"), lines)


@figure
def torch_hand_over() -> str:
    gpu, cpu = (read(f"torch_ppo_{device}")["hand_over"] for device in ("cuda", "cpu"))
    moments = sum(gpu["microseconds_of_a_step"][way] for way in ("to_jax", "to_torch"))
    shares = f"{gpu['share_of_rollout_and_update']:.1%} of rollout and update, {cpu['share_of_rollout_and_update']:.1%}"
    return f"{moments / 1000:.2f} ms a step: {shares.replace('%', ' %')} on a CPU core"


@figure
def dlpack_round_trip() -> str:
    gpu, cpu = ([row["round_trip_us"] for row in read(f"dlpack_{device}")["rows"]] for device in ("cuda", "cpu"))
    return f"{spread(gpu)} µs of the host's time there, {spread(cpu)} µs on a CPU"


@figure
def pettingzoo_speed() -> str:
    found = read("pettingzoo_speed")
    ours, theirs = (found["rows"][name]["steps_per_second"] for name in ("shoal", "mpe2"))
    return f"{ours:,.0f} steps/s on one core of a shared machine, where `mpe2` does {theirs:,.0f}"
