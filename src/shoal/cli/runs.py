"""What all commands that train in a run folder share: options, how a run is carried out and told of, `shoal resume`."""

import dataclasses
import importlib
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any, Protocol

from rich.console import Console
from tyro.conf import DisallowNone, arg

from shoal.cli.arguments import RunArgument, parse, scan
from shoal.cli.building import attributed_to, import_files
from shoal.cli.pictures import draw, replay
from shoal.cli.progress import returns, showing, summary
from shoal.cli.start import (
    Folder,
    Hints,
    Seconds,
    Workers,
    WorkOptions,
    check_devices,
    imports_of,
    num_agents,
    prepare,
    stepping_options,
    warm_up_of,
)
from shoal.cli.terminal import console, display_path, emit, format_count, format_duration, pluralise, resolve_path, say
from shoal.core import trees
from shoal.core.errors import OptionError, require_positive
from shoal.core.types import PyTree
from shoal.training import checkpoint, records
from shoal.training.loop import TrainingResult
from shoal.training.metrics import read_metrics
from shoal.training.run import RunFolder, load_policies
from shoal.training.run_kinds import KINDS, TRAINING, kind_of

INTERRUPTED = 130
"""Exit code of a run that was stopped and can be resumed."""
MINUTES = 1.0
"""Time between two checkpoints."""


@dataclasses.dataclass(frozen=True)
class TrainOptions(WorkOptions):
    """Options of `shoal train` itself."""

    run_dir: Folder = None  # new folder for the run; by default one below runs/
    checkpoint_minutes: float = MINUTES  # time between two checkpoints
    env_workers: Workers = None
    """processes that step environments of other libraries, and are replaced when they hang or die (0: this process)"""
    env_timeout: Seconds = None  # after which an environment counts as hung in one step (60)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResumeOptions(WorkOptions):
    """Go on with a run that was stopped, to the same bits as if it had not been."""

    run: RunArgument  # folder of the run
    checkpoint_minutes: Annotated[DisallowNone[float | None], arg(metavar="FLOAT")] = None
    """time between two checkpoints, by default 1; a population is saved after every iteration instead"""
    cluster: Annotated[DisallowNone[str | None], arg(metavar="auto|ADDRESS")] = None
    """for a run that was begun on a cluster: which one goes on with it; by default auto"""
    env_workers: Workers = None
    """processes that step environments of other libraries, and are replaced when they hang or die (0: this process)"""
    env_timeout: Seconds = None  # after which an environment counts as hung in one step (60)
    total_env_steps: Annotated[DisallowNone[int | None], arg(metavar="N")] = None
    """a larger total than before, to train a run further, also one that is finished"""


class _Saves(Protocol):
    @property
    def devices(self) -> int | None: ...

    @property
    def checkpoint_minutes(self) -> float | None: ...


def check_options(options: _Saves, prog: str) -> None:
    """Refuses numbers that mean nothing."""
    check_devices(options.devices)
    if options.checkpoint_minutes is not None:
        require_positive(prog, checkpoint_minutes=options.checkpoint_minutes)


def resume(args: Sequence[str], prog: str = "shoal resume") -> int:
    """Continues a run of any kind from its newest checkpoint."""
    prepare()
    options = parse(ResumeOptions, args, prog)
    check_options(options, prog)
    import_files(options.imports)
    kind = KINDS[kind_of(resolve_path(options.run)) or TRAINING]  # which refuses what is no run folder
    if kind is not KINDS[TRAINING] and stepping_options(options.env_workers, options.env_timeout):
        raise OptionError(f"{options.run} is {kind.what}: leave out --env-workers and --env-timeout")
    if kind is not KINDS[TRAINING] and options.total_env_steps is not None:
        raise OptionError(f"{options.run} is {kind.what}: only trainings are trained further by --total-env-steps")
    return importlib.import_module(f"shoal.cli.commands.{kind.command}").resume_run(options)


def names_run(args: Sequence[str], kind: str) -> bool:
    """Whether one of the arguments is the folder of a run of that kind."""
    made = [*scan(args, "--run-dir"), *scan(args, "--out")]  # it is to be made, and refused if it is there
    named = (argument for argument in args if not argument.startswith("-") and argument not in made)
    return any(kind_of(resolve_path(argument)) == kind for argument in named)


def _stored(policies: dict[str, PyTree], meta: dict[str, Any]) -> TrainingResult:
    return TrainingResult(policies, meta["update"], [], meta["seconds"], 0.0)


@dataclasses.dataclass(frozen=True)
class RunView:
    """What is told of a run of one kind. Updates are those of the loop, whatever the kind calls them."""

    run: RunFolder
    opening: Callable[[], tuple[str, str]]  # what is trained, and how; refuses what does not fit
    report: Callable[[Console, Any], None]  # of a result
    summary: Callable[[Any], dict[str, Any]]  # of a result, as plain data
    updates: int  # of the whole run
    done: str = "updates are made"
    further: Sequence[str] = ()  # lines about what can be done with a finished run
    trainings: int = 1  # side by side
    each: str = "seeds"  # what these are called
    log: Collection[str] = ()  # metrics that are drawn on a logarithmic axis
    stored: Callable[[dict[str, PyTree], dict[str, Any]], TrainingResult] = (
        _stored  # a result from policies and meta data
    )


def resume_and_report(view: RunView, start: Callable[..., TrainingResult], options: ResumeOptions) -> int:
    """Carries on a run; of a finished one it says so, and draws what a kill at the very end may have left undrawn."""
    run, newest = view.run, checkpoint.latest(view.run.checkpoints)
    if not newest or records.read_progress(newest, view.updates)["update"] < view.updates:
        return run_and_report(view, start, options, fresh=False)
    out = console(options.json)
    _, policies, meta = load_policies(run.path)
    say(out, f"{display_path(run.path)} is finished already: all of its {view.updates} {view.done}.", style="bold")
    for line in view.further:
        say(out, line)
    files = {"curves": run.path / "curves.png", "replay": run.path / "replay.html"}
    pictures: dict[str, str | None] = {name: str(file) for name, file in files.items()}
    if not all(file.exists() for file in files.values()):
        pictures = _pictures(out, view, policies, meta["update"])
    if options.json:
        emit(view.summary(view.stored(policies, meta)) | pictures)
    return 0


def run_and_report(
    view: RunView, start: Callable[..., TrainingResult], options: TrainOptions | ResumeOptions, fresh: bool = True
) -> int:
    """Trains, tells of it, and draws what there is to see."""
    run, (title, detail) = view.run, view.opening()
    out = console(options.json)
    say(out, title, style="bold")
    say(out, detail)
    hints = Hints(run.path, imports_of(run.experiment, options.imports))
    seconds = 60 * (MINUTES if options.checkpoint_minutes is None else options.checkpoint_minutes)
    try:
        agents = num_agents(run.experiment)
        warm_up = warm_up_of(run.experiment)
        with showing(out, run.experiment.env, view.trainings, agents, fresh, warm_up) as listener:
            result = start(devices=options.devices, listener=listener, checkpoint_seconds=seconds)
    except KeyboardInterrupt:  # while compiling, or twice: what was saved last is what there is
        if (run.path / "config.json").exists():
            say(out, f"stopped. Go on with: {hints('resume')}", style="bold yellow")
        raise
    view.report(out, result)
    pictures: dict[str, str | None] = {}
    if result.interrupted:
        say(out, f"stopped and saved. Go on with: {hints('resume')}", style="bold yellow")
    else:
        policies = result.policies
        if run.experiment.num_seeds > 1:
            policies = trees.row(policies)
        pictures = _pictures(out, view, policies, result.update)
        seen = [hints("watch", "--open")] if pictures.get("replay") else []
        for word, command in zip(("next:", "     "), [*seen, hints("eval")], strict=False):
            say(out, f"{word} {command}")
    if options.json:
        emit(view.summary(result) | pictures)
    return INTERRUPTED if result.interrupted else 0


def _pictures(out: Console, view: RunView, policies: dict[str, PyTree], update: int) -> dict[str, str | None]:
    """Writes `curves.png` and `replay.html` into the run folder, as far as it can be done, and says so."""
    run = view.run
    with attributed_to(run.experiment.env, "scene"):
        curves, why = draw(run, view.each, view.log)
    say(out, f"curves: {display_path(curves)}" if curves else f"no curves.png: {why}")
    with attributed_to(run.experiment.env, "scene"):
        page, why = replay(run.path / "replay.html", run.experiment.setup, policies, update=update)
    say(out, f"replay: {display_path(page)}" if page else f"no replay.html: {why}")
    return {"curves": curves and str(curves), "replay": page and str(page)}


def last_line(run: RunFolder) -> dict[str, Any]:
    """The newest metrics of the whole run, also of what was done before it was resumed."""
    lines = read_metrics(run.metrics)
    return lines[-1] if lines else {}


def ended_line(run: RunFolder) -> dict[str, Any]:
    """The newest metrics in which an episode ended, wherever between episodes the run has; empty if none has."""
    return next((line for line in reversed(read_metrics(run.metrics)) if returns(line)), {})


def say_returns(out: Console, run: RunFolder, result: TrainingResult) -> None:
    """One line: the newest returns that there are, or why there are none."""
    line = ended_line(run)
    if not line:
        played = pluralise(result.update * run.experiment.num_steps, "step")
        say(out, f"no return yet: each copy has played {played}, and no episode has ended. Raise --total-env-steps.")
        return
    figures = " | ".join(f"{name} {text}" for name, text in summary(line).items())
    since = "" if line["update"] == result.update else f" (until update {line['update']}: no episode has ended since)"
    say(out, f"last: {figures}{since}")


def say_speed(out: Console, steps: int, result: TrainingResult) -> None:
    """One line: how much in how long."""
    rate = f", {format_count(steps / result.seconds)} env steps/s" if result.seconds > 0 else ""
    took = format_duration(result.seconds)
    compiled = f"; compiled in {result.compile_seconds:.1f} s" if result.compile_seconds else ""  # or others did
    say(out, f"{format_count(steps)} env steps in {took}{rate}{compiled}")


def summary_of(run: RunFolder, result: TrainingResult) -> dict[str, Any]:
    """The part of a summary that all kinds of runs have."""
    line = ended_line(run)
    return {
        "run_dir": str(run.path),
        "interrupted": result.interrupted,
        "seconds": result.seconds,
        "compile_s": result.compile_seconds,
        "training_return": {name.removeprefix("return "): mean for name, mean in returns(line).items()},
        "training_return_update": line.get("update"),
    }
