"""Inspection of a population: its folder's contents without building networks, line-ups to watch, exploitability."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal.core.errors import OptionError, RunError, require, shell_command
from shoal.core.files import nan_to_none
from shoal.core.types import PyTree
from shoal.games.alpha_rank import alpha_rank
from shoal.games.exploitability import Gain, deviations, expected, expected_error, gains, met_lineups
from shoal.games.payoff import PayoffTable
from shoal.games.ratings import elo, expected_cardinality, results
from shoal.populations.bank import Member
from shoal.populations.game import Game
from shoal.populations.oracles import LearnedOracle
from shoal.populations.population import PopulationConfig, load, open_population
from shoal.populations.records import read_population
from shoal.training import checkpoint, records
from shoal.training.experiment import Setup

MOST_PROFILES = 20_000
"""Entries of the largest table whose α-rank is computed: a picture should take seconds."""
EPISODES = 2000
"""Episodes of each line-up that `exploit` plays, if the run does not define them."""
EXACT = "exact"


@dataclasses.dataclass(frozen=True)
class PopulationView:
    """A population as its newest checkpoint describes it, without the policies themselves."""

    settings: PopulationConfig
    members: dict[str, tuple[Member, ...]]
    table: PayoffTable
    mixtures: tuple[np.ndarray, ...]
    history: tuple[dict[str, Any], ...]

    @property
    def players(self) -> tuple[str, ...]:
        return tuple(self.members)

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.table.sizes


def read_population_view(folder: Path) -> PopulationView:
    """Reads a population's members, table, mixtures and history."""
    settings = open_population(folder)
    path = _newest(folder)
    found = read_population(path)
    stored = checkpoint.load(path, {"table": found.table}, partial=True)["table"]
    records.check_finite(path, stored, "payoffs")
    table = PayoffTable(**stored, symmetric=found.symmetric)
    return PopulationView(settings, found.members, table, found.mixtures, found.history)


def describe_population(view: PopulationView) -> dict[str, Any]:
    """The population as plain data with ratings, as printed, plotted and shown on the page.

    elo: None for other than two players. alpha_rank: None for huge tables. effective: the effective number of each
    player's policies, by their payoffs. All of these, and values, are None if payoffs were never played.
    """
    mean, error, last = view.table.mean, view.table.standard_error, view.history[-1]
    return {
        "env": view.settings.experiment.env,
        "oracle": view.settings.oracle,
        "meta_solver": view.settings.psro.meta_solver,
        "players": list(view.players),
        "sizes": list(view.sizes),
        "iteration": last["iteration"],
        "seconds": last["seconds"],
        "nash_conv": last.get("nash_conv"),
        "exploitability": last.get("exploitability"),
        "value": nan_to_none(expected(mean, view.mixtures).tolist()),
        "value_error": nan_to_none(expected_error(error, view.mixtures).tolist()),
        "payoffs": nan_to_none(mean.tolist()),
        "errors": nan_to_none(error.tolist()),
        "episodes": view.table.count.astype(int).tolist(),
        "mixtures": {p: mixture.tolist() for p, mixture in zip(view.players, view.mixtures, strict=True)},
        **_ratings(view, mean),
        "members": {p: [dataclasses.asdict(member) for member in own] for p, own in view.members.items()},
        "history": list(view.history),
    }


def load_lineup(folder: Path, lineup: Sequence[int]) -> tuple[Setup, dict[str, PyTree], bool]:
    """The setup and the policies of a line-up (one index per player), and whether they explore when they play."""
    view = read_population_view(folder)
    require_networks(view.settings, "watch")
    owner, sizes = "population", view.sizes
    require(len(lineup) == len(sizes), owner, "a line-up", tuple(lineup), f"{len(sizes)} numbers, one per player")
    for player, number, size in zip(view.players, lineup, sizes, strict=True):
        require(0 <= number < size, owner, f"the policy of {player}", number, f"between 0 and {size - 1}")
    setup = Game(view.settings.experiment).setup
    path = _newest(folder)
    capacities = read_population(path).capacities
    if view.players != tuple(setup.learners):
        raise records.forged(path, f"its players are {', '.join(view.players)[:80]}")
    like = {player: _stack(setup, player, capacities[player]) for player in view.players}
    banks = checkpoint.load(path, {"banks": like}, partial=True)["banks"]
    records.check_finite(path, banks)
    chosen = {
        player: jax.tree.map(lambda leaf, n=number: leaf[n], banks[player])
        for player, number in zip(view.players, lineup, strict=True)
    }
    return setup, chosen, not view.settings.greedy


def exploit(folder: Path, devices: int | None = None, steps: int | None = None) -> list[Gain]:
    """Trains one more best response per player against the mixtures and evaluates it, as PSRO would next.

    steps: env steps of each training, by default those of the run; longer ones find more.
    """
    settings = open_population(folder)
    require_networks(settings, "exploit")
    episodes = settings.psro.episodes or EPISODES
    experiment = dataclasses.replace(
        settings.experiment, total_env_steps=settings.experiment.total_env_steps if steps is None else steps
    )
    oracle = LearnedOracle(Game(experiment), episodes, settings.warm_start, settings.greedy, devices)
    state = load(folder, settings, oracle)
    # even if players share a bank, each has its own response here
    state = dataclasses.replace(state, table=dataclasses.replace(state.table, symmetric=False))
    responses = oracle.respond(state)
    banks = {name: bank.add(responses[name][0].policy, Member("response")) for name, bank in state.banks.items()}
    table = state.table.grow(tuple(len(bank) for bank in banks.values()))
    met = met_lineups(state.mixtures)
    unknown = met[table.count[tuple(met.T)] < 2]  # all of them in self-play without a table
    lineups = np.concatenate([unknown, deviations(state.mixtures)])
    table = table.add_results(lineups, *oracle.evaluate(dataclasses.replace(state, banks=banks), lineups))
    return gains(table, state.mixtures, state.players)


def require_networks(settings: PopulationConfig, doing: str) -> None:
    """Refuses a population whose policies are exact plans."""
    if settings.oracle == EXACT:
        raise OptionError(
            f"this population has exact responses: its policies are tables of probabilities, not networks, and its "
            f"NashConv is exact. So there is nothing to {doing}; there is in one with learnt responses (--oracle ppo)."
        )


def _newest(folder: Path) -> Path:
    path = checkpoint.latest(folder / "checkpoints")
    if path is None:
        raise RunError(f"{folder} has no checkpoint yet: resume it with `{shell_command('resume', folder)}`")
    return path


def _ratings(view: PopulationView, mean: np.ndarray) -> dict[str, Any]:
    players, sizes = view.players, view.sizes
    strength = rank = None
    if not np.isfinite(mean).all():
        return {"elo": None, "alpha_rank": None, "effective": None}
    if len(players) == 2:
        both = elo(results(mean))
        strength = {players[0]: both[: sizes[0]].tolist(), players[1]: both[sizes[0] :].tolist()}
    if np.prod(sizes) <= MOST_PROFILES:
        rank = {player: share.tolist() for player, share in zip(players, alpha_rank(mean), strict=True)}
    rows = [np.moveaxis(mean[p], p, 0).reshape(size, -1) for p, size in enumerate(sizes)]
    effective = {player: expected_cardinality(row) for player, row in zip(players, rows, strict=True)}
    return {"elo": strength, "alpha_rank": rank, "effective": effective}


def _stack(setup: Setup, player: str, room: int) -> PyTree:
    algorithm, spec = setup.learners[player]
    policy = jax.eval_shape(lambda: algorithm.init(jax.random.key(0), spec)).params[player]
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((room, *leaf.shape), leaf.dtype), policy)
