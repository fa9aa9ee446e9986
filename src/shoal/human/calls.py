"""`shoal.play`: a person against policies, from Python; the command `shoal play` is built on the same."""

import dataclasses
import importlib
import re
import sys
import time
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.api.population import Population
from shoal.api.run import Run
from shoal.api.seats import RANDOM, dealt_seats, find_seats, seat_policies
from shoal.api.stored_runs import load
from shoal.api.targets import Changes, Target, attributed_to, is_run, make_experiment, open_known
from shoal.api.words import names_arguments
from shoal.batching.regroup import unwrap_regrouped
from shoal.core.errors import OptionError, install_command, require
from shoal.core.types import PyTree, Seat
from shoal.core.zoo import find_run
from shoal.human.game import Game
from shoal.human.results import check_writable
from shoal.human.session import Session, check_fps
from shoal.training.devices import prepare_jax
from shoal.training.experiment import Experiment, Setup
from shoal.training.run import load_policies, weights_sha256
from shoal.training.run_kinds import PSRO, TRAINING, kind_of

if TYPE_CHECKING:
    from shoal.human.server import Table


@dataclasses.dataclass(frozen=True)
class Lineup:
    """Who plays which world: its setup, the policies by name, and what results say of them."""

    setup: Setup
    policies: dict[str, PyTree]
    told: dict[str, Any]


@names_arguments
def play(
    target: Target,
    against: str | Path | Run | Population | None = None,
    *,
    seat: str | None = None,
    opponents: Mapping[str, str | Path] | None = None,
    checkpoint: str | int | None = None,
    seed_index: int = 0,
    explore: bool = False,
    env: Mapping[str, Any] | None = None,
    seed: int = 0,
    fps: float | None = None,
    out: str | Path | None = None,
    participant: str = "",
    port: int = 0,
    open: bool = True,
    wait: bool = True,
) -> "Table":
    """A person takes a seat in the browser: `shoal.play("pong", against="runs/x")`.

    target: a world or a preset, or the folder of a run, to play against itself. against: the run whose policies take
    the other seats, or the population whose mixtures do, a policy being drawn for every episode; left out, they play at
    random. checkpoint: "best" in evaluation, or that of an update. opponents:
    who plays otherwise, by seats, a folder or "random". seat: such as `left` or `agent[1]`, by default the first.
    explore: opponents sample as in training. env: options of the world. fps: steps a second, 0: the world waits for
    you; by default as the world has it. seed: of the first episode, the next ones have the next. out: the file that
    results are appended to, by default a new one below `plays/`. participant: a text that stands in the results.

    Opens a browser unless told not to, and waits until Ctrl-C. With wait=False it returns at once, as in a notebook:
    `table.address` is to be opened, `table.close()` ends it.
    """
    prepare_jax()
    if isinstance(target, str | Path) and against is None and is_run(target):
        target, against = experiment_of(target).env, target
    experiment = None if against is not None else make_experiment(target, Changes(env=env), "shoal.play")
    if against is not None:
        _check_same_world(target, against, env)
    lineup = line_up(experiment, against, checkpoint, seed_index, opponents)
    table = open_table(lineup, seat, explore, seed, fps, out, participant, port)
    sys.stdout.write(f"{table.address}\n")
    sys.stdout.flush()
    if open:
        webbrowser.open(table.address)
    if wait:
        table.wait()
    return table


def line_up(
    experiment: Experiment | None,
    against: str | Path | Run | Population | None,
    checkpoint: str | int | None = None,
    seed_index: int = 0,
    opponents: Mapping[str, str | Path] | None = None,
) -> Lineup:
    """Who plays: the policies of a run in its world or, without one, everybody at random in that of the experiment."""
    if isinstance(against, str | Path) and kind_of(find_run(against)) == PSRO:
        found = load(find_run(against))
        assert isinstance(found, Population)
        against = found
    others = {who: str(run) for who, run in (opponents or {}).items()}
    if against is None:
        assert experiment is not None
        require(checkpoint is None, "play", "checkpoint", checkpoint, "left out: it is one of the run in --against")
        if others:
            raise OptionError("--opponent is for seats that differ from those of a run: name it, --against RUN")
        return Lineup(experiment.setup, {}, {"run": RANDOM})
    if isinstance(against, Population):
        given = {"checkpoint": (checkpoint, None), "seed_index": (seed_index, 0), "opponent": (others, {})}
        for name, (got, default) in given.items():
            require(got == default, "play", name, got, "left out: a population plays its newest mixtures")
        return _line_up_population(against)
    if isinstance(against, Run):
        require(checkpoint is None, "play", "checkpoint", checkpoint, "left out for a run that is loaded already")
        setup, trained, update = against.experiment.setup, against.of_seed(seed_index), against.update
        where = str(against.path) if against.path else "in memory"
    else:
        folder = open_known(find_run(against))
        last = folder.experiment.num_seeds - 1
        require(0 <= seed_index <= last, "play", "seed_index", seed_index, f"between 0 and {last}")
        setup, trained, meta = load_policies(folder.path, seed_index, checkpoint)
        update, where = meta["update"], str(folder.path)
    setup, policies = seat_policies(setup, trained, others, "--opponent")
    told = {"run": where, "updates": update, "seed_index": seed_index, "weights_sha256": weights_sha256(policies)}
    return Lineup(setup, policies, told | ({"others": others} if others else {}))


def _line_up_population(population: Population) -> Lineup:
    """Every player's mixture: `Opponents` draw a policy from it for every episode."""
    side = population.side()
    assert side.setup is not None
    where = str(population.path) if population.path else "in memory"
    told = {"run": where, "iterations": population.state.iteration, "weights_sha256": weights_sha256(side.policies)}
    return Lineup(side.setup, side.policies, told)


def experiment_of(run: str | Path | Run | Population) -> Experiment:
    """The experiment whose world a run, or a population, plays; its world must be known."""
    if isinstance(run, Run):
        return run.experiment
    if isinstance(run, Population):
        return run.config.experiment
    path = find_run(run)
    return open_known(path, PSRO if kind_of(path) == PSRO else TRAINING).experiment


def open_table(
    lineup: Lineup,
    seat: str | None = None,
    explore: bool = False,
    seed: int = 0,
    fps: float | None = None,
    out: str | Path | None = None,
    participant: str = "",
    port: int = 0,
) -> "Table":
    """Compiles the game and serves it."""
    require(type(seed) is int and 0 <= seed < 2**32, "play", "seed", seed, "between 0 and 2^32 - 1")
    require(type(port) is int and 0 <= port < 65536, "play", "port", port, "between 0 and 65535")
    if fps is not None:
        check_fps(fps)
    server = _server()
    env = lineup.setup.experiment.env
    with attributed_to(env, "playing it"):
        game = Game(lineup.setup, lineup.policies, find_seat(lineup.setup, seat), explore)
        pace = game.world.play_fps if fps is None else fps
    results = Path(out).absolute() if out else default_results(env)
    if out:  # said before anybody plays
        check_writable(results)
    more = {"opponents": lineup.told} | ({"participant": participant} if participant else {})
    return server.Table(Session(game, pace, seed, results, more), port)


def find_seat(setup: Setup, text: str | None) -> Seat:
    """The seat that a person means by `left`, `agent[1]` or a player's name; by default the first."""
    if text is None:
        world = unwrap_regrouped(setup.env)
        return next(iter(world.groups)), 0
    seats = find_seats(text, setup, "--seat")
    if len(seats) > 1:
        shown = ", ".join(f"{group}[{i}]" for group, i in seats[:6]) + (", ..." if len(seats) > 6 else "")
        raise OptionError(f"--seat {text}: that is {len(seats)} seats, and a person takes one: {shown}")
    assert seats[0] in [seat for own in dealt_seats(setup.env).values() for seat in own]
    return seats[0]


def default_results(env: str) -> Path:
    """A new file below `plays/`."""
    stem = f"{re.sub(r'[^0-9A-Za-z_.-]+', '-', env)}_{time.strftime('%Y%m%d-%H%M%S')}"
    return Path("plays").absolute() / f"{stem}.jsonl"


def _server() -> Any:
    """The module that serves pages; its packages are optional."""
    try:
        return importlib.import_module("shoal.human.server")
    except ModuleNotFoundError as error:
        if error.name in ("starlette", "uvicorn"):
            raise OptionError(f"play: the package {error.name} is missing: {install_command('ui')}") from error
        raise


def _check_same_world(target: Target, against: str | Path | Run | Population, env: Mapping[str, Any] | None) -> None:
    """The world of a run is played as it was trained; refuses another, or other options."""
    run = experiment_of(against)
    wanted = make_experiment(target, Changes(), "shoal.play").env
    check_world_of_run(run, wanted, env)


def check_world_of_run(run: Experiment, wanted: str, options: Mapping[str, Any] | None) -> None:
    """Refuses a run of another world, or options that differ from the run's."""
    if run.env != wanted:
        raise OptionError(f"--against: that run was trained in {run.env}, not in {wanted}")
    for name, value in (options or {}).items():
        if run.env_options.get(name, value) != value or name not in run.env_options:
            raise OptionError(
                f"--env.{name.replace('_', '-')}: the world is the one that the run in --against was trained in, with "
                "its options; leave it out"
            )
