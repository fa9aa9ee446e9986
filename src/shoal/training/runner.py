"""`run` and `resume`: one pair for every kind of run, on this machine (`Local`) or elsewhere (`cluster.run.Cluster`).

    from shoal import presets
    from shoal.training.runner import Local, resume, run

    result = run(presets.get("mpe/simple_spread"), "runs/mine")
    result = resume("runs/mine", total_env_steps=2_000_000)

A config is run: an `Experiment`, a `Sweep`, a `PBT`, an `Evolution` or a `PopulationConfig`.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from shoal.core.errors import OptionError, require, require_type
from shoal.training import records
from shoal.training.callbacks import Callback, Listener, Observers
from shoal.training.experiment import Config, Experiment, Stepping
from shoal.training.host_stages import TIMEOUT
from shoal.training.hosts import HostedProgram, follow, lead, make_hosted_program
from shoal.training.loggers import Loggers, recorded_loggers
from shoal.training.loop import Loop, Saving, TrainingResult
from shoal.training.program import Program
from shoal.training.provenance import provenance
from shoal.training.roll import Hosts
from shoal.training.run import RunFolder, create, devices_of, extend, open_run, warn_of_devices
from shoal.training.run_kinds import EVOLUTION, PSRO, check_whole
from shoal.training.scene_files import MOST_POINTS
from shoal.training.serialise import to_plain


@dataclasses.dataclass(frozen=True)
class Job:
    """A run to be made. folder: where it is kept, if anywhere; resumed: it continues from the newest checkpoint there.

    observers: its listener, callbacks and loggers. scenes: points at which it is watched, see `training.scenes`.
    """

    config: Config
    folder: Path | None
    resumed: bool = False
    observers: Observers = dataclasses.field(default_factory=Observers)
    saving: Saving = dataclasses.field(default_factory=Saving)
    scenes: int | None = None

    def drive(self, program: Program[Any]) -> TrainingResult:
        """Runs a program in the loop of this process."""
        if self.scenes and not program.watchable:
            kinds = "trainings, sweeps, population-based trainings and evolutions"
            raise OptionError(f"{self.config.kind}: scenes are of {kinds}; leave them out")
        if self.resumed:
            assert self.folder is not None
            run = RunFolder(self.folder, self.config)
            newest = records.newest_checkpoint(run.path)
            meta = run.config.read_meta(newest) if newest else None
            if meta and "devices" in meta:
                warn_of_devices(run, meta["devices"], program.num_devices)
            carry = program.restore(newest, meta) if newest and meta else program.begin()
        else:
            meta, carry = None, program.begin()  # before the folder is created: weights of other runs may be missing
            run = create(self.folder, self.config, provenance=provenance()) if self.folder is not None else None
        return Loop(program, run, self.observers, self.saving, self.scenes).run(carry, meta)


class Runner(Protocol):
    """A place to run configs."""

    def prepare(self, config: Config, resumed: Path | None = None) -> Self:
        """Itself, ready for a run: refuses early what cannot work. resumed: the folder of a run to continue."""
        ...

    def execute(self, job: Job) -> TrainingResult:
        """Makes a run; prepares itself first, if necessary."""
        ...


@dataclasses.dataclass(frozen=True)
class Local:
    """On this machine. devices: only the first few; by default those that speed it up, or as many as before."""

    devices: int | None = None
    env_workers: int = 0
    """processes that step environments of other libraries, and are replaced when they hang or die (0: this process)"""
    env_timeout: float = TIMEOUT  # seconds after which an environment counts as hung in one step
    hosts: Hosts | None = None  # the place of this process among several hosts, whose devices are used together
    program: Program[Any] | None = dataclasses.field(default=None, repr=False, compare=False)  # see `prepare`

    def prepare(self, config: Config, resumed: Path | None = None) -> Self:
        stepping = Stepping(self.env_workers, self.env_timeout)
        if self.hosts is not None:
            return dataclasses.replace(self, program=self._hosted(config, self.hosts, stepping, resumed))
        devices = devices_of(RunFolder(resumed, config), self.devices) if resumed else self.devices
        if isinstance(config, Experiment):
            program = config.program(devices, stepping)
        elif stepping != Stepping():
            raise OptionError(f"{config.kind}: env_workers and env_timeout are for trainings; leave them out")
        else:
            program = config.program(devices)
        program.check()
        return dataclasses.replace(self, program=program)

    def execute(self, job: Job) -> TrainingResult:
        ready = self if self.program else self.prepare(job.config, job.folder if job.resumed else None)
        assert ready.program is not None
        if not isinstance(ready.program, HostedProgram):
            return job.drive(ready.program)
        if ready.hosts is None or ready.hosts.leads:
            program = ready.program
            return lead(program, lambda: job.drive(program), job.folder)
        newest = records.newest_checkpoint(job.folder) if job.resumed and job.folder else None
        return follow(ready.program, newest, job.config.read_meta(newest) if newest else None)

    def _hosted(self, config: Config, hosts: Hosts, stepping: Stepping, resumed: Path | None) -> HostedProgram:
        if not isinstance(config, Experiment):
            raise OptionError(f"{config.kind}: several hosts are for trainings; leave hosts out")
        if stepping != Stepping():
            raise OptionError("several hosts train compiled worlds: leave out env_workers and env_timeout")
        return make_hosted_program(config, hosts, self.devices, resumed)


HERE = Local()


def run(
    config: Config,
    folder: str | Path | None = None,
    *,
    on: Runner = HERE,
    listener: Listener | None = None,
    callbacks: Callback | Sequence[Callback] = (),
    loggers: Loggers = (),
    checkpoint_seconds: float = Saving.seconds,
    checkpoint_every: int = Saving.every,
    scenes: int | None = None,
) -> TrainingResult:
    """Runs a config from the start; with a new `folder`, metrics and checkpoints are kept there.

    listener: called with a `Progress` now and then. callbacks, loggers: see `training.callbacks`, `training.loggers`.
    checkpoint_seconds, checkpoint_every: time and env steps between two checkpoints, see `loop.Saving`. scenes: points
    along the run at which an episode is kept, see `training.scenes` (0: none).
    """
    require_type("run", "config", config, Config, "an Experiment, such as presets.get(NAME), a Sweep, a PBT, ...")
    path = None if folder is None else Path(folder).absolute()
    if path is not None:
        to_plain(config)  # refuses what could not be restored from a run folder
    saving = make_saving(config, checkpoint_seconds, checkpoint_every)
    check_scenes(scenes, on, path)
    return on.execute(Job(config, path, False, _observers(listener, callbacks, loggers), saving, scenes))


def resume(
    folder: str | Path,
    *,
    on: Runner = HERE,
    total_env_steps: int | None = None,
    iterations: int | None = None,
    listener: Listener | None = None,
    callbacks: Callback | Sequence[Callback] = (),
    loggers: Loggers | None = None,
    checkpoint_seconds: float = Saving.seconds,
    checkpoint_every: int = Saving.every,
    scenes: int | None = None,
) -> TrainingResult:
    """Continues a run of any kind from its newest checkpoint, to the same bits as if it had never stopped.

    The state of environments on the host cannot be saved: there, episodes restart. total_env_steps: a larger total
    than before, to train a run further, also one that is finished; the run keeps it. Schedules stretch to the new end.
    iterations: the same of a population.

    loggers: by default those that it had, by name, within its folder. scenes: by default as many as it had.

    It runs on as many devices as before, if they are there; on another number it agrees to rounding only, and warns.
    """
    opened = open_run(Path(folder), None)
    check_whole(opened.path)
    loggers = recorded_loggers(opened.path) if loggers is None else loggers
    observers = _observers(listener, callbacks, loggers)
    opened = extend(opened, total_env_steps=total_env_steps, iterations=iterations)
    saving = make_saving(opened.config, checkpoint_seconds, checkpoint_every)
    check_scenes(scenes, on, opened.path)
    return on.execute(Job(opened.config, opened.path, True, observers, saving, scenes))


def make_saving(config: Config, checkpoint_seconds: float, checkpoint_every: int) -> Saving:
    """When to save a run of this config; refuses to count env steps where an update has no fixed number of them."""
    if checkpoint_every and config.kind in (EVOLUTION, PSRO):
        unit = "generation" if config.kind == EVOLUTION else "iteration"
        raise OptionError(f"checkpoint_every counts env steps, and each {unit} has another number: leave it out")
    return Saving(checkpoint_seconds, checkpoint_every)


def check_scenes(scenes: int | None, on: Runner, folder: Path | None) -> None:
    """Refuses a number of scenes that means nothing, and scenes that would be kept nowhere."""
    whole = scenes is None or (type(scenes) is int and 0 <= scenes <= MOST_POINTS)
    require(whole, "run", "scenes", scenes, f"a whole number from 0 (none) to {MOST_POINTS}")
    if scenes and (folder is None or not isinstance(on, Local)):
        raise OptionError("scenes are kept in a run folder by runs on this machine: leave them out, or train there")


def _observers(listener: Listener | None, callbacks: Callback | Sequence[Callback], loggers: Loggers) -> Observers:
    return Observers([] if listener is None else [listener], callbacks, loggers)
