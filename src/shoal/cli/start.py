"""What every command that computes does first, and what several of them share."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import DisallowNone, arg

from shoal.cli.arguments import Flag, Imports
from shoal.cli.terminal import display_path, pluralise, resolve_path
from shoal.core.errors import OptionError, RunError, UnknownNameError, require_positive, shell_command
from shoal.core.origin import claimed
from shoal.core.registry import build_env, is_foreign, world_class
from shoal.training.devices import use_all_cores, use_compilation_cache
from shoal.training.experiment import Experiment, make_world
from shoal.training.run import RunFolder, open_run
from shoal.training.run_kinds import advise_on

Devices = Annotated[DisallowNone[int | None], arg(metavar="N")]
OWN_FILE = "If it is a world of your own, name the file that registers it: --import FILE."
Folder = Annotated[DisallowNone[str | None], arg(metavar="DIR")]
"""A folder to be made. Its path is to be `placed`."""


Workers = Annotated[DisallowNone[int | None], arg(metavar="N")]
Seconds = Annotated[DisallowNone[float | None], arg(metavar="SECONDS")]


@dataclasses.dataclass(frozen=True)
class WorkOptions:
    """Options of every command that trains."""

    devices: Devices = None  # use only the first N devices (on a CPU, cores)
    imports: Imports = ()  # a Python file that registers worlds, algorithms, torsos or presets
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
    found = open_run(resolve_path(run))
    check_known(found.path, found.experiment)
    return found


def stepping_options(env_workers: int | None, env_timeout: float | None) -> dict[str, Any]:
    """How environments of other libraries are stepped, as far as it was said; for `train`, `resume`, `evaluate`."""
    given = {"env_workers": env_workers, "env_timeout": env_timeout}
    return {name: value for name, value in given.items() if value is not None}


def check_known(run: Path, experiment: Experiment) -> None:
    """The world of a run must be known, or the file that registers it is missing."""
    try:
        if is_foreign(experiment.env):
            build_env(experiment.origin, experiment.env, experiment.env_options)  # only its library can tell
        else:
            world_class(experiment.env)
    except UnknownNameError as error:
        raise RunError(f"{run}: {error}{advise_on(run, error)}") from error
    except OptionError as error:
        if isinstance(error.__cause__, ModuleNotFoundError):
            raise  # it says what to install, or where a module is looked for
        raise RunError(f"{run}: {error} {OWN_FILE}") from error


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


def num_agents(experiment: Experiment) -> int:
    """How many agents one copy of the world has."""
    return sum(group.size for group in make_world(experiment).groups.values())


def warm_up_of(experiment: Experiment) -> int:
    """The env steps before all that learn have begun to."""
    learning = (learner.algorithm for learner in experiment.learners.values() if not learner.frozen)
    return max((algorithm.traits.warm_up for algorithm in learning), default=0)


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
