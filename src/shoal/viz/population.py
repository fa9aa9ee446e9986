"""`population.png`, `.pdf` and `.html`: a population's payoffs, its growth, and the weights of its policies.

Both show the same plain data, that of `shoal population RUN --json`. Of more than two players, the payoff table is
shown for the first two, all others playing their mixtures.
"""

import os
import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.core.errors import require
from shoal.core.files import nan_to_none
from shoal.viz.curves import drawing
from shoal.viz.maps import WRITTEN, bent_norm, colour_scale, draw_bar, label_axes, title_panel, write_entries
from shoal.viz.palette import BEND, FAINT, INK, MUTED, PALETTE, SHADES, colours_of
from shoal.viz.replay import filled_page, write_file

_COLUMNS = 3
_WIDTH, _HEIGHT, _HEAD = 4.5, 3.7, 0.8  # of a panel and of the head, in inches
_SHARES = (0, 0.1, 0.25, 0.5, 1)
"""Weights at which the colour scale of mixtures is labelled."""
_MOST_LEGEND = 0.5
"""The greatest part of a panel that a legend may take."""
_LOG_RATIO = 10
"""NashConv is drawn on a logarithmic axis if it has fallen by this factor."""


def write_population(path: str | os.PathLike[str], data: Mapping[str, Any], *, title: str, run: str = "") -> None:
    """Writes a page that needs nothing else. `run`: the folder, for the command that shows an entry as a replay."""
    shown = {name: data[name] for name in data if name not in ("payoffs", "errors", "episodes")}
    payload = shown | {"title": title, "subtitle": headline(data), "run": shlex.quote(run), "table": shown_table(data)}
    payload |= {"colours": _colours(data), "shades": SHADES, "bend": BEND, "written": WRITTEN}
    write_file(path, filled_page("population.html", title, payload))


def draw_population(path: str | os.PathLike[str], data: Mapping[str, Any], *, title: str) -> None:
    """Draws a population as a PNG or PDF, by the name's end, with a panel for each side of it."""
    require(bool(data["history"]), "draw_population", "history", [], "at least one iteration")
    players = data["players"]
    compared = players if data.get("behaviour") else []
    with drawing(path, dpi=144, facecolor="white") as figure:
        panels = _layout(figure, 4 + len(players) + len(compared), data, title)
        _draw_payoffs(figure, panels[0], data)
        for panel, player in zip(panels[1:], compared, strict=False):
            _draw_behaviour(figure, panel, data, player)
        for number, player in enumerate(players):
            _draw_mixture(figure, panels[1 + len(compared) + number], data, number, player)
        _draw_distance(panels[-3], data)
        _draw_lineage(panels[-2], data)
        _draw_shares(panels[-1], data)


def shown_table(data: Mapping[str, Any]) -> dict[str, Any]:
    """Payoffs `[players, m0, m1]`, their standard errors, and episodes `[m0, m1]`, for the first two players."""
    mean, error = (np.array(data[name], np.float64) for name in ("payoffs", "errors"))
    count = np.array(data["episodes"], np.float64)
    square = np.square(error)
    for mixture in reversed([np.array(data["mixtures"][player]) for player in data["players"][2:]]):
        played = mixture > 0
        mean, square = mean[..., played] @ mixture[played], square[..., played] @ mixture[played] ** 2
        count = count[..., played].sum(axis=-1)
    mean, error = (nan_to_none(values.tolist()) for values in (mean, np.sqrt(square)))
    return {"mean": mean, "error": error, "episodes": count.astype(int).tolist()}


def mixtures_over_time(data: Mapping[str, Any], number: int) -> tuple[np.ndarray, np.ndarray]:
    """Iterations `[n]` whose mixtures are known, and the weights `[members, n]`, of one player."""
    player = data["players"][number]
    lines = [line for line in data["history"] if "mixtures" in line]
    if not lines:  # an early run: only the last is kept
        return np.array([data["iteration"]]), np.array(data["mixtures"][player])[:, None]
    weights = np.zeros((data["sizes"][number], len(lines)))
    for column, line in enumerate(lines):
        mixture = line["mixtures"][number]
        weights[: len(mixture), column] = mixture
    return np.array([line["iteration"] for line in lines]), weights


def _layout(figure: Any, count: int, data: Mapping[str, Any], title: str) -> list[Any]:
    """Panels in rows below a title; lengths in inches."""
    rows = -(-count // _COLUMNS)
    whole = (_COLUMNS * _WIDTH, rows * _HEIGHT + _HEAD)
    figure.set_size_inches(*whole)
    style = {"ha": "left", "parse_math": False}
    figure.text(0.3 / whole[0], 1 - 0.4 / whole[1], title, fontsize=14, fontweight="bold", color=INK, **style)
    figure.text(0.3 / whole[0], 1 - 0.66 / whole[1], headline(data), fontsize=9.5, color=MUTED, **style)
    panels = []
    for i in range(count):
        left, low = (i % _COLUMNS) * _WIDTH + 0.65, (rows - 1 - i // _COLUMNS) * _HEIGHT + 0.55
        place = (left / whole[0], low / whole[1], (_WIDTH - 1.0) / whole[0], (_HEIGHT - 1.15) / whole[1])
        panels.append(figure.add_axes(place))
    return panels


def headline(data: Mapping[str, Any]) -> str:
    """The figures of the last iteration in one line."""
    sizes = " x ".join(map(str, data["sizes"]))
    made = f"{data['meta_solver']}, {data['oracle']} responses"
    parts = [f"{sizes} policies after {data['iteration']} iterations, {made}"]
    if data["nash_conv"] is not None:
        parts.append(f"NashConv {data['nash_conv']:.4g}, exploitability {data['exploitability']:.4g}")
    values = zip(data["players"], data["value"], strict=True)
    known = [f"{player} {round(value, 6) + 0.0:+.4g}" for player, value in values if value is not None]
    if known:
        parts.append(f"value {', '.join(known)}")
    return "; ".join(parts)


def _draw_payoffs(figure: Any, axes: Any, data: Mapping[str, Any]) -> None:
    """A map of what the first player earns; entries of small tables are written out with their errors."""
    table = shown_table(data)
    mean, error = np.array(table["mean"][0], np.float64), np.array(table["error"][0], np.float64)
    limit = float(np.abs(np.nan_to_num(mean)).max()) or 1.0
    cells = np.ma.masked_invalid(mean)
    image = axes.imshow(cells, aspect="auto", cmap=colour_scale("less", "none", "more"), norm=bent_norm(limit))
    draw_bar(figure, axes, image, [share * limit for share in (-1.0, -0.5, 0.0, 0.5, 1.0)], "{:+.3g}")
    row, column, *others = data["players"]
    title_panel(axes, f"payoff of {row}" + (", others mixed" if others else ""), _precision(data, error))
    label_axes(axes, f"policy of {column}", f"policy of {row}")
    if max(mean.shape) > WRITTEN:
        return
    sure = data["oracle"] == "exact"
    write_entries(axes, image, mean, lambda i, j: f"{mean[i, j]:+.3g}" + ("" if sure else f"\n±{error[i, j]:.2g}"))


def _draw_behaviour(figure: Any, axes: Any, data: Mapping[str, Any], player: str) -> None:
    """A map of how differently a player's policies behave."""
    found = data["behaviour"]
    distances = np.array(found["distances"][player])
    limit = max(float(distances.max()), 0.05)
    image = axes.imshow(distances, aspect="auto", cmap=colour_scale("none", "apart"), vmin=0, vmax=limit)
    draw_bar(figure, axes, image, [0.0, limit / 2, limit], "{:.2g}")
    if len(distances) <= WRITTEN:
        write_entries(axes, image, distances, lambda i, j: f"{distances[i, j]:.2g}")
    detail = f"mean {found['diversity'][player]:.2g}, of two drawn from the mixture {found['expected'][player]:.2g}"
    title_panel(axes, f"behaviour of {player}: distances", detail)
    label_axes(axes, "policy", "policy")


def _precision(data: Mapping[str, Any], error: np.ndarray) -> str:
    if data["oracle"] == "exact":
        return "exact"
    if not np.isfinite(error).any():
        return "nothing was played, or only once"
    return f"standard error: median {np.nanmedian(error):.2g}, greatest {np.nanmax(error):.2g}"


def _draw_mixture(figure: Any, axes: Any, data: Mapping[str, Any], number: int, player: str) -> None:
    """Weights of a player's policies, iteration by iteration."""
    iterations, weights = mixtures_over_time(data, number)
    edges = np.append(iterations, iterations[-1] + 1) - 0.5
    scale = {"cmap": colour_scale("none", "weight"), "norm": bent_norm(1.0, least=0.0)}
    image = axes.pcolormesh(edges, np.arange(len(weights) + 1) - 0.5, weights, **scale)
    axes.invert_yaxis()  # the first policy on top, as in the map of payoffs
    draw_bar(figure, axes, image, _SHARES, "{:.0%}")
    known = "weight by iteration" if len(iterations) > 1 else "only the last is kept"
    title_panel(axes, f"meta-strategy of {player}", known)
    label_axes(axes, "iteration", "policy")


def _draw_distance(axes: Any, data: Mapping[str, Any]) -> None:
    """NashConv, where it is known; else what best responses gained."""
    lines = [line for line in data["history"] if line.get("nash_conv") is not None]
    if lines:
        steps = [line["iteration"] for line in lines]
        for name, colour in (("nash_conv", PALETTE[1]), ("exploitability", PALETTE[2])):
            values = [line[name] for line in lines]
            axes.plot(steps, values, color=colour, linewidth=1.8, marker="o" if len(lines) == 1 else None, label=name)
        least = min(line["exploitability"] for line in lines)
        if least > 0 and lines[0]["nash_conv"] >= _LOG_RATIO * lines[-1]["nash_conv"]:
            axes.set_yscale("log")
        title_panel(axes, "distance from equilibrium", "NashConv and exploitability of the meta-strategies, exact")
    else:
        _draw_gains(axes, data)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    label_axes(axes, "iteration", "")
    if axes.lines:
        _add_legend(axes)


def _draw_gains(axes: Any, data: Mapping[str, Any]) -> None:
    lines = [line for line in data["history"] if "gain" in line]
    steps = [line["iteration"] for line in lines]
    for number, (player, colour) in enumerate(_colour(data) if lines else ()):
        values = [line["gain"][number] for line in lines]
        axes.plot(steps, values, color=colour, marker="o", markersize=3, label=player)
    title_panel(axes, "gains of best responses", "over the mixture's value")


def _draw_lineage(axes: Any, data: Mapping[str, Any]) -> None:
    """Each policy at its birth and rating, joined to the one it started from; large ones have weight."""
    for player, colour in _colour(data):
        members = data["members"][player]
        heights = data["elo"][player] if data["elo"] else range(len(members))
        places = [(member["born"], height) for member, height in zip(members, heights, strict=True)]
        for member, place in zip(members, places, strict=True):
            if member["parent"] is not None:
                start = places[member["parent"]]
                axes.plot([start[0], place[0]], [start[1], place[1]], color=colour, linewidth=0.8, alpha=0.5)
        sizes = 8 + 300 * np.array(data["mixtures"][player])
        axes.scatter(*zip(*places, strict=True), s=sizes, color=colour, alpha=0.6, linewidths=0, label=player)
    alone = all(member["parent"] is None for own in data["members"].values() for member in own)
    lines = "every policy started afresh" if alone else "lines lead from what a policy started from"
    title_panel(axes, "Elo ratings and lineage" if data["elo"] else "lineage", f"size: weight in the mixture; {lines}")
    label_axes(axes, "born in iteration", "Elo" if data["elo"] else "policy")
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    _add_legend(axes, markerscale=0.6)


def _draw_shares(axes: Any, data: Mapping[str, Any]) -> None:
    """The last mixtures as bars, and α-rank as dots."""
    players = data["players"]
    width = 0.8 / len(players)
    for number, (player, colour) in enumerate(_colour(data)):
        places = np.arange(data["sizes"][number]) + (number - (len(players) - 1) / 2) * width
        axes.bar(places, data["mixtures"][player], width, color=colour, alpha=0.55, label=player)
        if data["alpha_rank"]:
            axes.plot(places, data["alpha_rank"][player], "o", color=colour, markersize=3.5)
    title_panel(
        axes, "final weights", "bars: meta-strategy; dots: α-rank" if data["alpha_rank"] else "bars: meta-strategy"
    )
    label_axes(axes, "policy", "")
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    _add_legend(axes)


def _add_legend(axes: Any, **style: Any) -> None:
    """A legend above all data: the panel's scale is made longer by the room that it needs."""
    columns = 2 if len(axes.get_legend_handles_labels()[1]) > 1 else 1
    legend = axes.legend(frameon=False, fontsize=8, labelcolor=INK, loc="upper left", ncols=columns, **style)
    share = min(legend.get_window_extent().height / axes.get_window_extent().height, _MOST_LEGEND)
    scale = axes.yaxis.get_transform()
    low, high = scale.transform(axes.get_ylim())
    axes.set_ylim(*scale.inverted().transform([low, low + (high - low) / (1 - share)]))


def _colours(data: Mapping[str, Any]) -> list[int]:
    """Palette indices of the players: those of their groups in the world's own pictures, where `data` has them."""
    return list(colours_of(data["players"], data.get("colours")).values())


def _colour(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(player, PALETTE[index]) for player, index in zip(data["players"], _colours(data), strict=True)]
