"""Starts a cluster run, watches over it, and brings it home: what died is begun again, what hangs is replaced.

The driver holds no state of the run. All that matters is in the run folder: checkpoints and metrics (written by the
learner), the journal (by the coordinator), and `cluster.json`, what `shoal cluster status` shows (written here).
"""

import contextlib
import dataclasses
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shoal.cluster import driver
from shoal.cluster.plan import Plan
from shoal.cluster.recipes import recipe_of
from shoal.cluster.services import journal
from shoal.cluster.services.coordinator import begun_of
from shoal.cluster.services.scaling import check_told, wanted_of
from shoal.cluster.transport.launcher import ClusterGoneError, Fabric, Gone, Handle, WorkerError, role_of
from shoal.core.errors import OptionError, RunError, ShoalError, UnknownNameError, shell_command
from shoal.core.files import read_json, write_atomically
from shoal.core.stopping import stop_requested
from shoal.training import checkpoint, records, run_kinds
from shoal.training.experiment import Experiment, from_plain, to_plain
from shoal.training.loop import Listener, Progress, Result
from shoal.training.run import Run, check_weights, held, load_policies

STATUS = "cluster.json"
LOOK_SECONDS = 0.1
STATUS_SECONDS = 1.0
FIRST_TASK = 5.0
"""A worker's first task compiles: it may take so many times as long."""
FATAL = ("NonFiniteError", "OptionError")
"""Errors that come again however often a worker begins anew."""

Look = Callable[["Supervisor"], None]


def train(
    experiment: Experiment, run_dir: str | Path, plan: Plan, fabric: Fabric, listener: Listener | None = None
) -> Result:
    """Trains an experiment from the start on a cluster."""
    check(experiment, plan)
    check_weights(experiment)
    run = Run(Path(run_dir), experiment)
    entries = {"experiment": experiment.to_dict(), "cluster": to_plain(plan)}
    run_kinds.create(run.path, run_kinds.TRAINING, **entries)
    return Supervisor(run, plan, fabric, listener).run()


def resume(run: Run, fabric: Fabric, listener: Listener | None = None, plan: Plan | None = None) -> Result:
    """Goes on with a run from what is committed; `plan` may differ from the one that it was begun with."""
    records.newest_checkpoint(run.path)
    found = plan or plan_of(run.path)
    if found is None:
        raise RunError(f"{run.path} was not begun on a cluster: go on with `{shell_command('resume', run.path)}`")
    asked = 0 if plan else found.processes
    check_told(run.path, max(asked, wanted_of(run.path) or 0), fabric.private)
    if checkpoint.latest(run.checkpoints) is None:
        check_weights(run.experiment)
    return Supervisor(run, found, fabric, listener).run()


def plan_of(folder: Path) -> Plan | None:
    """The plan that a run was begun with; None if it was not begun on a cluster."""
    try:
        data = read_json(folder / "config.json").get("cluster")
    except (OSError, ValueError, AttributeError):
        return None
    try:
        return None if data is None else from_plain(Plan, data, "cluster")
    except (OptionError, UnknownNameError) as error:
        raise type(error)(f"{folder}/config.json: {error}") from None


def check(experiment: Experiment, plan: Plan) -> None:
    """Refuses what cannot work, before anything is started."""
    experiment.origin.admit(experiment.env, experiment.env_options)  # workers are told what is trusted here
    if experiment.num_seeds > 1:
        raise ShoalError(f"a cluster run has one seed, got num_seeds {experiment.num_seeds}: start one for each")
    recipe_of(plan.recipe).check(experiment, plan)


def needs(plan: Plan) -> dict[str, float]:
    """The resources that a plan asks for."""
    actors = plan.actors + plan.backups if recipe_of(plan.recipe).acts else 0
    cpus = actors * plan.actor_cpus + plan.learners * plan.learner_cpus
    gpus = actors * plan.actor_gpus + plan.learners * plan.learner_gpus
    return {"CPU": cpus} | ({"GPU": gpus} if gpus else {})


@dataclasses.dataclass
class Watched:
    """A worker's loop."""

    handle: Handle
    running: Any = None
    failures: int = 0
    rounds: int = 0
    wait_until: float = 0.0
    restarts: int = 0
    died: int = -1  # how often it had begun anew when it was last seen to be dead
    replaced: int = -1  # which of its beginnings was replaced: it is given the time that the next one takes


class Supervisor:
    """One run on a cluster, from start to end."""

    def __init__(self, run: Run, plan: Plan, fabric: Fabric, listener: Listener | None = None):
        self.folder, self.experiment, self.plan, self.fabric = run, run.experiment, plan, fabric
        self.listener = listener
        self.services: dict[str, Handle] = {}
        self.workers: dict[str, Watched] = {}
        self.began = time.monotonic()
        self.status: dict[str, Any] = {}
        self.ended: dict[str, Any] | None = None
        self.hooks: list[Look] = []  # called at every look: for tests that inject faults
        self.events: list[dict[str, Any]] = []
        self._told = 0.0

    def run(self) -> Result:
        with held(self.folder.path):
            try:
                path = self.folder.path / journal.NAME
                begun_of(journal.read(path), path)  # what is wrong with it is said here, not by whoever needs it
                recipe_of(self.plan.recipe).start(self)
                with stop_requested() as stopped:
                    self._watch(stopped)
            except ClusterGoneError as error:
                raise ClusterGoneError(f"{error}. {self._safe}") from None
            finally:
                with contextlib.suppress(Exception):  # what ended the run is what matters
                    self._tell(last=True)
                self.fabric.stop()
        assert self.ended is not None
        _, policies, meta = load_policies(self.folder.path)
        update = int(meta["update"])
        interrupted = update < self.experiment.num_updates
        return Result(policies, update, [], float(meta["seconds"]), self.ended["compile_s"], interrupted)

    @property
    def path(self) -> str:
        """The run folder, as every process knows it."""
        return str(self.folder.path)

    def service(self, name: str, factory: Callable[..., Any], *args: Any) -> None:
        """Starts a service, which all that are started later can call."""
        self.services[name] = self.fabric.start(name, factory, *args)

    def learner(self, factory: Callable[..., Any], *args: Any, number: int = 0) -> None:
        """Starts a worker that learns; its `run` is called, and called again whenever it died."""
        name, plan = f"learner-{number}", self.plan
        made = self.fabric.start(name, factory, *args, cpus=plan.learner_cpus, gpus=plan.learner_gpus)
        self.workers[name] = Watched(made)

    def actor(self, number: int, factory: Callable[..., Any], *args: Any) -> None:
        """Starts a worker that acts, in the same way."""
        name, plan = f"actor-{number}", self.plan
        made = self.fabric.start(name, factory, *args, cpus=plan.actor_cpus, gpus=plan.actor_gpus)
        self.workers[name] = Watched(made)

    def _scale(self) -> None:
        """Adds or removes actors, if `wanted.json` in the run folder says another number (`shoal cluster scale`)."""
        wanted = wanted_of(self.folder.path)
        there = sorted(int(name.split("-")[1]) for name in self.workers if role_of(name) == "actor")
        recipe = recipe_of(self.plan.recipe)
        if recipe.sync == "sync" or wanted is None:
            return
        for number in range(max(there, default=-1) + 1, max(there, default=-1) + 1 + wanted - len(there)):
            self._note(f"actor-{number}", "added")
            recipe.actor(self, number)
        for number in there[wanted:]:
            self._note(f"actor-{number}", "removed")
            self.remove_actor(number)

    def remove_actor(self, number: int) -> None:
        """One actor less; what it has not pushed yet is lost, and nothing else."""
        name = f"actor-{number}"
        del self.workers[name]
        self.fabric.remove(name)

    def _watch(self, stopped: threading.Event) -> None:
        while self.ended is None:
            if stopped.is_set():
                with contextlib.suppress(Gone):
                    self.services["coordinator"].call("stop")
            for name in list(self.workers):
                self._look_after(name, self.workers[name])
            self._look()
            for hook in self.hooks:
                hook(self)
            run_kinds.check_there(self.folder.path)
            self.fabric.check()
            time.sleep(LOOK_SECONDS)

    def _look_after(self, name: str, watched: Watched) -> None:
        if watched.running is None:
            if time.monotonic() >= watched.wait_until:
                with contextlib.suppress(Gone):
                    watched.running = watched.handle.ask("run")
            return
        if not watched.running.done():
            return
        running, watched.running = watched.running, None
        try:
            value = running.result()
        except Gone:
            begun = self.status.get("workers", {}).get(name, {}).get("restarts", 0)
            if begun != watched.died:  # not once more before it has come back
                watched.restarts += 1
                self._note(name, "died")
            watched.died = begun
            watched.wait_until = time.monotonic() + 0.1
        except WorkerError as error:
            self._failed(name, watched, error)
        else:
            if name == "learner-0":
                self.ended = value

    def _failed(self, name: str, watched: Watched, error: WorkerError) -> None:
        """A worker's own error: it may try again, with pauses that grow, unless that never helped."""
        watched.failures += 1
        watched.restarts += 1
        self._note(name, error.line)
        if watched.failures > self.plan.retries or error.kind in FATAL:
            task = self.status.get("workers", {}).get(name, {}).get("task") or "starting"
            times = f" {watched.failures} times in a row" if watched.failures > 1 else ""
            raise WorkerError(f"{name} failed{times} ({task}): {error.text}\n{self._safe}")
        watched.wait_until = time.monotonic() + min(0.1 * 2**watched.failures, 5.0)

    @property
    def _safe(self) -> str:
        go_on = shell_command("resume", self.folder.path)
        return f"What is committed is safe in {self.folder.path}: go on with `{go_on}`."

    def _look(self) -> None:
        """Reads the status, replaces who hangs, tells the listener."""
        try:
            self.status = self.services["coordinator"].call("status")
        except Gone:
            return
        for name, told in self.status["workers"].items():
            watched = self.workers.get(name)
            if watched is None:
                continue
            if told["rounds"] > watched.rounds:
                watched.rounds, watched.failures = told["rounds"], 0
            patience = self.plan.patience * (1.0 if told["seconds"] else FIRST_TASK)
            if told["busy_s"] > patience and watched.running is not None and told["restarts"] != watched.replaced:
                self._note(name, f"hung for {told['busy_s']:.0f} s in {told['task']}")
                watched.replaced = told["restarts"]
                self.fabric.kill(name)
        if self.listener and self.status["learner"].get("update"):
            self.listener(self._progress())
        self._tell()

    def _progress(self) -> Progress:
        learner = self.status["learner"]
        update, compiled = learner["update"], learner.get("compile_s", 0.0)
        steps = update * self.experiment.num_envs * self.experiment.num_steps
        return Progress(update, self.experiment.num_updates, steps, learner["seconds"], compiled, learner.get("line"))

    def _note(self, name: str, what: str) -> None:
        self.events.append({"seconds": round(time.monotonic() - self.began, 2), "worker": name, "what": what})

    def _tell(self, last: bool = False) -> None:
        """Writes `cluster.json` now and then."""
        now = time.monotonic()
        if not last and now - self._told < STATUS_SECONDS:
            return
        self._told = now
        if not last:
            self._scale()
        status = dict(self.status)
        status["services"], status["messages"] = {}, {}
        for name, handle in self.services.items():
            with contextlib.suppress(Gone, ShoalError):
                status["services"][name] = handle.call("figures")
                status["messages"][name] = handle.call("counts")
        status["workers"] = {name: told for name, told in status.get("workers", {}).items() if name in self.workers}
        status["absent"] = sorted(self.workers.keys() - status["workers"].keys())
        status["restarts"] = {name: watched.restarts for name, watched in self.workers.items()}
        status["events"] = self.events[-50:]
        status["plan"] = to_plain(self.plan)
        status["env"] = self.experiment.env
        status["copies"] = recipe_of(self.plan.recipe).share(self.experiment, self.plan)
        status["steps"] = self.experiment.num_steps
        status["running"], status["driver"] = not last, driver.identity()
        status["dashboard"] = self.fabric.dashboard()
        with contextlib.suppress(OSError):  # what is shown is not what matters
            write_atomically(self.folder.path / STATUS, json.dumps(status, indent=1) + "\n")
