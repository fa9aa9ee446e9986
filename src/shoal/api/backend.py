"""What trains: one way to run a config, here or on a cluster, and to go on with a folder.

The calls know no more of it than `run`, `resume`, `Local` and `Cluster`.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from shoal.cluster import training as cluster_training
from shoal.cluster.plan import Plan
from shoal.cluster.tasks import evolution as cluster_evolution
from shoal.cluster.tasks import pbt as cluster_pbt
from shoal.cluster.tasks import populations as cluster_populations
from shoal.cluster.tasks.pool import PoolConfig
from shoal.cluster.transport.launcher import Launcher
from shoal.core.errors import OptionError
from shoal.core.types import PyTree
from shoal.populations import psro_run
from shoal.populations.evolution import run as evolver
from shoal.populations.evolution.plan import Evolution
from shoal.populations.pbt import run as tuner
from shoal.populations.pbt.plan import PBT
from shoal.populations.psro import State
from shoal.training import loop, run_kinds
from shoal.training import sweep as sweeper
from shoal.training.callbacks import Listener, Observers, Progress
from shoal.training.experiment import Experiment
from shoal.training.host_stages import TIMEOUT
from shoal.training.run import open_run
from shoal.training.sweep import SweepResult
from shoal.training.sweep_plan import Sweep

Config = Experiment | Sweep | PBT | Evolution | psro_run.Settings


@dataclasses.dataclass(frozen=True)
class Local:
    """On this machine. env_workers, env_timeout: how environments of other libraries are stepped."""

    devices: int | None = None
    env_workers: int = 0
    env_timeout: float = TIMEOUT

    @property
    def stepping(self) -> dict[str, Any]:
        return {"env_workers": self.env_workers, "env_timeout": self.env_timeout}


@dataclasses.dataclass(frozen=True)
class Cluster:
    """On a Ray cluster. plan: of trainings. pool: the workers of populations and evolutions."""

    address: str = "auto"
    plan: Plan | None = None
    pool: PoolConfig | None = None
    imports: tuple[str, ...] = ()
    launcher: Launcher | None = None  # in place of Ray

    def join(self, needs: dict[str, float]) -> Launcher:
        from shoal.cluster.transport.ray_launcher import RayLauncher, setting_for

        return self.launcher or RayLauncher(self.address, needs, setting_for(self.imports))


class Ended(NamedTuple):
    """How a run ended. standing: what its kind has to say besides."""

    policies: dict[str, PyTree]
    update: int
    lines: list[dict[str, Any]]
    seconds: float
    compile_seconds: float
    interrupted: bool
    standing: dict[str, Any]


class _Stopped(Exception):
    """A callback has asked a population to stop."""

    def __init__(self, state: State):
        self.state = state


def run(
    config: Config,
    folder: Path | None,
    *,
    on: Local | Cluster,
    listener: Listener | None = None,
    checkpoint_seconds: float = 60.0,
) -> Ended:
    """Runs a config from the start; kept in `folder`, if there is one."""
    more = {"listener": listener, "checkpoint_seconds": checkpoint_seconds}
    match config, on:
        case Experiment(), Local():
            return _ended(loop.train(config, folder, devices=on.devices, **on.stepping, **more))
        case Experiment(), Cluster():
            plan = on.plan or Plan()
            cluster_training.check(config, plan)
            launcher = on.join(cluster_training.needs(plan))
            return _ended(cluster_training.train(config, _needed(folder), plan, launcher, listener))
        case Sweep(), Local():
            return _swept(sweeper.sweep(config, folder, devices=on.devices, **more))
        case Sweep(), Cluster():
            raise OptionError("a sweep is trained on one machine: leave out cluster")
        case psro_run.Settings(), _:
            return _grown(config, _grow(config, folder, on), listener)
        case PBT(), _:
            start = partial(cluster_pbt.pbt if isinstance(on, Cluster) else tuner.pbt, config, folder)
        case Evolution(), _:
            start = partial(cluster_evolution.evolve if isinstance(on, Cluster) else evolver.evolve, config, folder)
    return _ended(_placed(start, on)(**more))


def resume(
    folder: Path,
    *,
    on: Local | Cluster,
    total_env_steps: int | None = None,
    listener: Listener | None = None,
    checkpoint_seconds: float = 60.0,
) -> Ended:
    """Goes on with a run of any kind from its newest checkpoint."""
    more = {"listener": listener, "checkpoint_seconds": checkpoint_seconds}
    kind = run_kinds.kind_of(folder)
    if kind in (None, run_kinds.TRAINING):
        if cluster_training.plan_of(folder) is None:
            if isinstance(on, Cluster):
                raise OptionError(f"{folder} was not begun on a cluster: leave out cluster")
            return _ended(
                loop.resume(folder, devices=on.devices, total_env_steps=total_env_steps, **on.stepping, **more)
            )
        cluster = on if isinstance(on, Cluster) else Cluster()
        plan = cluster.plan or cluster_training.plan_of(folder)
        launcher = cluster.join(cluster_training.needs(plan or Plan()))
        return _ended(cluster_training.resume(open_run(folder), launcher, listener, plan))
    if total_env_steps is not None:
        what = run_kinds.KINDS[kind].what
        raise OptionError(f"{folder} is {what}: only trainings are trained further by total_env_steps")
    if kind == run_kinds.PSRO:
        return _grown(psro_run.open_settings(folder), _grow(None, folder, on), listener)
    if kind == run_kinds.SWEEP:
        devices = on.devices if isinstance(on, Local) else None
        return _swept(sweeper.resume(folder, devices=devices, **more))
    here, there = (tuner, cluster_pbt) if kind == run_kinds.PBT else (evolver, cluster_evolution)
    start = partial((there if isinstance(on, Cluster) else here).resume, folder)
    return _ended(_placed(start, on)(**more))


def _placed(start: Callable[..., Any], on: Local | Cluster) -> Callable[..., Any]:
    if isinstance(on, Local):
        return partial(start, devices=on.devices)
    pool = on.pool or PoolConfig()
    return partial(start, pool, on.join(pool.needs))


def _grow(settings: psro_run.Settings | None, folder: Path | None, on: Local | Cluster) -> Callable[..., State]:
    if isinstance(on, Local):
        start = partial(psro_run.start, settings, folder) if settings else partial(psro_run.resume, _needed(folder))
        return partial(start, devices=on.devices)
    there = cluster_populations
    start = partial(there.start, settings, _needed(folder)) if settings else partial(there.resume, _needed(folder))
    return _placed(start, on)


def _grown(settings: psro_run.Settings, start: Callable[..., State], listener: Listener | None) -> Ended:
    observers = Observers.of(listener)

    def told(state: State) -> None:
        line = {"update": state.iteration, "env_steps": 0, **state.history[-1]}
        place = (state.iteration, settings.psro.iterations, 0, line["seconds"], 0.0)
        observers.tell("on_update", Progress(*place, line))
        if observers.stopping:
            raise _Stopped(state)

    try:
        state, stopped = start(listener=told), False
    except _Stopped as stop:
        state, stopped = stop.state, True
    return Ended({}, state.iteration, list(state.history), state.history[-1]["seconds"], 0.0, stopped, {"state": state})


def _ended(result: loop.Result) -> Ended:
    fields = {field.name for field in dataclasses.fields(loop.Result)}
    standing = {name: value for name, value in vars(result).items() if name not in fields}
    plain = {name: getattr(result, name) for name in fields}
    return Ended(**plain, standing=standing)


def _swept(result: SweepResult) -> Ended:
    ended = ({}, result.updates, [], result.seconds, result.compile_seconds, result.interrupted)
    return Ended(*ended, {"sweep": result})


def _needed(folder: Path | None) -> Path:
    if folder is None:
        raise OptionError("a run on a cluster needs a folder: give run_dir")
    return folder
