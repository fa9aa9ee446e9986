"""A population as a run: a folder with its settings, a line of figures for every iteration, and checkpoints.

After every iteration the banks, the payoff table and the history are saved; going on from there gives the same bits as
never having stopped, because every draw of an iteration follows from the seed and the iteration's number.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from shoal.core.errors import RunError, require
from shoal.core.files import write_atomically
from shoal.core.types import PyTree
from shoal.core.version import VERSION
from shoal.execution import checkpoint
from shoal.execution.experiment import Experiment, from_plain, to_plain
from shoal.execution.game import Game
from shoal.execution.leagues import League
from shoal.execution.oracles import Exact, Learned
from shoal.execution.pipeline import Pipelined
from shoal.execution.run import FORMAT, check_new
from shoal.population.bank import Member, PolicyBank
from shoal.population.payoff import PayoffTable
from shoal.population.psro import PSRO, State, begin, psro

KIND = "psro"


@dataclasses.dataclass(frozen=True)
class Settings:
    """All that is needed to reproduce a population."""

    experiment: Experiment  # of one best response: world, algorithm, copies, steps
    psro: PSRO = dataclasses.field(default_factory=PSRO)
    oracle: Literal["learned", "exact"] = "learned"
    warm_start: bool = False  # whether a best response starts from the player's newest policy
    greedy: bool = False  # whether policies of the bank play their most likely action instead of sampling
    levels: int = 1  # best responses of each player that are trained at the same time: more make it a pipeline

    def __post_init__(self):
        require(self.levels >= 1, "psro", "levels", self.levels, "at least 1")
        learned = self.oracle == "learned"
        if self.psro.meta_solver == "anytime":
            require(not learned, "psro", "oracle", self.oracle, "exact for anytime, which works with exact tables")
        if self.psro.meta_solver == "league" or self.levels > 1:
            require(learned, "psro", "oracle", self.oracle, "learned for leagues and pipelines")


Listener = Callable[[State], None]


def oracle_of(settings: Settings, devices: int | None = None) -> Learned | Exact:
    """What trains and evaluates for these settings."""
    game = Game(settings.experiment)
    if settings.oracle == "exact":
        return Exact.of(game)
    common = (game, settings.psro.episodes, settings.warm_start, settings.greedy, devices)
    if settings.psro.meta_solver == "league":
        return League(*common)
    return Pipelined(*common, settings.levels, settings.psro) if settings.levels > 1 else Learned(*common)


def start(
    settings: Settings, folder: Path | None = None, devices: int | None = None, listener: Listener | None = None
) -> State:
    """Grows a population from the start; kept in `folder`, if there is one."""
    oracle = oracle_of(settings, devices)
    first = begin(oracle.first(), settings.psro.room)
    if folder is not None:
        create(folder, settings)
    return _grow(settings, oracle, first, folder, listener)


def resume(folder: Path, devices: int | None = None, listener: Listener | None = None) -> State:
    """Goes on with a population where its newest checkpoint stands."""
    settings = open_settings(folder)
    oracle = oracle_of(settings, devices)
    state = begin(oracle.first(), settings.psro.room)
    if checkpoint.latest(folder / "checkpoints") is not None:
        state = restore(folder, settings, oracle)
    return _grow(settings, oracle, state, folder, listener)


def _grow(
    settings: Settings, oracle: Learned | Exact, state: State, folder: Path | None, listener: Listener | None
) -> State:
    for grown in psro(state, settings.psro, oracle.respond, oracle.evaluate, oracle.measure, oracle.mix):
        state = grown
        if folder is not None:
            save(folder, state)
        if listener is not None:
            listener(state)
    return state


def create(folder: Path, settings: Settings) -> None:
    """Makes a new run folder."""
    check_new(folder)
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        config = {"format": FORMAT, "shoal": VERSION, "kind": KIND, KIND: to_plain(settings)}
        write_atomically(folder / "config.json", json.dumps(config, indent=2) + "\n")
    except OSError as error:
        raise RunError(f"cannot create the run folder {folder}: {error.strerror or error}.") from error


def is_population(folder: Path) -> bool:
    """Whether a folder is a run of a population."""
    try:
        return json.loads((folder / "config.json").read_text()).get("kind") == KIND
    except (OSError, ValueError, AttributeError):
        return False


def open_settings(folder: Path) -> Settings:
    """The settings of an existing population."""
    try:
        data = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        raise RunError(f"{folder} is not a run folder: it has no config.json") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{folder / 'config.json'} is damaged or cut short ({error})") from error
    if not isinstance(data, Mapping) or data.get("kind") != KIND:
        raise RunError(
            f"{folder} is a run of `shoal train`, not a population: `shoal eval {folder}` plays its policies"
        )
    return from_plain(Settings, data[KIND], "psro")


def save(folder: Path, state: State) -> None:
    """Writes a checkpoint, and then the lines of figures."""
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
    lines = "".join(json.dumps(line) + "\n" for line in state.history)
    write_atomically(folder / "metrics.jsonl", lines)


def restore(folder: Path, settings: Settings, oracle: Learned | Exact) -> State:
    """The population as its newest checkpoint holds it."""
    path = checkpoint.latest(folder / "checkpoints")
    if path is None:
        raise RunError(f"{folder} has no checkpoint yet: go on with `shoal resume {folder}`")
    meta = checkpoint.read_meta(path)
    sizes = tuple(len(members) for members in meta["members"].values())
    table = PayoffTable.empty(len(sizes), meta["symmetric"]).grown(sizes)
    first = oracle.first()
    like = {"banks": {n: _stacked(first[n], room) for n, room in meta["capacities"].items()}, "table": _arrays(table)}
    stored = checkpoint.load(path, like)
    exact = settings.oracle == "exact"
    banks = {
        name: PolicyBank(
            policies if exact else jax.device_put(policies), tuple(Member(**member) for member in meta["members"][name])
        )
        for name, policies in stored["banks"].items()
    }
    known = dataclasses.replace(table, **{name: np.asarray(part) for name, part in stored["table"].items()})
    mixtures = tuple(np.array(mixture) for mixture in meta["mixtures"])
    history = tuple(meta["history"])
    return State(banks, known, mixtures, history[-1]["iteration"], history)


def _arrays(table: PayoffTable) -> dict[str, np.ndarray]:
    return {"count": table.count, "total": table.total, "squares": table.squares}


def _stacked(policy: PyTree, room: int) -> PyTree:
    def place(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((room, *np.shape(leaf)), leaf.dtype)

    return jax.tree.map(place, policy)
