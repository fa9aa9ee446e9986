"""Best responses: what `shoal psro GAME` trains in each iteration, one learner per player.

Short trainings with a shared torso and a large step: against a fixed mixture there is nothing to be careful about.
"""

import dataclasses

from shoal.algorithms import PPO
from shoal.networks.torsos import Network
from shoal.presets._registry import get, names, preset, targets
from shoal.training.experiment import Experiment, Learner

FAMILY = "psro"
_NETWORK = Network(hidden=(64, 64), activation="relu", share_torso=True)
_PPO = PPO(
    learning_rate=3e-3,
    gamma=1.0,
    entropy_coef=0.02,
    anneal=True,
    normalise_values=True,
    epochs=4,
    minibatches=16,
    network=_NETWORK,
)


def response_preset(target: str) -> str | None:
    """The preset of the best responses in a world, by the world's whole id; or by its own last word, `leduc`."""
    known = [name for name in names() if name.startswith(f"{FAMILY}/")]
    of_world = {get(name).env: name for name in known}
    short = f"{FAMILY}/{target}"
    free = target not in targets() and "/" not in target
    return of_world.get(target) or (short if free and short in known else None)


def _two_seats(env: str, num_envs: int, num_steps: int, updates: int) -> Experiment:
    learners = {f"player_{i}": Learner(_PPO, {f"player_{i}": (f"player[{i}]",)}) for i in range(2)}
    total = num_envs * num_steps * updates
    return Experiment(env, learners=learners, num_envs=num_envs, num_steps=num_steps, total_env_steps=total)


@preset(f"{FAMILY}/rock_paper_scissors", "best responses in rock-paper-scissors: PPO, for `shoal psro`")
def rock_paper_scissors() -> Experiment:
    experiment = _two_seats("matrix/rock_paper_scissors", 256, 2, 32)
    names = experiment.learners
    return dataclasses.replace(experiment, learners={name: Learner(_PPO, {name: (name,)}) for name in names})


@preset(f"{FAMILY}/pong", "a stretch of training in pong: PPO, for `shoal league` and `shoal psro`")
def pong() -> Experiment:
    algorithm = PPO(learning_rate=1e-3, entropy_coef=0.01, network=Network(hidden=(64, 64), share_torso=True))
    learners = {name: Learner(algorithm, {name: (name,)}) for name in ("left", "right")}
    return Experiment("pong", learners=learners, num_envs=256, num_steps=32, total_env_steps=256 * 32 * 32)


@preset(f"{FAMILY}/kuhn", "best responses in Kuhn poker: PPO, for `shoal psro`")
def kuhn() -> Experiment:
    return _two_seats("cards/kuhn", 512, 8, 32)


@preset(f"{FAMILY}/leduc", "best responses in Leduc poker: PPO, for `shoal psro`")
def leduc() -> Experiment:
    return _two_seats("cards/leduc", 4096, 8, 40)
