"""Default experiments of the control worlds."""

from shoal.algorithms import PPO
from shoal.presets._registry import preset
from shoal.training.experiment import Experiment, Learner


@preset("control/cartpole", "keep a pole upright: PPO, half a minute")
def cartpole() -> Experiment:
    algorithm = PPO(learning_rate=2e-3, gamma=0.99, gae_lambda=0.95, anneal=True, normalise_values=True)
    return _experiment("control/cartpole", algorithm, num_envs=64, num_steps=64, total_env_steps=1_000_000)


@preset("control/acrobot", "swing two links above a line: PPO, half a minute")
def acrobot() -> Experiment:
    algorithm = PPO(learning_rate=1e-3, gamma=0.99, gae_lambda=0.95, anneal=True, normalise_values=True)
    return _experiment("control/acrobot", algorithm, num_envs=64, num_steps=128, total_env_steps=1_000_000)


@preset("control/pendulum", "swing a pendulum up and hold it: PPO with continuous actions")
def pendulum() -> Experiment:
    algorithm = PPO(
        learning_rate=1e-3, gamma=0.95, gae_lambda=0.95, entropy_coef=0.0, epochs=8, anneal=True, normalise_values=True
    )
    return _experiment("control/pendulum", algorithm, num_envs=64, num_steps=100, total_env_steps=1_500_000)


@preset("control/mountain_car", "rock a car out of a valley: PPO with normalised views and many copies")
def mountain_car() -> Experiment:
    algorithm = PPO(
        learning_rate=2e-3, gamma=0.99, gae_lambda=0.98, anneal=True, normalise_views=True, normalise_values=True
    )
    return _experiment("control/mountain_car", algorithm, num_envs=256, num_steps=64, total_env_steps=4_000_000)


@preset("control/mountain_car_continuous", "rock a car out of a valley, saving fuel: PPO with normalised views")
def mountain_car_continuous() -> Experiment:
    algorithm = PPO(
        learning_rate=1e-3,
        gamma=0.995,
        gae_lambda=0.98,
        anneal=True,
        normalise_views=True,
        normalise_values=True,
    )
    return _experiment(
        "control/mountain_car_continuous", algorithm, num_envs=256, num_steps=128, total_env_steps=4_000_000
    )


def _experiment(world: str, algorithm: PPO, num_envs: int, num_steps: int, total_env_steps: int) -> Experiment:
    return Experiment(
        env=world,
        learners={"agent": Learner(algorithm, {"agent": ("agent",)})},
        num_envs=num_envs,
        num_steps=num_steps,
        total_env_steps=total_env_steps,
    )
