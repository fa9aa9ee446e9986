"""Shoal: train many interacting agents, worlds and weights in one compiled program."""

from shoal import envs as _envs  # registers the worlds that ship with the package
from shoal.core.env import Env, Spec, describe
from shoal.core.errors import ShoalError
from shoal.core.registry import ids, make, register
from shoal.core.spaces import Box, Discrete, MultiDiscrete
from shoal.core.types import Circles, Group, Labels, Lines, Observation, Outcome, Polygons, Scene
from shoal.core.version import VERSION

__version__ = VERSION

__all__ = [
    "Box",
    "Circles",
    "Discrete",
    "Env",
    "Group",
    "Labels",
    "Lines",
    "MultiDiscrete",
    "Observation",
    "Outcome",
    "Polygons",
    "Scene",
    "ShoalError",
    "Spec",
    "describe",
    "ids",
    "make",
    "register",
]

del _envs
