"""`shoal tournament RUN ...`: everybody with or against everybody, as a table, ratings, a page and JSON."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from rich.console import Console
from rich.table import Table
from tyro.conf import DisallowNone, Positional, UseAppendAction, arg

from shoal.api.targets import import_files
from shoal.api.tournament import Tournament, number_names, tournament
from shoal.api.words import for_command_line
from shoal.cli.arguments import Count, Flag, Folder, Imports, parse, parse_pairs
from shoal.cli.commands.match import resolve_entrant
from shoal.cli.runs import check_devices
from shoal.cli.terminal import console, display_path, emit, format_duration, pluralise, resolve_path, say
from shoal.core.errors import OptionError, require_positive
from shoal.training.devices import prepare_jax
from shoal.training.run import default_path

Entrants = Annotated[Positional[tuple[str, ...]], arg(metavar="RUN")]
Sides = Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="NAME=SEATS")]
Steps = Annotated[DisallowNone[int | None], arg(metavar="STEPS")]
SHOWN = 12
"""Rows of the largest table that is printed."""


ORDERED = ("from the best to the worst, by what they earn", "from the best to the worst, by Elo of games won")
"""What entrants are ordered by, without Elo and with."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TournamentOptions:
    """Play everybody with or against everybody on every side: a table with errors, Elo, a page and JSON.

    RUN is a folder of a run or a population, or random; it may end in a checkpoint, @best or @40, and in a number, :1,
    the seed of a run or the policy of a population. Runs of one network are played by one compiled program.
    """

    entrants: Entrants  # who takes part
    episodes: int = 1024  # episodes of every line-up
    seed: int = 0  # seed of the episodes
    explore: Flag = False  # sample actions as in training, instead of taking the likeliest
    seeds: DisallowNone[Literal["each", "mean"] | None] = None
    """seeds of a run are entrants of their own, or take turns; by default each if there is one run, else mean"""
    side: Sides = ()  # which seats belong together, one=agent[0]; by default players, or halves of a single team
    exploit: Steps = None  # train exploiters of every entrant for so many env steps (minutes); by default none
    out: Folder = None  # where to write; by default a folder below tournaments/
    devices: Count = None  # use only the first N devices (on a CPU, cores); by default all
    imports: Imports = ()  # a Python file that registers worlds, algorithms or torsos, or an id that a run may name
    json: Flag = False  # one JSON object on stdout, everything else on stderr


def run(args: Sequence[str]) -> int:
    """Holds a tournament."""
    prepare_jax()
    options = parse(TournamentOptions, args, "shoal tournament")
    check_devices(options.devices)
    if not options.entrants:
        raise OptionError("shoal tournament: who takes part? Name folders of runs or populations, or random")
    if options.exploit is not None:
        require_positive("shoal tournament", exploit=options.exploit)
    import_files(options.imports)
    out, begun = console(options.json), time.perf_counter()
    found = for_command_line(tournament)(
        dict(zip(number_names(options.entrants), map(resolve_entrant, options.entrants), strict=True)),
        options.episodes,
        options.seed,
        options.explore,
        seeds=options.seeds,
        sides=_sides(options.side),
        exploit_steps=options.exploit or 0,
        devices=options.devices,
    )
    folder = resolve_path(options.out) if options.out else default_path(found.experiment, "tournaments", "tournament")
    files = found.save(folder)
    data = found.to_dict()
    _show(out, found, data, time.perf_counter() - begun)
    _tell(out, files)
    if options.json:
        emit(data | {"files": {name: str(path) for name, path in files.items()}})
    return 0


def _sides(texts: Sequence[str]) -> dict[str, list[str]] | None:
    pairs = parse_pairs(texts, "--side", "NAME=SEATS, such as one=agent[0] or rest=agent[1:]")
    return {name: seats.split(",") for name, seats in pairs.items()} or None


def _tell(out: Console, files: dict[str, Path]) -> None:
    if "picture" not in files:
        say(out, "no picture: matplotlib is not installed")
    for path in files.values():
        say(out, display_path(path))


def _show(out: Console, found: Tournament, data: dict[str, Any], seconds: float) -> None:
    names, table, gained = found.names, found.table, data["exploit"]
    parts = [f"{pluralise(len(names), 'entrant')}, {table.episodes:,} {data['policy']} episodes of each line-up"]
    parts.append(f"{pluralise(found.programs, 'compiled program')}, {format_duration(seconds)}")
    say(out, f"{found.experiment.env}, {table.relation}: {'; '.join(parts)}", style="bold")
    if found.programs > 1:
        say(out, "policies with other networks, or that act otherwise, are played by other programs")
    if any(one.seeds > 1 for one in found.entrants):
        say(out, "seeds of a run take turns, and their mean is shown; --seeds each makes each an entrant")
    _show_order(out, found, data)
    if len(names) <= SHOWN:
        _show_matrix(out, found)
    if team := data["cross_play"]:
        told = (f"{what} {_amount(team[name], team[f'{name}_error'])}" for name, what in _TEAM.items())
        say(out, ", ".join(told))
    for one, found_gain in zip(names, gained["entrants"] if gained else [], strict=False):
        if found_gain is None:
            say(out, f"{one}: not exploited, as it plays at random")
            continue
        sides = (f"{p} {_amount(gain['gain'], gain['error'])}" for p, gain in found_gain["gains"].items())
        least = _amount(found_gain["nash_conv_at_least"], found_gain["error"])
        say(out, f"{one}: exploiters gain as {', '.join(sides)}; NashConv is at least {least}")
    for one in data["entrants"]:
        if one.get("finished") is False:
            say(out, f"{one['name']} is not finished; it played as after {one['updates']:,} updates")


_TEAM = {"self_play": "with itself", "cross_play": "with others", "gap": "gap"}


def _amount(value: float, error: float | None) -> str:
    return f"{value:.4f}" if error is None else f"{value:.4f} ± {error:.4f}"


def _show_order(out: Console, found: Tournament, data: dict[str, Any]) -> None:
    """Entrants from the best to the worst."""
    order, ratings = Table(title=ORDERED[bool(data["elo"])], title_justify="left"), data["elo"]
    for name in ("entrant", "mean return with the others", *(["Elo", "95 % interval"] if ratings else [])):
        order.add_column(name, justify="left" if name == "entrant" else "right")
    means, errors = found.table.with_others
    for i in found.table.order:
        strength = (
            [f"{ratings['rating'][i]:.0f}", f"{ratings['low'][i]:.0f} to {ratings['high'][i]:.0f}"] if ratings else []
        )
        order.add_row(found.names[i], f"{means[i]:.4f} ± {errors[i]:.4f}", *strength)
    out.print(order)


def _show_matrix(out: Console, found: Tournament) -> None:
    what = "the team's mean return" if found.table.relation == "team" else "mean return of the row, over all sides"
    table = Table(title=what, title_justify="left")
    table.add_column("")
    for i in found.table.order:
        table.add_column(found.names[i], justify="right")
    for i in found.table.order:
        entries = (f"{found.matrix[i, j]:.3f} ± {found.standard_error[i, j]:.3f}" for j in found.table.order)
        table.add_row(found.names[i], *entries)
    out.print(table)
