"""`shoal.tournament`: everybody with or against everybody, as a table with errors, ratings, a page and JSON."""

import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shoal.api.changes import as_whole
from shoal.api.entrants import Entrant, Given, check_same_world, find_entrant
from shoal.api.seats import find_seats
from shoal.api.targets import attributed_to
from shoal.api.words import names_arguments
from shoal.batching.regroup import unwrap_regrouped
from shoal.core.checks import require_counts
from shoal.core.env import Env
from shoal.core.errors import OptionError, RunError, require, require_positive
from shoal.core.files import nan_to_none, write_atomically
from shoal.core.types import Seat
from shoal.core.version import VERSION
from shoal.games.cross_table import CrossTable, cross_lineups, find_relation
from shoal.populations.crossplay import CrossPlay
from shoal.populations.exploiters import Exploit, check_players, exploit
from shoal.training.devices import prepare_jax
from shoal.training.experiment import Experiment
from shoal.viz import MissingMatplotlibError, draw_tournament, write_tournament

MOST_LINEUPS = 20_000
"""Of one tournament: more would hardly end, and not fit into memory."""
FIRST, REST = "first", "rest"
"""The two sides of a world with one player: some of its seats, and the others."""


@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Tournament:
    """What everybody earned with or against everybody else; `table` has all figures as arrays.

    entrants: who played. sides: the seats of each side of the world. programs: how many were compiled for all line-ups.
    exploits: what freshly trained exploiters gained, by entrant; None if they were not asked for.
    """

    experiment: Experiment
    entrants: tuple[Entrant, ...]
    sides: dict[str, tuple[Seat, ...]]
    table: CrossTable
    seed: int
    explore: bool
    seeds: str
    programs: int
    exploit_steps: int = 0
    exploits: tuple[Exploit | None, ...] | None = None

    @property
    def names(self) -> list[str]:
        return [one.name for one in self.entrants]

    @property
    def matrix(self) -> np.ndarray:
        """What each (row) earned with or against each (column), the mean over all sides, `[n, n]`."""
        return self.table.matrix[0]

    @property
    def standard_error(self) -> np.ndarray:
        """Of the matrix."""
        return self.table.matrix[1]

    @functools.cached_property
    def elo(self) -> dict[str, np.ndarray] | None:
        """`rating`, and the ends of its 95 % interval, `low` and `high`; None where nothing can be won."""
        found = self.table.ratings(self.seed)
        return None if found is None else dict(zip(("rating", "low", "high"), found, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Everything but the single episodes, as plain data; the same bits for the same seed."""
        table, options = self.table, self.experiment.env_options
        won, ratings = table.win_rate, self.elo
        return {
            "shoal": VERSION,
            "env": self.experiment.env,
            "env_options": {name: value for name, value in options.items() if _is_plain(value)},
            "relation": table.relation,
            "sides": {name: [f"{group}[{i}]" for group, i in seats] for name, seats in self.sides.items()},
            "entrants": [one.to_dict() for one in self.entrants],
            "order": table.order,
            "episodes": table.episodes,
            "seed": self.seed,
            "policy": "explore" if self.explore else "greedy",
            "seeds": self.seeds,
            "programs": self.programs,
            "matrix": _plain(table.matrix),
            "by_side": {name: _plain((table.by_side[0][s], table.by_side[1][s])) for s, name in enumerate(self.sides)},
            "with_others": _plain(table.with_others),
            "win_rate": None if won is None else _plain(won),
            "elo": None if ratings is None else {name: values.tolist() for name, values in ratings.items()},
            "cross_play": nan_to_none(table.cross_play),
            "exploit": self._exploits(),
        }

    def _exploits(self) -> dict[str, Any] | None:
        if self.exploits is None:
            return None
        found = [one and nan_to_none(one.to_dict()) for one in self.exploits]
        return {"total_env_steps": self.exploit_steps, "entrants": found}

    def save(self, folder: str | Path) -> dict[str, Path]:
        """Writes `tournament.json`, `tournament.html` and, with matplotlib, `tournament.png`; returns their paths."""
        folder, data = Path(folder), self.to_dict()
        files = {name: folder / f"tournament.{ending}" for name, ending in (("json", "json"), ("page", "html"))}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(files["json"], json.dumps(data, indent=1, allow_nan=False) + "\n")
        except OSError as error:
            raise RunError(f"cannot write {folder}: {error.strerror or error}") from error
        write_tournament(files["page"], data, title=self.experiment.env)
        try:
            draw_tournament(folder / "tournament.png", data, title=self.experiment.env)
        except MissingMatplotlibError:  # the page needs none: a picture less is no failure
            return files
        return files | {"picture": folder / "tournament.png"}

    def __repr__(self) -> str:
        best = self.names[self.table.order[0]]
        played = f"{len(self.names)} entrants, {self.table.episodes} episodes of each line-up"
        return f"Tournament({self.experiment.env}, {self.table.relation}; {played}; first {best})"


@names_arguments
def tournament(
    entrants: Sequence[Given] | Mapping[str, Given],
    episodes: int = 1024,
    seed: int = 0,
    explore: bool = False,
    *,
    seeds: Literal["each", "mean"] | None = None,
    sides: Mapping[str, str | Sequence[str]] | None = None,
    exploit_steps: int = 0,
    devices: int | None = None,
) -> Tournament:
    """Plays everybody with or against everybody: `shoal.tournament(["runs/a", "runs/b@best", "random"]).matrix`.

    entrants: as in `match`, runs, populations, folders or "random"; a mapping gives them names. Every ordered pair is
    played on every side of the world, so many `episodes` each, all begun alike: line-ups of policies with the same
    network are one compiled program.

    seeds: of runs with several, "each" is an entrant of its own, or they take turns and their "mean" is shown. By
    default each, if there is but one run, whose seeds are then compared with each other; else the mean.

    sides: which seats belong together, `{"one": "agent[0]", "rest": "agent[1:]"}`. By default the players of the world;
    of a world with one player, the first half of its seats and the rest: how teams play whose members were not trained
    together (zero-shot coordination).

    exploit_steps: so many env steps are spent on training an exploiter of every player against each entrant; the
    result has what they gained.
    """
    prepare_jax()
    found = _name_entrants(entrants)
    require(seeds in (None, "each", "mean"), "tournament", "seeds", seeds, "'each' or 'mean'")
    require(isinstance(seed, int) and seed >= 0, "tournament", "seed", seed, "a whole number, 0 or greater")
    episodes, exploit_steps = _check_amounts(episodes, exploit_steps)
    experiment = check_same_world(found, "tournament")
    chosen, found = _choose_seeds(seeds, found)
    with attributed_to(experiment.env, "the tournament"):
        world = unwrap_regrouped(experiment.setup.env)
        dealt, one_team = _divide(world, sides, experiment)
        games = CrossPlay(tuple(one.contender(explore) for one in found), dealt, devices=devices)
        if exploit_steps:
            check_players(games)
        lineups, place = cross_lineups(len(found), len(dealt))
        require(len(lineups) <= MOST_LINEUPS, "tournament", "line-ups", len(lineups), f"{MOST_LINEUPS:,} at most")
        returns = games.play(lineups, episodes, seed)
        table = CrossTable(returns, place, find_relation(returns, world.kind, one_team))
        gained = tuple(exploit(games, exploit_steps, episodes, seed)) if exploit_steps else None
    about = seed, explore, chosen, len(games.programs), exploit_steps, gained
    return Tournament(experiment, tuple(found), dealt, table, *about)


def _check_amounts(episodes: Any, exploit_steps: Any) -> tuple[int, int]:
    episodes, exploit_steps = as_whole(int, episodes), as_whole(int, exploit_steps)
    require(isinstance(episodes, int), "tournament", "episodes", episodes, "a whole number")
    require_positive("tournament", episodes=episodes)
    require_counts("tournament", episodes=episodes)
    require(exploit_steps >= 0, "tournament", "exploit_steps", exploit_steps, "at least 0")
    return episodes, exploit_steps


def _choose_seeds(seeds: str | None, found: list[Entrant]) -> tuple[str, list[Entrant]]:
    """Whether each seed plays or their mean is shown, and who plays then."""
    chosen = seeds or ("each" if sum(one.source is not None for one in found) == 1 else "mean")
    if chosen == "each":
        found = [own for one in found for own in one.each_seed()]
    if len(found) < 2:
        raise OptionError("tournament: there is one entrant. Name another run, or 'random'.")
    return chosen, found


def _name_entrants(given: Any) -> list[Entrant]:
    """Entrants with names of their own."""
    listed = isinstance(given, Sequence | Mapping) and not isinstance(given, str)
    require(listed and bool(given), "tournament", "entrants", given, "a list of runs, or a mapping of names to runs")
    if isinstance(given, Mapping):
        return [find_entrant("tournament", f"entrants[{n!r}]", one, str(n)) for n, one in given.items()]
    found = [find_entrant("tournament", f"entrants[{i}]", one) for i, one in enumerate(given)]
    names = number_names([one.name for one in found])
    return [dataclasses.replace(one, name=name) for one, name in zip(found, names, strict=True)]


def number_names(names: Sequence[str]) -> list[str]:
    """The names; those that occur more than once with a number."""
    times, seen, found = Counter(names), Counter(), []
    for name in names:
        seen[name] += 1
        found.append(f"{name} ({seen[name]})" if times[name] > 1 else name)
    return found


def _divide(world: Env, sides: Any, experiment: Experiment) -> tuple[dict[str, tuple[Seat, ...]], bool]:
    """The seats of each side, and whether they are parts of one player's."""
    players = {name: tuple(seats) for name, seats in world.players.items()}
    if sides is not None:
        given = isinstance(sides, Mapping) and len(sides) > 1
        require(given, "tournament", "sides", sides, "a mapping of two or more names to seats")
        dealt = {}
        for name, seats in sides.items():
            texts = [seats] if isinstance(seats, str) else list(seats)
            dealt[name] = tuple(s for text in texts for s in find_seats(text, experiment.setup, "sides"))
        return dealt, len(players) == 1
    if len(players) > 1:
        return players, False
    [seats] = players.values()
    if len(seats) < 2:
        raise OptionError(
            f"tournament: world {experiment.env!r} has a single agent, who meets nobody. "
            "`shoal eval` says what a run earns there."
        )
    half = -(-len(seats) // 2)
    return {FIRST: seats[:half], REST: seats[half:]}, True


def _plain(figures: tuple[np.ndarray, np.ndarray]) -> dict[str, Any]:
    """Means and errors as nested lists; None where an error is not known."""
    mean, error = figures
    return {"mean": mean.tolist(), "error": nan_to_none(error.tolist())}


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
