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

from shoal.core.errors import OptionError, require_type
from shoal.training import records
from shoal.training.callbacks import Callback, Listener, Observers
from shoal.training.experiment import Config, Experiment
from shoal.training.host import Stepping
from shoal.training.host_stages import TIMEOUT
from shoal.training.loggers import Logger, make_loggers
from shoal.training.loop import Loop, TrainingResult
from shoal.training.program import Program
from shoal.training.run import RunFolder, create, devices_of, extend, open_run, warn_of_devices
from shoal.training.serialise import to_plain


@dataclasses.dataclass(frozen=True)
class Job:
    """A run to be made. folder: where it is kept, if anywhere; resumed: it continues from the newest checkpoint there.

    observers: its listener, callbacks and loggers.
    """

    config: Config
    folder: Path | None
    resumed: bool = False
    observers: Observers = dataclasses.field(default_factory=Observers)
    checkpoint_seconds: float = 60.0

    def drive(self, program: Program[Any]) -> TrainingResult:
        """Runs a program in the loop of this process."""
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
            run = create(self.folder, self.config) if self.folder is not None else None
        return Loop(program, run, self.observers, self.checkpoint_seconds).run(carry, meta)


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
    """On this machine. devices: only the first few; by default those that speed it up, or as many as before.

    Environments of other libraries are stepped in `env_workers` processes (0: in this one), where they may hang or die;
    one that takes longer than `env_timeout` seconds for a step is replaced or, in this process, reported.
    """

    devices: int | None = None
    env_workers: int = 0
    env_timeout: float = TIMEOUT
    program: Program[Any] | None = dataclasses.field(default=None, repr=False, compare=False)  # see `prepare`

    def prepare(self, config: Config, resumed: Path | None = None) -> Self:
        devices = devices_of(RunFolder(resumed, config), self.devices) if resumed else self.devices
        stepping = Stepping(self.env_workers, self.env_timeout)
        if isinstance(config, Experiment):
            return dataclasses.replace(self, program=config.program(devices, stepping))
        if stepping != Stepping():
            raise OptionError(f"{config.kind}: env_workers and env_timeout are for trainings; leave them out")
        return dataclasses.replace(self, program=config.program(devices))

    def execute(self, job: Job) -> TrainingResult:
        ready = self if self.program else self.prepare(job.config, job.folder if job.resumed else None)
        assert ready.program is not None
        return job.drive(ready.program)


HERE = Local()


def run(
    config: Config,
    folder: str | Path | None = None,
    *,
    on: Runner = HERE,
    listener: Listener | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[str | Logger] = (),
    checkpoint_seconds: float = 60.0,
) -> TrainingResult:
    """Runs a config from the start; with a new `folder`, metrics and checkpoints are kept there.

    listener: called with a `Progress` now and then. callbacks, loggers: see `training.callbacks`, `training.loggers`.
    """
    require_type("run", "config", config, Config, "an Experiment, such as presets.get(NAME), a Sweep, a PBT, ...")
    path = None if folder is None else Path(folder).absolute()
    if path is not None:
        to_plain(config)  # refuses what could not be restored from a run folder
    return on.execute(Job(config, path, False, _observers(listener, callbacks, loggers), checkpoint_seconds))


def train(
    experiment: Experiment,
    run_dir: str | Path | None = None,
    *,
    devices: int | None = None,
    listener: Listener | None = None,
    checkpoint_seconds: float = 60.0,
    env_workers: int = 0,
    env_timeout: float = TIMEOUT,
) -> TrainingResult:
    """Trains an experiment on this machine: `run` with the options of `Local`."""
    require_type("train", "experiment", experiment, Experiment, "presets.get(NAME) gives one")
    on = Local(devices, env_workers, env_timeout)
    return run(experiment, run_dir, on=on, listener=listener, checkpoint_seconds=checkpoint_seconds)


def resume(
    folder: str | Path,
    *,
    on: Runner = HERE,
    total_env_steps: int | None = None,
    listener: Listener | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[str | Logger] = (),
    checkpoint_seconds: float = 60.0,
) -> TrainingResult:
    """Continues a run of any kind from its newest checkpoint, to the same bits as if it had never stopped.

    The state of environments on the host cannot be saved: there, episodes restart. total_env_steps: a larger total
    than before, to train a run further, also one that is finished; the run keeps it. Schedules stretch to the new end.

    It runs on as many devices as before, if they are there; on another number it agrees to rounding only, and warns.
    """
    observers = _observers(listener, callbacks, loggers)  # reports a missing logger first
    opened = open_run(Path(folder), None)
    if total_env_steps is not None:
        opened = extend(opened, total_env_steps)
    return on.execute(Job(opened.config, opened.path, True, observers, checkpoint_seconds))


def _observers(listener: Listener | None, callbacks: Sequence[Callback], loggers: Sequence[str | Logger]) -> Observers:
    return Observers([] if listener is None else [listener], callbacks, make_loggers(loggers))
