"""What a bare world id means: the preset of that name or, for worlds without one, settings that suit most."""

from shoal.core import registry
from shoal.core.errors import unknown_name
from shoal.execution.experiment import Experiment
from shoal.presets import _registry
from shoal.presets.sharing import share


def resolve(target: str) -> Experiment:
    """The experiment that a preset's name or a world's id stands for."""
    if target in _registry.names():
        return _registry.get(target)
    if target in registry.ids():
        return default_experiment(target)
    raise unknown_name("world or preset", target, _registry.targets())


def default_experiment(world: str) -> Experiment:
    """PPO with one policy a group, each with a learner of its own."""
    return share(Experiment(env=world, num_envs=256, total_env_steps=2_000_000), "group")
