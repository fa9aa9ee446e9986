"""The configuration of a run on a cluster: numbers of workers, synchronisation, time-outs and retries."""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Literal

from shoal.cluster.services.scaling import MOST
from shoal.core.checks import check_types
from shoal.core.errors import OptionError, require, require_positive
from shoal.training.experiment import Experiment

Sync = Literal["sync", "async", "stale"]


@dataclasses.dataclass(frozen=True)
class ClusterPlan:
    """The cluster's part of an experiment. Stored as JSON, beside the experiment, in `config.json`."""

    renamed: ClassVar[Mapping[str, str]] = {"patience": "task_timeout"}  # entries of folders of earlier versions

    recipe: str = "sync"  # architecture: sync, stale, impala, appo, ...; for the algorithm impala, by default impala
    actors: int = 2  # processes that step worlds
    learners: int = 1  # processes that learn from them
    backups: int = 0  # actors more than a synchronous update waits for: the slowest are left behind
    max_staleness: int = 2  # updates that experience may be behind, for stale
    max_divergence: float = 0.0  # how far, as KL, the policy may have moved since, for stale; 0: any
    shards: int = 1  # services that keep replays
    queue: int = 0  # rollouts that may wait for the learner; 0: two per actor, one if nobody waits
    task_timeout: float = 60.0  # seconds that a task may take before its worker is taken for hung, and replaced
    retries: int = 5  # times in a row that a worker may fail at its task before the run gives up
    commit_seconds: float = 2.0  # time between states that survive anything
    actor_cpus: float = 1.0  # CPUs per actor
    learner_cpus: float = 1.0  # CPUs per learner
    actor_gpus: float = 0.0  # GPUs per actor
    learner_gpus: float = 0.0  # GPUs per learner

    def __post_init__(self):
        check_types(self, "cluster")
        require_positive("cluster", actors=self.actors, learners=self.learners, task_timeout=self.task_timeout)
        require(self.shards >= 1, "cluster", "shards", self.shards, "at least 1")
        require(self.backups >= 0, "cluster", "backups", self.backups, "0 or more")
        together = "actors, backups, learners and shards together"
        require(self.processes <= MOST, "cluster", together, self.processes, f"{MOST} at most")
        require(self.max_staleness >= 0, "cluster", "max_staleness", self.max_staleness, "0 or more")
        require(self.max_divergence >= 0, "cluster", "max_divergence", self.max_divergence, "0 or more")
        require(self.queue >= 0, "cluster", "queue", self.queue, "0 or more")
        require(self.retries >= 1, "cluster", "retries", self.retries, "at least 1")
        for name in ("actor_cpus", "learner_cpus", "actor_gpus", "learner_gpus"):
            require(getattr(self, name) >= 0, "cluster", name, getattr(self, name), "0 or more")
        if self.backups and self.sync_mode != "sync":
            raise OptionError(f"cluster: backups are for synchronous recipes; {self.recipe} waits for nobody")

    @property
    def sync_mode(self) -> Sync:
        """Whether learners wait for all actors, for none, or keep them within `max_staleness`."""
        from shoal.cluster.recipes import recipe_of

        return recipe_of(self.recipe).sync

    @property
    def processes(self) -> int:
        """Processes that the plan asks for, apart from the few services of every run."""
        return self.actors + self.backups + self.learners + self.shards

    @property
    def capacity(self) -> int:
        """Rollouts that the queue holds."""
        each = 1 if self.sync_mode == "async" else 2  # what waits grows old
        return self.queue or each * (self.actors + self.backups)

    def share(self, experiment: Experiment) -> int:
        """Copies of one actor."""
        if experiment.num_envs % self.actors:
            least = -(-experiment.num_envs // self.actors) * self.actors
            raise OptionError(
                f"cluster: num_envs must be a multiple of the number of actors, {self.actors}, got "
                f"{experiment.num_envs}. Try {least}."
            )
        return experiment.num_envs // self.actors
