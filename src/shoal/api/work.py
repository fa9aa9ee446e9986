"""Where and how the calls of `shoal` do their work: options read, a config run to its end, its result handed out."""

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from shoal.api.changes import change_options, take
from shoal.api.pictures import keep_pictures, keep_sweep
from shoal.api.places import AUTO, among_hosts, choose_place
from shoal.api.population import Population
from shoal.api.progress import show_progress
from shoal.api.run import Run
from shoal.api.targets import Changes, Target, make_experiment
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.run import Cluster
from shoal.cluster.tasks.pool import PoolConfig
from shoal.core.errors import OptionError, WorldError, require, unknown_name
from shoal.populations.population import PopulationConfig
from shoal.training import runner
from shoal.training.callbacks import Callback, Listener, Observers, Progress
from shoal.training.checkpoint import steps as checkpoint_steps
from shoal.training.devices import prepare_jax, warn_of_idle_cores
from shoal.training.experiment import Config, Experiment
from shoal.training.host_stages import TIMEOUT
from shoal.training.loggers import Loggers
from shoal.training.loop import Saving, TrainingResult
from shoal.training.mirror import check_url, mirroring
from shoal.training.roll import Hosts
from shoal.training.run import RunFolder, default_path
from shoal.training.runner import Local
from shoal.training.sweep import SweepResult, summarise
from shoal.training.sweep_plan import Range, Sweep


@dataclasses.dataclass(frozen=True)
class Work:
    """Where and how a call does its work: see `train`."""

    run_dir: str | Path | None = None
    devices: int | None = None
    cluster: str | Mapping[str, Any] | Cluster | None = None
    hosts: Hosts | None = None
    callbacks: Callback | Sequence[Callback] = ()
    loggers: Loggers | None = None
    progress: bool = True
    listener: Listener | None = None
    checkpoint_seconds: float = Saving.seconds
    checkpoint_every: int = Saving.every
    env_workers: int = 0
    env_timeout: float = TIMEOUT
    scenes: int | None = None
    mirror: str | None = None

    def __post_init__(self):
        places = "a folder, or 'auto' for one below runs/"
        require(self.run_dir is None or isinstance(self.run_dir, str | Path), "shoal", "run_dir", self.run_dir, places)
        numbered = self.devices is None or (type(self.devices) is int and self.devices > 0)
        require(numbered, "shoal", "devices", self.devices, "a number of devices, at least 1")
        clusters = "'auto', an address, or a mapping such as {'actors': 4}"
        named = self.cluster is None or isinstance(self.cluster, str | Mapping | Cluster)
        require(named, "shoal", "cluster", self.cluster, clusters)
        placed = self.hosts is None or isinstance(self.hosts, Hosts)
        require(placed, "shoal", "hosts", self.hosts, "shoal.Hosts(count, index, 'ADDRESS:PORT')")
        require(self.listener is None or callable(self.listener), "shoal", "listener", self.listener, "a function")
        seconds = isinstance(self.checkpoint_seconds, int | float) and self.checkpoint_seconds > 0
        require(seconds, "shoal", "checkpoint_seconds", self.checkpoint_seconds, "a number greater than 0")
        if self.mirror is not None:
            check_url(self.mirror)
        Observers((), self.callbacks, self.loggers or ())  # what is missing is said before anything else is done

    def folder(self, config: Config, by: str | None = None) -> Path | None:
        """The folder that the run is kept in, if any. On a cluster it needs one."""
        if self.hosts is not None and not self.hosts.leads:
            return None  # host 0 keeps it
        if self.run_dir == AUTO or (self.run_dir is None and self.cluster is not None):
            return default_path(config.played, "sweeps" if isinstance(config, Sweep) else "runs", by)
        return None if self.run_dir is None else Path(self.run_dir).absolute()

    def on(self, config: Config, resumed: Path | None = None) -> Local | Cluster:
        """The machine or the cluster. A mapping holds an address and what the plan or the pool of workers takes.

        resumed: the folder of a run that goes on, by default where it was.
        """
        cluster, given = self.cluster, {}
        if isinstance(cluster, Mapping):
            given = dict(cluster)
            cluster = given.pop("address", AUTO)
            kind = ClusterPlan if isinstance(config, Experiment) else PoolConfig
            known = [field.name for field in dataclasses.fields(kind)]
            for name in given:
                if name not in known:
                    raise OptionError(f"cluster: {unknown_name('option', name, [*known, 'address'])}")

        def asked(*names: str) -> dict[str, Any]:
            return {name: value for name in names if (value := getattr(self, name)) != getattr(Work, name)}

        stepping, saving = asked("env_workers", "env_timeout"), asked("checkpoint_seconds", "checkpoint_every")
        place = choose_place(
            config, cluster, given, devices=self.devices, stepping=stepping, saving=list(saving), resumed=resumed
        )
        return among_hosts(place, self.hosts)

    @contextlib.contextmanager
    def told(self, config: Config, fresh: bool = True) -> Iterator[dict[str, Any]]:
        """What `run` and `resume` take besides: all who are told how it goes, for as long as it does."""
        shows = self.progress and (self.hosts is None or self.hosts.leads)
        with show_progress(config, fresh) if shows else contextlib.nullcontext() as shown:
            listeners = [one for one in (shown, self.listener) if one is not None]

            def listen(progress: Progress) -> None:
                for listener in listeners:
                    listener(progress)

            yield {
                "listener": listen,
                "callbacks": self.callbacks,
                "loggers": () if fresh and self.loggers is None else self.loggers,
                "checkpoint_seconds": self.checkpoint_seconds,
                "checkpoint_every": self.checkpoint_every,
                "scenes": self.scenes,
            }


def read_call(owner: str, target: Target, options: dict[str, Any], own: Sequence[str] = ()) -> tuple[Experiment, Work]:
    """The experiment that is meant, and how it is to be worked on, from all options of a call."""
    prepare_jax()
    work = Work(**take(Work, options))
    changes = take(Changes, options, leave=("options",))
    changes["weights"] = _folders_of(owner, changes.get("weights"))
    others = [field.name for cls in (Work, Changes) for field in dataclasses.fields(cls) if field.name != "options"]
    experiment = make_experiment(target, Changes(**changes, options=options), owner, [*others, *own])
    return experiment, work


def _folders_of(owner: str, weights: Any) -> Any:
    """Weights to start from, by learner or for the only one, as folders: a run starts from files, not from memory."""
    if isinstance(weights, Mapping):
        return {learner: _folders_of(owner, run) for learner, run in weights.items()}
    if weights is None or isinstance(weights, str | Path):
        return weights
    require(isinstance(weights, Run), owner, "weights", weights, "a run, its folder, or a mapping of learners to these")
    if weights.path is None:
        raise OptionError(f"{owner}: weights are of a run in memory alone. Train it with a run_dir to start from it.")
    if weights.update != max(checkpoint_steps(weights.path / "checkpoints"), default=weights.update):
        raise OptionError(
            f"{owner}: weights are of a run as it was after {weights.update} updates, but learners start from a run's "
            f"newest checkpoint. To do that, give its folder: {str(weights.path)!r}."
        )
    return weights.path


def read_ranges(
    owner: str, target: Target, options: dict[str, Any], own: Mapping[str, Any]
) -> tuple[Experiment, dict[str, Any], Work]:
    """As `read_call`, with the options apart that are ranges, or lists where one number is wanted."""
    over: dict[str, Any] = {name: value for name, value in options.items() if isinstance(value, Range)}
    lists = {name: value for name, value in options.items() if isinstance(value, list | tuple | np.ndarray)}
    lists = {name: value for name, value in lists.items() if name not in {"wrappers", "freeze", "callbacks", "loggers"}}
    rest = {name: value for name, value in options.items() if name not in over and name not in lists}
    experiment, work = read_call(owner, target, rest, list(own))
    floats = {
        name
        for learner in experiment.learners.values()
        for name, kind in get_type_hints(type(learner.algorithm)).items()
        if kind is float
    }
    over |= {name: tuple(value) for name, value in lists.items() if name.rpartition(".")[2] in floats}
    experiment = change_options(experiment, {n: v for n, v in lists.items() if n not in over}, owner, list(own))
    if not over:
        raise OptionError(
            f"{owner}: over what? Give an option a range, such as learning_rate=shoal.log(1e-4, 1e-2, 8)."
        )
    return experiment, over, work


def run_to_end(config: Config, work: Work, by: str | None = None) -> Any:
    """Runs a config to its end, and shows how far it is. by: what it is trained by, for the name of a folder."""
    warn_of_idle_cores()
    path, on = work.folder(config, by), work.on(config)
    leads = work.hosts is None or work.hosts.leads
    with mirroring(path, work.mirror if leads else None):
        with work.told(config) as told:
            result = runner.run(config, path, on=on, **told)
        return give_result(config, result, path)


def give_result(config: Config, result: TrainingResult, path: Path | None) -> Run | Population | SweepResult:
    """What a call gives of a run that has ended. Its folder gets the pictures that the command line leaves there."""
    if isinstance(config, PopulationConfig):
        return Population(config, result.standing["state"], path, result.interrupted)
    if isinstance(config, Sweep):
        found = summarise(config, result)
        if path is not None:
            keep_sweep(path, found.to_dict())
        return found
    if path is not None and not result.interrupted:
        try:
            keep_pictures(RunFolder(path, config), result.policies, result.update)
        except WorldError as error:  # what was trained is not lost for it
            warnings.warn(str(error), stacklevel=4)
    times = result.seconds, result.compile_seconds, result.interrupted
    return Run(config.played, result.policies, result.update, result.lines, *times, path, result.standing)
