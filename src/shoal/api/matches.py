"""`shoal.match`: any policies of any runs in any seats of a world, many episodes in one program."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax
import numpy as np

from shoal.api.changes import as_whole
from shoal.api.entrants import Entrant, Given, check_same_world, find_entrant
from shoal.api.run import Run
from shoal.api.seats import seat_sides
from shoal.api.targets import attributed_to
from shoal.api.words import names_arguments
from shoal.batching.regroup import dealt_seats, seat_rewards, sum_rewards, unwrap_regrouped
from shoal.core.env import Env
from shoal.core.errors import OptionError, require
from shoal.games.cross_table import is_zero_sum
from shoal.populations.behaviour import warn_of_greedy_play
from shoal.training.devices import prepare_jax
from shoal.training.evaluate import Evaluation, Evaluator
from shoal.training.host_stages import TIMEOUT

ALL = "all"


@dataclasses.dataclass(frozen=True, repr=False)
class Match(Evaluation):
    """Returns of a match by group of the world, as in an `Evaluation`, and by seat and by side besides.

    seats: returns of every seat, such as `agent[1]`. sides: the seats of each side. entrants: who played it.
    """

    seats: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    sides: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    entrants: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    env: str = ""

    @property
    def by_side(self) -> Evaluation:
        """Returns by side: the sums over the seats that it plays."""
        sums = {who: np.sum([self.seats[seat] for seat in seats], axis=0) for who, seats in self.sides.items()}
        return Evaluation(sums, self.lengths)

    @property
    def by_seat(self) -> Evaluation:
        return Evaluation(self.seats, self.lengths)

    @property
    def zero_sum(self) -> bool:
        """Whether one side won what the others lost, in every episode."""
        sums = np.stack(list(self.by_side.returns.values()), axis=-1)
        return len(self.sides) > 1 and is_zero_sum(sums)

    @property
    def win_rate(self) -> dict[str, dict[str, Any]] | None:
        """The shares of episodes that each side won, drew and lost; None if the game is not zero-sum.

        The largest return wins. With several seeds, one number per seed.
        """
        if not self.zero_sum:
            return None
        sums = np.stack(list(self.by_side.returns.values()))
        limit = 1e-6 * max(1.0, float(np.abs(sums).max()))  # rounding does not win a game
        best = sums >= sums.max(axis=0) - limit
        alone = best.sum(axis=0) == 1
        found = {}
        for who, ahead in zip(self.sides, best, strict=True):
            won, lost = (ahead & alone).mean(axis=-1), (~ahead).mean(axis=-1)
            found[who] = {"won": won.tolist(), "drawn": np.maximum(1 - won - lost, 0.0).tolist(), "lost": lost.tolist()}
        return found

    def to_dict(self) -> dict[str, Any]:
        """Everything but the single episodes, as plain data."""
        return {
            "env": self.env,
            "sides": {
                who: self.entrants[who] | {"seats": list(self.sides[who])} | _figures(self.by_side, who)
                for who in self.sides
            },
            "groups": {name: _figures(self, name) for name in self.returns},
            "seats": {seat: _figures(self.by_seat, seat) for seat in self.seats},
            "zero_sum": self.zero_sum,
            "win_rate": self.win_rate,
            "mean_length": np.mean(self.lengths, axis=-1).tolist(),
            "episodes": self.episodes,
        }


def _figures(found: Evaluation, name: str) -> dict[str, Any]:
    return {"mean_return": found.mean_return[name], "standard_error": found.standard_error[name]}


@names_arguments
def match(
    players: Mapping[str, Given] | Sequence[Given],
    episodes: int = 1024,
    seed: int = 0,
    explore: bool = False,
    seed_index: int | Literal["all"] = 0,
    *,
    env_workers: int = 0,
    env_timeout: float = TIMEOUT,
) -> Match:
    """Plays runs against each other: `shoal.match({"left": "runs/a", "right": "runs/b@best"}, episodes=4096)`.

    players: by what they play, a player of the world, a policy, a group or seats such as `agent[1:3]`: a run, a
    population, the folder of either, or "random"; a list names those of the world's players in their order. A folder
    may name a checkpoint, `runs/a@best` or `runs/a@40`, and a seed, `runs/a:1`. Algorithms and networks may differ, the
    world may not. Returns are by group of the world, or by player where players share a group; `.by_side`, `.by_seat`
    and, where one wins what others lose, `.win_rate` say more.

    seed_index: of which of the seeds of runs that have several; "all": seed by seed, the first of each with the first
    of the others; results then have one number per seed.

    A population plays its mixture: a policy is drawn for every episode; `(population, 3)` or `runs/population:3` is its
    policy number 3 alone, -1 the newest. Its policies act as they do in it, sampling unless it was grown `greedy`,
    whatever `explore` says.
    """
    prepare_jax()
    entrants = _seat_entrants(players)
    experiment = check_same_world(list(entrants.values()), "shoal.match")
    if explore:
        _warn_of_greedy_play(entrants)
    with attributed_to(experiment.env, "the match"):
        found, sides = [], {}
        evaluator = None
        for index in _seeds(entrants, seed_index):
            setup, policies = seat_sides({who: entrant.side(index) for who, entrant in entrants.items()})
            if evaluator is None:
                stepping = env_workers, env_timeout
                evaluator = Evaluator(setup, as_whole(int, episodes), seed, explore, *stepping, gains=_count)
                sides = _sides(setup.env, entrants)
            found.append(evaluator(policies))
    return _join(found, sides, {who: entrant.to_dict() for who, entrant in entrants.items()}, experiment.env)


def _seat_entrants(players: Any) -> dict[str, Entrant]:
    """Who plays what; a list is that of the world's players."""
    named = isinstance(players, Mapping)
    listed = isinstance(players, Sequence) and not isinstance(players, str)
    given = (named or listed) and bool(players)
    require(given, "shoal.match", "players", players, "a mapping, who: run, or a list of runs")
    if named:
        return {who: find_entrant("shoal.match", f"players[{who!r}]", run) for who, run in players.items()}
    found = [find_entrant("shoal.match", f"players[{i}]", run) for i, run in enumerate(players)]
    known = list(unwrap_regrouped(check_same_world(found, "shoal.match").setup.env).players)
    if len(known) != len(found):
        raise OptionError(
            f"match: {len(found)} were named without saying what they play, but the world has {len(known)} "
            f"({', '.join(known)}). Say who plays what: {known[0]}=RUN, or seats such as {known[0]}[0]=RUN."
        )
    return dict(zip(known, found, strict=True))


def _warn_of_greedy_play(entrants: Mapping[str, Entrant]) -> None:
    """A population's policies act as they do in it, whatever `explore` says."""
    runs = {one.name: one.source.experiment.setup for one in entrants.values() if isinstance(one.source, Run)}
    for name, setup in runs.items():
        warn_of_greedy_play(name, setup.algorithms, "play their best action, but for the noise that they trained with")


def _seeds(entrants: Mapping[str, Entrant], seed_index: Any) -> list[int]:
    """The indices of the seeds that play, one after the other."""
    several = {who: entrant.seeds for who, entrant in entrants.items() if entrant.seeds > 1}
    if seed_index != ALL:
        whole = type(seed_index) is int and seed_index >= 0
        require(whole, "shoal.match", "seed_index", seed_index, "a whole number, or 'all'")
        for who, seeds in several.items():
            require(
                seed_index < seeds, "shoal.match", "seed_index", seed_index, f"less than {seeds}, the seeds of {who}"
            )
        return [seed_index]
    if len(set(several.values())) > 1:
        told = ", ".join(f"{who} has {seeds}" for who, seeds in several.items())
        raise OptionError(
            f"match: all seeds play one by one, so runs need equally many of them: {told}. Name one seed, or hold a "
            "tournament, which plays every one with every other."
        )
    return list(range(next(iter(several.values()), 1)))


def _count(env: Env, reward: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Rewards by group and by seat."""
    return {f"group {name}": own for name, own in sum_rewards(env, reward).items()} | {
        f"seat {name}": own for name, own in seat_rewards(env, reward).items()
    }


def _sides(env: Env, entrants: Mapping[str, Entrant]) -> dict[str, tuple[str, ...]]:
    """The seats of each side: `seat_sides` names policies after their sides."""
    found: dict[str, list[str]] = {who: [] for who in entrants}
    for name, seats in dealt_seats(env).items():
        who = name if name in found else name.rpartition(": ")[0]
        found[who] += [f"{group}[{i}]" for group, i in seats]
    return {who: tuple(sorted(seats)) for who, seats in found.items()}


def _join(
    found: list[Evaluation], sides: dict[str, tuple[str, ...]], entrants: dict[str, dict[str, Any]], env: str
) -> Match:
    """The evaluations of one seed or several as a match."""

    def joined(values: list[np.ndarray]) -> np.ndarray:
        return values[0] if len(values) == 1 else np.stack(values)

    returns = {name: joined([one.returns[name] for one in found]) for name in found[0].returns}
    apart = {
        kind: {name.removeprefix(kind): own for name, own in returns.items() if name.startswith(kind)}
        for kind in ("group ", "seat ")
    }
    lengths = joined([one.lengths for one in found])
    return Match(apart["group "], lengths, apart["seat "], sides, entrants, env)
