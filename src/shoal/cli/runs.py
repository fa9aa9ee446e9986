"""How a command makes a run and reports it: its options checked, its place and folder chosen, its view shown."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

from rich.console import Console

from shoal.algorithms.names import name_of
from shoal.api.places import among_hosts, choose_place
from shoal.api.progress import show_progress
from shoal.api.targets import check_world
from shoal.cli import run_results
from shoal.cli.arguments import scan
from shoal.cli.leaving import INTERRUPTED
from shoal.cli.run_options import (
    POOL,
    SAVING,
    HostOptions,
    NewRunOptions,
    PoolOptions,
    ResumeOptions,
    SteppingOptions,
    TrainOptions,
    WorkOptions,
)
from shoal.cli.targets import STEPPING
from shoal.cli.terminal import console, display_path, divert_native_output, emit, pluralise, resolve_path, say
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.run import Cluster
from shoal.core.errors import OptionError, require_positive, shell_command
from shoal.core.origin import claimed
from shoal.training import runner
from shoal.training.callbacks import Listener
from shoal.training.experiment import Config, Experiment
from shoal.training.loggers import Logger, make_loggers, recorded_loggers
from shoal.training.loop import TrainingResult
from shoal.training.mirror import check_url, mirroring
from shoal.training.roll import Hosts
from shoal.training.run import RunFolder, default_path, weights_sha256
from shoal.training.run_kinds import check_new, kind_of
from shoal.training.runner import Local

MINUTES = 1.0
"""Time between two checkpoints."""

Plan = TypeVar("Plan", bound=Config)
"""What runs of a kind are made of."""


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
            pictures = run_results.report_pictures(out, self.run, result.policies, result.update)
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


def names_run(args: Sequence[str], kind: str) -> bool:
    """Whether one of the arguments is the folder of a run of that kind."""
    made = scan(args, "--run-dir")  # it is to be made, and refused if it is there
    named = (argument for argument in args if not argument.startswith("-") and argument not in made)
    return any(kind_of(resolve_path(argument)) == kind for argument in named)


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


def _say_best(out: Console, view: RunView[Any], result: TrainingResult) -> None:
    """One line: the checkpoint that did best in evaluation, if there is one, and how to use it."""
    best = run_results.best_checkpoint(view.run)
    if best:
        newest = ", the newest" if best["update"] == result.update else ""
        where = f"after update {best['update']}{newest}: {view.hints('eval', '--checkpoint', 'best')}"
        say(out, f"best in evaluation: return {best['return']:.2f} {where}")
