"""`shoal play WORLD`: a person takes a seat in the browser, policies take the others."""

import dataclasses
import webbrowser
from collections.abc import Sequence
from typing import Annotated, Any

from tyro.conf import DisallowNone, arg

from shoal.api.targets import (
    OWN_FILE,
    attributed_to,
    check_world,
    find_experiment,
    import_files,
    is_run,
    option_values,
)
from shoal.cli.arguments import Checkpoint, Flag, Imports, parse, scan
from shoal.cli.commands.evaluate import Opponents, parse_opponents
from shoal.cli.targets import Wraps, parse_wrappers, split_target, typed_env_options, world_options
from shoal.cli.terminal import console, emit, resolve_path, resolve_run, say
from shoal.core.errors import OptionError, shell_command
from shoal.core.registry import is_foreign
from shoal.human.calls import Lineup, check_world_of_run, experiment_of, line_up, open_table
from shoal.presets import targets
from shoal.training.devices import prepare_jax
from shoal.training.experiment import Experiment, make_world

Text = Annotated[DisallowNone[str | None], arg(metavar="TEXT")]
File = Annotated[DisallowNone[str | None], arg(metavar="FILE")]
Run = Annotated[DisallowNone[str | None], arg(metavar="RUN")]
SeatName = Annotated[DisallowNone[str | None], arg(metavar="GROUP[INDEX]")]
Rate = Annotated[DisallowNone[float | None], arg(metavar="N")]


@dataclasses.dataclass(frozen=True)
class PlayOptions:
    """Take a seat of a world in the browser, against the policies of a run, or against random play."""

    against: Run = None  # the run or population whose policies take the other seats; by default they play at random
    seat: SeatName = None  # which seat is yours; by default the first of the first group
    checkpoint: Checkpoint = None  # of which update, or the best in evaluation; by default the newest
    explore: Flag = False  # opponents sample actions as in training, instead of taking the likeliest
    opponent: Opponents = ()
    """who plays otherwise, a policy, a player or seats such as agent[1]: as in another run, or at random: WHO=random"""
    seed_index: int = 0  # whose policies, of a run of several seeds, counted from 0
    seed: int = 0  # seed of the first episode; the next ones have the next
    fps: Rate = None  # steps a second, 0: the world waits for you; by default as the world has it
    out: File = None  # append the results to this file; by default a new one below plays/
    participant: Text = None  # who plays, as the results have it; by default nobody is named
    open: Flag = False  # open the page in a browser
    port: int = 0  # of the page; 0: any that is free
    wrap: Wraps = ()
    imports: Imports = ()  # a Python file that registers worlds, algorithms or torsos, or an id that the run may name
    json: Flag = False  # one JSON object on stdout


def run(args: Sequence[str]) -> int:
    """Serves a game until Ctrl-C."""
    prepare_jax()
    import_files(scan(args, "--import"))
    target, rest = split_target(args, targets())
    if target is None:
        parse(world_options(PlayOptions, None), rest, "shoal play WORLD")
        raise OptionError("shoal play: which world? For instance `shoal play pong`. All: `shoal envs`.")
    own, lineup = _read(target, rest)
    out = console(own.json)
    say(out, f"{lineup.setup.experiment.env}: compiling ...")
    results = resolve_path(own.out) if own.out else None
    table = open_table(lineup, own.seat, own.explore, own.seed, own.fps, results, own.participant or "", own.port)
    if own.json:
        emit({"address": table.address, "results": table.results, "seat": table.session.describe()["seat"]})
    else:
        seat, against = table.session.describe()["seat"], lineup.told["run"]
        say(out, f"you play {seat}, the others: {against}")
        say(out, f"results go to {table.results}")
        say(out, f"{table.address}  (Ctrl-C to stop)")
    if own.open and not webbrowser.open(table.address):
        say(out, "no browser could be opened: open the address by hand")
    table.wait()
    return 0


def _read(target: str, rest: Sequence[str]) -> tuple[PlayOptions, Lineup]:
    """The options of the command, and who plays."""
    of_run = is_run(target)
    if of_run:
        experiment = experiment_of(resolve_run(target))
    else:
        with attributed_to(target, "groups"):
            experiment = find_experiment(target, {}, OWN_FILE)
    if is_foreign(experiment.env):
        raise OptionError(f"{experiment.env} is stepped by its own library: people play the worlds of `shoal envs`")
    options = parse(world_options(PlayOptions, experiment), rest, shell_command("play", target))
    own = options.run
    against = own.against or (target if of_run else None)
    if against is None:
        wrappers = (*experiment.wrappers, *parse_wrappers(own.wrap))
        experiment = experiment.replace(env_options=typed_env_options(experiment, options), wrappers=wrappers)
        check_world(experiment)
    else:
        _check_run(against, experiment, options)
        against = resolve_run(against)
    lineup = line_up(experiment, against, own.checkpoint, own.seed_index, parse_opponents(own.opponent))
    return own, lineup


def _check_run(against: str, experiment: Experiment, options: Any) -> None:
    """The world is the run's own; what was typed must agree with it."""
    played = experiment_of(resolve_run(against))
    if options.run.wrap:
        raise OptionError("--wrap: the world is the one that the run was trained in, with its wrappers; leave it out")
    before = option_values(make_world(experiment.replace(wrappers=())))
    typed = vars(options.env) if before else {}
    changed = {name: value for name, value in typed.items() if value != before[name]}
    check_world_of_run(played, experiment.env, changed)
