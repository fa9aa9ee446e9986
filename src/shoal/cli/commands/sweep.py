"""`shoal sweep TARGET --over OPTION=VALUES`: a grid or a random search over float hyper-parameters, in one program.

`shoal sweep SWEEP` resumes one that was stopped.
"""

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.table import Table
from tyro.conf import UseAppendAction, arg

from shoal.api.changes import take
from shoal.api.pictures import keep_sweep
from shoal.api.targets import check_world
from shoal.cli import runs, stored_runs
from shoal.cli.arguments import options_from, parse_pairs, whole_number
from shoal.cli.leaving import INTERRUPTED
from shoal.cli.run_options import ResumeOptions, SceneOptions, SteppedRunOptions
from shoal.cli.runs import RunView, describe_experiment
from shoal.cli.targets import parse_target
from shoal.cli.terminal import display_path, emit, format_duration, pluralise, say
from shoal.core.errors import NonFiniteError, OptionError, ShoalError
from shoal.training.devices import prepare_jax
from shoal.training.experiment import Experiment
from shoal.training.loop import TrainingResult
from shoal.training.run import RunFolder
from shoal.training.run_kinds import SWEEP
from shoal.training.runner import Local
from shoal.training.sweep import Point, Range, Sweep, SweepResult, summarise

SHOWN = 20
"""Points in the table; `sweep.json` has all."""
FORM = "OPTION=VALUES, such as learning_rate=1e-4:1e-2:32:log or clip_eps=0.1,0.2,0.3"


@dataclasses.dataclass(frozen=True)
@options_from(Sweep, leave=("experiment", "over"))
class SweepOptions(SteppedRunOptions, SceneOptions):
    """Options of `shoal sweep` itself."""

    over: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="OPTION=VALUES")] = ()
    """a float of the algorithm and its values: START:STOP:COUNT, the same with :log, or A,B,C"""


def run(args: Sequence[str]) -> int:
    """Trains all points and shows which did best, or resumes a sweep."""
    prepare_jax()
    if runs.names_run(args, SWEEP):
        return stored_runs.resume(args, "shoal sweep")
    experiment, options, _ = parse_target(SweepOptions, args, "shoal sweep")
    runs.check_options(options, "shoal sweep")
    plan = _plan(experiment, options)
    folder = runs.new_folder(options, experiment, "sweeps")
    check_world(experiment)
    command = shlex.join(["shoal", "sweep", *args])
    on = Local(options.devices).prepare(plan)
    return runs.run_and_report(SweepView(RunFolder(folder, plan), on, options, command))


def resume_run(run: RunFolder, options: ResumeOptions) -> int:
    """Continues a sweep from its newest checkpoint; of a finished one it shows the result."""
    if options.cluster is not None:
        raise OptionError(f"{options.run} is a sweep, which is trained on one machine: leave out --cluster")
    check_world(run.experiment)
    on = Local(options.devices).prepare(run.config, run.path)
    command = shlex.join(["shoal", "resume", options.run])
    return runs.run_and_report(SweepView(run, on, options, command, fresh=False))


def _plan(experiment: Experiment, options: SweepOptions) -> Sweep:
    named = parse_over(options.over, "shoal sweep", FORM)
    own = take(Sweep, dict(vars(options)))
    over = {name: parse_values(name, text, grid=own["random"] is None) for name, text in named.items()}
    return Sweep(experiment, over, **own)


class SweepView(RunView[Sweep]):
    """How a sweep is reported; its results are written down and drawn beside the run. command: as it was typed."""

    def __init__(
        self, run: RunFolder, on: Local, options: SweepOptions | ResumeOptions, command: str, fresh: bool = True
    ):
        super().__init__(run, on, options, fresh)
        self.command = command

    def opening(self) -> tuple[str, str]:
        plan = self.plan
        seeds = plan.experiment.num_seeds
        many = pluralise(len(plan.points), "point") + (f" x {seeds} seeds" if seeds > 1 else "")
        what = f"{many} of {', '.join(plan.over)}, side by side in one program"
        return describe_experiment(plan.experiment), f"{what}; folder: {display_path(self.run.path)}; {self.next}"

    def finish(self, out: Console, result: TrainingResult) -> int:
        folder, found = self.run.path, summarise(self.plan, result)
        table = found.to_dict() | {"command": self.command}
        plot, why = keep_sweep(folder, table)
        _report(out, found, folder, f"plot: {display_path(plot)}" if plot else f"no sweep.png: {why}")
        if self.options.json:
            where = {"run_dir": str(folder), "out": str(folder)}  # `out` goes in the next release
            emit(table | {"kernels": self.kernels} | where)
        if found.best is None and not found.interrupted:
            raise _no_result(found)
        if found.interrupted:
            say(out, f"stopped and saved. Go on with: {self.hints('resume')}", style="bold yellow")
        return INTERRUPTED if found.interrupted else 0


def _no_result(result: SweepResult) -> ShoalError:
    faults = [point.fault for point in result.points if point.fault]
    if len(faults) == len(result.points):
        return NonFiniteError(f"every point failed. The first: {faults[0]}")
    total = result.sweep.experiment.total_env_steps
    also = f" {len(faults)} of {len(result.points)} points failed; the first: {faults[0]}" if faults else ""
    return OptionError(f"no episode ended in {total:,} env steps; raise --total-env-steps.{also}")


def parse_over(texts: Sequence[str], prog: str, form: str) -> dict[str, str]:
    """What `--over` says, by option."""
    if not texts:
        raise OptionError(f"{prog}: over what? Give --over {form}.")
    named = parse_pairs(texts, "--over", form)
    if len(named) < len(texts):
        raise OptionError(f"{prog}: give each option's values once, in one --over; got {' '.join(texts)}")
    return named


def parse_values(name: str, text: str, grid: bool = False) -> Range | tuple[float, ...]:
    """`1e-4:1e-2:32:log` as a range, `0.1,0.2,0.3` as a tuple. A range of a `grid` must say how many values."""
    if ":" not in text:
        return tuple(_number(name, part) for part in text.split(","))
    start, stop, *rest = text.split(":")
    log = False
    if rest and rest[-1] in ("log", "lin"):
        log = rest.pop() == "log"
    if len(rest) > 1:
        raise OptionError(f"--over {name}={text}: a range is START:STOP:COUNT, or START:STOP:COUNT:log; got {text!r}")
    try:
        count = whole_number(rest[0]) if rest else None
    except ValueError:
        raise OptionError(
            f"--over {name}={text}: the third part of a range is how many values, then log or lin; got {rest[0]!r}"
        ) from None
    if grid and count is None:
        example = f"--over {name}={start}:{stop}:8" + ":log" * log
        raise OptionError(f"--over {name}={text}: how many values? Give START:STOP:COUNT, as {example}, or --random N.")
    try:
        return Range(_number(name, start), _number(name, stop), count, log)
    except OptionError as error:
        raise OptionError(f"--over {name}={text}: {error}") from None


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise OptionError(f"--over {name}: {text!r} is not a number. It must be {FORM}.") from None


def _report(out: Console, result: SweepResult, folder: Path, plot: str) -> None:
    names, seeds = list(result.sweep.over), result.sweep.experiment.num_seeds
    measured = " + ".join(result.measure)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in [*names, measured, *(["seeds, least to most"] if seeds > 1 else [])]:
        table.add_column(name, justify="right")
    for point in result.ranked[:SHOWN]:
        table.add_row(*(f"{point.values[name]:g}" for name in names), *_cells(point))
    out.print(table)
    hidden = len(result.points) - SHOWN
    if hidden > 0:
        say(out, f"... and {hidden} more in {display_path(folder / 'sweep.json')}")
    faults = [point.fault for point in result.points if point.fault]
    if faults:
        say(out, f"{len(faults)} of {len(result.points)} points failed; the first: {faults[0]}", style="yellow")
    unended = sum(point.mean is None and not point.fault for point in result.points)
    if unended:
        what = "no episode ended" if seeds == 1 else "no episode ended in at least one seed"
        say(out, f"{unended} of {len(result.points)} points: {what}; raise --total-env-steps", style="yellow")
    if result.interrupted:
        say(out, f"stopped after {result.updates} updates: the returns are those until then", style="bold yellow")
    say(out, f"{format_duration(result.seconds)} of training, compiled in {result.compile_seconds:.1f} s")
    say(out, f"table: {display_path(folder / 'sweep.json')}")
    say(out, plot)


def _cells(point: Point) -> list[str]:
    nothing = "failed (nan)" if point.fault else "no episode ended"
    mean = nothing if point.mean is None else f"{point.mean:.3f}"
    if len(point.returns) == 1:
        return [mean]
    got = sorted(value for value in point.returns if value is not None)
    return [mean, f"{got[0]:.3f} to {got[-1]:.3f}" if got else ""]
