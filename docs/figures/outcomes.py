"""Figures of what came of runs: learning, the cluster and its faults, populations, versions tried, the zoo."""

import itertools
import json
import statistics
from collections import defaultdict
from typing import Any

from figures.forms import RESULTS, ROOT, figure, listed, read, short, spread, table

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


# Populations.


def leduc_runs(device: str) -> list[dict[str, Any]]:
    """Learnt PSRO on Leduc poker, a run for each seed."""
    files = sorted((RESULTS / "psro_leduc").glob(f"{device}_seed*.json"))
    return [run for file in files for run in json.loads(file.read_text())["seeds"]]


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
