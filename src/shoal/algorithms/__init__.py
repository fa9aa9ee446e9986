"""Algorithms: `init / act / value / update`. They never step a world; runners do."""

from shoal.algorithms.a2c import A2C
from shoal.algorithms.ppo import PPO
from shoal.core.errors import unknown_name

ALGORITHMS = {algorithm.name: algorithm for algorithm in (A2C, PPO)}


def algorithm_class(name: str) -> type[A2C] | type[PPO]:
    """The algorithm of that name."""
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]


__all__ = ["A2C", "ALGORITHMS", "PPO", "algorithm_class"]
