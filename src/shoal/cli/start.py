"""What every command that computes does first, and what several of them share."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import DisallowNone, arg

from shoal.api.building import open_known
from shoal.cli.arguments import Flag, Imports, Logs
from shoal.cli.terminal import display_path, pluralise, resolve_path
from shoal.core.errors import OptionError, require_positive, shell_command
from shoal.core.origin import claimed
from shoal.training.devices import use_all_cores, use_compilation_cache
from shoal.training.experiment import Experiment
from shoal.training.run import RunFolder

Devices = Annotated[DisallowNone[int | None], arg(metavar="N")]
Folder = Annotated[DisallowNone[str | None], arg(metavar="DIR")]
"""A folder to be made. Its path goes through `resolve_path`."""


Workers = Annotated[DisallowNone[int | None], arg(metavar="N")]
Seconds = Annotated[DisallowNone[float | None], arg(metavar="SECONDS")]


@dataclasses.dataclass(frozen=True)
class WorkOptions:
    """Options of every command that trains."""

    devices: Devices = None  # use only the first N devices (on a CPU, cores)
    imports: Imports = ()  # a Python file that registers worlds, algorithms, torsos or presets
    log: Logs = ()  # send metrics elsewhere too: csv, tensorboard or wandb, such as wandb:project=mine
    json: Flag = False  # one JSON object on stdout, everything else on stderr


def prepare() -> None:
    """Every core becomes a device, and compiled programs are kept: to be called before JAX does anything."""
    use_all_cores()
    use_compilation_cache()


def check_devices(devices: int | None) -> None:
    """`--devices 0` would mean all but none."""
    if devices is not None:
        require_positive("run", devices=devices)


def open_known_run(run: str) -> RunFolder:
    """An existing run, by its folder; its world must be known."""
    return open_known(resolve_path(run))


def stepping_options(env_workers: int | None, env_timeout: float | None) -> dict[str, Any]:
    """How environments of other libraries are stepped, as far as it was said; for `train`, `resume`, `evaluate`."""
    given = {"env_workers": env_workers, "env_timeout": env_timeout}
    return {name: value for name, value in given.items() if value is not None}


def parse_pairs(texts: Sequence[str], option: str, meaning: str) -> dict[str, str]:
    """`NAME=VALUE` arguments as a dict."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise OptionError(f"{option} must be {meaning}, got {text!r}")
        found[name] = value
    return found


def describe_experiment(experiment: Experiment) -> str:
    """One line that says what is trained."""
    algorithms = {name: learner.algorithm.name for name, learner in experiment.learners.items()}  # pyright: ignore[reportAttributeAccessIssue]
    frozen = [name for name, learner in experiment.learners.items() if learner.frozen]
    who = ", ".join(f"{name} by {algorithm}" for name, algorithm in algorithms.items() if name not in frozen)
    around = ", ".join(wrapper.name for wrapper in experiment.wrappers)
    parts = [f"{experiment.env}{f' ({around})' if around else ''}: {who}"]
    if frozen:
        parts.append(f"frozen: {', '.join(frozen)}")
    copies, steps = pluralise(experiment.num_envs, "copy", "copies"), pluralise(experiment.num_steps, "step")
    parts.append(f"{copies} x {steps}, {pluralise(experiment.num_updates, 'update')}")
    last = experiment.seed + experiment.num_seeds - 1
    parts.append(f"seed {experiment.seed}" if experiment.num_seeds == 1 else f"seeds {experiment.seed} to {last}")
    return "; ".join(parts)


def imports_of(experiment: Experiment, imports: Sequence[str]) -> tuple[str, ...]:
    """What has to be imported by whoever opens a run: files, and an id that names code."""
    claim = claimed(experiment.env, experiment.env_options)
    return (*imports, *([claim] if claim is not None and claim not in imports else []))


@dataclasses.dataclass(frozen=True)
class Hints:
    """How to go on with a run, with what its world needs to be known."""

    run: Path
    imports: tuple[str, ...] = ()

    def __call__(self, command: str, *rest: str) -> str:
        files = [part for file in self.imports for part in ("--import", file)]
        return shell_command(command, display_path(self.run), *files, *rest)
