"""Shoal: train many interacting agents, worlds and weights in one compiled program.

Everything below is imported when it is first used: `import shoal` takes a moment, and needs no JAX.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from shoal._python import check_python

check_python(sys.version_info, sys.argv)

from shoal import envs as envs  # noqa: E402  # registers the worlds that ship with the package
from shoal.core.supported import check_versions  # noqa: E402
from shoal.core.version import VERSION  # noqa: E402

if TYPE_CHECKING:
    from shoal import algorithms, bridges, networks, presets, testing, viz
    from shoal.algorithms import A2C, DDPG, DQN, PPO, PQN, SAC, Impala, register_algorithm
    from shoal.api.calls import evolve, league, pbt, psro, sweep, train
    from shoal.api.matches import Match, match
    from shoal.api.population import Population
    from shoal.api.ranges import lin, log
    from shoal.api.run import Policy, Replay, Run
    from shoal.api.stored_runs import evaluate, load, resume
    from shoal.api.tournament import Tournament, tournament
    from shoal.batching.vectorise import Vectorised, vectorise
    from shoal.core.env import Env, Spec, describe
    from shoal.core.errors import ShoalError
    from shoal.core.origin import trust
    from shoal.core.registry import ids, make, register
    from shoal.core.spaces import Box, Discrete, MultiDiscrete
    from shoal.core.types import Circles, Group, Labels, Lines, Observation, Outcome, Polygons, Scene
    from shoal.human.calls import play
    from shoal.networks import Network, register_torso
    from shoal.training.callbacks import Callback, Event
    from shoal.training.catalogue import Catalogue, runs
    from shoal.training.comparison import compare
    from shoal.training.experiment import Experiment, Learner
    from shoal.training.loggers import Logger
    from shoal.training.roll import Hosts

__version__ = VERSION

_HOMES = {
    "shoal.algorithms": "A2C DDPG DQN PPO PQN SAC Impala register_algorithm",
    "shoal.api.calls": "evolve league pbt psro sweep train",
    "shoal.training.comparison": "compare",
    "shoal.api.matches": "Match match",
    "shoal.api.population": "Population",
    "shoal.api.ranges": "lin log",
    "shoal.api.run": "Policy Replay Run",
    "shoal.api.stored_runs": "evaluate load resume",
    "shoal.api.tournament": "Tournament tournament",
    "shoal.batching.vectorise": "Vectorised vectorise",
    "shoal.core.env": "Env Spec describe",
    "shoal.core.errors": "ShoalError",
    "shoal.core.origin": "trust",
    "shoal.core.registry": "ids make register",
    "shoal.core.spaces": "Box Discrete MultiDiscrete",
    "shoal.core.types": "Circles Group Labels Lines Observation Outcome Polygons Scene",
    "shoal.human.calls": "play",
    "shoal.networks": "Network register_torso",
    "shoal.training.callbacks": "Callback Event",
    "shoal.training.catalogue": "Catalogue runs",
    "shoal.training.experiment": "Experiment Learner",
    "shoal.training.loggers": "Logger",
    "shoal.training.roll": "Hosts",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}
_ROOMS = ("algorithms", "bridges", "envs", "networks", "presets", "testing", "viz")


def __getattr__(name: str) -> Any:
    if name in _HOME or name in _ROOMS:
        check_versions()
    if name in _ROOMS:
        return importlib.import_module(f"shoal.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'shoal' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_HOME[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


__all__ = [  # noqa: RUF022
    "train", "evaluate", "load", "resume", "match", "tournament", "compare", "play", "sweep", "pbt", "evolve", "psro",
    "league", "runs", "Catalogue", "Run", "Policy", "Replay", "Population", "Match", "Tournament", "Callback", "Event",
    "Logger", "Hosts", "lin", "log",
    "Experiment", "Learner", "Network", "A2C", "DDPG", "DQN", "Impala", "PPO", "PQN", "SAC",
    "make", "ids", "register", "register_algorithm", "register_torso", "trust", "describe",
    "vectorise", "Vectorised", "Env", "Spec", "Group", "Observation", "Outcome", "Box", "Discrete", "MultiDiscrete",
    "Scene", "Circles", "Labels", "Lines", "Polygons", "ShoalError",
    "algorithms", "bridges", "envs", "networks", "presets", "testing", "viz",
]  # fmt: skip
