"""`Cluster`: where `training.runner.run` and `resume` make runs with the help of other processes and machines.

    from shoal import presets
    from shoal.cluster.plan import Plan
    from shoal.cluster.run import Cluster
    from shoal.training.runner import run

    run(presets.get("mpe/simple_spread"), "runs/mine", on=Cluster(plan=Plan(actors=4)))

A training has actors and learners, as a `Plan` says. The members of populations (PSRO, leagues, population-based
training, evolution) are trained or played by a pool of workers, as a `PoolConfig` says.
"""

import dataclasses
import importlib
from pathlib import Path
from typing import Any, Self

from shoal.cluster import training
from shoal.cluster.advice import pool_from_status
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.services.scaling import check_request, requested_workers
from shoal.cluster.supervisor import STATUS
from shoal.cluster.tasks.pool import LazyPool, PoolConfig
from shoal.cluster.transport.launcher import Launcher
from shoal.core.errors import OptionError, RunError, shell_command
from shoal.core.files import read_json
from shoal.training.experiment import Config, Experiment
from shoal.training.loop import TrainingResult
from shoal.training.run_kinds import EVOLUTION, KINDS, PBT, PSRO
from shoal.training.runner import Job

TASKS = {
    PSRO: "shoal.cluster.tasks.populations",
    PBT: "shoal.cluster.tasks.pbt",
    EVOLUTION: "shoal.cluster.tasks.evolution",
}
"""What makes the program of a kind of run whose work is handed out in tasks; imported when it is needed."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A Ray cluster: the one that runs here or else a new one on this machine (`auto`), or one at an address.

    plan, pool: see above; None: as the resumed run had it, or the default. imports: files that workers import.
    launcher: what starts workers there; None: made when it is needed, see `prepare`.
    """

    address: str = "auto"
    plan: ClusterPlan | None = None
    pool: PoolConfig | None = None
    imports: tuple[str, ...] = ()
    launcher: Launcher | None = None

    def prepare(self, config: Config, resumed: Path | None = None) -> Self:
        """Itself, joined, with what a run needs; what it cannot do is refused. resumed: the folder of a resumed run."""
        if isinstance(config, Experiment):
            return self._join_training(config, resumed)
        tasks = _tasks_of(config)
        tasks.check(config)
        pool = self.pool or (pool_of(resumed) if resumed else None) or PoolConfig()
        launcher = self.launcher or self._join(pool.needs)
        if resumed:
            check_request(resumed, pool.workers, launcher.private)
        return dataclasses.replace(self, pool=pool, launcher=launcher)

    def with_plan(self, experiment: Experiment) -> Self:
        """Itself with a plan for a training: the default one if it has none. Refuses what cannot be trained by it.

        Nothing is joined or started.
        """
        plan = self.plan or training.default_plan(experiment)
        training.check(experiment, plan)
        return dataclasses.replace(self, plan=plan)

    def _join_training(self, experiment: Experiment, resumed: Path | None) -> Self:
        known = training.plan_of(resumed) if resumed and not self.plan else None
        if resumed and not (self.plan or known):
            raise RunError(f"{resumed} was not begun on a cluster: go on with `{shell_command('resume', resumed)}`")
        plan = dataclasses.replace(self, plan=self.plan or known).with_plan(experiment).plan
        assert plan is not None
        launcher = self.launcher or self._join(training.needs(plan))
        if resumed:
            check_request(
                resumed, max(known.processes if known else 0, requested_workers(resumed) or 0), launcher.private
            )
        return dataclasses.replace(self, plan=plan, launcher=launcher)

    def _join(self, needs: dict[str, float]) -> Launcher:
        from shoal.cluster.transport.ray_launcher import RayLauncher, setting_for

        return RayLauncher(self.address, needs, setting_for(self.imports))

    def execute(self, job: Job) -> TrainingResult:
        if job.folder is None:
            raise OptionError("a run on a cluster is kept in a folder, where its driver can go on: name one")
        joined = self.prepare(job.config, job.folder if job.resumed else None)
        launcher, pool = joined.launcher, joined.pool
        assert launcher is not None
        if isinstance(job.config, Experiment):
            assert joined.plan is not None
            return training.train_on_cluster(job, joined.plan, launcher)
        assert pool is not None
        workers, tasks = LazyPool(job.folder, pool, launcher), _tasks_of(job.config)
        try:
            return job.drive(tasks.make_program(job.config, workers))
        finally:
            launcher.stop()


def pool_of(folder: Path) -> PoolConfig | None:
    """The pool that was last at work for a run; None if it was all done on one machine."""
    try:
        known = pool_from_status(read_json(folder / STATUS)["team"])
        return dataclasses.replace(known, workers=requested_workers(folder) or known.workers)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _tasks_of(config: Config) -> Any:
    if config.kind not in TASKS:
        raise OptionError(f"{KINDS[config.kind].what} is run on one machine: leave out the cluster")
    return importlib.import_module(TASKS[config.kind])
