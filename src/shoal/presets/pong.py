"""Default experiments of Pong: one policy plays both sides and so, while it learns, against itself.

In self-play nobody gains: both returns stay near 0 while the rallies (`world/hits`) grow longer. How good the policy is
shows against somebody else; with `--sharing group` each side learns a policy of its own, and `shoal eval RUN
--opponent right=random` lets the left one play against chance.
"""

from shoal.algorithms import PPO
from shoal.networks.torsos import Network
from shoal.presets._registry import preset
from shoal.presets.sharing import SHARED
from shoal.training.experiment import Experiment, Learner


@preset("pong", "two paddles, one ball: PPO against itself, one policy for both sides")
def vector() -> Experiment:
    algorithm = PPO(learning_rate=1e-3, gamma=0.99, gae_lambda=0.95, anneal=True)
    return Experiment(
        env="pong",
        learners={SHARED: Learner(algorithm, {SHARED: ("left", "right")})},
        num_envs=256,
        num_steps=64,
        total_env_steps=3_000_000,
    )


@preset("pong/image", "Pong from 12 x 12 pixels: PPO against itself, with a convolutional network")
def image() -> Experiment:
    network = Network(hidden=(64, 64), activation="relu", filters=(16,), share_torso=True)
    algorithm = PPO(learning_rate=1e-3, gamma=0.99, gae_lambda=0.95, anneal=True, network=network)
    return Experiment(
        env="pong",
        env_options={"view": "image"},
        learners={SHARED: Learner(algorithm, {SHARED: ("left", "right")})},
        num_envs=256,
        num_steps=64,
        total_env_steps=1_500_000,
    )
