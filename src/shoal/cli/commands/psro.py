"""`shoal psro GAME`: grow a population by best responses to mixtures of itself. `shoal league GAME`: by a league."""

import dataclasses
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import DisallowNone, arg

from shoal.cli.arguments import Flag, scan
from shoal.cli.building import check_world
from shoal.cli.runs import Hints, ResumeOptions
from shoal.cli.start import Folder, WorkOptions, check_devices, check_known, describe_experiment, imports_of, prepare
from shoal.cli.targets import parse_target
from shoal.cli.terminal import console, display_path, emit, format_duration, resolve_path, say
from shoal.cli.worker_pool import PoolOptions, connect_pool, pool_from_options, pool_of_run
from shoal.cluster.tasks import populations
from shoal.core.errors import OptionError
from shoal.core.origin import trust
from shoal.populations import psro_run
from shoal.populations.league import EXPLOIT_EVERY
from shoal.populations.psro import PSRO, PSROState
from shoal.presets import response_preset
from shoal.training.experiment import Experiment
from shoal.training.run import default_path
from shoal.training.run_kinds import check_new

EXACT = "exact"


@dataclasses.dataclass(frozen=True)
class LeagueOptions(PoolOptions):
    """Options of `shoal league` itself. --total-env-steps and the like are those of one stretch of training."""

    iterations: int = 40  # snapshots of the main agents
    exploit_every: int = EXPLOIT_EVERY  # iterations between those that train exploiters too; 1: all roles in each
    episodes: int = 2000  # played for each entry of the payoff table
    target_error: DisallowNone[float | None] = None  # play more until the standard error is at most this
    greedy: Flag = False  # policies of the population play their most likely action
    symmetric: Flag = False  # players are exchangeable: one bank for all of them
    import_policies: Annotated[DisallowNone[str | None], arg(metavar="RUN[,RUN...]")] = None
    """runs whose policies are in the banks from the start: they are met, and never trained on"""
    run_dir: Folder = None  # new folder for the run; by default one below runs/


@dataclasses.dataclass(frozen=True)
class PsroOptions(PoolOptions):
    """Options of `shoal psro` itself. --total-env-steps and the like are those of one best response."""

    meta_solver: Annotated[str, arg(metavar="NAME")] = "fictitious_play"
    """what makes mixtures of payoffs: alpha_rank, cce, ce, fictitious_play, nash, prioritised, regret_matching,
    replicator; of the policies' age: last, recent, uniform; or anytime"""
    oracle: Annotated[DisallowNone[str | None], arg(metavar="NAME")] = None
    """who responds: an algorithm, as --algo; or exact, for games that can be tabulated"""
    breadth: DisallowNone[float | None] = None
    """share of uniform play in what responses are trained against; by default 0.4, or 0 for last, recent and leagues"""
    iterations: int = 40  # best responses of every player, at most
    episodes: int = 2000  # played for each entry of the payoff table
    target_error: DisallowNone[float | None] = None  # play more until the standard error is at most this
    target_nash_conv: DisallowNone[float | None] = None  # stop when it is reached; needs a game with exact tables
    patience: DisallowNone[int | None] = None  # stop after so many iterations in a row without a gain
    improvement: float = 0.0  # what counts as a gain
    levels: int = 1  # best responses of each player that are trained at the same time: a pipeline
    warm_start: Flag = False  # each best response starts from the player's newest policy
    greedy: Flag = False  # policies of the population play their most likely action
    symmetric: Flag = False  # players are exchangeable: one bank for all of them, one best response an iteration
    import_policies: Annotated[DisallowNone[str | None], arg(metavar="RUN[,RUN...]")] = None
    """runs whose policies are in the banks from the start: they are met, and never trained on"""
    run_dir: Folder = None  # new folder for the run; by default one below runs/


def league(args: Sequence[str]) -> int:
    """Grows a league of main agents and exploiters; the mixture that is reported is the newest main agents."""
    if scan(args, "--meta-solver"):
        raise OptionError("shoal league has no --meta-solver: who meets whom follows from the roles. See `shoal psro`.")
    prepare()
    experiment, options = parse_target(LeagueOptions, translate_arguments(args), "shoal league")
    plan = PSRO(
        "league",
        {"exploit_every": options.exploit_every},
        iterations=options.iterations,
        episodes=options.episodes,
        target_error=options.target_error,
    )
    settings = psro_run.PSROSettings(
        experiment, plan, greedy=options.greedy, imports=_parse_imports(options), symmetric=options.symmetric
    )
    return _start(settings, options, "shoal league")


def run(args: Sequence[str]) -> int:
    """Grows a population and says how far it got."""
    prepare()
    experiment, options = parse_target(PsroOptions, translate_arguments(args), "shoal psro")
    plan = PSRO(
        meta_solver=options.meta_solver,
        breadth=options.breadth,
        iterations=options.iterations,
        episodes=options.episodes,
        target_error=options.target_error,
        target_nash_conv=options.target_nash_conv,
        patience=options.patience,
        improvement=options.improvement,
    )
    kind = EXACT if options.oracle == EXACT else "learned"
    settings = psro_run.PSROSettings(
        experiment,
        plan,
        kind,
        options.warm_start,
        options.greedy,
        options.levels,
        _parse_imports(options),
        options.symmetric,
    )
    _check_oracle(kind, options)
    return _start(settings, options, "shoal psro")


def _parse_imports(options: LeagueOptions | PsroOptions) -> tuple[str, ...]:
    runs = tuple(str(resolve_path(run)) for run in (options.import_policies or "").split(",") if run)
    for run in runs:
        trust(run)
    return runs


def _start(settings: psro_run.PSROSettings, options: LeagueOptions | PsroOptions, prog: str) -> int:
    """Grows a population in a new folder; everything that can be refused is refused first."""
    check_devices(options.devices)
    others = connect_pool(pool_from_options(options, prog), options)
    check_world(settings.experiment)
    by = EXACT if settings.oracle == EXACT else None
    folder = resolve_path(options.run_dir) if options.run_dir else default_path(settings.experiment, by=by)
    check_new(folder)
    psro_run.check(settings)
    out = console(options.json)
    say(out, _title(settings), style="bold")
    solver = settings.psro.meta_solver
    every, iterations = settings.psro.solver_options.get("exploit_every", 1), settings.psro.iterations
    if every > iterations:
        say(
            out,
            f"exploiters train once in {every} iterations, and there are {iterations}: lower --exploit-every",
            style="yellow",
        )
    where = f"; {others}" if others else "" if by else "; compiling ..."
    say(out, f"PSRO, {solver}, {settings.oracle} responses; run folder: {display_path(folder)}{where}")
    start = (
        others.by(partial(populations.psro_on_cluster, settings, folder))
        if others
        else partial(psro_run.start, settings, folder)
    )
    return _grow_and_report(out, folder, settings.experiment, options, start)


def _title(settings: psro_run.PSROSettings) -> str:
    return (
        f"{settings.experiment.env}: exact responses"
        if settings.oracle == EXACT
        else describe_experiment(settings.experiment)
    )


def resume_run(options: ResumeOptions) -> int:
    """Continues a population from its newest checkpoint."""
    if options.checkpoint_minutes is not None:
        raise OptionError(
            f"{options.run} is a population, which is saved after every iteration: leave out --checkpoint-minutes"
        )
    folder, out = resolve_path(options.run), console(options.json)
    settings = psro_run.open_settings(folder)
    check_known(folder, settings.experiment)
    _check_oracle(settings.oracle, options)
    over = psro_run.is_finished(folder, settings)
    others = None if over else connect_pool(pool_of_run(folder, options), options)
    say(out, _title(settings) + (f"; {others}" if others else ""), style="bold")
    if over:
        where = display_path(folder)
        further = f"--import-policies {shlex.quote(where)}"
        say(out, f"{where} is finished already. To grow it further, start a new one with {further}")
    start = (
        others.by(partial(populations.resume_psro_on_cluster, folder))
        if others
        else partial(psro_run.resume_psro, folder)
    )
    return _grow_and_report(out, folder, settings.experiment, options, start)


def _check_oracle(oracle: str, options: PsroOptions | ResumeOptions) -> None:
    if oracle == EXACT and options.devices is not None:
        raise OptionError("exact responses are worked out without devices: leave out --devices")
    if oracle == EXACT and options.cluster is not None:
        raise OptionError("exact responses take a moment on one machine: leave out --cluster")


def _grow_and_report(
    out: Console, folder: Path, experiment: Experiment, options: WorkOptions, start: Callable[..., PSROState]
) -> int:
    """Grows, tells how far it got and what comes next."""
    hints = Hints(folder, imports_of(experiment, options.imports))
    try:
        state = start(devices=options.devices, listener=lambda state: _line(out, state))
    except KeyboardInterrupt:  # after every iteration all is saved
        if (folder / "config.json").exists():
            say(out, f"stopped. Go on with: {hints('resume')}", style="bold yellow")
        raise
    report(out, state, folder)
    goal, reached = psro_run.open_settings(folder).psro.target_nash_conv, state.history[-1].get("nash_conv")
    if goal is not None and reached is not None and reached > goal:
        say(out, f"the target, {goal}, was not reached: try more --iterations, or stronger responses", style="yellow")
    say(out, f"next: {hints('population')}")
    if options.json:
        emit(result(state) | {"run": str(folder)})
    return 0


def translate_arguments(args: Sequence[str]) -> list[str]:
    """Arguments with the best responses' preset in place of its world, and the oracle as the algorithm."""
    args = list(args)
    if args and not args[0].startswith("-"):
        args[0] = response_preset(args[0]) or args[0]
    oracle, algorithm = scan(args, "--oracle"), scan(args, "--algo")
    if oracle and oracle[-1] != EXACT:
        if algorithm and algorithm[-1] != oracle[-1]:
            raise OptionError(f"shoal psro: --oracle {oracle[-1]} and --algo {algorithm[-1]} contradict each other")
        args += [] if algorithm else ["--algo", oracle[-1]]
    return args


def result(state: PSROState) -> dict[str, Any]:
    """The figures of the last iteration."""
    line = state.history[-1]
    shown = {
        key: line[key]
        for key in ("nash_conv", "exploitability", "population", "seconds", "iteration", "value")
        if key in line
    }
    mixtures = {player: mixture.tolist() for player, mixture in zip(state.players, state.mixtures, strict=True)}
    return shown | {"mixtures": mixtures}


def report(out: Console, state: PSROState, folder: Path) -> None:
    line = state.history[-1]
    far = (
        f"NashConv {_unsigned(line['nash_conv'])} (exploitability {_unsigned(line['exploitability'])}), "
        if "nash_conv" in line
        else ""
    )
    say(out, f"{far}population {line['population']} a player, {format_duration(line['seconds'])}", style="bold")
    say(out, f"run: {display_path(folder)}")


def _unsigned(number: float) -> str:
    """Four digits; rounding errors below 0 are 0."""
    return f"{max(number, 0.0):.4f}"


def _line(out: Console, state: PSROState) -> None:
    line = state.history[-1]
    parts = [f"{line['iteration']:4d}"]
    if "value" in line:
        parts.append(f"value {line['value']:+.4f}")
    if "nash_conv" in line:
        parts.append(f"NashConv {_unsigned(line['nash_conv'])}")
    if "gain" in line:
        parts.append("gains " + ", ".join(f"{round(gain, 3) + 0.0:+.3f}" for gain in line["gain"]))
    parts.append(f"support {' x '.join(map(str, line['support']))}")
    say(out, "  ".join([*parts, format_duration(line["seconds"])]))
