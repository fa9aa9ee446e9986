"""Set-ups that others have published, to compare speeds and returns with. Not tuned: see the worlds' own presets.

The tag set-ups follow WarpDrive 2.7.1. Its value loss is the plain mean squared error with coefficient 1, ours is half
of it, hence 2. Its advantages are discounted returns minus values, which is λ = 1; that its actor and critic share
their hidden layers, and for tag/grid the ReLU, the value coefficient and the entropy bonus, are assumed, not checked.
"""

from shoal.algorithms import A2C, PPO
from shoal.networks.torsos import Network
from shoal.presets._registry import preset
from shoal.presets.sharing import SHARED
from shoal.training.experiment import Experiment, Learner


@preset("reference/simple_spread_ippo", "the usual IPPO set-up for simple_spread: 64-64 tanh, 128 steps, 1,024 copies")
def simple_spread_ippo() -> Experiment:
    algorithm = PPO(
        learning_rate=2.5e-4,
        gamma=0.99,
        gae_lambda=0.95,
        clip_eps=0.2,
        epochs=4,
        minibatches=4,
        entropy_coef=0.01,
        value_coef=0.5,
        max_grad_norm=0.5,
        anneal=True,
        network=Network(hidden=(64, 64), activation="tanh"),
    )
    return Experiment(
        env="mpe/simple_spread",
        learners={"agent": Learner(algorithm, {"agent": ("agent",)})},
        num_envs=1024,
        num_steps=128,
        total_env_steps=5_000_000,
    )


@preset("reference/tag_grid_a2c", "WarpDrive's set-up for tag/grid: A2C, one policy for both sides, 2,000 copies")
def tag_grid_a2c() -> Experiment:
    algorithm = A2C(
        learning_rate=1e-3,
        gamma=0.98,
        gae_lambda=1.0,
        value_coef=2.0,
        entropy_coef=0.05,
        max_grad_norm=3.0,
        network=Network(hidden=(32, 32), activation="relu", share_torso=True),
    )
    return Experiment(
        env="tag/grid",
        learners={SHARED: Learner(algorithm, {SHARED: ("tagger", "runner")})},
        num_envs=2000,
        num_steps=100,
        total_env_steps=20_000_000,
    )


@preset("reference/tag_continuous_a2c", "WarpDrive's set-up for tag/continuous: A2C, one policy per side, 100 copies")
def tag_continuous_a2c() -> Experiment:
    def learner(role: str, learning_rate: float) -> Learner:
        algorithm = A2C(
            learning_rate=learning_rate,
            gamma=0.98,
            gae_lambda=1.0,
            value_coef=2.0,
            entropy_coef=0.05,
            max_grad_norm=0.5,
            network=Network(hidden=(256, 256), activation="relu", share_torso=True),
        )
        return Learner(algorithm, {role: (role,)})

    return Experiment(
        env="tag/continuous",
        learners={"tagger": learner("tagger", 1e-3), "runner": learner("runner", 5e-3)},
        num_envs=100,
        num_steps=250,
        total_env_steps=5_000_000,
    )
