"""Algorithms: `init / act / value / update`. They never step a world; runners do."""

from typing import Any

from shoal.algorithms.a2c import A2C
from shoal.algorithms.ddpg import DDPG
from shoal.algorithms.dqn import DQN
from shoal.algorithms.impala import Impala
from shoal.algorithms.ppo import PPO
from shoal.algorithms.pqn import PQN
from shoal.algorithms.sac import SAC
from shoal.core.errors import unknown_name

ALGORITHMS = {algorithm.name: algorithm for algorithm in (A2C, DDPG, DQN, Impala, PPO, PQN, SAC)}


def algorithm_class(name: str) -> type[Any]:
    """The algorithm of that name."""
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]


__all__ = ["A2C", "ALGORITHMS", "DDPG", "DQN", "PPO", "PQN", "SAC", "Impala", "algorithm_class"]
