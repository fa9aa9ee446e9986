"""`shoal psro GAME`: grow a population by best responses to mixtures of itself. `shoal league GAME`: by a league."""

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Any, ClassVar

from rich.console import Console
from tyro.conf import DisallowNone, arg

from shoal.api.calls import NOT_EVALUATED, PAYOFFS, make_population
from shoal.api.figures import unsigned
from shoal.cli import runs, stored_runs
from shoal.cli.arguments import options_from, scan
from shoal.cli.run_options import SAVING, NewRunOptions, PoolOptions, ResumeOptions, WorkOptions
from shoal.cli.runs import RunView, describe_experiment
from shoal.cli.targets import parse_target
from shoal.cli.terminal import display_path, emit, format_duration, resolve_run, say
from shoal.cluster.run import Cluster
from shoal.core.errors import OptionError
from shoal.populations.league import EXPLOIT_EVERY
from shoal.populations.population import PopulationConfig
from shoal.populations.psro import PSRO
from shoal.presets import response_preset
from shoal.training import checkpoint
from shoal.training.callbacks import Listener
from shoal.training.devices import prepare_jax
from shoal.training.loop import TrainingResult
from shoal.training.run import RunFolder
from shoal.training.run_kinds import PSRO as PSRO_RUN
from shoal.training.runner import Local

EXACT = "exact"
TRAINED = ("--algo", "--num-envs", "--num-steps", "--total-env-steps", "--sharing", "--warm-start", "--levels")
"""Options of responses that are trained."""
UNUSED = (
    dict.fromkeys(NOT_EVALUATED, PAYOFFS)
    | {"num_seeds": "a population has one seed: start several"}
    | dict.fromkeys(
        ("freeze", "weights"),
        "every response is trained from scratch. Policies of other runs join a population by --import-policies",
    )
)
"""Options of a training that mean nothing to a population, and why."""
ImportPolicies = Annotated[DisallowNone[str | None], arg(metavar="RUN[,RUN...]")]


@dataclasses.dataclass(frozen=True)
@options_from(PopulationConfig, {name: name for name in ("greedy", "symmetric")})
@options_from(PSRO, {name: name for name in ("iterations", "episodes", "target_error")})
class LeagueOptions(NewRunOptions, PoolOptions):
    """Options of `shoal league` itself. --total-env-steps and the like are those of one stretch of training."""

    unused: ClassVar[Mapping[str, str]] = UNUSED

    exploit_every: int = EXPLOIT_EVERY  # iterations between those that train exploiters too; 1: all roles in each
    import_policies: ImportPolicies = None
    """runs whose policies are in the banks from the start: they are met, and never trained on"""


@dataclasses.dataclass(frozen=True)
@options_from(PopulationConfig, leave=("experiment", "psro", "oracle", "imports"))
@options_from(PSRO, leave=("solver_options",))
class PsroOptions(NewRunOptions, PoolOptions):
    """Options of `shoal psro` itself. --total-env-steps and the like are those of one best response."""

    unused: ClassVar[Mapping[str, str]] = UNUSED

    oracle: Annotated[DisallowNone[str | None], arg(metavar="NAME")] = None
    """who responds: an algorithm, as --algo, or exact, for games that can be tabulated; by default the preset's"""
    import_policies: ImportPolicies = None
    """runs whose policies are in the banks from the start: they are met, and never trained on"""


def league(args: Sequence[str]) -> int:
    """Grows a league of main agents and exploiters; the mixture that is reported is the newest main agents."""
    if scan(args, "--meta-solver"):
        raise OptionError("shoal league has no --meta-solver: who meets whom follows from the roles. See `shoal psro`.")
    prepare_jax()
    if _grows_further(args):
        return stored_runs.resume(args, "shoal league")
    experiment, options, _ = parse_target(LeagueOptions, translate_arguments(args), "shoal league")
    league = {"meta_solver": "league", "solver_options": {"exploit_every": options.exploit_every}}
    return _start(make_population(experiment, _given(options) | league), options, "shoal league")


def run(args: Sequence[str]) -> int:
    """Grows a population and says how far it got; `psro RUN --iterations MORE` grows one further."""
    prepare_jax()
    if _grows_further(args):
        return stored_runs.resume(args, "shoal psro")
    experiment, options, _ = parse_target(PsroOptions, translate_arguments(args), "shoal psro")
    kind = EXACT if options.oracle == EXACT else "learned"
    typed = [word.partition("=")[0].replace("_", "-") for word in args]
    idle = [option for option in typed if option in TRAINED or option.startswith("--algo.")]
    if kind == EXACT and idle:
        raise OptionError(f"exact responses are worked out, not trained: leave out {', '.join(idle)}")
    config = make_population(experiment, _given(options), kind)
    _check_oracle(kind, options)
    return _start(config, options, "shoal psro")


def _grows_further(args: Sequence[str]) -> bool:
    """Whether a population is to go on in its own folder."""
    named = runs.names_run(args, PSRO_RUN) and not scan(args, "--import-policies")
    return named and bool(scan(args, "--iterations"))


def _given(options: LeagueOptions | PsroOptions) -> dict[str, Any]:
    runs = [resolve_run(run) for run in (options.import_policies or "").split(",") if run]
    return vars(options) | {"import_policies": runs}


def _start(config: PopulationConfig, options: LeagueOptions | PsroOptions, prog: str) -> int:
    """Grows a population in a new folder."""
    return runs.start_and_report(PopulationView, config, options, prog, EXACT if config.oracle == EXACT else None)


def resume_run(run: RunFolder, options: ResumeOptions) -> int:
    """Continues a population from its newest checkpoint."""
    for name in (name for name in SAVING if vars(options)[name] is not None):
        saved = f"{options.run} is a population, which is saved after every iteration"
        raise OptionError(f"{saved}: leave out --{name.replace('_', '-')}")
    assert isinstance(run.config, PopulationConfig)
    _check_oracle(run.config.oracle, options)
    newest = checkpoint.latest(run.checkpoints)
    over = newest is not None and run.config.is_finished(run.config.read_meta(newest))
    on = Local(options.devices) if over else runs.place_of(run.config, options, "", run.path)
    view = PopulationView(run, on.prepare(run.config, run.path), options, fresh=False, over=over)
    view.iterations = options.iterations
    return runs.run_and_report(view)


def _check_oracle(oracle: str, options: PsroOptions | ResumeOptions) -> None:
    if oracle == EXACT and options.devices is not None:
        raise OptionError("exact responses are worked out without devices: leave out --devices")
    if oracle == EXACT and options.cluster is not None:
        raise OptionError("exact responses take a moment on one machine: leave out --cluster")


class PopulationView(RunView[PopulationConfig]):
    """How a population is reported. over: whether nothing is left to be done."""

    def __init__(
        self, run: RunFolder, on: Local | Cluster, options: WorkOptions, fresh: bool = True, over: bool = False
    ):
        super().__init__(run, on, options, fresh)
        self.over = over

    def opening(self) -> tuple[str, str]:
        config, where = self.plan, display_path(self.run.path)
        exact = config.oracle == EXACT
        title = f"{config.experiment.env}: exact responses" if exact else describe_experiment(config.experiment)
        if self.over:
            command = "league" if config.psro.meta_solver == "league" else "psro"
            further = self.hints(command, "--iterations", str(2 * config.psro.iterations))
            return title, f"{where} is finished already. To grow it further: {further}"
        connection = "" if exact else f"; {self.next}"
        return title, f"PSRO, {config.psro.meta_solver}, {config.oracle} responses; run folder: {where}{connection}"

    def showing(self, out: Console) -> AbstractContextManager[Listener]:
        every, iterations = self.plan.psro.solver_options.get("exploit_every", 1), self.plan.psro.iterations
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
        goal, reached = self.plan.psro.target_nash_conv, line.get("nash_conv")
        if goal is not None and reached is not None and reached > goal:
            more = "try more --iterations, or stronger responses"
            say(out, f"the target, {goal}, was not reached: {more}", style="yellow")
        say(out, f"next: {self.hints('population')}")
        if self.options.json:
            emit(
                self.summary(result)
                | {"kernels": self.kernels, "run_dir": str(self.run.path), "run": str(self.run.path)}
            )
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
