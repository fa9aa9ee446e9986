"""What a bare world id means: the preset of that name or, for worlds without one, settings that suit most."""

from collections.abc import Mapping
from typing import Any

from shoal.core import registry
from shoal.core.errors import unknown_name
from shoal.core.host import HostEnvProxy
from shoal.presets import _registry
from shoal.presets.populations import FAMILY
from shoal.presets.sharing import share
from shoal.training.experiment import Experiment

SIZES: dict[str, Any] = {"num_envs": 256, "total_env_steps": 2_000_000}
"""What suits most worlds that are part of the compiled program."""


def resolve(target: str) -> Experiment:
    """The experiment that a preset's name or a world's id stands for."""
    if target in _registry.names():
        return _registry.get(target)
    if target in registry.ids():
        return default_experiment(target)
    if registry.is_foreign(target):
        return foreign_experiment(target)
    raise unknown_name("world or preset", target, _registry.targets())


def response_preset(target: str) -> str | None:
    """The preset of the best responses in a world, by the world's whole id; or by its own last word, `leduc`."""
    names = [name for name in _registry.names() if name.startswith(f"{FAMILY}/")]
    of_world = {_registry.get(name).env: name for name in names}
    short = f"{FAMILY}/{target}"
    free = target not in _registry.targets() and "/" not in target
    return of_world.get(target) or (short if free and short in names else None)


def foreign_experiment(env: str, options: Mapping[str, Any] | None = None) -> Experiment:
    """As `default_experiment`, for an environment of another library; those on the host are few and slow."""
    experiment = Experiment(env, dict(options or {}))
    on_host = isinstance(experiment.world, HostEnvProxy)
    sizes = {"num_envs": 16, "num_steps": 64, "total_env_steps": 500_000} if on_host else SIZES
    return share(experiment.replace(**sizes), "group")


def default_experiment(world: str) -> Experiment:
    """PPO with one policy per group, each with a learner of its own."""
    return share(Experiment(env=world, **SIZES), "group")
