"""Default experiments of the battles."""

from shoal.algorithms import PPO
from shoal.networks.torsos import Network
from shoal.presets._registry import preset
from shoal.training.experiment import Experiment, Learner


@preset("battle/open", "sixteen against sixteen on a small field: PPO, one policy a side, two minutes on two cores")
def open_field() -> Experiment:
    # With the full price of an attack both sides soon learn not to attack at all, before they learn to hit.
    algorithm = PPO(
        learning_rate=1e-3,
        gamma=0.98,
        gae_lambda=0.95,
        epochs=2,
        entropy_coef=0.01,
        anneal=True,
        normalise_values=True,
        network=Network(hidden=(64, 64), activation="relu", filters=(), share_torso=True),  # convolutions cost more
    )
    return Experiment(
        env="battle/open",
        env_options={"num_agents": 16, "map_size": 18, "view_radius": 4, "max_steps": 100, "attack_cost": 0.02},
        learners={
            "red": Learner(algorithm, {"red": ("red",)}),
            "blue": Learner(algorithm, {"blue": ("blue",)}),
        },
        num_envs=32,
        num_steps=50,
        total_env_steps=300_000,
    )
