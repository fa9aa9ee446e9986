"""Shoal: train many interacting agents, worlds and weights in one compiled program."""

import importlib
from typing import TYPE_CHECKING, Any

from shoal import envs as _envs  # registers the worlds that ship with the package
from shoal.core.env import Env, Spec, describe
from shoal.core.errors import ShoalError
from shoal.core.origin import trust
from shoal.core.registry import ids, make, register
from shoal.core.spaces import Box, Discrete, MultiDiscrete
from shoal.core.types import Circles, Group, Labels, Lines, Observation, Outcome, Polygons, Scene
from shoal.core.version import VERSION

if TYPE_CHECKING:
    from shoal.algorithms import A2C, PPO, register_algorithm
    from shoal.networks import Network, register_torso
    from shoal.training.evaluate import evaluate
    from shoal.training.experiment import Experiment, Learner
    from shoal.training.loop import resume, train

__version__ = VERSION

_LATE = {  # imported when first used: a world's author needs none of them
    "A2C": "shoal.algorithms",
    "PPO": "shoal.algorithms",
    "Experiment": "shoal.training.experiment",
    "Learner": "shoal.training.experiment",
    "Network": "shoal.networks",
    "evaluate": "shoal.training.evaluate",
    "register_algorithm": "shoal.algorithms",
    "register_torso": "shoal.networks",
    "resume": "shoal.training.loop",
    "train": "shoal.training.loop",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATE[name]), name)


__all__ = [
    "A2C",
    "PPO",
    "Box",
    "Circles",
    "Discrete",
    "Env",
    "Experiment",
    "Group",
    "Labels",
    "Learner",
    "Lines",
    "MultiDiscrete",
    "Network",
    "Observation",
    "Outcome",
    "Polygons",
    "Scene",
    "ShoalError",
    "Spec",
    "describe",
    "evaluate",
    "ids",
    "make",
    "register",
    "register_algorithm",
    "register_torso",
    "resume",
    "train",
    "trust",
]

del _envs
