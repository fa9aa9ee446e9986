"""The probe worlds and what is right in each, and how every algorithm is set up for them."""

import dataclasses

import jax

from shoal.algorithms import A2C, DQN, PPO, PQN, Impala
from shoal.core.registry import register
from shoal.execution.evaluate import evaluate
from shoal.execution.experiment import Experiment, Learner, cast
from shoal.execution.train import train
from shoal.networks.torsos import Network
from tests.worlds.bandit import Bandit, Target, Truncation, TwoStep
from tests.worlds.memory import Memory
from tests.worlds.teams import Coordination, Credit, Masked, Parts, Rooms, Seen

WORLDS = {
    "bandit": Bandit,
    "coordination": Coordination,
    "credit": Credit,
    "delayed": TwoStep,
    "masked": Masked,
    "memory": Memory,
    "parts": Parts,
    "rooms": Rooms,
    "seen": Seen,
    "target": Target,
    "truncation": Truncation,
}
for name, world in WORLDS.items():
    register(f"probe/{name}", world)

AT_LEAST = {
    "bandit": 0.899,
    "coordination": 0.599,  # the better of the two equilibria pays 1; who learns alone may settle for the other
    "credit": 0.99,
    "delayed": 0.99,
    "masked": 0.499,
    "memory": 0.95,
    "parts": 0.99,
    "rooms": 1.98,
    "seen": 0.99,
    "target": -0.02,
}
"""What a trained policy must reach, greedy, by probe; the best possible is 1 (bandit 0.9, masked 0.5, rooms 2)."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """An algorithm and how much it plays."""

    algorithm: object
    num_envs: int = 64
    num_steps: int = 8
    total: int = 60_000


SMALL = Network(hidden=(32,), activation="relu")
QUICK = {"learning_rate": 5e-3, "network": SMALL}
POLICY_GRADIENT = {
    "a2c": A2C(normalise_advantages=True, entropy_coef=0.02, **QUICK),
    "ppo": PPO(minibatches=2, entropy_coef=0.02, **QUICK),
    "impala": Impala(entropy_coef=0.02, **QUICK),
}
VALUES = {
    "dqn": DQN(batch_size=128, gradient_steps=8, buffer_size=20_000, warm_up=512, target_rate=0.05, **QUICK),
    "pqn": PQN(minibatches=2, learning_rate=5e-3, network=dataclasses.replace(SMALL, layer_norm=True)),
}
ALGORITHMS = POLICY_GRADIENT | VALUES


def with_network(algorithm, **changes):
    """The algorithm with another network; those with a replay learn from sequences if it is recurrent."""
    network = dataclasses.replace(algorithm.network, **changes)
    more = {"network": network}
    if changes.get("recurrent", "none") != "none" and hasattr(algorithm, "burn_in"):
        more |= {"sequence": 6, "burn_in": 2, "batch_size": 64}
    return dataclasses.replace(algorithm, **more)


def scores(probe, algorithm, total=60_000, num_seeds=5, num_envs=64, num_steps=8, episodes=256):
    """Greedy mean returns after training, of each seed."""
    experiment = Experiment(
        f"probe/{probe}",
        learners={"l": Learner(algorithm)},
        num_envs=num_envs,
        num_steps=num_steps,
        total_env_steps=total,
        num_seeds=num_seeds,
    )
    policies = train(experiment, devices=1).policies
    roles = cast(experiment)
    each = [jax.tree.map(lambda leaf, i=i: leaf[i], policies) for i in range(num_seeds)]
    return [evaluate(roles, one, episodes).total_mean_return for one in each]
