"""What all commands that train in a run folder share: options, how a run is made and reported, `shoal resume`."""

import abc
import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar, cast

from rich.console import Console
from tyro.conf import DisallowNone, arg

from shoal.algorithms.names import name_of
from shoal.api.pictures import keep_pictures
from shoal.api.places import among_hosts, choose_place
from shoal.api.progress import returns, show_progress, summary
from shoal.api.targets import check_world, import_files, open_known, open_to_resume
from shoal.cli.arguments import (
    ClusterAddress,
    Count,
    Flag,
    Folder,
    Imports,
    Logs,
    RunArgument,
    Section,
    Url,
    options_from,
    parse,
    scan,
)
from shoal.cli.leaving import INTERRUPTED
from shoal.cli.targets import STEPPING
from shoal.cli.terminal import (
    console,
    display_path,
    divert_native_output,
    emit,
    fetch_or_resolve_run,
    format_count,
    format_duration,
    pluralise,
    resolve_path,
    say,
)
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
from shoal.training.loggers import Logger, make_loggers, recorded_loggers
from shoal.training.loop import TrainingResult
from shoal.training.metrics import read_metrics
from shoal.training.mirror import check_url, mirroring
from shoal.training.roll import Hosts
from shoal.training.run import RunFolder, default_path, load_policies, weights_sha256
from shoal.training.run_kinds import EVOLUTION, KINDS, TRAINING, check_new, is_slim, kind_of
from shoal.training.runner import Local

MINUTES = 1.0
"""Time between two checkpoints."""
SAVING = ("checkpoint_minutes", "checkpoint_every")
"""Options of when checkpoints are saved."""
POOL = {"workers": "workers", "cpus": "worker_cpus", "gpus": "worker_gpus"}
"""What can be said of a pool of workers, and the options for it."""


@dataclasses.dataclass(frozen=True)
class WorkOptions:
    """Options of every command that trains."""

    section: ClassVar[Section] = Section.RUN
    unused: ClassVar[Mapping[str, str]] = {}  # options of a training that mean nothing to the command, and why

    devices: Count = None  # use only the first N devices (on a CPU, cores); by default as many as speed it up
    imports: Imports = ()  # a Python file that registers worlds, algorithms, torsos or presets
    log: Logs = ()  # send metrics elsewhere too: csv, tensorboard, wandb, as wandb:project=mine; none: nowhere else
    mirror: Url = None  # copy the run there while it is made, for example to s3://bucket/runs; by default nowhere
    json: Flag = False  # one JSON object on stdout, everything else on stderr


@dataclasses.dataclass(frozen=True)
class NewRunOptions(WorkOptions):
    """Options of every command that makes a run folder."""

    section: ClassVar[Section] = Section.RUN

    run_dir: Folder = None  # new folder for the run; by default one below runs/, or sweeps/


@dataclasses.dataclass(frozen=True)
class SavedRunOptions(NewRunOptions):
    """Options of those that are saved now and then."""

    section: ClassVar[Section] = Section.RUN

    checkpoint_minutes: DisallowNone[float | None] = None  # time between two checkpoints, by default 1


@dataclasses.dataclass(frozen=True)
class SteppedRunOptions(SavedRunOptions):
    """Options of those whose updates have a number of env steps."""

    section: ClassVar[Section] = Section.RUN

    checkpoint_every: Count = None
    """env steps between two checkpoints, besides the time, rounded up to whole updates; by default the time alone"""


@dataclasses.dataclass(frozen=True)
@options_from(Local, {name: name for name in STEPPING}, optional=True)
class SteppingOptions:
    """How environments of other libraries are stepped."""

    section: ClassVar[Section] = Section.RUN


@dataclasses.dataclass(frozen=True)
class SceneOptions:
    """Options of those that keep episodes along their learning curve."""

    section: ClassVar[Section] = Section.RUN

    scenes: Count = None
    """points of the run at which an episode is kept, for `shoal watch RUN --history`; by default 20 if it takes 20 s"""


@dataclasses.dataclass(frozen=True)
class DryRunOptions:
    """Options of commands that can say what they would do."""

    section: ClassVar[Section] = Section.RUN

    dry_run: Flag = False  # say what would be trained, in how many updates and in how much memory, and write nothing


@dataclasses.dataclass(frozen=True)
class HostOptions:
    """Which of several hosts this process is; they train together, on the devices of all of them."""

    section: ClassVar[Section] = Section.CLUSTER

    hosts: Count = None  # hosts that train together, each started with the same command; by default this one alone
    host_index: Count = None  # which of them this is, from 0; host 0 keeps the run folder; by default without
    coordinator: Annotated[DisallowNone[str | None], arg(metavar="ADDRESS:PORT")] = None
    """of host 0, a port that is free there; by default JAX_COORDINATOR_ADDRESS"""


@dataclasses.dataclass(frozen=True)
@options_from(ClusterPlan, optional=True)
class TrainOptions(SteppedRunOptions, SteppingOptions, SceneOptions, HostOptions, DryRunOptions):
    """Options of `shoal train` itself; those of the cluster's plan need --cluster."""

    section: ClassVar[Section] = Section.CLUSTER

    cluster: ClusterAddress = None
    """train on a Ray cluster: one at an address, or auto, the one that runs here or a new one; by default without"""


@dataclasses.dataclass(frozen=True)
@options_from(PoolConfig, POOL, optional=True)
class PoolOptions(WorkOptions):
    """Options of commands whose work can be handed to others; those of the workers need --cluster."""

    section: ClassVar[Section] = Section.CLUSTER

    cluster: ClusterAddress = None
    """work on a Ray cluster: one at an address, or auto, the one that runs here or a new one; by default without"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResumeOptions(WorkOptions, SteppingOptions, HostOptions):
    """Go on with a run that was stopped, to the same bits as if it had not been."""

    run: RunArgument  # folder of the run
    checkpoint_minutes: DisallowNone[float | None] = None
    """time between two checkpoints, by default 1; a population is saved after every iteration instead"""
    checkpoint_every: Count = None
    """env steps between two checkpoints, besides the time, rounded up to whole updates; by default the time alone"""
    scenes: Count = None
    """points of the run at which an episode is kept, for `shoal watch RUN --history`; by default as before"""
    cluster: ClusterAddress = None
    """for a run that was begun on a cluster: which one goes on with it; by default auto"""
    total_env_steps: Count = None  # train a run further, also a finished one: a larger total; by default its own
    iterations: Count = None  # grow a population further, also a finished one: more than before; by default its own


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredRunOptions:
    """Options of commands that look at a run."""

    section: ClassVar[Section] = Section.RUN

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
    require_positive(prog, **{name: value for name in SAVING if (value := vars(options).get(name)) is not None})
    if options.mirror is not None:
        check_url(options.mirror)
    if names := _loggers(options):
        make_loggers(names)  # what is missing is said before anything else is done


def _loggers(options: WorkOptions) -> tuple[str, ...] | None:
    """The loggers that were named; None: none were, so a run that goes on keeps those that it has."""
    return () if options.log == ("none",) else options.log or None


def parse_stored(kind: type[Stored], args: Sequence[str], prog: str) -> Stored:
    """The options of a command that looks at a run, with what it needs imported."""
    prepare()
    options = parse(kind, args, prog)
    import_files(options.imports)
    return options


def open_stored(run: str, prog: str, seed_index: int = 0) -> RunFolder:
    """The run in a folder; its world must be known. seed_index: which of several seeds is asked for."""
    found = open_known(fetch_or_resolve_run(run))
    last = found.experiment.num_seeds - 1
    require(0 <= seed_index <= last, prog, "seed_index", seed_index, f"between 0 and {last}")
    return found


def results_path(run: RunFolder, name: str) -> Path:
    """Where a command writes what it makes of a run, unless told: the run's folder, or the current one if it is slim.

    Slim runs are handed out as they are: nothing is written there.
    """
    return resolve_path(f"{run.path.name}-{name}") if is_slim(run.path) else run.path / name


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
    place = choose_place(
        config,
        options.cluster,
        {field: value for field, value in typed.items() if value is not None},
        devices=options.devices,
        stepping=stepping_options(options) if isinstance(options, SteppingOptions) else {},
        saving=[name for name in SAVING if vars(options).get(name) is not None],
        resumed=resumed,
        imports=options.imports,
        spell=lambda name: f"--{names.get(name, name).replace('_', '-')}",
        owner=prog,
    )
    return among_hosts(place, hosts_of(options)) if isinstance(options, HostOptions) else place


def hosts_of(options: HostOptions) -> Hosts | None:
    """The place of this process among several hosts; None if it trains alone."""
    if options.hosts is None:
        typed = [name for name in ("host_index", "coordinator") if vars(options)[name] is not None]
        if typed:
            raise OptionError(f"--{typed[0].replace('_', '-')} is for several hosts: add --hosts N")
        return None
    if options.host_index is None:
        raise OptionError(f"--hosts {options.hosts}: which of them is this? Add --host-index, from 0.")
    hosts = Hosts(options.hosts, options.host_index, options.coordinator or "")
    divert_native_output()
    return hosts


def describe_experiment(experiment: Experiment) -> str:
    """One line that says what is trained."""
    algorithms = {name: name_of(learner.algorithm) for name, learner in experiment.learners.items()}
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


class RunView(abc.ABC, Generic[Plan]):
    """How a run of one kind is reported, and where it is made. Each command has its own."""

    total_env_steps: int | None = None  # of a run that is trained further
    iterations: int | None = None  # of a population that is grown further
    over: bool = False  # whether nothing is left to be done

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
    def kernels(self) -> str:
        """Which parts of its program run as kernels on this machine; empty if none could, and on a cluster."""
        return self.on.program.kernels if isinstance(self.on, Local) and self.on.program else ""

    @property
    def saving(self) -> dict[str, Any]:
        """When checkpoints are saved, as `runner.run` takes it."""
        typed = {name: vars(self.options).get(name) for name in SAVING}
        minutes = MINUTES if typed["checkpoint_minutes"] is None else typed["checkpoint_minutes"]
        scenes = vars(self.options).get("scenes")
        every = {"checkpoint_seconds": 60 * minutes, "checkpoint_every": typed["checkpoint_every"] or 0}
        return every | ({} if scenes is None else {"scenes": scenes})

    @abc.abstractmethod
    def opening(self) -> tuple[str, str]:
        """What is trained, and how."""

    def showing(self, out: Console) -> AbstractContextManager[Listener]:
        """A listener that shows how it goes."""
        return show_progress(self.run.config, self.fresh, out)

    @abc.abstractmethod
    def finish(self, out: Console, result: TrainingResult) -> int:
        """Tells of what came of it, and draws what there is to see; the exit code."""


class PolicyRunView(RunView[Plan]):
    """Of a run that gives policies, which can be evaluated and watched."""

    done: ClassVar[str] = "updates are made"
    further: Sequence[str] = ()  # lines about what can be done with a finished run

    @abc.abstractmethod
    def report(self, out: Console, result: TrainingResult) -> None:
        """Tells of a result."""

    @abc.abstractmethod
    def summary(self, result: TrainingResult) -> dict[str, Any]:
        """A result as plain data."""

    def finish(self, out: Console, result: TrainingResult) -> int:
        self.report(out, result)
        _say_best(out, self, result)
        pictures: dict[str, str | None] = {}
        if result.interrupted:
            say(out, f"stopped and saved. Go on with: {self.hints('resume')}", style="bold yellow")
        else:
            pictures = _pictures(out, self.run, result.policies, result.update)
            seen = [self.hints("watch", "--open")] if pictures.get("replay") else []
            for word, command in zip(("next:", "     "), [*seen, self.hints("eval")], strict=False):
                say(out, f"{word} {command}")
        if self.options.json:
            emit(self.summary(result) | {"kernels": self.kernels} | pictures)
        return INTERRUPTED if result.interrupted else 0


def start_and_report(kind: type["RunView[Any]"], config: Any, options: Any, prog: str, by: str | None = None) -> int:
    """Makes a new run of a population of any kind, and reports it. by: what trains it, for the name of the folder."""
    check_options(options, prog)
    on = place_of(config, options, prog)
    check_world(config.played)
    folder = new_folder(options, config.experiment, by=by)
    return run_and_report(kind(RunFolder(folder, config), on.prepare(config), options))


def resume(args: Sequence[str], prog: str = "shoal resume") -> int:
    """Continues a run of any kind from its newest checkpoint."""
    prepare()
    options = parse(ResumeOptions, args, prog)
    check_options(options, prog)
    import_files(options.imports)
    run = open_to_resume(fetch_or_resolve_run(options.run), options.total_env_steps, options.iterations)
    kind = KINDS[run.config.kind]
    if run.config.kind != TRAINING and stepping_options(options):
        raise OptionError(f"{options.run} is {kind.what}: leave out --env-workers and --env-timeout")
    if run.config.kind == EVOLUTION and options.checkpoint_every is not None:
        raise OptionError(f"{options.run} is {kind.what}, of unequal generations: leave out --checkpoint-every")
    return importlib.import_module(f"shoal.cli.commands.{kind.command}").resume_run(run, options)


def names_run(args: Sequence[str], kind: str) -> bool:
    """Whether one of the arguments is the folder of a run of that kind."""
    made = scan(args, "--run-dir")  # it is to be made, and refused if it is there
    named = (argument for argument in args if not argument.startswith("-") and argument not in made)
    return any(kind_of(resolve_path(argument)) == kind for argument in named)


def resume_and_report(kind: type[PolicyRunView[Any]], run: RunFolder, options: ResumeOptions) -> int:
    """Carries on a run; of a finished one it says so, and draws what a kill at the very end may have left undrawn."""
    view = kind(run, place_of(run.config, options, "", run.path), options, fresh=False)
    view.total_env_steps = options.total_env_steps
    newest = checkpoint.latest(run.checkpoints)
    if not newest or not run.config.is_finished(run.config.read_meta(newest)):
        if hosts := following(view.on):
            return follow_and_report(run, view.on, hosts, options, resumed=True)
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
    with mirroring(run.path, options.mirror, resumed=True):
        pass
    if view.options.json:
        standing = meta.get(run.config.kind, {})
        result = TrainingResult(policies, meta["update"], [], meta["seconds"], 0.0, standing=standing)
        emit(view.summary(result) | pictures)
    return 0


def following(on: Local | Cluster) -> Hosts | None:
    """The place of this process among several hosts if another one leads."""
    hosts = on.hosts if isinstance(on, Local) else None
    return hosts if hosts and not hosts.leads else None


def follow_and_report(
    run: RunFolder, on: Local | Cluster, hosts: Hosts, options: WorkOptions, resumed: bool = False
) -> int:
    """Trains with others, one of which leads: it keeps the run folder and tells of the run."""
    out = console(options.json)
    say(out, f"{hosts}: follows host 0 at {hosts.coordinator}, which keeps the run folder and tells how it goes")
    on = on.prepare(run.config, run.path if resumed else None)
    if resumed:
        result = runner.resume(run.path, on=on, total_env_steps=getattr(options, "total_env_steps", None), loggers=())
    else:
        result = runner.run(run.config, on=on)
    stopped = "stopped" if result.interrupted else "done"
    say(out, f"{hosts}: {stopped} after {pluralise(result.update, 'update')}")
    if options.json:
        told = {"host": hosts.index, "hosts": hosts.count, "updates": result.update}
        emit(told | {"interrupted": result.interrupted, "weights_sha256": weights_sha256(result.policies)})
    return INTERRUPTED if result.interrupted else 0


@dataclasses.dataclass
class _Announcement(Logger):
    """Says where a run is kept once that is so: after all that may be refused at its start."""

    out: Console
    text: str

    def open(self, experiment: Experiment, folder: Path | None, update: int) -> None:
        say(self.out, self.text)

    def write(self, line: Mapping[str, Any]) -> None:
        """Metrics are shown by others."""


def run_and_report(view: RunView[Any]) -> int:
    """Makes a run that is prepared, from its start or from its newest checkpoint, and tells of it."""
    out, path = console(view.options.json), view.run.path
    title, detail = view.opening()
    say(out, title, style="bold")
    if view.over:
        say(out, detail)
    elif view.kernels:
        say(out, view.kernels)
    with mirroring(path, view.options.mirror, resumed=not view.fresh):
        return view.finish(out, _make(view, out, detail))


def _make(view: RunView[Any], out: Console, detail: str) -> TrainingResult:
    path = view.run.path
    try:
        with view.showing(out) as listener:
            names = _loggers(view.options)
            if names is None:
                names = () if view.fresh else recorded_loggers(path)
            more = {"listener": listener, "loggers": [*names, _Announcement(out, detail)], **view.saving}
            if view.fresh:
                return runner.run(view.run.config, path, on=view.on, **more)
            longer = {"total_env_steps": view.total_env_steps, "iterations": view.iterations}
            return runner.resume(path, on=view.on, **longer, **more)
    except KeyboardInterrupt:  # while compiling, or twice: what was saved last is what there is
        if (path / "config.json").exists():
            say(out, f"stopped. Go on with: {view.hints('resume')}", style="bold yellow")
        raise


def _pictures(out: Console, run: RunFolder, policies: dict[str, PyTree], update: int) -> dict[str, str | None]:
    """Writes `curves.png` and `replay.html` into the run folder, as far as it can be done, and says so."""
    found = keep_pictures(run, policies, update)
    for (name, (path, why)), file in zip(found.items(), ("curves.png", "replay.html"), strict=True):
        say(out, f"{name}: {display_path(path)}" if path else f"no {file}: {why}")
    return {name: path and str(path) for name, (path, _) in found.items()}


def best_checkpoint(run: RunFolder) -> dict[str, Any] | None:
    """The update and the return of the checkpoint that did best in evaluation, if there is one."""
    path = checkpoint.latest(run.best)
    meta = run.config.read_meta(path) if path else None
    return {"update": meta["update"], "return": meta["best"]} if meta else None


def _say_best(out: Console, view: RunView[Any], result: TrainingResult) -> None:
    """One line: the checkpoint that did best in evaluation, if there is one, and how to use it."""
    best = best_checkpoint(view.run)
    if best:
        newest = ", the newest" if best["update"] == result.update else ""
        where = f"after update {best['update']}{newest}: {view.hints('eval', '--checkpoint', 'best')}"
        say(out, f"best in evaluation: return {best['return']:.2f} {where}")


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


def say_speed(out: Console, steps: int, result: TrainingResult, trainings: int = 1) -> None:
    """One line: how much in how long. steps: of each of so many trainings."""
    each, together = (f" in each of {trainings} trainings", " in all") if trainings > 1 else ("", "")
    rate = f", {format_count(steps * trainings / result.seconds)} env steps/s{together}" if result.seconds > 0 else ""
    took = format_duration(result.seconds)
    compiled = f"; compiled in {result.compile_seconds:.1f} s" if result.compile_seconds else ""  # or others did
    say(out, f"{format_count(steps)} env steps{each} in {took}{rate}{compiled}")


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
        "best_checkpoint": best_checkpoint(run),
    }
