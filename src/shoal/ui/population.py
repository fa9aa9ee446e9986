"""A population as its folder records it, read without JAX: payoffs, members, mixtures, ratings, history."""

import functools
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.errors import RunError, ShoalError, shell_command
from shoal.core.files import parse_json
from shoal.core.schema import Maybe, Whole, check
from shoal.games.payoff import PayoffTable
from shoal.training.catalogue.lines import Line
from shoal.training.sealed_archive import DamagedError, MalformedError, open_archive, read_array
from shoal.ui.folder import list_checkpoints

MOST_MANIFEST = 1 << 26
MOST_ENTRIES = 1 << 22
"""Of a payoff table, for all players together."""
MOST_SHOWN = 1 << 18
"""Entries of a map, and weights of a history of mixtures."""
MOST_RATED = 300
"""Policies whose ratings are computed while someone waits."""
NORMAL = 1.96
"""Standard errors on each side of a 95 % interval."""
MOST_MARGIN = 400.0
"""Of a rating; what is less certain is told as such, since errors to first order say nothing there."""
MEMBER = {
    "name": str,
    "parent": Maybe(Whole()),
    "born": Whole(),
    "frozen?": bool,
    "info?": {"role?": str, "earned?": Maybe(float)},
}
META = {"members": {str: [MEMBER]}, "mixtures": [[float]], "symmetric?": bool}
LINE = {
    "iteration": Whole(),
    "population?": Maybe(Whole()),
    **dict.fromkeys(("seconds?", "nash_conv?", "exploitability?", "value?", "nash_conv_at_least?"), Maybe(float)),
    "gain?": Maybe([Maybe(float)]),
    "mixtures?": Maybe([[Maybe(float)]]),
}
"""A line of metrics, as far as it is shown."""
COLUMNS = frozenset(name.removesuffix("?") for name in LINE)


def read_members(folder: Path) -> dict[str, Any] | None:
    """Members, mixtures, payoffs and ratings of the newest checkpoint; None if there is no checkpoint yet."""
    kept = [one for one in list_checkpoints(folder) if not one["best"]]
    if not kept:
        return None
    newest = max(kept, key=lambda one: one["update"])
    path = folder / "checkpoints" / f"step-{newest['update']:010d}.npz"
    return _read(path, newest["updated"], newest["size"])


def history_of(lines: list[Line], where: str) -> list[dict[str, Any]]:
    """Iterations of a population from its lines of metrics. where: the file, for the message."""
    try:
        for i, line in enumerate(lines):
            check(line, LINE, f"line {i + 1}")
    except ValueError as error:
        raise RunError(f"{where} is damaged: {error}") from error
    return _thinned([{name: line[name] for name in line if line[name] is not None} for line in lines])


def commands_for(folder: Path, players: list[str], exact: bool) -> dict[str, Any] | None:
    """Beginnings of the commands that watch and play an entry: the policies' numbers follow. None if it cannot be."""
    if exact or not all(player.isprintable() for player in players) or not str(folder).isprintable():
        return None
    seats = [shlex.quote(f"{player}={folder}:") for player in players]
    return {"watch": shell_command("population", folder, "--watch"), "match": shell_command("match"), "seats": seats}


@functools.lru_cache(maxsize=8)
def _read(path: Path, updated: float, size: int) -> dict[str, Any]:
    """What a checkpoint holds; read once as long as its time and size stay as they are."""
    try:
        with open_archive(path) as archive:
            if archive.getinfo("manifest.json").file_size > MOST_MANIFEST:
                raise ValueError("its description is too large")
            manifest = parse_json(archive.read("manifest.json"), finite=True)
            check(manifest, {"meta": META}, "manifest")
            members, mixtures = _members(manifest["meta"])
            sizes = tuple(len(own) for own in members.values())
            if math.prod(sizes) * len(sizes) > MOST_ENTRIES:
                raise RunError(f"the payoff table of {path} is too large for this page: {' x '.join(map(str, sizes))}")
            wide, number = (len(sizes), *sizes), np.dtype(np.float64)
            shapes = {"count": sizes, "total": wide, "squares": wide}
            stored = {name: read_array(archive, f"table/{name}", number, shape) for name, shape in shapes.items()}
    except DamagedError:
        raise RunError(f"the checkpoint {path} is damaged or cut short") from None
    except (MalformedError, KeyError, ValueError) as error:
        raise RunError(f"the checkpoint {path} is not that of a population: {error}") from None
    if not all(np.isfinite(array).all() for array in stored.values()):
        raise RunError(f"the checkpoint {path} is damaged: its payoffs are not finite")
    with np.errstate(all="ignore"):
        table = PayoffTable(stored["count"], stored["total"], stored["squares"])
        shown = _shown_table(table, list(mixtures.values()))
        rated = _ratings(table, list(members))
    return {"players": list(members), "members": members, "mixtures": mixtures, "table": shown, **rated}


def _members(meta: Mapping[str, Any]) -> tuple[dict[str, list[dict[str, Any]]], dict[str, np.ndarray]]:
    """Members and mixtures by player, as far as they fit each other."""
    members, mixtures = meta["members"], meta["mixtures"]
    if len(members) < 2 or len(mixtures) != len(members):
        raise ValueError("a population has two players or more, with a mixture each")
    for own, mixture in zip(members.values(), mixtures, strict=True):
        if not own or len(mixture) != len(own):
            raise ValueError("a mixture must have a weight for each policy")
        if any(member["parent"] is not None and member["parent"] >= len(own) for member in own):
            raise ValueError("a policy started from one that is not there")
    return members, {player: np.array(mixture) for player, mixture in zip(members, mixtures, strict=True)}


def _shown_table(table: PayoffTable, mixtures: list[np.ndarray]) -> dict[str, Any] | None:
    """Payoffs `[players, m0, m1]`, standard errors and episodes of the first two players, all others mixed."""
    mean, square, count = table.mean, np.square(table.standard_error), table.count
    for mixture in reversed(mixtures[2:]):
        played = mixture > 0
        mean, square = mean[..., played] @ mixture[played], square[..., played] @ mixture[played] ** 2
        count = count[..., played].sum(axis=-1)
    if count.size > MOST_SHOWN:
        return None
    return {"mean": mean, "error": np.sqrt(square), "episodes": np.clip(count, 0, 2**53).astype(np.int64)}


def _ratings(table: PayoffTable, players: list[str]) -> dict[str, dict[str, np.ndarray] | None]:
    """Elo by player, and what is to be added and subtracted for 95 % intervals.

    No ratings unless there are two players whose policies have all met, no intervals unless all met more than once.
    """
    found: dict[str, dict[str, np.ndarray] | None] = {"elo": None, "elo_margin": None}
    if len(players) != 2 or sum(table.sizes) > MOST_RATED or not np.isfinite(table.mean).all():
        return found
    from shoal.games.ratings import elo, elo_error, results  # which imports scipy: the server starts without it

    try:
        wins, error = results(table.mean), _share_errors(table)
        both = elo(wins)
        if not np.isfinite(both).all():
            return found
        found["elo"] = _by_player(both, table, players)
        if np.isfinite(error).all():
            margin = NORMAL * elo_error(wins, error)
            margin[margin > MOST_MARGIN] = np.nan
            found["elo_margin"] = _by_player(margin, table, players)
    except (ShoalError, ArithmeticError, np.linalg.LinAlgError):  # payoffs so large that their differences overflow
        pass
    return found


def _by_player(both: np.ndarray, table: PayoffTable, players: list[str]) -> dict[str, np.ndarray]:
    return {players[0]: both[: table.sizes[0]], players[1]: both[table.sizes[0] :]}


def _share_errors(table: PayoffTable) -> np.ndarray:
    """Standard errors of `results`, which maps payoffs from their range to shares of games won.

    What one player earns too much, the other is taken to earn too little, as in a game of zero sum: in any other, the
    errors are smaller. The least and the greatest payoff are taken as known.
    """
    rows, columns = table.sizes
    reach = table.mean.max() - table.mean.min()
    share = table.standard_error.sum(axis=0) / (2 * reach) if reach > 0 else np.full(table.sizes, np.inf)
    both = np.zeros((rows + columns, rows + columns))
    both[:rows, rows:], both[rows:, :rows] = share, share.T
    return both


def _thinned(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The history with the mixtures of at most as many iterations as a map can show, the last one among them."""
    weights = sum(len(own) for line in history for own in line.get("mixtures", ()))
    every = -(-weights // MOST_SHOWN) or 1
    last = len(history) - 1
    return [
        line if (last - i) % every == 0 else {name: value for name, value in line.items() if name != "mixtures"}
        for i, line in enumerate(history)
    ]
