"""Populations and evolution on a cluster: options of `shoal psro`, `league`, `pbt` and `evolve`, and who is hired."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import DisallowNone, arg

from shoal.cli.connection import ClusterConnection
from shoal.cli.runs import ResumeOptions
from shoal.cli.start import WorkOptions
from shoal.cli.terminal import pluralise
from shoal.cluster.advice import pool_from_status as team_from_plain
from shoal.cluster.services.scaling import check_request, requested_workers
from shoal.cluster.supervisor import STATUS
from shoal.cluster.tasks.pool import PoolConfig
from shoal.core.errors import OptionError
from shoal.core.files import read_json

Count = Annotated[DisallowNone[int | None], arg(metavar="N")]
Number = Annotated[DisallowNone[float | None], arg(metavar="FLOAT")]

GIVEN = {"workers": "workers", "worker_cpus": "cpus", "worker_gpus": "gpus"}
"""Options, and what they are of a team."""


@dataclasses.dataclass(frozen=True)
class PoolOptions(WorkOptions):
    """Options of commands whose work can be handed to others; all that come after --cluster need it."""

    cluster: Annotated[DisallowNone[str | None], arg(metavar="auto|ADDRESS")] = None
    """work on a Ray cluster: the one that runs here (or a new one on this machine), or one at an address"""
    workers: Count = None  # processes of the cluster that train and play (2)
    worker_cpus: Number = None  # CPU cores of each of them (1)
    worker_gpus: Number = None  # GPUs of each of them (0)


def pool_from_options(options: PoolOptions, prog: str) -> PoolConfig | None:
    """The team that the options ask for; None if everything is to be done here."""
    given = {field: getattr(options, name) for name, field in GIVEN.items() if getattr(options, name) is not None}
    if options.cluster is None:
        if given:
            names = ", ".join(f"--{name.replace('_', '-')}" for name, field in GIVEN.items() if field in given)
            raise OptionError(f"{prog}: {names} is for work on a cluster: add --cluster auto")
        return None
    if options.devices is not None:
        raise OptionError(f"{prog}: --devices is for one machine; on a cluster give --worker-cpus or --worker-gpus")
    return PoolConfig(**given)


def pool_of_run(folder: Path, options: ResumeOptions) -> PoolConfig | None:
    """The team that goes on with a run: the one that was last at work there, or a new one if a cluster is named."""
    try:
        known = team_from_plain(read_json(folder / STATUS)["team"])
        found = dataclasses.replace(known, workers=requested_workers(folder) or known.workers)
    except (OSError, ValueError, KeyError, TypeError):
        found = None
    if found is not None and options.devices is not None:
        raise OptionError(f"{folder} is at work on a cluster, whose workers have devices of their own: omit --devices")
    return found or (PoolConfig() if options.cluster is not None else None)


@dataclasses.dataclass(frozen=True)
class PoolConnection:
    """A team, and the cluster that it is at."""

    config: PoolConfig
    connection: ClusterConnection
    folder: Path | None = None  # that the team was read from

    def __str__(self) -> str:
        return f"{self.connection}, {pluralise(self.config.workers, 'worker')}"

    def by(self, start: Callable[..., Any]) -> Callable[..., Any]:
        """`start(team, launcher, ...)` in the form of the starts of one machine: workers have devices of their own."""

        def begin(devices: int | None = None, **more: Any) -> Any:
            del devices
            if self.folder is not None:
                check_request(self.folder, self.config.workers, self.connection.launcher.private)
            return start(self.config, self.connection.launcher, **more)

        return begin


def connect_pool(config: PoolConfig | None, options: PoolOptions | ResumeOptions) -> PoolConnection | None:
    """The team at the cluster that the options name; None if there is no team."""
    connection = ClusterConnection(options.cluster or "auto", config.needs, tuple(options.imports)) if config else None
    folder = Path(options.run) if isinstance(options, ResumeOptions) else None
    return PoolConnection(config, connection, folder) if config and connection else None
