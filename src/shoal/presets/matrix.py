"""Default experiments of the matrix games: independent PPO, each player with a policy of its own.

Where the only equilibrium is mixed (`matrix/rock_paper_scissors`, `matrix/matching_pennies`), there is no return to be
gained: what is learnt is not to be exploitable, and a strong entropy bonus keeps the players from going round in
circles. In a dilemma, learning lowers the return: each does what is better for itself.
"""

import dataclasses

from shoal.algorithms import PPO
from shoal.networks.torsos import Network
from shoal.presets._registry import preset
from shoal.training.experiment import Experiment, Learner

_NETWORK = Network(hidden=(16,))


def _experiment(env: str, num_steps: int = 4, total_env_steps: int = 200_000, **options: float) -> Experiment:
    options = {"learning_rate": 3e-3} | options
    algorithm = PPO(anneal=True, normalise_values=True, network=_NETWORK, **options)  # pyright: ignore[reportArgumentType]
    return Experiment(
        env=env,
        learners={"players": Learner(algorithm)},  # a policy for each player, however many there are
        num_envs=256,
        num_steps=num_steps,
        total_env_steps=total_env_steps,
    )


@preset("matrix/game", "a game given by its payoffs, one policy a player: PPO, seconds")
def game() -> Experiment:
    return _experiment("matrix/game")


@preset("matrix/rock_paper_scissors", "two players learn to mix: PPO with much entropy, seconds")
def rock_paper_scissors() -> Experiment:
    return _experiment("matrix/rock_paper_scissors", entropy_coef=0.5)


@preset("matrix/matching_pennies", "two players learn to mix: PPO with much entropy, seconds")
def matching_pennies() -> Experiment:
    return _experiment("matrix/matching_pennies", entropy_coef=0.5)


@preset("matrix/prisoners_dilemma", "two players learn to defect: PPO, seconds")
def prisoners_dilemma() -> Experiment:
    return _experiment("matrix/prisoners_dilemma")


@preset("matrix/iterated_prisoners_dilemma", "the dilemma with memory of the last round: PPO, one policy a player")
def iterated_prisoners_dilemma() -> Experiment:
    return _experiment("matrix/iterated_prisoners_dilemma", num_steps=32, total_env_steps=1_000_000, gamma=0.96)


@preset("matrix/stag_hunt", "two players learn to hunt the stag together, with some seeds the hare: PPO, seconds")
def stag_hunt() -> Experiment:
    # Random play is the third equilibrium, an unstable one: of the seeds 0 to 7, five lead to the stag, three away.
    return dataclasses.replace(_experiment("matrix/stag_hunt"), seed=3)
