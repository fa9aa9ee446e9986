"""Default experiments of the swarm worlds."""

from shoal.algorithms import PPO
from shoal.presets._registry import preset
from shoal.training.experiment import Experiment, Learner


@preset("swarm/rendezvous", "eight agents that see their three nearest learn to meet: PPO, one policy for all")
def rendezvous() -> Experiment:
    algorithm = PPO(learning_rate=1e-3, gamma=0.97, gae_lambda=0.95, anneal=True, normalise_values=True)
    return Experiment(
        env="swarm/rendezvous",
        learners={"agent": Learner(algorithm, {"agent": ("agent",)})},
        num_envs=64,
        num_steps=50,
        total_env_steps=320_000,
    )


@preset("swarm/coverage", "eight agents learn to keep an area under watch: PPO, one policy for all")
def coverage() -> Experiment:
    algorithm = PPO(learning_rate=1e-3, gamma=0.97, gae_lambda=0.95, anneal=True, normalise_values=True)
    return Experiment(
        env="swarm/coverage",
        learners={"agent": Learner(algorithm, {"agent": ("agent",)})},
        num_envs=64,
        num_steps=50,
        total_env_steps=640_000,
    )


@preset("swarm/pursuit", "five pursuers hunt two faster evaders: PPO, one policy a team")
def pursuit() -> Experiment:
    algorithm = PPO(learning_rate=1e-3, gamma=0.97, gae_lambda=0.95, anneal=True, normalise_values=True)
    return Experiment(
        env="swarm/pursuit",
        learners={
            "pursuer": Learner(algorithm, {"pursuer": ("pursuer",)}),
            "evader": Learner(algorithm, {"evader": ("evader",)}),
        },
        num_envs=64,
        num_steps=50,
        total_env_steps=640_000,
    )


@preset("swarm/formation", "eight agents learn to hold a travelling ring past obstacles: PPO, one policy for all")
def formation() -> Experiment:
    algorithm = PPO(learning_rate=1e-3, gamma=0.97, gae_lambda=0.95, anneal=True, normalise_values=True)
    return Experiment(
        env="swarm/formation",
        learners={"agent": Learner(algorithm, {"agent": ("agent",)})},
        num_envs=64,
        num_steps=50,
        total_env_steps=640_000,
    )


@preset("swarm/delivery", "eight agents learn to carry parcels between stations: PPO, one policy for all")
def delivery() -> Experiment:
    algorithm = PPO(learning_rate=1e-3, gamma=0.97, gae_lambda=0.95, anneal=True, normalise_values=True)
    return Experiment(
        env="swarm/delivery",
        learners={"agent": Learner(algorithm, {"agent": ("agent",)})},
        num_envs=64,
        num_steps=50,
        total_env_steps=640_000,
    )
