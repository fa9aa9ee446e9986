"""`shoal match WHO=RUN ...`: any policies of any runs in the seats of one world."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

from rich.table import Table
from tyro.conf import Positional, arg

from shoal.api.entrants import Given
from shoal.api.matches import ALL, Match, match
from shoal.api.seats import RANDOM
from shoal.api.targets import import_files
from shoal.api.words import for_command_line
from shoal.cli.arguments import Flag, Imports, parse, whole_number
from shoal.cli.run_options import SteppingOptions
from shoal.cli.runs import stepping_options
from shoal.cli.terminal import console, emit, resolve_path, say
from shoal.core.errors import OptionError, ShoalError
from shoal.core.zoo import names_entry
from shoal.training.devices import prepare_jax

Players = Annotated[Positional[tuple[str, ...]], arg(metavar="WHO=RUN")]
SeedIndex = Annotated[str, arg(metavar="N|all")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MatchOptions(SteppingOptions):
    """Play runs, populations or random play in the seats of one world, and report what each side earns.

    WHO is a player of the world, a policy, a group or seats, RUN a folder: `shoal match left=runs/a right=runs/b@best`.
    RUN may end in a checkpoint, @best or @40, and in a number, :1, the seed of a run or the policy of a population.
    Without WHO, runs are those of the world's players in their order.
    """

    players: Players  # who plays what
    episodes: int = 1024  # episodes to play
    seed: int = 0  # seed of the episodes
    explore: Flag = False  # sample actions as in training, instead of taking the likeliest
    seed_index: SeedIndex = "0"  # of which of the seeds of runs that have several, counted from 0; all: seed by seed
    imports: Imports = ()  # a Python file that registers worlds, algorithms or torsos, or an id that a run may name
    json: Flag = False  # one JSON object on stdout


def run(args: Sequence[str]) -> int:
    """Plays a match."""
    prepare_jax()
    options = parse(MatchOptions, args, "shoal match")
    import_files(options.imports)
    players = parse_players(options.players)
    about = options.episodes, options.seed, options.explore, _seed_index(options.seed_index)
    found = for_command_line(match)(players, *about, **stepping_options(options))
    found = _name_as_typed(found, options.players)
    if options.json:
        emit(found.to_dict() | {"seed": options.seed, "policy": "explore" if options.explore else "greedy"})
    else:
        _show(found, options)
    return 0


def _name_as_typed(found: Match, texts: Sequence[str]) -> Match:
    """The match with the names of runs as they were typed, in the order in which they were."""
    typed = [text.partition("=")[2] if _is_named(text) else text for text in texts]
    pairs = zip(found.entrants.items(), typed, strict=True)
    return dataclasses.replace(found, entrants={who: about | {"name": name} for (who, about), name in pairs})


def parse_players(texts: Sequence[str]) -> dict[str, Given] | list[Given]:
    """Who plays what: `WHO=RUN` each, or folders alone."""
    if not texts:
        raise OptionError("shoal match: who plays? Name a run for every side, WHO=RUN, or random")
    named = [text for text in texts if _is_named(text)]
    if not named:
        return [resolve_entrant(text) for text in texts]
    found: dict[str, Given] = {}
    for text in texts:
        who, _, run = text.partition("=")
        if not (_is_named(text) and run):
            raise OptionError(f"shoal match: say what everybody plays, or nobody: WHO=RUN, got {text!r}")
        if who in found:
            raise OptionError(f"shoal match: {who!r} is given twice; each seat is played by one")
        found[who] = resolve_entrant(run)
    return found


def _is_named(text: str) -> bool:
    """Whether it is `WHO=RUN`, and not a folder with a `=` in its name."""
    return "=" in text and not text.startswith("=") and not resolve_path(text).exists()


def resolve_entrant(text: str) -> Given:
    """A folder as it was meant where the command began; its checkpoint and number are kept."""
    return text if text == RANDOM or names_entry(text) else str(resolve_path(text))


def _seed_index(text: str) -> Any:
    if text == ALL:
        return ALL
    try:
        return whole_number(text)
    except ValueError:
        raise ShoalError(f"shoal match: --seed-index must be a whole number, or {ALL}, got {text!r}") from None


def _show(found: Match, options: MatchOptions) -> None:
    out, shares = console(), found.win_rate
    policy = "sampling" if options.explore else "greedy"
    title = f"{found.env}, {found.episodes:,} episodes, {policy}"
    table = Table(title=title, title_justify="left")
    columns = ["side", "who", "mean return", "standard error", *(["won", "drawn", "lost"] if shares else [])]
    for name in columns:
        table.add_column(name, justify="left" if name in ("side", "who") else "right")
    sides = found.by_side
    for who in found.sides:
        won = [_share(shares[who][name]) for name in ("won", "drawn", "lost")] if shares else []
        means = _number(sides.mean_return[who]), _number(sides.standard_error[who])
        table.add_row(who, found.entrants[who]["name"], *means, *won)
    out.print(table)
    if len(found.seats) > len(found.sides):
        seats = found.by_seat
        for seat in found.seats:
            told = f"{_number(seats.mean_return[seat])} ± {_number(seats.standard_error[seat])}"
            say(out, f"{seat}: mean return {told}")
    for who, about in found.entrants.items():
        if about.get("finished") is False:
            say(out, f"{who}: {about['name']} is not finished; it played as after {about['updates']:,} updates")


def _number(value: float | list[float]) -> str:
    return "  ".join(f"{entry:.4f}" for entry in (value if isinstance(value, list) else [value]))


def _share(value: float | list[float]) -> str:
    return "  ".join(f"{100 * entry:.1f} %" for entry in (value if isinstance(value, list) else [value]))
