"""Experiments that compare algorithms on one world: `shoal train qmix/simple_spread`.

One learner owns all groups, so that a mixer or a joint critic sees the whole team; each group has a policy of its own.
"""

import dataclasses
from typing import Any

from shoal.algorithms import A2C, DQN, PPO, PQN, Impala
from shoal.execution.experiment import Experiment, Learner
from shoal.networks.torsos import Network
from shoal.presets._registry import preset

RELU = Network(hidden=(64, 64), activation="relu")
NORMED = dataclasses.replace(RELU, layer_norm=True)
GRU = Network(hidden=(64,), activation="relu", recurrent="gru", recurrent_size=64)

_PPO = PPO(learning_rate=2e-3, gamma=0.95, gae_lambda=0.95, entropy_coef=0.005, anneal=True, normalise_values=True)
_A2C = A2C(learning_rate=3e-3, gamma=0.95, gae_lambda=0.95, normalise_advantages=True, normalise_values=True)
_IMPALA = Impala(learning_rate=3e-3, gamma=0.95, entropy_coef=0.005, anneal=True)
_DQN = DQN(learning_rate=1e-3, gamma=0.9, gradient_steps=8, anneal=True, network=RELU)
_PQN = PQN(learning_rate=2e-3, gamma=0.9, trace_lambda=0.3, epochs=4, epsilon_fraction=0.1, network=NORMED)

POLICY_GRADIENT = {
    "ippo": ("PPO, each critic sees its own view", _PPO),
    "mappo": ("PPO, critics see the global state", dataclasses.replace(_PPO, critic="global")),
    "a2c": ("A2C", _A2C),
    "vdac": ("A2C with values added up over the team", dataclasses.replace(_A2C, mixer="sum")),
    "vdac_mix": ("A2C with values mixed over the team", dataclasses.replace(_A2C, mixer="monotonic")),
    "impala": ("V-trace", _IMPALA),
    "appo": (
        "V-trace with PPO's clipped objective",
        dataclasses.replace(_IMPALA, clipped=True, epochs=4, minibatches=4),
    ),
}
VALUES = {
    "iql": ("DQN, each agent for itself", _DQN),
    "vdn": ("DQN with values added up over the team", dataclasses.replace(_DQN, mixer="sum")),
    "qmix": ("DQN with values mixed over the team", dataclasses.replace(_DQN, mixer="monotonic")),
    "r2d2": (
        "DQN with a recurrent network, stored state, burn-in and priorities",
        dataclasses.replace(
            _DQN, network=GRU, sequence=15, burn_in=5, batch_size=64, gradient_steps=4, prioritised=True, n_step=3
        ),
    ),
}
FRESH_VALUES = {
    "pqn": ("Q-learning without a replay, each agent for itself", _PQN),
    "pqn_vdn": ("the same with values added up over the team", dataclasses.replace(_PQN, mixer="sum")),
    "pqn_qmix": ("the same with values mixed over the team", dataclasses.replace(_PQN, mixer="monotonic")),
}


def experiment(world: str, algorithm: Any, num_envs: int, num_steps: int, total_env_steps: int) -> Experiment:
    """One learner for all groups."""
    learners = {"team": Learner(algorithm)}
    sizes = {"num_envs": num_envs, "num_steps": num_steps, "total_env_steps": total_env_steps}
    return Experiment(env=world, learners=learners, **sizes)


def _add(name: str, what: str, world: str, algorithm: Any, num_envs: int, num_steps: int, total: int) -> None:
    preset(name, what)(lambda: experiment(world, algorithm, num_envs, num_steps, total))


for _name, (_what, _algorithm) in POLICY_GRADIENT.items():
    _add(f"{_name}/simple_spread", f"cover landmarks: {_what}", "mpe/simple_spread", _algorithm, 256, 25, 1_000_000)
for _name, (_what, _algorithm) in VALUES.items():
    _add(f"{_name}/simple_spread", f"cover landmarks: {_what}", "mpe/simple_spread", _algorithm, 64, 5, 1_000_000)
for _name, (_what, _algorithm) in FRESH_VALUES.items():
    _add(f"{_name}/simple_spread", f"cover landmarks: {_what}", "mpe/simple_spread", _algorithm, 128, 10, 1_000_000)
