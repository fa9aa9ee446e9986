"""Frozen policies of other runs: members of the banks from the start, used as opponents and never trained further.

A run of `shoal train` gives each player the policy that played the player's seats there, from its newest checkpoint; of
several seeds, the first. Another population gives each player the support of its mixture: policies without weight are
skipped, because every additional policy is another row of payoffs to play. A policy that plays several players' seats
joins the banks of all of them. The same policy joins a bank once, even if one population imported it from another: its
original source is kept.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.core.errors import OptionError, RunError
from shoal.core.types import PyTree
from shoal.populations.bank import Member, PolicyBank, check_fits
from shoal.populations.game import Game, seat_policies
from shoal.populations.psro import PSROState, share_first_bank
from shoal.training import checkpoint
from shoal.training.experiment import Experiment
from shoal.training.run import latest_checkpoint, load_policies, open_run

SUPPORT = 1e-3
"""A policy counts if its weight is at least this share of the largest in the mixture."""


class ImportedPolicy(NamedTuple):
    """A policy of another run, and its source, which is recorded with the member."""

    policy: PyTree
    info: dict[str, Any]


def import_from_training(path: Path, game: Game) -> dict[str, list[ImportedPolicy]]:
    """The policies of a run of `shoal train`, by player of the game."""
    run = open_run(path)
    _check_world(path, run.experiment, game)
    file = latest_checkpoint(run).name
    _, policies, _ = load_policies(path)
    played, found = seat_policies(run.experiment), {}
    for player, seats in game.world.players.items():
        players = {played.get(seat) for seat in seats}
        if len(players) != 1 or None in players:
            raise RunError(f"{path}: the seats of {player} are not played by one policy there")
        learner, policy = players.pop()  # pyright: ignore[reportGeneralTypeIssues]
        _check_algorithm(path, run.experiment.learners[learner].algorithm.name, game, player)
        found[player] = [ImportedPolicy(policies[policy], {"run": str(path), "checkpoint": file, "policy": policy})]
    return found


def import_from_population(
    path: Path, state: PSROState, theirs: Game, game: Game, exact: bool
) -> dict[str, list[ImportedPolicy]]:
    """The support of another population's mixtures, by player of the game.

    theirs: its game. exact: whether policies are exact plans, which are valid in one game only.
    """
    _check_world(path, theirs.experiment, game)
    if exact and theirs.experiment.env_options != game.experiment.env_options:
        raise RunError(f"{path} has other options of its world, and exact plans are valid in one game only")
    if state.players != game.players:
        raise RunError(f"{path}: its players are {', '.join(state.players)}, here they are {', '.join(game.players)}")
    newest = checkpoint.latest(path / "checkpoints")
    file, found = newest.name if newest else "", {}
    for player, mixture in zip(state.players, state.mixtures, strict=True):
        if not exact:
            _check_algorithm(path, theirs.algorithms[player].name, game, player)
        whose = state.players[0] if state.table.symmetric else player
        where = {"run": str(path), "checkpoint": file, "player": whose}
        members = state.banks[player].members
        found[player] = [
            ImportedPolicy(state.banks[player][i], members[i].info if members[i].frozen else where | {"member": i})
            for i in np.flatnonzero(mixture > SUPPORT * mixture.max()).tolist()
        ]
    return found


def merge_imports(
    runs: Iterable[Mapping[str, Sequence[ImportedPolicy]]], players: Sequence[str], symmetric: bool
) -> dict[str, list]:
    """The imported policies of each player from several runs; in a symmetric game, of all players together."""
    runs = list(runs)
    lists: dict[str, list[ImportedPolicy]] = {player: [] for player in players}
    for player in players:
        own = lists[players[0] if symmetric else player]
        new = [one for found in runs for one in found[player]]
        own.extend(one for i, one in enumerate(new) if all(one.info != other.info for other in [*own, *new[:i]]))
    return dict.fromkeys(players, lists[players[0]]) if symmetric else lists


def add_imports(state: PSROState, found: Mapping[str, Sequence[ImportedPolicy]]) -> PSROState:
    """The population with policies of other runs in its banks."""
    banks = {player: _with(bank, player, found[player]) for player, bank in state.banks.items()}
    return dataclasses.replace(state, banks=share_first_bank(banks) if state.table.symmetric else banks)


def _with(bank: PolicyBank, player: str, found: Sequence[ImportedPolicy]) -> PolicyBank:
    for policy, info in found:
        try:
            check_fits(bank.policies, policy, str(info.get("policy", info.get("member"))))
        except OptionError as error:
            raise RunError(f"{info['run']} cannot be imported for {player}: {error}") from None
        bank = bank.add(policy, Member(str(len(bank)), frozen=True, info=info))
    return bank


def _check_world(path: Path, experiment: Experiment, game: Game) -> None:
    if experiment.env != game.env:
        raise RunError(f"{path} is a run of another world: of {experiment.env!r}, not of {game.env!r}")


def _check_algorithm(path: Path, name: str, game: Game, player: str) -> None:
    wanted = game.algorithms[player].name
    if name != wanted:
        raise RunError(
            f"{path} cannot be imported for {player}: its policy was trained by {name}, those of this population are "
            f"trained by {wanted}. Use --oracle {name}"
        )
