"""Default experiments of the tag worlds: smaller and quicker than the published set-ups (see `reference`)."""

from shoal.algorithms import PPO
from shoal.networks.torsos import Network
from shoal.presets._registry import preset
from shoal.training.experiment import Experiment, Learner


@preset("tag/grid", "taggers surround a runner on a grid: PPO, one policy a side")
def grid() -> Experiment:
    algorithm = PPO(learning_rate=1e-3, gamma=0.98, anneal=True, normalise_values=True)
    return Experiment(
        env="tag/grid",
        learners={
            "tagger": Learner(algorithm, {"tagger": ("tagger",)}),
            "runner": Learner(algorithm, {"runner": ("runner",)}),
        },
        num_envs=256,
        num_steps=100,
        total_env_steps=10_000_000,
    )


@preset("tag/continuous", "ten taggers chase a hundred runners on a plane: PPO, one policy a side")
def continuous() -> Experiment:
    network = Network(hidden=(128, 128), activation="relu")
    algorithm = PPO(learning_rate=5e-4, gamma=0.98, anneal=True, normalise_values=True, network=network)
    return Experiment(
        env="tag/continuous",
        learners={
            "tagger": Learner(algorithm, {"tagger": ("tagger",)}),
            "runner": Learner(algorithm, {"runner": ("runner",)}),
        },
        num_envs=64,
        num_steps=50,
        total_env_steps=1_000_000,
    )
