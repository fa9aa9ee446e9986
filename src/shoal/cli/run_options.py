"""Options that several commands share: those that train in a run folder, and those that look at one."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, ClassVar

from tyro.conf import DisallowNone, arg

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
)
from shoal.cli.targets import STEPPING
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.tasks.pool import PoolConfig
from shoal.training.runner import Local

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
