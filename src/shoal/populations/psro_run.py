"""A population as a run: a folder with its settings, a line of figures for every iteration, and checkpoints.

After every iteration the banks, the payoff table and the history are saved; going on from there gives the same bits as
never having stopped, because every draw of an iteration follows from the seed and the iteration's number. Policies of
other runs are read once, when a population begins; from then on they are in its own checkpoints.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from shoal.core.errors import OptionError, RunError, require, shell_command
from shoal.core.files import write_atomically
from shoal.core.options import check_types
from shoal.core.origin import Origin
from shoal.core.types import PyTree
from shoal.games.payoff import PayoffTable
from shoal.populations.anytime_oracle import AnytimeOracle
from shoal.populations.bank import PolicyBank
from shoal.populations.game import Game
from shoal.populations.league_oracle import LeagueOracle
from shoal.populations.oracles import ExactOracle, LearnedOracle, OracleBackend
from shoal.populations.pipeline import PipelineOracle
from shoal.populations.policy_import import (
    ImportedPolicy,
    add_imports,
    import_from_population,
    import_from_training,
    merge_imports,
)
from shoal.populations.psro import PSRO, PSROState, begin_population, finished, psro, share_first_bank
from shoal.populations.records import read_population
from shoal.training import checkpoint, records, run_kinds
from shoal.training.experiment import Experiment, from_plain, to_plain
from shoal.training.run import lock_folder


@dataclasses.dataclass(frozen=True)
class PSROSettings:
    """All that is needed to reproduce a population."""

    experiment: Experiment  # of one best response: world, algorithm, copies, steps
    psro: PSRO = dataclasses.field(default_factory=PSRO)
    oracle: Literal["learned", "exact"] = "learned"
    warm_start: bool = False  # whether a best response starts from the player's newest policy
    greedy: bool = False  # whether policies of the bank play their most likely action instead of sampling
    levels: int = 1  # best responses of each player that are trained at the same time: more make it a pipeline
    imports: tuple[str, ...] = ()  # folders of runs whose policies are in the banks from the start, frozen
    symmetric: bool = False  # whether players are exchangeable: then all of them share one bank

    def __post_init__(self):
        check_types(self, "psro")
        require(self.levels >= 1, "psro", "levels", self.levels, "at least 1")
        learned = self.oracle == "learned"
        if self.psro.meta_solver == "anytime":
            require(self.levels == 1, "psro", "levels", self.levels, "1 for anytime")
        if self.psro.meta_solver == "league" or self.levels > 1:
            require(learned, "psro", "oracle", self.oracle, "learned for leagues and pipelines")
        if self.psro.meta_solver == "anytime" and learned:
            require(
                not self.symmetric, "psro", "symmetric", self.symmetric, "left out for anytime with learnt responses"
            )


Listener = Callable[[PSROState], None]


def oracle_of(
    settings: PSROSettings, devices: int | None = None, backend: OracleBackend | None = None
) -> LearnedOracle | ExactOracle:
    """What trains and evaluates for these settings; `hands` do it, if it is not to be done here."""
    game = Game(settings.experiment)
    if settings.oracle == "exact":
        return ExactOracle.of(game, settings.symmetric)
    common = (game, settings.psro.episodes, settings.warm_start, settings.greedy, devices)
    rest: dict[str, Any] = {"symmetric": settings.symmetric, "backend": backend}
    if settings.psro.meta_solver == "league":
        return LeagueOracle(*common, **rest | _league_options(settings))
    if settings.psro.meta_solver == "anytime":
        return AnytimeOracle(*common, settings.psro.solver_options, backend=backend)
    if settings.levels > 1:
        return PipelineOracle(*common, settings.levels, settings.psro, **rest)
    return LearnedOracle(*common, **rest)


def _league_options(settings: PSROSettings) -> dict[str, Any]:
    """The options of a league. Folders from before there was `exploit_every` grew with all roles in each iteration."""
    options = settings.psro.solver_options
    unknown = sorted(options.keys() - {"exploit_every"})
    require(not unknown, "league", "solver_options", unknown, "exploit_every")
    every = options.get("exploit_every", 1)
    require(type(every) is int and every >= 1, "league", "exploit_every", every, "a whole number, at least 1")
    return {"exploit_every": every}


def start(
    settings: PSROSettings,
    folder: Path | None = None,
    devices: int | None = None,
    listener: Listener | None = None,
    oracle: LearnedOracle | ExactOracle | None = None,
) -> PSROState:
    """Grows a population from the start; kept in `folder`, if there is one. oracle: by default, all is done here."""
    check(settings)
    oracle = oracle or oracle_of(settings, devices)
    first = beginning(settings, oracle)
    if folder is not None:
        folder = folder.absolute()  # the code of an environment may go to another folder at any time
        create(folder, settings)
    return _grow(settings, oracle, first, folder, listener)


def check(settings: PSROSettings) -> None:
    """Refuses what cannot work, before anything is compiled."""
    game = Game(settings.experiment)
    assert game.players  # a world with fewer than two is refused there
    for path in settings.imports:
        if not Path(path).is_dir():
            raise RunError(f"policies to import: {path} is not a run folder: no such folder")
    for name, learner in settings.experiment.learners.items():
        if learner.frozen or learner.weights:
            what = "is frozen" if learner.frozen else f"starts from the weights of {learner.weights}"
            raise OptionError(
                f"learner {name!r} {what}, but every response is trained afresh. Policies of other runs join a "
                "population by --import-policies."
            )
    if settings.experiment.num_seeds > 1:
        raise OptionError(f"a population has one seed, got num_seeds {settings.experiment.num_seeds}: start several")
    if settings.psro.target_nash_conv is not None and not game.has_tables:
        raise OptionError(
            f"world {game.env!r} has no exact tables, so its NashConv is not known: leave out "
            "target_nash_conv, and stop by iterations or patience"
        )
    oracle_of(settings)


def resume_psro(
    folder: Path,
    devices: int | None = None,
    listener: Listener | None = None,
    oracle: LearnedOracle | ExactOracle | None = None,
) -> PSROState:
    """Goes on with a population where its newest checkpoint stands."""
    folder = folder.absolute()
    settings = open_settings(folder)
    oracle = oracle or oracle_of(settings, devices)
    begun = records.newest_checkpoint(folder) is not None
    state = restore(folder, settings, oracle) if begun else beginning(settings, oracle)
    return _grow(settings, oracle, state, folder, listener)


def is_finished(folder: Path, settings: PSROSettings) -> bool:
    """Whether nothing is left for `resume` to do."""
    newest = checkpoint.latest(folder / "checkpoints")
    return newest is not None and finished(read_population(newest).history, settings.psro)


def beginning(settings: PSROSettings, oracle: LearnedOracle | ExactOracle) -> PSROState:
    """The population to begin with: a fresh policy of each player, and after it those of other runs."""
    game = Game(settings.experiment)
    for path in settings.imports:
        settings.experiment.origin.admit_folder(path, "it begins with the policies of")
    runs = [_imported(Path(path), settings, game) for path in settings.imports]
    found = merge_imports(runs, game.players, settings.symmetric)
    room = settings.psro.room_for(max(map(len, found.values())))
    return add_imports(begin_population(oracle.first(), room, settings.symmetric), found)


def _imported(path: Path, settings: PSROSettings, game: Game) -> dict[str, list[ImportedPolicy]]:
    """The policies of another run, by player."""
    if run_kinds.kind_of(path) != run_kinds.PSRO:
        if settings.oracle == "exact":
            raise RunError(f"{path}: exact responses are tables, not networks; only populations of --oracle exact fit")
        return import_from_training(path, game)
    theirs = open_settings(path)
    if theirs.oracle != settings.oracle:
        raise RunError(f"{path} is a population of {theirs.oracle} responses, this one is of {settings.oracle} ones")
    grown = restore(path, theirs, oracle_of(theirs))
    return import_from_population(path, grown, Game(theirs.experiment), game, theirs.oracle == "exact")


def _grow(
    settings: PSROSettings,
    oracle: LearnedOracle | ExactOracle,
    state: PSROState,
    folder: Path | None,
    listener: Listener | None,
) -> PSROState:
    with contextlib.nullcontext() if folder is None else lock_folder(folder):
        if folder is not None and state.history:  # a kill may have come between a checkpoint and its line
            _write_lines(folder, state)
        for grown in psro(state, settings.psro, oracle.respond, oracle.evaluate, oracle.measure, oracle.mix):
            state = grown
            if folder is not None:
                save(folder, state)
            if listener is not None:
                listener(state)
    return state


def create(folder: Path, settings: PSROSettings) -> None:
    """Makes a new run folder."""
    imports = tuple(str(Path(path).absolute()) for path in settings.imports)
    run_kinds.create(folder, run_kinds.PSRO, psro=to_plain(dataclasses.replace(settings, imports=imports)))


def open_settings(folder: Path) -> PSROSettings:
    """The settings of an existing population."""
    settings = run_kinds.open_entry(folder, run_kinds.PSRO, lambda data: from_plain(PSROSettings, data, "psro"))
    experiment = dataclasses.replace(settings.experiment, origin=Origin(str(folder)))
    experiment.origin.admit(experiment.env, experiment.env_options)
    return dataclasses.replace(settings, experiment=experiment)


def save(folder: Path, state: PSROState) -> None:
    """Writes a checkpoint, and then the lines of figures."""
    run_kinds.check_there(folder)
    tree = {"banks": {name: bank.policies for name, bank in state.banks.items()}, "table": _arrays(state.table)}
    meta = {
        "capacities": {name: bank.capacity for name, bank in state.banks.items()},
        "members": {
            name: [dataclasses.asdict(member) for member in bank.members] for name, bank in state.banks.items()
        },
        "mixtures": [mixture.tolist() for mixture in state.mixtures],
        "history": list(state.history),
        "symmetric": state.table.symmetric,
    }
    checkpoint.save(folder / "checkpoints", state.iteration, tree, meta)
    _write_lines(folder, state)


def _write_lines(folder: Path, state: PSROState) -> None:
    lines = "".join(json.dumps(line) + "\n" for line in state.history)
    write_atomically(folder / "metrics.jsonl", lines)


def restore(folder: Path, settings: PSROSettings, oracle: LearnedOracle | ExactOracle) -> PSROState:
    """The population as its newest checkpoint holds it."""
    path = checkpoint.latest(folder / "checkpoints")
    if path is None:
        raise RunError(f"{folder} has no checkpoint yet: go on with `{shell_command('resume', folder)}`")
    found, exact = read_population(path), settings.oracle == "exact"
    if tuple(found.members) != Game(settings.experiment).players or found.symmetric != settings.symmetric:
        raise records.forged(path, f"its players are {', '.join(found.members)[:80]}, or share a bank otherwise")
    first = oracle.first() if exact else jax.eval_shape(oracle.first)
    like = {"banks": {name: _stack(first[name], room) for name, room in found.capacities.items()}}
    stored = checkpoint.load(path, like | {"table": found.table})
    records.check_finite(path, stored)
    banks = {
        name: PolicyBank(policies if exact else jax.device_put(policies), found.members[name])
        for name, policies in stored["banks"].items()
    }
    table = PayoffTable(**stored["table"], symmetric=found.symmetric)
    banks = share_first_bank(banks) if table.symmetric else banks
    return PSROState(banks, table, found.mixtures, found.history[-1]["iteration"], found.history)


def _arrays(table: PayoffTable) -> dict[str, np.ndarray]:
    return {"count": table.count, "total": table.total, "squares": table.squares}


def _stack(policy: PyTree, room: int) -> PyTree:
    def place(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((room, *np.shape(leaf)), leaf.dtype)

    return jax.tree.map(place, policy)
