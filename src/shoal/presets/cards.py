"""Default experiments of the card games: one policy plays both seats against itself.

Returns sum to 0 whatever is learnt, so a learning curve shows nothing: the exact tables of `shoal.envs.tabular` say how
far a policy is from equilibrium. A strong entropy bonus keeps self-play near it, where a weak one goes in circles.
"""

from shoal.algorithms import PPO
from shoal.presets._registry import preset
from shoal.training.experiment import Experiment, Learner


def _self_play(env: str, total_env_steps: int) -> Experiment:
    algorithm = PPO(learning_rate=1e-3, gamma=1.0, entropy_coef=0.2, anneal=True, normalise_values=True)
    return Experiment(
        env=env,
        learners={"player": Learner(algorithm, {"player": ("player",)})},
        num_envs=512,
        num_steps=16,
        total_env_steps=total_env_steps,
    )


@preset("cards/kuhn", "Kuhn poker by self-play: PPO, one policy for both seats, seconds")
def kuhn() -> Experiment:
    return _self_play("cards/kuhn", 1_000_000)


@preset("cards/leduc", "Leduc poker by self-play: PPO, one policy for both seats, about a minute")
def leduc() -> Experiment:
    return _self_play("cards/leduc", 4_000_000)
