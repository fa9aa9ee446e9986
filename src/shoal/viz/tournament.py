"""`tournament.png` and `tournament.html`: who earns what with whom, who is how strong, and how far each is exploited.

Both show the same plain data, that of `tournament.json`, with entrants from the best to the worst.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.viz.curves import drawing
from shoal.viz.maps import WRITTEN, bent_norm, colour_scale, draw_bar, label_axes, title_panel, write_entries
from shoal.viz.palette import BEND, FAINT, INK, MUTED, PALETTE, SHADES
from shoal.viz.replay import filled_page, write_file

RELATIONS = {
    "zero-sum": "one side wins what the other loses",
    "opposed": "sides compete, and their returns do not add up to 0",
    "team": "all share one return: how well they play with partners they were not trained with",
    "general": "each side has a return of its own",
}
_LONGEST = 34
"""Letters of a name in the picture."""


def write_tournament(path: str | os.PathLike[str], data: Mapping[str, Any], *, title: str) -> None:
    """Writes a page that needs nothing else."""
    payload = dict(data) | {"title": title, "subtitle": headline(data), "shades": SHADES, "bend": BEND}
    payload |= {"written": WRITTEN, "colours": [1, 2, 3, 4, 5, 6, 7], "players": list(data["sides"])}
    write_file(path, filled_page("tournament.html", title, payload))


def headline(data: Mapping[str, Any]) -> str:
    """A tournament in one line."""
    count, programs = len(data["entrants"]), data["programs"]
    parts = [f"{count} entrants, {data['episodes']:,} {data['policy']} episodes of each line-up, seed {data['seed']}"]
    parts.append(f"{data['relation']}: {RELATIONS[data['relation']]}")
    if found := data["cross_play"]:
        told = (f"{name.replace('_', '-')} {found[name]:.4g}{_plus(found[f'{name}_error'])}" for name in _TEAM)
        parts.append(", ".join(told))
    parts.append(f"{programs} compiled program{'s' if programs > 1 else ''}")
    return "; ".join(parts)


_TEAM = ("self_play", "cross_play", "gap")


def _plus(error: float | None) -> str:
    return "" if error is None or not np.isfinite(error) else f" ± {error:.2g}"


def draw_tournament(path: str | os.PathLike[str], data: Mapping[str, Any], *, title: str) -> None:
    """Draws a tournament as a PNG: the table, and a line for every entrant."""
    order = data["order"]
    tall = max(3.6, 0.32 * len(order) + 1.6)
    with drawing(path, dpi=144, facecolor="white") as figure:
        figure.set_size_inches(12.5, tall + 0.8)
        whole = tall + 0.8
        text = {"ha": "left", "parse_math": False}
        figure.text(0.024, 1 - 0.4 / whole, title, fontsize=14, fontweight="bold", color=INK, **text)
        figure.text(0.024, 1 - 0.66 / whole, headline(data), fontsize=8.5, color=MUTED, **text)
        left, low, high = 2.5 / 12.5, 0.55 / whole, (tall - 1.15) / whole
        _draw_table(figure, figure.add_axes((left, low, 4.4 / 12.5, high)), data)
        _draw_strengths(figure.add_axes((7.7 / 12.5, low, 4.4 / 12.5, high)), data)


def _draw_table(figure: Any, axes: Any, data: Mapping[str, Any]) -> None:
    order = data["order"]
    mean = np.array(data["matrix"]["mean"], np.float64)[np.ix_(order, order)]
    error = np.array(data["matrix"]["error"], np.float64)[np.ix_(order, order)]
    limit = float(np.abs(mean).max()) or 1.0
    image = axes.imshow(mean, aspect="auto", cmap=colour_scale("less", "none", "more"), norm=bent_norm(limit))
    draw_bar(figure, axes, image, [share * limit for share in (-1.0, -0.5, 0.0, 0.5, 1.0)], "{:+.3g}")
    rows = "what the team earns" if data["relation"] == "team" else "what the row earns"
    known = np.isfinite(error)
    sure = f"standard error: greatest {error[known].max():.2g}" if known.any() else "one episode: errors are unknown"
    title_panel(axes, f"{rows}, mean over sides", sure)
    label_axes(axes, "with or against", "")
    axes.set_xticks(range(len(order)), [str(i + 1) for i in range(len(order))])
    names = [_short(data["entrants"][number]["name"]) for number in order]
    axes.set_yticks(range(len(order)), [f"{name}  {i + 1}" for i, name in enumerate(names)], parse_math=False)
    if len(order) <= WRITTEN:
        write_entries(axes, image, mean, lambda i, j: f"{mean[i, j]:+.3g}" + _below(error[i, j]))


def _below(error: float) -> str:
    return f"\n±{error:.2g}" if np.isfinite(error) else ""


def _draw_strengths(axes: Any, data: Mapping[str, Any]) -> None:
    """Elo with its interval where there is one, else what each one earns with the others."""
    order, ratings = data["order"], data["elo"]
    places = np.arange(len(order))
    if ratings:
        middle, low, high = (np.array(ratings[name])[order] for name in ("rating", "low", "high"))
        title_panel(axes, "Elo", "with 95 % bootstrap intervals over episodes; the mean is 1500")
    else:
        middle, error = (np.array(data["with_others"][name], np.float64)[order] for name in ("mean", "error"))
        low, high = middle - 1.96 * np.nan_to_num(error), middle + 1.96 * np.nan_to_num(error)
        title_panel(axes, "mean return with the others", "with 95 % intervals over episodes")
    axes.hlines(places, low, high, color=PALETTE[1], linewidth=2)
    axes.plot(middle, places, "o", color=PALETTE[1], markersize=5)
    axes.set_yticks(places, [str(i + 1) for i in places])
    axes.set_ylim(len(order) - 0.5, -0.5)  # rows beside those of the table
    axes.grid(axis="x", color=FAINT, linewidth=0.8)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}"
