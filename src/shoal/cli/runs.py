"""What all commands that train in a run folder share: options, how a run is carried out and told of, `shoal resume`."""

import dataclasses
import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

from rich.console import Console
from tyro.conf import DisallowNone

from shoal.api.pictures import keep_pictures
from shoal.api.places import choose_place
from shoal.api.progress import returns, show_progress, summary
from shoal.api.targets import import_files, open_known, open_to_resume
from shoal.cli.arguments import (
    ClusterAddress,
    Count,
    Flag,
    Folder,
    Imports,
    Logs,
    RunArgument,
    options_from,
    parse,
    scan,
)
from shoal.cli.terminal import console, display_path, emit, format_count, format_duration, pluralise, resolve_path, say
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.run import Cluster
from shoal.cluster.tasks.pool import PoolConfig
from shoal.core.errors import OptionError, require, require_positive, shell_command
from shoal.core.origin import claimed
from shoal.core.types import PyTree
from shoal.training import checkpoint, runner
from shoal.training.callbacks import Listener
from shoal.training.devices import use_all_cores, use_compilation_cache
from shoal.training.experiment import Config, Experiment
from shoal.training.loggers import make_loggers
from shoal.training.loop import TrainingResult
from shoal.training.metrics import read_metrics
from shoal.training.run import RunFolder, default_path, load_policies
from shoal.training.run_kinds import KINDS, TRAINING, check_new, kind_of
from shoal.training.runner import Local

INTERRUPTED = 130
"""Exit code of a run that was stopped and can be resumed."""
MINUTES = 1.0
"""Time between two checkpoints."""
STEPPING = ("env_workers", "env_timeout")
"""Options of how environments of other libraries are stepped."""
POOL = {"workers": "workers", "cpus": "worker_cpus", "gpus": "worker_gpus"}
"""What can be said of a pool of workers, and the options for it."""


@dataclasses.dataclass(frozen=True)
class WorkOptions:
    """Options of every command that trains."""

    unused: ClassVar[tuple[str, ...]] = ()  # options of a training that mean nothing to the command

    devices: Count = None  # use only the first N devices (on a CPU, cores)
    imports: Imports = ()  # a Python file that registers worlds, algorithms, torsos or presets
    log: Logs = ()  # send metrics elsewhere too: csv, tensorboard or wandb, such as wandb:project=mine
    json: Flag = False  # one JSON object on stdout, everything else on stderr


@dataclasses.dataclass(frozen=True)
class NewRunOptions(WorkOptions):
    """Options of every command that makes a run folder."""

    run_dir: Folder = None  # new folder for the run; by default one below runs/, or sweeps/


@dataclasses.dataclass(frozen=True)
class SavedRunOptions(NewRunOptions):
    """Options of those that are saved now and then."""

    checkpoint_minutes: float = MINUTES  # time between two checkpoints


@dataclasses.dataclass(frozen=True)
@options_from(Local, {name: name for name in STEPPING}, optional=True)
class SteppingOptions:
    """How environments of other libraries are stepped."""


@dataclasses.dataclass(frozen=True)
@options_from(ClusterPlan, optional=True)
class TrainOptions(SavedRunOptions, SteppingOptions):
    """Options of `shoal train` itself; those of the cluster's plan need --cluster."""

    cluster: ClusterAddress = None
    """train on a Ray cluster: the one that runs here (or a new one on this machine), or one at an address"""


@dataclasses.dataclass(frozen=True)
@options_from(PoolConfig, POOL, optional=True)
class PoolOptions(WorkOptions):
    """Options of commands whose work can be handed to others; those of the workers need --cluster."""

    cluster: ClusterAddress = None
    """work on a Ray cluster: the one that runs here (or a new one on this machine), or one at an address"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResumeOptions(WorkOptions, SteppingOptions):
    """Go on with a run that was stopped, to the same bits as if it had not been."""

    run: RunArgument  # folder of the run
    checkpoint_minutes: DisallowNone[float | None] = None
    """time between two checkpoints, by default 1; a population is saved after every iteration instead"""
    cluster: ClusterAddress = None
    """for a run that was begun on a cluster: which one goes on with it; by default auto"""
    total_env_steps: Count = None  # a larger total than before, to train a run further, also one that is finished


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredRunOptions:
    """Options of commands that look at a run."""

    run: RunArgument  # folder of the run
    imports: Imports = ()  # a Python file that registers worlds, algorithms or torsos, or an id that the run may name
    json: Flag = False  # one JSON object on stdout


Stored = TypeVar("Stored", bound=StoredRunOptions)


Plan = TypeVar("Plan", bound=Config)
"""What runs of a kind are made of."""


def prepare() -> None:
    """Every core becomes a device, and compiled programs are kept: to be called before JAX does anything."""
    use_all_cores()
    use_compilation_cache()


def check_devices(devices: int | None) -> None:
    """`--devices 0` would mean all but none."""
    if devices is not None:
        require_positive("run", devices=devices)


def check_options(options: WorkOptions, prog: str) -> None:
    """Refuses numbers that mean nothing."""
    check_devices(options.devices)
    if isinstance(options, SavedRunOptions | ResumeOptions) and options.checkpoint_minutes is not None:
        require_positive(prog, checkpoint_minutes=options.checkpoint_minutes)
    if options.log:
        make_loggers(options.log)  # what is missing is said before anything else is done


def parse_stored(kind: type[Stored], args: Sequence[str], prog: str) -> Stored:
    """The options of a command that looks at a run, with what it needs imported."""
    prepare()
    options = parse(kind, args, prog)
    import_files(options.imports)
    return options


def open_stored(run: str, prog: str, training: int = 0) -> RunFolder:
    """The run in a folder; its world must be known. training: which of several is asked for."""
    found = open_known(resolve_path(run))
    last = found.experiment.num_seeds - 1
    require(0 <= training <= last, prog, "training", training, f"between 0 and {last}")
    return found


def new_folder(options: NewRunOptions, experiment: Experiment, root: str = "runs", by: str | None = None) -> Path:
    """Where a run is to be made: a folder that was named, or one of its own; it must not be there."""
    folder = resolve_path(options.run_dir) if options.run_dir else default_path(experiment, root, by)
    check_new(folder)
    return folder


def stepping_options(options: SteppingOptions) -> dict[str, Any]:
    """How environments of other libraries are stepped, as far as it was said; for `train`, `resume`, `evaluate`."""
    return {name: vars(options)[name] for name in STEPPING if vars(options)[name] is not None}


def place_of(
    config: Config, options: TrainOptions | PoolOptions | ResumeOptions, prog: str, resumed: Path | None = None
) -> Local | Cluster:
    """Where a run is made, as far as the options say: on this machine, or on a cluster. resumed: the run's folder."""
    names = {} if resumed else POOL
    if isinstance(options, TrainOptions):
        names = {field.name: field.name for field in dataclasses.fields(ClusterPlan)}
    typed = {field: vars(options)[option] for field, option in names.items()}
    return choose_place(
        config,
        options.cluster,
        {field: value for field, value in typed.items() if value is not None},
        devices=options.devices,
        stepping=stepping_options(options) if isinstance(options, SteppingOptions) else {},
        resumed=resumed,
        imports=options.imports,
        spell=lambda name: f"--{names.get(name, name).replace('_', '-')}",
        owner=prog,
    )


def describe_experiment(experiment: Experiment) -> str:
    """One line that says what is trained."""
    algorithms = {name: learner.algorithm.name for name, learner in experiment.learners.items()}  # pyright: ignore[reportAttributeAccessIssue]
    frozen = [name for name, learner in experiment.learners.items() if learner.frozen]
    who = ", ".join(f"{name} by {algorithm}" for name, algorithm in algorithms.items() if name not in frozen)
    around = ", ".join(wrapper.name for wrapper in experiment.wrappers)
    parts = [f"{experiment.env}{f' ({around})' if around else ''}: {who}"]
    if frozen:
        parts.append(f"frozen: {', '.join(frozen)}")
    copies, steps = pluralise(experiment.num_envs, "copy", "copies"), pluralise(experiment.num_steps, "step")
    parts.append(f"{copies} x {steps}, {pluralise(experiment.num_updates, 'update')}")
    last = experiment.seed + experiment.num_seeds - 1
    parts.append(f"seed {experiment.seed}" if experiment.num_seeds == 1 else f"seeds {experiment.seed} to {last}")
    return "; ".join(parts)


def imports_of(experiment: Experiment, imports: Sequence[str]) -> tuple[str, ...]:
    """What has to be imported by whoever opens a run: files, and an id that names code."""
    claim = claimed(experiment.env, experiment.env_options)
    return (*imports, *([claim] if claim is not None and claim not in imports else []))


@dataclasses.dataclass(frozen=True)
class Hints:
    """How to go on with a run, with what its world needs to be known."""

    run: Path
    imports: tuple[str, ...] = ()

    def __call__(self, command: str, *rest: str) -> str:
        files = [part for file in self.imports for part in ("--import", file)]
        return shell_command(command, display_path(self.run), *files, *rest)


class RunView(Generic[Plan]):
    """What is told of a run of one kind, and where it is made. Each command has its own."""

    done: ClassVar[str] = "updates are made"
    total_env_steps: int | None = None  # of a run that is trained further
    further: Sequence[str] = ()  # lines about what can be done with a finished run

    def __init__(self, run: RunFolder, on: Local | Cluster, options: WorkOptions, fresh: bool = True):
        self.run, self.on, self.options, self.fresh = run, on, options, fresh
        self.plan: Plan = cast(Plan, run.config)
        self.hints = Hints(run.path, imports_of(run.experiment, options.imports))

    @property
    def next(self) -> str:
        """What happens next."""
        if isinstance(self.on, Local):
            return "compiling ..."
        assert self.on.launcher is not None
        workers = f", {pluralise(self.on.pool.workers, 'worker')}" if self.on.pool else ""
        return f"on {self.on.launcher.where}{workers}"

    @property
    def checkpoint_minutes(self) -> float:
        """Time between two checkpoints."""
        assert isinstance(self.options, SavedRunOptions | ResumeOptions)
        return MINUTES if self.options.checkpoint_minutes is None else self.options.checkpoint_minutes

    def opening(self) -> tuple[str, str]:
        """What is trained, and how."""
        raise NotImplementedError

    def report(self, out: Console, result: TrainingResult) -> None:
        """Tells of a result."""
        raise NotImplementedError

    def summary(self, result: TrainingResult) -> dict[str, Any]:
        """A result as plain data."""
        raise NotImplementedError

    def showing(self, out: Console) -> AbstractContextManager[Listener]:
        """A listener that shows how it goes."""
        return show_progress(self.run.config, self.fresh, out)

    def finish(self, out: Console, result: TrainingResult) -> int:
        """Tells of what came of it, and draws what there is to see."""
        self.report(out, result)
        pictures: dict[str, str | None] = {}
        if result.interrupted:
            say(out, f"stopped and saved. Go on with: {self.hints('resume')}", style="bold yellow")
        else:
            pictures = _pictures(out, self.run, result.policies, result.update)
            seen = [self.hints("watch", "--open")] if pictures.get("replay") else []
            for word, command in zip(("next:", "     "), [*seen, self.hints("eval")], strict=False):
                say(out, f"{word} {command}")
        if self.options.json:
            emit(self.summary(result) | pictures)
        return INTERRUPTED if result.interrupted else 0


def resume(args: Sequence[str], prog: str = "shoal resume") -> int:
    """Continues a run of any kind from its newest checkpoint."""
    prepare()
    options = parse(ResumeOptions, args, prog)
    check_options(options, prog)
    import_files(options.imports)
    run = open_to_resume(resolve_path(options.run), options.total_env_steps)
    kind = KINDS[run.config.kind]
    if run.config.kind != TRAINING and stepping_options(options):
        raise OptionError(f"{options.run} is {kind.what}: leave out --env-workers and --env-timeout")
    return importlib.import_module(f"shoal.cli.commands.{kind.command}").resume_run(run, options)


def names_run(args: Sequence[str], kind: str) -> bool:
    """Whether one of the arguments is the folder of a run of that kind."""
    made = scan(args, "--run-dir")  # it is to be made, and refused if it is there
    named = (argument for argument in args if not argument.startswith("-") and argument not in made)
    return any(kind_of(resolve_path(argument)) == kind for argument in named)


def resume_and_report(kind: type["RunView[Any]"], run: RunFolder, options: ResumeOptions) -> int:
    """Carries on a run; of a finished one it says so, and draws what a kill at the very end may have left undrawn."""
    view = kind(run, place_of(run.config, options, "", run.path), options, fresh=False)
    view.total_env_steps = options.total_env_steps
    newest = checkpoint.latest(run.checkpoints)
    if not newest or not run.config.is_finished(run.config.read_meta(newest)):
        view.on = view.on.prepare(run.config, run.path)
        return run_and_report(view)
    out = console(view.options.json)
    _, policies, meta = load_policies(run.path, None)
    updates = run.experiment.num_updates
    say(out, f"{display_path(run.path)} is finished already: all of its {updates} {view.done}.", style="bold")
    for line in view.further:
        say(out, line)
    files = {"curves": run.path / "curves.png", "replay": run.path / "replay.html"}
    pictures: dict[str, str | None] = {name: str(file) for name, file in files.items()}
    if not all(file.exists() for file in files.values()):
        pictures = _pictures(out, run, policies, meta["update"])
    if view.options.json:
        standing = meta.get(run.config.kind, {})
        result = TrainingResult(policies, meta["update"], [], meta["seconds"], 0.0, standing=standing)
        emit(view.summary(result) | pictures)
    return 0


def run_and_report(view: RunView[Any]) -> int:
    """Makes a run that is prepared, from its start or from its newest checkpoint, and tells of it."""
    out, path = console(view.options.json), view.run.path
    title, detail = view.opening()
    say(out, title, style="bold")
    say(out, detail)
    seconds = 60 * view.checkpoint_minutes
    try:
        with view.showing(out) as listener:
            more = {"listener": listener, "loggers": view.options.log, "checkpoint_seconds": seconds}
            if view.fresh:
                told = runner.run(view.run.config, path, on=view.on, **more)
            else:
                told = runner.resume(path, on=view.on, total_env_steps=view.total_env_steps, **more)
    except KeyboardInterrupt:  # while compiling, or twice: what was saved last is what there is
        if (path / "config.json").exists():
            say(out, f"stopped. Go on with: {view.hints('resume')}", style="bold yellow")
        raise
    return view.finish(out, told)


def _pictures(out: Console, run: RunFolder, policies: dict[str, PyTree], update: int) -> dict[str, str | None]:
    """Writes `curves.png` and `replay.html` into the run folder, as far as it can be done, and says so."""
    found = keep_pictures(run, policies, update)
    for (name, (path, why)), file in zip(found.items(), ("curves.png", "replay.html"), strict=True):
        say(out, f"{name}: {display_path(path)}" if path else f"no {file}: {why}")
    return {name: path and str(path) for name, (path, _) in found.items()}


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
