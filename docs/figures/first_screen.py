"""Figures of the README's first screen: what is claimed in a line, and beside others."""

from collections import defaultdict

from figures.forms import figure, read, short, spread
from figures.outcomes import leduc_runs


@figure
def speed_in_a_line() -> str:
    """Ratios of training on one GPU, by peer."""
    by_peer = defaultdict(list)
    for row in read("h200/headline"):
        if row["ratio"] and "random" not in row["work"]:
            by_peer[row["peer"]].append(row["ratio"])
    simple = read("worlds_cpu")["rows"]["mpe/simple_spread"]
    return (
        f"{spread(by_peer['WarpDrive'])} times WarpDrive's training speed and {spread(by_peer['JaxMARL'], '{:.1f}')} "
        "times JaxMARL's; "
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
