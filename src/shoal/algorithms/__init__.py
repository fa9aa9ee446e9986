"""Algorithms: `init / act / value / update`. They never step a world; runners do."""

from shoal.algorithms.a2c import A2C
from shoal.algorithms.ddpg import DDPG
from shoal.algorithms.dqn import DQN
from shoal.algorithms.impala import Impala
from shoal.algorithms.names import NAMES, algorithm_class, find_name, named
from shoal.algorithms.ppo import PPO
from shoal.algorithms.pqn import PQN
from shoal.algorithms.registry import ALGORITHMS, register_algorithm
from shoal.algorithms.sac import SAC

__all__ = [
    "A2C",
    "ALGORITHMS",
    "DDPG",
    "DQN",
    "NAMES",
    "PPO",
    "PQN",
    "SAC",
    "Impala",
    "algorithm_class",
    "find_name",
    "named",
    "register_algorithm",
]
