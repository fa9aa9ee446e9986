"""Named experiments: a preset is a function without arguments that returns an `Experiment`.

A bare world id means the preset of that name or, for worlds without one, settings that suit most.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

from shoal.core import registry
from shoal.core.errors import OptionError, unknown_name
from shoal.core.host import HostEnvProxy
from shoal.presets.sharing import share
from shoal.training.experiment import Experiment

SIZES: dict[str, Any] = {"num_envs": 256, "total_env_steps": 2_000_000}
"""What suits most worlds that are part of the compiled program."""
_NAME = re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)*")
_presets: dict[str, "Preset"] = {}


@dataclasses.dataclass(frozen=True)
class Preset:
    """A named experiment and one line that says what it is for."""

    name: str
    description: str
    make: Callable[[], Experiment]


def preset(name: str, description: str) -> Callable[[Callable[[], Experiment]], Callable[[], Experiment]]:
    """Decorator that makes an experiment known by name. One named like a world is that world's default."""
    if not _NAME.fullmatch(name):
        raise OptionError(f"preset name {name!r} must be lower-case words separated by '/', such as 'reference/tag'")

    def add(make: Callable[[], Experiment]) -> Callable[[], Experiment]:
        known = _presets.get(name)
        if known and (known.make.__module__, known.make.__qualname__) != (make.__module__, make.__qualname__):
            raise OptionError(f"the preset name {name!r} is already taken by {known.make.__module__}")
        _presets[name] = Preset(name, description, make)
        return make

    return add


def names() -> list[str]:
    """Every preset's name, sorted."""
    return sorted(_presets)


def describe(name: str) -> str:
    """One line about a preset."""
    return _find(name).description


def get(name: str) -> Experiment:
    """The experiment of that name."""
    return _find(name).make()


def targets() -> list[str]:
    """All that can be trained by name: presets and worlds."""
    return sorted({*_presets, *registry.ids()})


def resolve(target: str) -> Experiment:
    """The experiment that a preset's name or a world's id stands for."""
    if target in names():
        return get(target)
    if target in registry.ids():
        return default_experiment(target)
    if registry.is_foreign(target):
        return foreign_experiment(target)
    known = targets()
    raise unknown_name("world or preset", target, known, f"`shoal envs` and `shoal presets` list all {len(known)}.")


def foreign_experiment(env: str, options: Mapping[str, Any] | None = None) -> Experiment:
    """As `default_experiment`, for an environment of another library; those on the host are few and slow."""
    experiment = Experiment(env, dict(options or {}))
    on_host = isinstance(experiment.world, HostEnvProxy)
    sizes = {"num_envs": 16, "num_steps": 64, "total_env_steps": 500_000} if on_host else SIZES
    return share(experiment.replace(**sizes), "group")


def default_experiment(world: str) -> Experiment:
    """PPO with one policy per group, each with a learner of its own."""
    return share(Experiment(env=world, **SIZES), "group")


def _find(name: str) -> Preset:
    if name not in _presets:
        raise unknown_name("preset", name, _presets, f"`shoal presets` lists all {len(_presets)}.")
    return _presets[name]
