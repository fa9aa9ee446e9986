"""Training on a cluster: starts a run, watches over it, and brings it home.

The driver holds no state of the run. All that matters is in the run folder: checkpoints and metrics (written by the
learner), the journal (by the coordinator), and `cluster.json`, what `shoal cluster status` shows (by the supervisor).
"""

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from shoal.cluster.plan import ClusterPlan
from shoal.cluster.recipes import recipe_of
from shoal.cluster.services import journal
from shoal.cluster.services.coordinator import Coordinator, count_restarts
from shoal.cluster.supervisor import Runs, Supervisor, WatchedWorker
from shoal.cluster.transport.launcher import ClusterGoneError, Launcher
from shoal.cluster.transport.service import Service, ServiceUnavailable
from shoal.core.algorithm import EstimatesKL, require_protocol
from shoal.core.errors import OptionError, ShoalError, UnknownNameError
from shoal.core.files import read_json
from shoal.core.stopping import stop_requested
from shoal.training import checkpoint, records, run_kinds
from shoal.training.callbacks import Observers, Progress
from shoal.training.experiment import Experiment
from shoal.training.loop import TrainingResult
from shoal.training.metrics import read_metrics
from shoal.training.outcome import work_in
from shoal.training.provenance import provenance
from shoal.training.run import RunFolder, check_weights, create, keep_total, load_policies
from shoal.training.runner import Job
from shoal.training.serialise import from_plain, to_plain

LOOK_SECONDS = 0.1
FIRST_TASK = 5.0
"""A worker's first task compiles: it may take so many times as long."""

Look = Callable[["TrainingSupervisor"], None]


def train_on_cluster(job: Job, plan: ClusterPlan, launcher: Launcher) -> TrainingResult:
    """Trains an experiment on a cluster, from the start or from what is committed; `plan` may differ then."""
    assert isinstance(job.config, Experiment)
    assert job.folder is not None
    if not job.resumed:
        check_weights(job.config)
        made = {"cluster": to_plain(plan), "provenance": provenance(on_device=False)}
        run = create(job.folder, job.config, **made)
    else:
        run = RunFolder(job.folder, job.config)
        if records.newest_checkpoint(run.path) is None:
            check_weights(job.config)
    return TrainingSupervisor(run, plan, launcher, job.observers).run()


def default_plan(experiment: Experiment) -> ClusterPlan:
    """The plan for an experiment that names no recipe: asynchronous where all algorithms correct for it."""
    learning = [learner.algorithm.traits for learner in experiment.learners.values() if not learner.frozen]
    return ClusterPlan("impala" if learning and all(traits.corrects_lag for traits in learning) else "sync")


def plan_of(folder: Path) -> ClusterPlan | None:
    """The plan that a run was started with; None if it was not started on a cluster."""
    try:
        data = read_json(folder / "config.json").get("cluster")
    except (OSError, ValueError, AttributeError):
        return None
    try:
        return None if data is None else from_plain(ClusterPlan, data, "cluster")
    except (OptionError, UnknownNameError) as error:
        raise type(error)(f"{folder}/config.json: {error}") from None


def check(experiment: Experiment, plan: ClusterPlan) -> None:
    """Refuses what cannot work, before anything is started."""
    experiment.origin.admit(experiment.env, experiment.env_options)  # workers are told what is trusted here
    if experiment.num_seeds > 1:
        raise ShoalError(f"a cluster run has one seed, got num_seeds {experiment.num_seeds}: start one for each")
    recipe_of(plan.recipe).check(experiment, plan)
    for learner in experiment.learners.values():
        if plan.sync_mode == "stale" and plan.max_divergence and not learner.frozen:
            require_protocol(learner.algorithm, EstimatesKL, "cluster: max_divergence")


def needs(plan: ClusterPlan) -> dict[str, float]:
    """The resources that a plan asks for."""
    actors = plan.actors + plan.backups if recipe_of(plan.recipe).acts else 0
    cpus = actors * plan.actor_cpus + plan.learners * plan.learner_cpus
    gpus = actors * plan.actor_gpus + plan.learners * plan.learner_gpus
    return {"CPU": cpus} | ({"GPU": gpus} if gpus else {})


class TrainingSupervisor(Supervisor):
    """One training on a cluster, from start to end: when the loop of the worker `learner-0` is over."""

    role: ClassVar[str] = "actor"

    def __init__(self, run: RunFolder, plan: ClusterPlan, launcher: Launcher, observers: Observers | None = None):
        super().__init__(run.path, launcher, plan.retries)
        self.experiment, self.plan, self.observers = run.experiment, plan, observers or Observers()
        self.told, self.newest = 0, None  # the update of the newest line, and the newest checkpoint, that were told of
        self.ended: dict[str, Any] | None = None
        self.hooks: list[Look] = []  # called at every look: for tests that inject faults

    def run(self) -> TrainingResult:
        with work_in(self.folder):
            try:
                path = self.folder / journal.NAME
                count_restarts(journal.read(path), path)  # what is wrong with it is said here, not by whoever needs it
                self.newest = records.newest_checkpoint(self.folder)
                meta = self.newest and records.read_progress(self.newest, self.experiment.num_updates)
                self.told = meta["update"] if meta else 0
                self.observers.open(self.experiment, self.folder, self.told)
                recipe_of(self.plan.recipe).start(self)
                keep_total(RunFolder(self.folder, self.experiment))  # not before: what is refused leaves it as it was
                with stop_requested() as stopped:
                    self._watch(stopped)
                self._tell_saved()
            except ClusterGoneError as error:
                raise ClusterGoneError(f"{error}. {self.how_to_resume}") from None
            finally:
                self.observers.close()
                with contextlib.suppress(Exception):  # what ended the run is what matters
                    self.write_status(last=True)
                self.launcher.stop()
        assert self.ended is not None
        _, policies, meta = load_policies(self.folder)
        update = int(meta["update"])
        interrupted = update < self.experiment.num_updates
        return TrainingResult(
            policies, update, self._lines(), float(meta["seconds"]), self.ended["compile_s"], interrupted
        )

    def _watch(self, stopped: threading.Event) -> None:
        while self.ended is None:
            if stopped.is_set():
                with contextlib.suppress(ServiceUnavailable):
                    self.coordinator.once.stop()
            self.look()
            if self.status.get("learner", {}).get("update"):
                self._tell()
            if self.observers.stopping:
                stopped.set()
            for hook in self.hooks:
                hook(self)
            run_kinds.check_there(self.folder)
            time.sleep(LOOK_SECONDS)

    def _tell(self) -> None:
        """Tells of how far it is."""
        self._tell_saved()
        self.observers.tell("on_update", self._progress())

    def _tell_saved(self) -> None:
        """Tells of the newest checkpoint, and of lines of metrics: both are saved together."""
        newest = checkpoint.latest(self.folder / "checkpoints")
        if newest is None or newest == self.newest:
            return
        self.newest = newest
        for line in self._lines() if self.observers.loggers else ():
            if line["update"] > self.told:
                self.told = line["update"]
                self.observers.write(line)
        if self.observers.callbacks:
            told = {"policies": load_policies(self.folder)[1], "checkpoint": newest.parent}
            self.observers.tell("on_checkpoint", self._progress(), **told)

    def _lines(self) -> list[dict[str, Any]]:
        metrics = self.folder / "metrics.jsonl"
        return read_metrics(metrics) if metrics.is_file() else []

    @property
    def coordinator(self) -> Service[Coordinator]:
        return self.services["coordinator"]

    def learner(
        self,
        factory: Callable[..., Runs],
        *more: Any,
        number: int = 0,
        plan: ClusterPlan | None = None,
        computes: bool = True,
    ) -> None:
        """Starts a worker that learns: `factory(experiment, folder, plan, services, store, *more)`.

        computes: whether it asks for processors.
        """
        args = (self.experiment.to_dict(), self.path, plan or self.plan, self.services, self.launcher.store, *more)
        cpus, gpus = (self.plan.learner_cpus, self.plan.learner_gpus) if computes else (0.0, 0.0)
        self.worker(f"learner-{number}", factory, *args, cpus=cpus, gpus=gpus)

    def actor(self, factory: Callable[..., Runs], number: int, *more: Any) -> None:
        """Starts a worker that acts: `factory(experiment, number, copies, services, store, *more)`."""
        copies = self.plan.share(self.experiment)
        args = (self.experiment.to_dict(), number, copies, self.services, self.launcher.store, *more)
        self.worker(f"actor-{number}", factory, *args, cpus=self.plan.actor_cpus, gpus=self.plan.actor_gpus)

    def add(self, number: int) -> None:
        recipe_of(self.plan.recipe).actor(self, number)

    @property
    def scales(self) -> bool:
        return recipe_of(self.plan.recipe).sync != "sync"

    def on_return(self, name: str, value: Any) -> None:
        if name == "learner-0":
            self.ended = value

    def on_death(self, name: str, watched: WatchedWorker) -> None:
        """The coordinator hears of it when the worker is back."""

    def read_status(self) -> dict[str, Any]:
        return self.coordinator.once.status()

    def is_hung(self, told: dict[str, Any]) -> bool:
        return told["busy_s"] > self.plan.task_timeout * (1.0 if told["seconds"] else FIRST_TASK)

    def count_finished(self, told: dict[str, Any]) -> int:
        return told["rounds"]

    def describe(self) -> dict[str, Any]:
        workers = {name: told for name, told in self.status.get("workers", {}).items() if name in self.workers}
        return {
            "workers": workers,
            "absent": sorted(self.workers.keys() - workers.keys()),
            "plan": to_plain(self.plan),
            "env": self.experiment.env,
            "copies": recipe_of(self.plan.recipe).share(self.experiment, self.plan),
            "steps": self.experiment.num_steps,
        }

    def _progress(self) -> Progress:
        learner = self.status["learner"]
        update, compiled = learner["update"], learner.get("compile_s", 0.0)
        steps = update * self.experiment.num_envs * self.experiment.num_steps
        return Progress(update, self.experiment.num_updates, steps, learner["seconds"], compiled, learner.get("line"))
