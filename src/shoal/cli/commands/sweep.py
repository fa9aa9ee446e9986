"""`shoal sweep TARGET --over OPTION=VALUES`: a grid or a random search over float hyper-parameters, in one program.

`shoal sweep SWEEP` goes on with one that was stopped.
"""

import dataclasses
import json
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table
from tyro.conf import DisallowNone, UseAppendAction, arg

from shoal.cli import runs
from shoal.cli.arguments import whole_number
from shoal.cli.building import check_world
from shoal.cli.progress import showing
from shoal.cli.runs import INTERRUPTED, MINUTES, ResumeOptions
from shoal.cli.start import (
    Folder,
    Hints,
    WorkOptions,
    check_known,
    describe_experiment,
    num_agents,
    parse_pairs,
    prepare,
    warm_up_of,
)
from shoal.cli.targets import parse_target
from shoal.cli.terminal import console, display_path, emit, format_duration, resolve_path, say
from shoal.core.errors import NonFiniteError, OptionError, RunError, ShoalError, require_positive
from shoal.core.files import write_atomically
from shoal.training.experiment import Experiment
from shoal.training.run import default_path
from shoal.training.run_kinds import SWEEP, check_new
from shoal.training.sweep import Point, Range, Sweep, SweepResult, open_sweep, run_sweep
from shoal.training.sweep import prepare as prepare_sweep
from shoal.training.sweep import resume_sweep as resume_sweep
from shoal.viz import MissingMatplotlibError, draw_sweep

SHOWN = 20
"""Points in the table; `sweep.json` has all."""
FORM = "OPTION=VALUES, such as learning_rate=1e-4:1e-2:32:log or clip_eps=0.1,0.2,0.3"


@dataclasses.dataclass(frozen=True)
class SweepOptions(WorkOptions):
    """Options of `shoal sweep` itself."""

    over: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="OPTION=VALUES")] = ()
    """a float of the algorithm and its values: START:STOP:COUNT, the same with :log, or A,B,C"""
    random: Annotated[DisallowNone[int | None], arg(metavar="N")] = None  # draw N points instead of the whole grid
    seeds: Annotated[DisallowNone[int | None], arg(metavar="K")] = None  # seeds of each point, as --num-seeds
    measure: Annotated[DisallowNone[str | None], arg(metavar="NAME")] = None
    """what is compared: return or return/GROUP; by default that of the groups whose learners are swept"""
    out: Folder = None  # new folder for the table and the plot; by default one below sweeps/
    checkpoint_minutes: float = MINUTES  # time between two checkpoints


def run(args: Sequence[str]) -> int:
    """Trains all points and shows which did best, or goes on with a sweep."""
    prepare()
    if runs.names_run(args, SWEEP):
        return runs.resume(args, "shoal sweep")
    experiment, options = parse_target(SweepOptions, args, "shoal sweep")
    runs.check_options(options, "shoal sweep")
    if options.seeds is not None:
        require_positive("shoal sweep", seeds=options.seeds)
        experiment = dataclasses.replace(experiment, num_seeds=options.seeds)
    plan = _plan(experiment, options)
    folder = resolve_path(options.out) if options.out else default_path(experiment, "sweeps")
    check_new(folder, SWEEP)
    check_world(experiment)
    prepared = prepare_sweep(plan, options.devices)
    command = shlex.join(["shoal", "sweep", *args])
    return _run_and_report(folder, plan, partial(run_sweep, prepared, folder), options, command)


def resume_run(options: ResumeOptions) -> int:
    """Continues a sweep from its newest checkpoint; of a finished one it shows the result."""
    if options.cluster is not None:
        raise OptionError(f"{options.run} is a sweep, which is trained on one machine: leave out --cluster")
    folder = resolve_path(options.run)
    plan = open_sweep(folder)
    check_known(folder, plan.experiment)
    check_world(plan.experiment)
    start = partial(resume_sweep, folder, devices=options.devices)
    return _run_and_report(folder, plan, start, options, shlex.join(["shoal", "resume", options.run]), fresh=False)


def _plan(experiment: Experiment, options: SweepOptions) -> Sweep:
    if not options.over:
        raise OptionError(f"shoal sweep: over what? Give --over {FORM}.")
    named = parse_pairs(options.over, "--over", FORM)
    if len(named) < len(options.over):
        raise OptionError(f"shoal sweep: give each option's values once, in one --over; got {' '.join(options.over)}")
    over = {name: parse_values(name, text, grid=options.random is None) for name, text in named.items()}
    return Sweep(experiment, over, options.random, options.measure)


def _run_and_report(
    folder: Path,
    plan: Sweep,
    start: Callable[..., SweepResult],
    options: SweepOptions | ResumeOptions,
    command: str,
    fresh: bool = True,
) -> int:
    """Trains, tells of it, writes down and draws what came of it."""
    out, hints = console(options.json), Hints(folder, options.imports)
    try:
        result = _train(out, plan, folder, start, options, fresh)
    except KeyboardInterrupt:  # while compiling, or twice: what was saved last is what there is
        if (folder / "config.json").exists():
            say(out, f"stopped. Go on with: {hints('resume')}", style="bold yellow")
        raise
    table = result.to_dict() | {"command": command}
    try:
        write_atomically(folder / "sweep.json", json.dumps(table, indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise RunError(f"cannot write {folder / 'sweep.json'}: {error.strerror or error}") from error
    _report(out, result, folder, _draw(folder / "sweep.png", table))
    if options.json:
        emit(table | {"out": str(folder)})
    if result.best is None and not result.interrupted:
        raise _no_result(result)
    if result.interrupted:
        say(out, f"stopped and saved. Go on with: {hints('resume')}", style="bold yellow")
    return INTERRUPTED if result.interrupted else 0


def _no_result(result: SweepResult) -> ShoalError:
    faults = [point.fault for point in result.points if point.fault]
    if len(faults) == len(result.points):
        return NonFiniteError(f"every point failed. The first: {faults[0]}")
    total = result.sweep.experiment.total_env_steps
    also = f" {len(faults)} of {len(result.points)} points failed; the first: {faults[0]}" if faults else ""
    return OptionError(f"no episode ended in {total:,} env steps; raise --total-env-steps.{also}")


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


def _train(
    out: Console,
    plan: Sweep,
    folder: Path,
    start: Callable[..., SweepResult],
    options: SweepOptions | ResumeOptions,
    fresh: bool,
) -> SweepResult:
    experiment, points = plan.experiment, len(plan.points)
    say(out, describe_experiment(experiment), style="bold")
    many = f"{points} point{'s' * (points > 1)}" + _times(experiment)
    say(
        out,
        f"{many} of {', '.join(plan.over)}, side by side in one program; folder: {display_path(folder)}; compiling ...",
    )
    seconds = 60 * (MINUTES if options.checkpoint_minutes is None else options.checkpoint_minutes)
    trainings, warm_up = points * experiment.num_seeds, warm_up_of(experiment)
    with showing(out, experiment.env, trainings, num_agents(experiment), fresh, warm_up) as listener:
        return start(listener=listener, checkpoint_seconds=seconds)


def _times(experiment: Experiment) -> str:
    return f" x {experiment.num_seeds} seeds" if experiment.num_seeds > 1 else ""


def _draw(path: Path, table: dict[str, Any]) -> str:
    """Draws the result; a picture less is no failure, but is said."""
    try:
        draw_sweep(path, table, title=table["experiment"]["env"])
    except (MissingMatplotlibError, RunError) as error:
        return f"no {path.name}: {error}"
    return f"plot: {display_path(path)}"


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
