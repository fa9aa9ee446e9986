"""`shoal psro GAME`: grow a population by best responses to mixtures of itself. `shoal league GAME`: by a league."""

import dataclasses
import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import DisallowNone, arg

from shoal.api.building import check_world
from shoal.api.figures import unsigned
from shoal.cli import runs
from shoal.cli.arguments import Flag, scan
from shoal.cli.runs import ResumeOptions, RunView, TeamOptions
from shoal.cli.start import Folder, WorkOptions, check_devices, describe_experiment, prepare
from shoal.cli.targets import parse_target
from shoal.cli.terminal import display_path, emit, format_duration, resolve_path, say
from shoal.cluster.run import Cluster
from shoal.core.errors import OptionError
from shoal.core.origin import trust
from shoal.populations.league import EXPLOIT_EVERY
from shoal.populations.population import PopulationConfig
from shoal.populations.psro import PSRO
from shoal.presets import response_preset
from shoal.training import checkpoint
from shoal.training.callbacks import Listener
from shoal.training.loggers import make_loggers
from shoal.training.loop import TrainingResult
from shoal.training.run import RunFolder, default_path
from shoal.training.run_kinds import check_new
from shoal.training.runner import Local

EXACT = "exact"


@dataclasses.dataclass(frozen=True)
class LeagueOptions(TeamOptions):
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
class PsroOptions(TeamOptions):
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
    settings = PopulationConfig(
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
    settings = PopulationConfig(
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


def _start(config: PopulationConfig, options: LeagueOptions | PsroOptions, prog: str) -> int:
    """Grows a population in a new folder."""
    check_devices(options.devices)
    make_loggers(options.log)
    on = runs.place_from(options, prog)
    check_world(config.experiment)
    by = EXACT if config.oracle == EXACT else None
    folder = resolve_path(options.run_dir) if options.run_dir else default_path(config.experiment, by=by)
    check_new(folder)
    return runs.run_and_report(PopulationView(RunFolder(folder, config), on, options))


def resume_run(run: RunFolder, options: ResumeOptions) -> int:
    """Continues a population from its newest checkpoint."""
    if options.checkpoint_minutes is not None:
        raise OptionError(
            f"{options.run} is a population, which is saved after every iteration: leave out --checkpoint-minutes"
        )
    assert isinstance(run.config, PopulationConfig)
    _check_oracle(run.config.oracle, options)
    newest = checkpoint.latest(run.checkpoints)
    over = newest is not None and run.config.is_finished(run.config.read_meta(newest))
    on = Local(options.devices) if over else runs.place_of(run, options)
    return runs.run_and_report(PopulationView(run, on, options, fresh=False, over=over))


def _check_oracle(oracle: str, options: PsroOptions | ResumeOptions) -> None:
    if oracle == EXACT and options.devices is not None:
        raise OptionError("exact responses are worked out without devices: leave out --devices")
    if oracle == EXACT and options.cluster is not None:
        raise OptionError("exact responses take a moment on one machine: leave out --cluster")


class PopulationView(RunView):
    """What is told of a population. over: whether nothing is left to be done."""

    def __init__(
        self, run: RunFolder, on: Local | Cluster, options: WorkOptions, fresh: bool = True, over: bool = False
    ):
        super().__init__(run, on, options, fresh)
        self.over = over

    @property
    def config(self) -> PopulationConfig:
        assert isinstance(self.run.config, PopulationConfig)
        return self.run.config

    def opening(self) -> tuple[str, str]:
        config, where = self.config, display_path(self.run.path)
        exact = config.oracle == EXACT
        title = f"{config.experiment.env}: exact responses" if exact else describe_experiment(config.experiment)
        if self.over:
            further = f"--import-policies {shlex.quote(where)}"
            return title, f"{where} is finished already. To grow it further, start a new one with {further}"
        connection = "" if exact else f"; {self.next}"
        return title, f"PSRO, {config.psro.meta_solver}, {config.oracle} responses; run folder: {where}{connection}"

    def showing(self, out: Console) -> AbstractContextManager[Listener]:
        every, iterations = self.config.psro.solver_options.get("exploit_every", 1), self.config.psro.iterations
        if self.fresh and every > iterations:
            few = f"exploiters train once in {every} iterations, and there are {iterations}"
            say(out, f"{few}: lower --exploit-every", style="yellow")
        return super().showing(out)

    def finish(self, out: Console, result: TrainingResult) -> int:
        line = result.lines[-1]
        far = (
            f"NashConv {unsigned(line['nash_conv'])} (exploitability {unsigned(line['exploitability'])}), "
            if "nash_conv" in line
            else ""
        )
        say(out, f"{far}population {line['population']} a player, {format_duration(line['seconds'])}", style="bold")
        say(out, f"run: {display_path(self.run.path)}")
        goal, reached = self.config.psro.target_nash_conv, line.get("nash_conv")
        if goal is not None and reached is not None and reached > goal:
            more = "try more --iterations, or stronger responses"
            say(out, f"the target, {goal}, was not reached: {more}", style="yellow")
        say(out, f"next: {self.hints('population')}")
        if self.options.json:
            emit(self.summary(result) | {"run": str(self.run.path)})
        return 0

    def summary(self, result: TrainingResult) -> dict[str, Any]:
        """The figures of the last iteration."""
        line, state = result.lines[-1], result.standing["state"]
        names = ("nash_conv", "exploitability", "population", "seconds", "iteration", "value")
        mixtures = {player: mixture.tolist() for player, mixture in zip(state.players, state.mixtures, strict=True)}
        return {name: line[name] for name in names if name in line} | {"mixtures": mixtures}


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
