"""PSRO and leagues as runs: the config of a population, and the program that grows it, one iteration per update.

After every iteration the banks, the payoff table and the history are saved; a resumed run equals an uninterrupted one
to the bit, because all random numbers of an iteration follow from the seed and the iteration's number. Policies of
other runs are read once, at the start; from then on they are in the population's own checkpoints. From Python:

    from shoal.populations.population import PopulationConfig
    from shoal.populations.psro import PSRO
    from shoal.presets import resolve
    from shoal.training.runner import run

    result = run(PopulationConfig(resolve("psro/kuhn"), PSRO("nash", iterations=8), oracle="exact"))
    print(result.standing["state"].mixtures, result.lines[-1]["nash_conv"])
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import jax
import numpy as np

from shoal.core.checks import check_types
from shoal.core.errors import OptionError, RunError, require, shell_command
from shoal.core.files import write_atomically
from shoal.core.types import PyTree
from shoal.games.payoff import PayoffTable
from shoal.populations.anytime_oracle import AnytimeOracle
from shoal.populations.bank import PolicyBank
from shoal.populations.behaviour import warn_of_greedy_play
from shoal.populations.game import Game
from shoal.populations.league_oracle import LeagueOracle
from shoal.populations.oracles import ExactOracle, LearnedOracle
from shoal.populations.pipeline import PipelineOracle
from shoal.populations.policy_import import (
    ImportedPolicy,
    add_imports,
    import_from_population,
    import_from_training,
    merge_imports,
)
from shoal.populations.psro import PSRO, PSROState, begin_population, finished, iterate, share_first_bank
from shoal.populations.records import read_population
from shoal.training import checkpoint, records, run_kinds
from shoal.training.experiment import Composed, Experiment, Extensible, Setup
from shoal.training.program import Program, Tally
from shoal.training.run import open_run


@dataclasses.dataclass(frozen=True)
class PopulationConfig(Composed, Extensible):
    """Everything needed to reproduce a population."""

    kind: ClassVar[str] = "psro"
    extent: ClassVar[str] = "iterations"

    experiment: Experiment  # of one best response: world, algorithm, copies, steps
    psro: PSRO = dataclasses.field(default_factory=PSRO)
    oracle: Literal["learned", "exact"] = "learned"
    warm_start: bool = False  # each best response starts from the player's newest policy
    greedy: bool = False  # policies of the population play their most likely action, instead of sampling
    levels: int = 1  # best responses of each player that are trained at the same time: more make it a pipeline
    imports: tuple[str, ...] = ()  # folders of runs whose policies are in the banks from the start, frozen
    symmetric: bool = False  # players are exchangeable: one bank for all of them, one best response an iteration

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

    def at_home(self) -> Self:
        imports = tuple(str(Path(path).absolute()) for path in self.imports)
        return dataclasses.replace(super().at_home(), imports=imports)

    @property
    def total(self) -> int:
        return self.psro.iterations

    def extended(self, total: int) -> Self:
        return dataclasses.replace(self, psro=dataclasses.replace(self.psro, iterations=total))

    def program(self, devices: int | None = None) -> "PopulationProgram":
        _check(self)
        if self.oracle != "exact" and not self.greedy:
            warn_of_greedy_play("population", Game(self.experiment).algorithms)
        return PopulationProgram(self, oracle_of(self, devices))

    def read_meta(self, path: Path) -> dict[str, Any]:
        found = read_population(path)
        last = found.history[-1]
        return {"update": last["iteration"], "seconds": last["seconds"], "population": found}

    def is_finished(self, meta: Mapping[str, Any]) -> bool:
        return finished(meta["population"].history, self.psro)


def oracle_of(config: PopulationConfig, devices: int | None = None) -> LearnedOracle | ExactOracle:
    """Trains and evaluates for a population."""
    game = Game(config.experiment)
    if config.oracle == "exact":
        return ExactOracle.of(game, config.symmetric)
    common = (game, config.psro.episodes, config.warm_start, config.greedy, devices)
    if config.psro.meta_solver == "league":
        return LeagueOracle(*common, symmetric=config.symmetric, **_league_options(config))
    if config.psro.meta_solver == "anytime":
        return AnytimeOracle(*common, config.psro.solver_options)
    if config.levels > 1:
        return PipelineOracle(*common, config.levels, config.psro, symmetric=config.symmetric)
    return LearnedOracle(*common, symmetric=config.symmetric)


def _league_options(config: PopulationConfig) -> dict[str, Any]:
    """The options of a league. Folders from before `exploit_every` existed trained all roles in each iteration."""
    options = config.psro.solver_options
    unknown = sorted(options.keys() - {"exploit_every"})
    require(not unknown, "league", "solver_options", unknown, "exploit_every")
    every = options.get("exploit_every", 1)
    require(type(every) is int and every >= 1, "league", "exploit_every", every, "a whole number, at least 1")
    return {"exploit_every": every}


def _check(config: PopulationConfig) -> None:
    """Refuses configs that cannot work, before anything is compiled."""
    game = Game(config.experiment)
    assert game.players  # refuses a world with fewer than two
    for name, learner in config.experiment.learners.items():
        if learner.frozen or learner.weights:
            what = "is frozen" if learner.frozen else f"starts from the weights of {learner.weights}"
            raise OptionError(
                f"learner {name!r} {what}, but every response is trained from scratch. Policies of other runs join a "
                "population by --import-policies."
            )
    if config.experiment.num_seeds > 1:
        raise OptionError(f"a population has one seed, got num_seeds {config.experiment.num_seeds}: start several")
    if config.psro.target_nash_conv is not None and not game.has_tables:
        raise OptionError(
            f"world {game.env!r} has no exact tables, so its NashConv is unknown: leave out "
            "target_nash_conv, and stop by iterations or patience"
        )


def beginning(config: PopulationConfig, oracle: LearnedOracle | ExactOracle) -> PSROState:
    """The initial population: a fresh policy per player, followed by those of other runs."""
    game = Game(config.experiment)
    for path in config.imports:
        config.experiment.origin.admit_folder(path, "it begins with the policies of")
        if not Path(path).is_dir():
            raise RunError(f"policies to import: {path} is not a run folder: no such folder")
    runs = [_import_policies(Path(path), config, game) for path in config.imports]
    found = merge_imports(runs, game.players, config.symmetric)
    room = config.psro.room_for(max(map(len, found.values())))
    return add_imports(begin_population(oracle.first(), room, config.symmetric), found)


def _import_policies(path: Path, config: PopulationConfig, game: Game) -> dict[str, list[ImportedPolicy]]:
    """The policies of another run, by player."""
    if run_kinds.kind_of(path) != run_kinds.PSRO:
        if config.oracle == "exact":
            raise RunError(f"{path}: exact responses are tables, not networks; only populations of --oracle exact fit")
        return import_from_training(path, game)
    theirs = open_population(path)
    if theirs.oracle != config.oracle:
        raise RunError(f"{path} is a population of {theirs.oracle} responses, this one is of {config.oracle} ones")
    grown = load(path, theirs, oracle_of(theirs))
    return import_from_population(path, grown, Game(theirs.experiment), game, theirs.oracle == "exact")


@dataclasses.dataclass(frozen=True)
class PopulationProgram(Program[PSROState]):
    """A population that grows by one iteration per call; the oracle trains and plays."""

    most: ClassVar[int] = 1
    saves_every_call: ClassVar[bool] = True
    watchable: ClassVar[bool] = False  # its policies are banks, and who meets whom is a mixture

    config: PopulationConfig
    oracle: LearnedOracle | ExactOracle

    @property
    def experiment(self) -> Experiment:
        return self.config.experiment

    @property
    def setup(self) -> Setup:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.experiment.setup

    @property
    def names(self) -> tuple[str, ...]:
        return ()  # an iteration has a line of figures, not a row of a table

    @property
    def num_updates(self) -> int:
        return self.config.psro.iterations

    @property
    def kernels(self) -> str:
        return self.oracle.kernels if isinstance(self.oracle, LearnedOracle) else ""

    def begin(self) -> PSROState:
        return beginning(self.config, self.oracle)

    def compiled(self, carry: PSROState) -> Callable[[PSROState, int], tuple[PSROState, dict[str, Any]]]:
        del carry
        oracle, plan = self.oracle, self.config.psro

        def advance(state: PSROState, count: int) -> tuple[PSROState, dict[str, Any]]:
            assert count == 1
            state = iterate(state, plan, oracle.respond, oracle.evaluate, oracle.measure, oracle.mix)
            return state, state.history[-1]

        return advance

    def tally(self) -> "PopulationTally":
        return PopulationTally(self)

    def policies(self, carry: PSROState) -> dict[str, PyTree]:
        """The banks: every player's policies along a leading axis."""
        return {
            player: jax.tree.map(lambda leaf, bank=bank: np.asarray(leaf)[: len(bank)], bank.policies)
            for player, bank in carry.banks.items()
        }

    def fault(self, carry: PSROState, tally: Tally) -> str | None:
        return None

    def stored(self, carry: PSROState) -> tuple[PyTree, dict[str, Any]]:
        return stored(carry)

    def restore(self, path: Path, meta: dict[str, Any]) -> PSROState:
        return restore(path, self.config, self.oracle)

    def standing(self, carry: PSROState) -> dict[str, Any]:
        """`state`: banks, payoffs, mixtures and history."""
        return {"state": carry}


class PopulationTally(Tally):
    """A tally of iterations; -1 before the first, which evaluates the initial population."""

    eval_updates = 0  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    def __init__(self, program: PopulationProgram):
        self.psro, self.total = program.config.psro, program.num_updates
        self.update, self.failed = -1, False
        self.history: list[dict[str, Any]] = []

    @property
    def env_steps(self) -> int:
        return 0  # not counted: responses are whole trainings

    @property
    def finished(self) -> bool:
        return bool(self.history) and finished(self.history, self.psro)

    def add(self, count: int, table: dict[str, Any]) -> list[dict[str, Any]]:
        self.update = table["iteration"]
        self.history.append(table)
        return [table]

    def meta(self, progress: dict[str, Any]) -> dict[str, Any]:
        return {}  # everything is in the state

    def restore(self, meta: dict[str, Any]) -> None:
        self.update, self.history = meta["update"], list(meta["population"].history)

    def log(self, folder: Path) -> "HistoryLog":
        return HistoryLog(folder / "metrics.jsonl", self.history)

    def earlier(self, metrics: Path) -> list[dict[str, Any]]:
        return list(self.history)


class HistoryLog:
    """Rewrites all lines after every checkpoint: they are few, and lines lost by a kill are restored.

    Never before it: a population killed in between would have metrics that no checkpoint accounts for.
    """

    def __init__(self, path: Path, history: list[dict[str, Any]]):
        self.path, self.lines = path, list(history)
        self.saved()

    def write(self, line: dict[str, Any]) -> None:
        self.lines.append(line)

    def saved(self) -> None:
        if self.lines:
            write_atomically(self.path, "".join(json.dumps(line) + "\n" for line in self.lines))

    def close(self) -> None:
        """Nothing is open."""


def open_population(folder: Path) -> PopulationConfig:
    """The config of an existing population."""
    config = open_run(folder, run_kinds.PSRO).config
    assert isinstance(config, PopulationConfig)
    return config


def load(folder: Path, config: PopulationConfig, oracle: LearnedOracle | ExactOracle) -> PSROState:
    """The population in the newest checkpoint of a folder."""
    path = checkpoint.latest(folder / "checkpoints")
    if path is None:
        raise RunError(f"{folder} has no checkpoint yet: resume it with `{shell_command('resume', folder)}`")
    return restore(path, config, oracle)


def stored(state: PSROState) -> tuple[PyTree, dict[str, Any]]:
    """The arrays and the meta data of a population for a checkpoint."""
    table = {"count": state.table.count, "total": state.table.total, "squares": state.table.squares}
    tree = {"banks": {name: bank.policies for name, bank in state.banks.items()}, "table": table}
    meta = {
        "capacities": {name: bank.capacity for name, bank in state.banks.items()},
        "members": {
            name: [dataclasses.asdict(member) for member in bank.members] for name, bank in state.banks.items()
        },
        "mixtures": [mixture.tolist() for mixture in state.mixtures],
        "history": list(state.history),
        "symmetric": state.table.symmetric,
    }
    return tree, meta


def restore(path: Path, config: PopulationConfig, oracle: LearnedOracle | ExactOracle) -> PSROState:
    """The population in a checkpoint."""
    found, exact = read_population(path), config.oracle == "exact"
    if tuple(found.members) != Game(config.experiment).players or found.symmetric != config.symmetric:
        raise records.forged(path, f"its players are {', '.join(found.members)[:80]}, or share a bank otherwise")
    first = oracle.first() if exact else jax.eval_shape(oracle.first)
    like = {"banks": {name: _stack(first[name], room) for name, room in found.capacities.items()}}
    arrays = checkpoint.load(path, like | {"table": found.table})
    records.check_finite(path, arrays)
    banks = {
        name: PolicyBank(policies if exact else jax.device_put(policies), found.members[name])
        for name, policies in arrays["banks"].items()
    }
    table = PayoffTable(**arrays["table"], symmetric=found.symmetric)
    banks = share_first_bank(banks) if table.symmetric else banks
    return PSROState(banks, table, found.mixtures, found.history[-1]["iteration"], found.history)


def _stack(policy: PyTree, room: int) -> PyTree:
    def place(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((room, *np.shape(leaf)), leaf.dtype)

    return jax.tree.map(place, policy)
