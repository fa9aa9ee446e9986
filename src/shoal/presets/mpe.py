"""Default experiments of the particle worlds."""

from shoal.algorithms import PPO
from shoal.execution.experiment import Experiment, Learner
from shoal.presets._registry import preset


@preset("mpe/simple_spread", "three agents learn to cover three landmarks: PPO, one policy for all, about a minute")
def simple_spread() -> Experiment:
    algorithm = PPO(
        learning_rate=3e-3,
        gamma=0.95,
        gae_lambda=0.95,
        entropy_coef=0.005,
        anneal=True,
        normalise_values=True,
    )
    return Experiment(
        env="mpe/simple_spread",
        learners={"agent": Learner(algorithm, {"agent": ("agent",)})},
        num_envs=256,
        num_steps=25,
        total_env_steps=2_000_000,
    )


@preset("mpe/simple_tag", "three adversaries hunt one faster agent: PPO, one policy a side")
def simple_tag() -> Experiment:
    algorithm = PPO(learning_rate=7e-4, gamma=0.95, gae_lambda=0.9, anneal=True, normalise_values=True)
    return Experiment(
        env="mpe/simple_tag",
        learners={
            "adversary": Learner(algorithm, {"adversary": ("adversary",)}),
            "agent": Learner(algorithm, {"agent": ("agent",)}),
        },
        num_envs=256,
        num_steps=25,
        total_env_steps=4_000_000,
    )


@preset("demo", "a first look: three hunters learn to corner one runner, in a few minutes on two cores")
def demo() -> Experiment:
    algorithm = PPO(learning_rate=1e-3, gamma=0.95, gae_lambda=0.9, anneal=True, normalise_values=True)
    return Experiment(
        env="mpe/simple_tag",
        env_options={"max_steps": 50},
        learners={
            "adversary": Learner(algorithm, {"adversary": ("adversary",)}),
            "agent": Learner(algorithm, {"agent": ("agent",)}),
        },
        num_envs=128,
        num_steps=50,
        total_env_steps=3_000_000,
    )
