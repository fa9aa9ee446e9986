"""Fills in the figures of the README and of the docs from `benchmarks/results`: `python docs/build_figures.py`.

A figure stands between `<!-- figure NAME -->` and `<!-- /figure -->`, a number within a sentence or a whole table, and
is made here by the function of that name, from JSON. `--check` says what is out of date; a test runs it. So no figure
is typed: to change one, measure it anew.
"""

import argparse
import itertools
import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SLOT = re.compile(r"(<!-- figure (\w+) -->)(.*?)(<!-- /figure -->)", re.DOTALL)
FIGURES: dict[str, Callable[[], str]] = {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    stale = [page for page in pages() if filled(page) != page.read_text()]
    names = ", ".join(str(page.relative_to(ROOT)) for page in stale)
    if args.check:
        print(f"out of date: {names}; run python docs/build_figures.py" if stale else "up to date")
        return bool(stale)
    for page in stale:
        page.write_text(filled(page))
    print(f"changed: {names}" if stale else "nothing changed")
    return 0


def pages() -> list[Path]:
    """The pages that have figures."""
    every = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in every if SLOT.search(page.read_text())]


def filled(page: Path) -> str:
    """The text of a page with all its figures made anew."""

    def fill(slot: re.Match) -> str:
        if slot[2] not in FIGURES:
            raise SystemExit(f"{page}: there is no figure {slot[2]!r}; there are {', '.join(sorted(FIGURES))}")
        return slot[1] + FIGURES[slot[2]]() + slot[4]

    return SLOT.sub(fill, page.read_text())


def figure(make: Callable[[], str]) -> Callable[[], str]:
    """Makes a function known as the figure of its name."""
    FIGURES[make.__name__] = make
    return make


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown, with the line breaks that set it apart from the slot's marks."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n\n"


def short(value: float) -> str:
    """`16900000` as `16.9 M`: three digits."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= 0.9995 * size:
            return f"{float(f'{value / size:.3g}'):g}{unit}"
    return f"{value:.3g}"


def listed(values: Iterable[float], form: str = "{:.0f}") -> str:
    return ", ".join(form.format(value) for value in values).replace("-", "−")


def spread(values: Sequence[float], form: str = "{:.0f}") -> str:
    low, high = (form.format(end).replace("-", "−") for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


# The first screen.


@figure
def speed_in_a_line() -> str:
    """Ratios of training on one GPU, by peer."""
    by_peer = defaultdict(list)
    for row in read("h200/headline"):
        if row["ratio"] and "random" not in row["work"]:
            by_peer[row["peer"]].append(row["ratio"])
    stepping = [row["ratio"] for row in stepped() if row.get("peer") == "JaxMARL"]
    simple = read("worlds_cpu")["rows"]["mpe/simple_spread"]
    return (
        f"{spread(by_peer['WarpDrive'])} times WarpDrive's training speed, {spread(by_peer['JaxMARL'], '{:.1f}')} "
        f"times JaxMARL's, and {spread(stepping, '{:.1f}')} times JaxMARL's stepping; "
        f"{short(simple['env_steps_per_cpu_s'])} "
        "steps of `mpe/simple_spread` per CPU-second"
    )


@figure
def memory_in_a_line() -> str:
    rows = read("memory_cpu")["rows"].values()
    whole, made = ([row[part] for row in rows] for part in ("ratio", "ratio_made"))
    return (
        f"Beside XLA's own plan for {len(rows)} presets, the estimate was {min(whole):.2f} to {max(whole):.2f} of it, "
        f"that of the temporary part alone {min(made):.2f} to {max(made):.2f}"
    )


@figure
def leduc_in_a_line() -> str:
    found = [run["reached_s"]["0.5"] for run in leduc_runs("h200")]
    return f"Leduc poker to NashConv 0.5 in {spread(found)} s"


def leduc_runs(device: str) -> list[dict[str, Any]]:
    """Learnt PSRO on Leduc poker, a run for each seed."""
    files = sorted((RESULTS / "psro_leduc").glob(f"{device}_seed*.json"))
    return [run for file in files for run in json.loads(file.read_text())["seeds"]]


@figure
def kills_in_a_line() -> str:
    found = read("kills")
    every = found["same"] == found["runs"]
    runs = f"{found['runs']} runs" if every else f"{found['same']} of {found['runs']} runs"
    return f"{runs}, killed {found['kills']} times in all, ended identically to uninterrupted ones"


@figure
def host_in_a_line() -> str:
    rows = read("cluster_mpe2")["rows"]
    ratio = rows["shoal"]["steps_per_second"] / rows["rllib"]["steps_per_second"]
    return f"{ratio:.1f} × its PPO on `mpe2.simple_spread_v3`"


def _ratio_to(peer: str, part: str) -> str:
    """Of the rows of the GPU's headlines whose work is called so."""
    rows = [row for row in read("h200/headline") if row["peer"] == peer and row["ratio"] and part in row["work"]]
    return spread([row["ratio"] for row in rows], "{:.1f}")


@figure
def beside_warpdrive() -> str:
    return f"{_ratio_to('WarpDrive', 'tag')} × on its own `tag`, one H200"


@figure
def beside_jaxmarl() -> str:
    return f"{_ratio_to('JaxMARL', 'PPO')} × its IPPO, one H200"


@figure
def beside_vmas() -> str:
    return f"{read('torch_ppo_cuda')['ratio']['rollout_and_update']:.2g} × its rollout and update in PyTorch, one H200"


@figure
def beside_openspiel() -> str:
    found = read("nash_conv_against_openspiel")["cards/leduc"]
    return f"exact NashConv of Leduc in {found['ms_each']:.2g} ms, theirs {found['openspiel_ms_each']:.0f} ms"


# Learning.


@figure
def spread_learns() -> str:
    found = read("simple_spread_ppo")
    within = max(found["cpu_s_to_goal"])
    reached = [curve[-1]["return"] for curve in found["curves"]]
    took = statistics.mean(curve[-1]["cpu_s"] for curve in found["curves"])
    return (
        f"passes a mean return of {listed([found['goal']])} within {within:.1f} CPU-seconds on "
        f"{len(found['cpu_s_to_goal'])} of {len(found['curves'])} seeds, and ends at {spread(reached, '{:.1f}')} "
        f"after {took:.0f}"
    )


@figure
def tag_learns() -> str:
    found = read("tag_continuous")["evaluation"]

    def taggers(name: str) -> str:
        return f"{found[name]['mean_return']['tagger']:.0f} ± {found[name]['standard_error']['tagger']:.0f}"

    return f"{taggers('trained')}, random taggers against the same runners with {taggers('random taggers')}"


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


# The cluster.


@figure
def cluster_speeds() -> str:
    native, pixels, mpe2 = read("cluster_speed"), read("cluster_pong_image"), read("cluster_mpe2")["rows"]
    both = native["best"]

    def runs(row: dict[str, Any]) -> str:
        each = ", ".join(f"{run['steps_per_second']:,.0f}" for run in row["runs"])
        return f"{row['steps_per_second']:,.0f}, median of {each}"

    lines = [
        (
            "`mpe/simple_spread`, `stale`, 1 actor of 2,048 copies (`benchmarks/cluster_speed.py`)",
            f"{both['cluster']:,.0f}",
            f"the fused runner: {both['fused']:,.0f} ({native['ratio']})",
        ),
        (
            "`appo/pong_image` (12 × 12 × 3 pixels, 128 units), 2 actors of 256 copies",
            f"{pixels['best']['cluster']:,.0f}",
            "",
        ),
        (
            "PPO on `pettingzoo:mpe2.simple_spread_v3`, in Python, 2 actors (`benchmarks/cluster_mpe2.py`)",
            runs(mpe2["shoal"]),
            f"RLlib: {runs(mpe2['rllib'])}",
        ),
    ]
    return table(("what", "env steps/s", "beside it"), lines)


@figure
def cluster_services() -> str:
    found = read("cluster_overheads")
    rates = defaultdict(list)
    for row in found["dispatch"]:
        size = row.get("most_tasks_a_message") or f"ray, on disk: {row['results_on_disk']}"
        rates[size].append(row["tasks_per_s"])
    by_size = {size: spread(values, "{:,.0f}") for size, values in rates.items()}
    return (
        f"a pull of 1 MB of weights takes {found['pull_1mb']['median_ms']:.1f} ms, a push of a rollout of 10 MB "
        f"{found['push_10mb']['median_ms']:.1f} ms, and the task board hands out {by_size[16]} tasks per second "
        f"to workers as they are (short tasks travel in groups of up to 16), {by_size[4]} in groups of four, "
        f"{by_size[1]} one by one; Ray's own `ActorPool` hands out {by_size['ray, on disk: False']}, and "
        f"{by_size['ray, on disk: True']} if each result is on disk before it counts, as on the board"
    )


FAULTS = {
    "actor": "an actor killed with SIGKILL",
    "learner": "the learner",
    "inference server": "the inference server of `seed`",
    "parameter service": "the parameter service",
    "dataset shard": "the dataset service",
    "coordinator": "the coordinator",
    "node removed and another added": "a node removed, another added",
    "environment raises once": "an environment raises once",
    "environment hangs": "an environment hangs, with a patience of 5 s",
    "environment gives NaN": "an environment gives NaN",
    "driver killed and resumed": "the driver killed, then `shoal resume`",
}


@figure
def cluster_faults() -> str:
    rows = defaultdict(list)
    for row in read("faults")["faults"]:
        rows[row["fault"]].append(row)
    lines = [
        (
            words,
            listed((row["recover_s"] for row in rows[name]), "{:.1f}"),
            str(sum(r["updates_lost"] for r in rows[name])),
        )
        for name, words in FAULTS.items()
    ]
    return table(("fault", "seconds until the next update", "committed updates lost"), lines)


@figure
def cluster_sweep() -> str:
    rows = read("cluster_sweep")["rows"]
    lines = []
    for actors in (1, 2, 4, 8):
        appo, maddpg = rows[f"appo/{actors}"], rows[f"maddpg/{actors}"]
        points = f"{appo['return']['left']:.2f}"
        speeds = f"{appo['env_steps_per_s']:,}", points, f"{appo['load']}", f"{maddpg['env_steps_per_s']:,}"
        lines.append((str(actors), *speeds, f"{maddpg['load']}"))
    head = "actors", "APPO on `pong`, 1 M env steps: env steps/s", "points of 5 against random play", "load"
    more = "MADDPG on `mpe/simple_adversary`, `stale`, 60,000 env steps: env steps/s", "load"
    return table((*head, *more), lines)


# Populations and bridges.


@figure
def psro_leduc() -> str:
    def line(words: str, stem: str) -> tuple[str, ...]:
        found = leduc_runs(stem)
        reached = [[one["reached_s"][goal] for one in found] for goal in ("1.0", "0.5")]
        return (
            words,
            *(f"{listed(seconds)} s" for seconds in reached),
            listed(one["history"][-1]["population"] for one in found),
        )

    rows = [line("one H200, 3 seeds", "h200"), line("two CPU cores, 3 seeds, with other work on them", "cpu")]
    return table(("", "to NashConv 1.0", "to 0.5", "policies per player"), rows)


@figure
def psro_iterations() -> str:
    """Seconds of an iteration once everything is compiled, and all the rest of a run."""
    each, rest = [], []
    for run in leduc_runs("h200"):
        times = [line["seconds"] for line in run["history"]]
        steps = [after - before for before, after in itertools.pairwise(times)]
        each.append(statistics.median(steps))
        rest.append(times[-1] - statistics.median(steps) * len(times))
    return (
        f"On the H200 an iteration takes {spread(each, '{:.1f}')} s in the median; {listed(rest)} s are compilation, "
        "start-up and slower first iterations"
    )


@figure
def league_on_cycles() -> str:
    words = {"psro/kuhn": "Kuhn poker", "psro/rock_paper_scissors": "rock-paper-scissors"}
    found = read("league_on_cycles")["summary"]
    measures = {"second_half": "mean of the second half", "last": "last iteration"}
    lines = [
        (f"{words[game]}, {when}", *(listed(found[game][solver][name], "{:.2f}") for solver in ("league", "last")))
        for game in words
        for name, when in measures.items()
    ]
    return table(("exploitability of the newest agents, 5 seeds", "league", "plain self-play"), lines)


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


# Versions.


@figure
def versions_tried() -> str:
    """Pythons and versions of JAX that the package was installed with, and what came of it."""
    rows = []
    for row in read("versions")["rows"].values():
        if "versions" not in row:
            continue
        counts, found = row["tests"], row["versions"]
        verdict = "all pass" if row["tests_pass"] else f"{counts.get('failed', 0) + counts.get('error', 0)} fail"
        demo = "trains" if row["demo_trains"] else "fails"
        numbers = [found[name] for name in ("jax", "flax", "numpy")]
        rows.append([row["python"], *numbers, f"{counts.get('passed', 0)}: {verdict}", demo])
    return table(["Python", "jax", "flax", "numpy", "tests", "`shoal train demo`"], rows)


# The zoo.


@figure
def zoo_entries() -> str:
    """Every entry of `zoo/zoo.json`, with what it earns."""
    entries = json.loads((ROOT / "zoo" / "zoo.json").read_text())["entries"]
    rows = []
    for name, entry in entries.items():
        amount = (
            f"{short(entry['env_steps'])} env steps" if "env_steps" in entry else f"{entry['iterations']} iterations"
        )
        beside = entry["random"] if "random" in entry else entry["against_random"]
        size = f"{entry['bytes'] / 1000:.0f} kB"
        command = entry["command"].replace(f" --seed {entry['seed']}", "")
        trained = [f"`{command}`", str(entry["seed"]), amount]
        replay = f"[replay](../zoo/{name}/replay.html)"
        rows.append([f"`zoo/{name}`", *trained, _returns(entry["return"]), _returns(beside), size, replay])
    heads = ["entry", "command", "seed", "trained for", "return", "at random, or against it", "size", "watch"]
    return table(heads, rows)


def _returns(values: dict[str, float]) -> str:
    return ", ".join(f"{who} {value:.3g}".replace("-", "−") for who, value in values.items())


if __name__ == "__main__":
    sys.exit(main())
