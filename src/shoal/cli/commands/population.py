"""`shoal population RUN`: what is in a population, as figures, a picture, a page, and replays of its line-ups."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table
from tyro.conf import DisallowNone, arg

from shoal.api.lineup_page import lineup_page
from shoal.api.pictures import player_colours
from shoal.api.targets import attributed_to
from shoal.cli.arguments import Count, Flag, Folder
from shoal.cli.run_options import StoredRunOptions
from shoal.cli.runs import check_devices
from shoal.cli.stored_runs import parse_stored
from shoal.cli.terminal import console, emit, format_duration, resolve_path, resolve_run, say
from shoal.core.errors import OptionError, RunError, UnknownNameError, WorldError
from shoal.core.zoo import names_entry
from shoal.games.exploitability import Gain, nash_conv_bound
from shoal.populations.diversity import behaviours
from shoal.populations.inspect_population import (
    PopulationView,
    describe_population,
    exploit,
    read_population_view,
    require_networks,
)
from shoal.training.experiment import make_world
from shoal.training.run_kinds import is_slim
from shoal.viz import MissingMatplotlibError, draw_population, write_population
from shoal.viz.replay import write_file

SHOWN = 8
"""Members of each player that are listed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PopulationOptions(StoredRunOptions):
    """Show a population made by `shoal psro` or `shoal league`: figures, and population.png, .pdf and .html."""

    watch: Annotated[DisallowNone[str | None], arg(metavar="I,J")] = None
    """write a page that plays an episode of these policies, one number per player"""
    exploit: Flag = False  # train one more best response a player, and say what it gains: minutes
    total_env_steps: Count = None  # of each training of --exploit; by default those of the run
    out: Folder = None  # where to write; by default the run folder
    seed: Count = None  # seed of the episode to watch, by default 0
    devices: Count = None  # for --exploit, use only the first N devices (on a CPU, cores); by default all


def run(args: Sequence[str]) -> int:
    """Shows a population."""
    options = parse_stored(PopulationOptions, args, "shoal population")
    check_devices(options.devices)
    folder, out = resolve_run(options.run) if names_entry(options.run) else Path(options.run), console(options.json)
    if not folder.is_dir():
        raise RunError(f"{folder} is not a run folder: no such folder")
    view = read_population_view(folder)
    if options.exploit:
        require_networks(view.settings, "exploit")
    for name in ("total_env_steps", "devices"):
        if vars(options)[name] is not None and not options.exploit:
            option = f"--{name.replace('_', '-')}"
            raise OptionError(f"{option} is for the trainings of --exploit: add --exploit, or leave it out")
    if options.seed is not None and options.watch is None:
        raise OptionError("--seed is for the episode of --watch: add --watch, or leave it out")
    data = describe_population(view)
    data["colours"] = _colours(view, data["env"])
    target = Path(options.out) if options.out else resolve_path(folder.name) if is_slim(folder) else folder
    target.mkdir(parents=True, exist_ok=True)
    files = {}
    if options.watch is not None:
        files["replay"] = _watch(folder, target, options.watch, options.seed or 0)
    data["behaviour"] = _behaviour(folder, view, out)
    files |= _pictures(folder, target, data, out)
    result = {"run": str(folder)} | data | {name: str(path) for name, path in files.items()}
    _show(out, data)
    if options.exploit:
        say(out, "training best responses to the mixtures ...")
        with attributed_to(data["env"], "a best response"):
            gains = exploit(folder, options.devices, options.total_env_steps)
        _show_gains(out, gains)
        result["exploit"] = _plain(gains)
    for path in files.values():
        say(out, str(path))
    if options.json:
        emit(result)
    return 0


def _colours(view: PopulationView, env: str) -> dict[str, int]:
    """The colours of the players; none, where the code of their world is not at hand."""
    try:
        with attributed_to(env, "scene"):
            return player_colours(make_world(view.settings.experiment))
    except (OptionError, UnknownNameError, WorldError):  # `_behaviour` says so
        return {}


def _behaviour(folder: Path, view: PopulationView, out: Console) -> dict[str, Any] | None:
    """How differently policies behave, as data; None if that cannot be told."""
    try:
        found = behaviours(folder)
    except (OptionError, UnknownNameError, WorldError) as error:  # the rest can be shown without it
        say(out, f"behaviour is not compared: {error}")
        return None
    return None if found is None else found.plain(view.mixtures)


def _pictures(folder: Path, target: Path, data: Mapping[str, Any], out: Console) -> dict[str, Path]:
    files = {"page": target / "population.html"}
    write_population(files["page"], data, title=data["env"], run=str(folder))
    pictures = {"picture": target / "population.png", "pdf": target / "population.pdf"}
    try:
        for picture in pictures.values():
            draw_population(picture, data, title=data["env"])
    except MissingMatplotlibError as error:  # the page needs none: a picture less is no failure
        say(out, f"no picture: {error}")
        return files
    return files | pictures


def _watch(folder: Path, target: Path, text: str, seed: int) -> Path:
    """Records an episode of a line-up."""
    try:
        lineup = [int(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(f"--watch must be policies' numbers, one per player, such as 3,5, got {text!r}") from None
    path = target / f"replay-{'-'.join(map(str, lineup))}.html"
    write_file(path, lineup_page(folder, lineup, seed))
    return path


def _show(out: Console, data: Mapping[str, Any]) -> None:
    sizes = " x ".join(map(str, data["sizes"]))
    about = f"{data['meta_solver']}, {data['oracle']} responses, {format_duration(data['seconds'])}"
    say(out, f"{data['env']}: {sizes} policies after {data['iteration']} iterations; {about}", style="bold")
    if data["nash_conv"] is not None:
        say(out, f"NashConv {data['nash_conv']:.4f}, exploitability {data['exploitability']:.4f}")
    values = zip(data["players"], data["value"], data["value_error"], strict=True)
    say(out, "value " + ", ".join(f"{player} {_amount(value, error)}" for player, value, error in values))
    if data["effective"]:
        varied = ", ".join(f"{player} {count:.1f}" for player, count in data["effective"].items())
        say(out, f"effectively different policies, by what they earn: {varied}")
    if data["behaviour"]:
        found = data["behaviour"]
        apart = (f"{p} {value:.3f} (mixture {found['expected'][p]:.3f})" for p, value in found["diversity"].items())
        say(out, f"mean distance of two policies by what they do, from 0 to 1: {', '.join(apart)}")
    out.print(_members(data))


def _members(data: Mapping[str, Any]) -> Table:
    """Those of each player with most weight."""
    table = Table(title=f"members with most weight, at most {SHOWN} a player", title_justify="left")
    for name in ("player", "policy", "weight", "Elo", "α-rank", "born", "from", "earned"):
        table.add_column(name, justify="left" if name == "player" else "right")
    for player, weights in data["mixtures"].items():
        best = sorted(range(len(weights)), key=lambda i, w=weights: (-w[i], -i))[:SHOWN]
        for i in best:
            member = data["members"][player][i]
            started = "afresh" if member["parent"] is None else str(member["parent"])
            strength = f"{data['elo'][player][i]:.0f}" if data["elo"] else "-"
            rank = f"{data['alpha_rank'][player][i]:.3f}" if data["alpha_rank"] else "-"
            earned = member["info"].get("earned")
            shown = "-" if earned is None else f"{earned:+.3f}"
            name = f"{i} {member['info'].get('role', '')}".strip()
            table.add_row(player, name, f"{weights[i]:.3f}", strength, rank, str(member["born"]), started, shown)
    return table


def _show_gains(out: Console, gains: Sequence[Gain]) -> None:
    for gain in gains:
        say(
            out,
            f"{gain.player}: the mixture earns {_amount(gain.value, gain.value_error)}, a trained best response "
            f"{_amount(gain.earned, gain.earned_error)}: gain {_amount(gain.gain, gain.error)}",
        )
    least, error = nash_conv_bound(gains)
    say(out, f"so NashConv is at least {least:.4f} ± {error:.4f}", style="bold")


def _plain(gains: Sequence[Gain]) -> dict[str, Any]:
    least, error = nash_conv_bound(gains)
    found = {gain.player: dataclasses.asdict(gain) | {"gain": gain.gain, "error": gain.error} for gain in gains}
    return {"gains": found, "nash_conv_at_least": least, "nash_conv_error": error}


def _amount(value: float | None, error: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:+.4f}" if error is None or error < 1e-6 else f"{value:+.4f} ± {error:.4f}"
