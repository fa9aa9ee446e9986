"""Experiments that compare algorithms on one world: `shoal train qmix/simple_spread`.

One learner owns all groups, so that a mixer or a joint critic sees the whole team; each group has a policy of its own.
"""

import dataclasses
from typing import Any

from shoal.algorithms import A2C, DDPG, DQN, PPO, PQN, SAC, Impala
from shoal.networks.torsos import Network
from shoal.presets._registry import preset
from shoal.training.experiment import Experiment, Learner

RELU = Network(hidden=(64, 64), activation="relu")
NORMED = dataclasses.replace(RELU, layer_norm=True)
WIDE = Network(hidden=(128, 128), activation="relu")
SMOOTH = Network(hidden=(64,), activation="tanh", recurrent="gru", recurrent_size=64)
"""In cartpole's few dimensions all ReLUs before a GRU die within some updates."""
GRU = Network(hidden=(64,), activation="relu", recurrent="gru", recurrent_size=64)

_PPO = PPO(learning_rate=2e-3, gamma=0.95, gae_lambda=0.95, entropy_coef=0.005, anneal=True, normalise_values=True)
_A2C = A2C(learning_rate=3e-3, gamma=0.95, gae_lambda=0.95, normalise_advantages=True, normalise_values=True)
_IMPALA = Impala(learning_rate=3e-3, gamma=0.95, entropy_coef=0.005, anneal=True)
_DQN = DQN(learning_rate=1e-3, gamma=0.9, gradient_steps=8, anneal=True, network=RELU)
_PQN = PQN(learning_rate=2e-3, gamma=0.9, trace_lambda=0.3, epochs=4, epsilon_fraction=0.1, network=NORMED)
_MADDPG = DDPG(gamma=0.9, actor_learning_rate=1e-3, gradient_steps=8, warm_up=5_000, critic="global", network=RELU)
_PONG = Impala(learning_rate=1e-3, anneal=True, normalise_advantages=True)
_SAC = SAC(gamma=0.95, gradient_steps=8, target_entropy_share=0.1, network=RELU)

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


OFF_POLICY = {
    "maddpg": ("DDPG with critics that see everybody's actions", _MADDPG),
    "masac": ("SAC with critics that see everybody's actions", dataclasses.replace(_SAC, critic="global")),
    "maac": ("SAC with critics that attend to the others", dataclasses.replace(_SAC, critic="attention")),
}
TEAMS = {
    "mpe/simple_spread": "cover landmarks",
    "mpe/simple_speaker_listener": "tell where to go",
    "mpe/simple_reference": "tell each other where to go",
}
RIVALS = {
    "mpe/simple_adversary": "cover a goal that an adversary must guess",
    "mpe/simple_crypto": "hide a bit from a listener",
    "mpe/simple_push": "reach a goal past an adversary",
    "mpe/simple_tag": "hunters and hunted",
}
SMALL = {"grid_length": 10}
"""On the grid's own 100 by 100 taggers need all the time there is to reach the runner: few ever learn of it."""

SIZES = {"policy": (256, 25), "replay": (64, 5), "fresh": (128, 10)}
"""Copies and steps between updates, by kind of algorithm."""


def experiment(world: str, algorithm: Any, num_envs: int, num_steps: int, total_env_steps: int) -> Experiment:
    """One learner for all groups."""
    learners = {"team": Learner(algorithm)}
    return Experiment(
        env=world, learners=learners, num_envs=num_envs, num_steps=num_steps, total_env_steps=total_env_steps
    )


def _add(name: str, what: str, world: str, algorithm: Any, sizes: tuple[int, int], total: int) -> None:
    short = world.rpartition("/")[2]
    preset(f"{name}/{short}", what)(lambda: experiment(world, algorithm, *sizes, total))


def _add_teams() -> None:
    families = {"policy": POLICY_GRADIENT, "replay": VALUES | OFF_POLICY, "fresh": FRESH_VALUES}
    for kind, family in families.items():
        for name, (what, algorithm) in family.items():
            for world, aim in TEAMS.items():
                _add(name, f"{aim}: {what}", world, algorithm, SIZES[kind], 1_000_000)
    for world, aim in RIVALS.items():
        _add("maddpg", f"{aim}: {OFF_POLICY['maddpg'][0]}", world, _MADDPG, SIZES["replay"], 1_000_000)
        _add("ippo", f"{aim}: {POLICY_GRADIENT['ippo'][0]}", world, _PPO, SIZES["policy"], 2_000_000)


def _add_control() -> None:
    a2c = A2C(learning_rate=1e-3, anneal=True, normalise_values=True)
    impala = Impala(learning_rate=1e-3, gae_lambda=0.95, anneal=True, normalise_values=True)
    dqn = DQN(learning_rate=5e-4, epsilon_end=0.02, gradient_steps=8, prioritised=True, anneal=True, network=WIDE)
    pqn = PQN(epochs=4, network=dataclasses.replace(WIDE, layer_norm=True))
    sac = SAC(actor_learning_rate=3e-4, target_entropy_share=0.2, gradient_steps=8, warm_up=1000, network=RELU)
    r2d2 = dataclasses.replace(dqn, learning_rate=1e-3, n_step=3, batch_size=32, sequence=16, burn_in=4, network=SMOOTH)
    cartpole = {
        "a2c": (a2c, (16, 5), 1_000_000),
        "impala": (impala, (16, 16), 1_000_000),
        "appo": (dataclasses.replace(impala, clipped=True, epochs=2, minibatches=4), (16, 16), 1_000_000),
        "dqn": (dqn, (16, 8), 400_000),
        "r2d2": (r2d2, (16, 8), 300_000),
        "pqn": (pqn, (64, 32), 1_000_000),
        "sac": (sac, (16, 2), 100_000),
    }
    for name, (algorithm, sizes, total) in cartpole.items():
        _add(name, f"keep a pole upright: {name.upper()}", "control/cartpole", algorithm, sizes, total)
    td3 = DDPG(twin=True, policy_delay=2, target_noise=0.2, gradient_steps=16, warm_up=1000, network=RELU)
    sac = SAC(target_entropy_share=1.0, gradient_steps=16, warm_up=1000, network=RELU)
    for name, algorithm in {"td3": td3, "sac": sac}.items():
        _add(name, f"swing a pendulum up: {name.upper()}", "control/pendulum", algorithm, (16, 1), 40_000)


def _add_games() -> None:
    pong = {
        "dqn": (DQN(learning_rate=5e-4, gradient_steps=8, anneal=True, network=WIDE), SIZES["replay"], 1_000_000),
        "pqn": (PQN(network=dataclasses.replace(WIDE, layer_norm=True)), (256, 16), 3_000_000),
        "impala": (_PONG, (256, 32), 3_000_000),
        "appo": (dataclasses.replace(_PONG, clipped=True, epochs=2, minibatches=4), (256, 32), 3_000_000),
    }
    for name, (algorithm, sizes, total) in pong.items():
        _add(name, f"two paddles, one ball: {name.upper()}", "pong", algorithm, sizes, total)
    flat = Network(hidden=(128,), activation="relu", filters=(), share_torso=True)
    seen = dataclasses.replace(_PONG, clipped=True, normalise_advantages=False, network=flat)
    image = dataclasses.replace(experiment("pong", seen, 512, 32, 3_000_000), env_options={"view": "image"})
    preset("appo/pong_image", "Pong from 12 x 12 pixels: APPO, one layer of 128 units")(lambda: image)
    tag = {
        "a2c": (_A2C, (256, 25), 3_000_000),
        "ippo": (_PPO, (256, 25), 3_000_000),
        "dqn": (_DQN, SIZES["replay"], 1_000_000),
        "pqn": (_PQN, (256, 16), 2_000_000),
    }
    for name, (algorithm, (num_envs, num_steps), total) in tag.items():
        small = dataclasses.replace(experiment("tag/grid", algorithm, num_envs, num_steps, total), env_options=SMALL)
        preset(f"{name}/grid", f"taggers and a runner on a small grid: {name.upper()}")(lambda small=small: small)


_add_teams()
_add_control()
_add_games()
