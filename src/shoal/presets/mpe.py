"""Default experiments of the particle worlds."""

import dataclasses

from shoal.algorithms import PPO
from shoal.presets._registry import preset
from shoal.training.experiment import Experiment, Learner

_PPO = PPO(learning_rate=1e-3, gamma=0.95, gae_lambda=0.95, anneal=True, normalise_values=True)


def _experiment(world: str, algorithms: dict[str, PPO], total_env_steps: int) -> Experiment:
    """One learner and one policy for each group."""
    return Experiment(
        env=world,
        learners={group: Learner(algorithm, {group: (group,)}) for group, algorithm in algorithms.items()},
        num_envs=256,
        num_steps=25,
        total_env_steps=total_env_steps,
    )


@preset("mpe/simple", "one agent learns to go to one landmark: PPO, a few seconds")
def simple() -> Experiment:
    return _experiment("mpe/simple", {"agent": _PPO}, total_env_steps=500_000)


@preset("mpe/simple_adversary", "two agents cover a goal that an adversary must guess: PPO, one policy a side")
def simple_adversary() -> Experiment:
    return _experiment("mpe/simple_adversary", {"adversary": _PPO, "agent": _PPO}, total_env_steps=2_000_000)


@preset("mpe/simple_crypto", "Alice and Bob learn to hide a bit from Eve: PPO, one policy each")
def simple_crypto() -> Experiment:
    """Alice learns slowly: while Eve is quick to read a plain code, only one that takes the key to read pays off.

    It does not always come to that: from some seeds Alice and Bob end with a code that Eve reads as well.
    """
    # A word has its effect in the next step and none later, so the horizon is short.
    listener = dataclasses.replace(_PPO, learning_rate=3e-3, gamma=0.5, gae_lambda=0.5)
    speaker = dataclasses.replace(listener, learning_rate=3e-4, entropy_coef=0.02)
    algorithms = {"eve": listener, "bob": listener, "alice": speaker}
    return _experiment("mpe/simple_crypto", algorithms, total_env_steps=1_000_000)


@preset("mpe/simple_push", "an agent reaches its goal past an adversary: PPO, one policy a side")
def simple_push() -> Experiment:
    return _experiment("mpe/simple_push", {"adversary": _PPO, "agent": _PPO}, total_env_steps=2_000_000)


@preset(
    "mpe/simple_reference", "two agents learn to tell each other where to go: PPO, one policy for both, global critic"
)
def simple_reference() -> Experiment:
    algorithm = dataclasses.replace(_PPO, learning_rate=2e-3, gae_lambda=0.9, entropy_coef=0.02, critic="global")
    return _experiment("mpe/simple_reference", {"agent": algorithm}, total_env_steps=5_000_000)


@preset("mpe/simple_speaker_listener", "one agent learns to speak, one to listen: PPO, one policy each, global critic")
def simple_speaker_listener() -> Experiment:
    """With hardly an entropy bonus the speaker soon says something definite, be it arbitrary, which can be learnt."""
    listener = dataclasses.replace(_PPO, learning_rate=2e-3, gae_lambda=0.9, entropy_coef=0.02, critic="global")
    speaker = dataclasses.replace(listener, learning_rate=3e-3, entropy_coef=0.002)
    algorithms = {"speaker": speaker, "listener": listener}
    return _experiment("mpe/simple_speaker_listener", algorithms, total_env_steps=2_000_000)


@preset("mpe/simple_world_comm", "a pack with a leader hunts two agents who feed and hide: PPO, one policy a role")
def simple_world_comm() -> Experiment:
    algorithms = {"leadadversary": _PPO, "adversary": _PPO, "agent": _PPO}
    return _experiment("mpe/simple_world_comm", algorithms, total_env_steps=2_000_000)


@preset("mpe/simple_spread", "three agents learn to cover three landmarks: PPO, one policy for all, about a minute")
def simple_spread() -> Experiment:
    algorithm = PPO(
        learning_rate=3e-3,
        gamma=0.95,
        gae_lambda=0.95,
        entropy_coef=0.005,
        anneal=True,
        normalise_values=True,
    )
    return Experiment(
        env="mpe/simple_spread",
        learners={"agent": Learner(algorithm, {"agent": ("agent",)})},
        num_envs=256,
        num_steps=25,
        total_env_steps=2_000_000,
    )


@preset("mpe/simple_tag", "three adversaries hunt one faster agent: PPO, one policy a side")
def simple_tag() -> Experiment:
    algorithm = PPO(learning_rate=7e-4, gamma=0.95, gae_lambda=0.9, anneal=True, normalise_values=True)
    return Experiment(
        env="mpe/simple_tag",
        learners={
            "adversary": Learner(algorithm, {"adversary": ("adversary",)}),
            "agent": Learner(algorithm, {"agent": ("agent",)}),
        },
        num_envs=256,
        num_steps=25,
        total_env_steps=4_000_000,
    )


@preset("demo", "a first look: three hunters learn to corner one runner, in a few minutes on two cores")
def demo() -> Experiment:
    algorithm = PPO(learning_rate=1e-3, gamma=0.95, gae_lambda=0.9, anneal=True, normalise_values=True)
    return Experiment(
        env="mpe/simple_tag",
        env_options={"max_steps": 50},
        learners={
            "adversary": Learner(algorithm, {"adversary": ("adversary",)}),
            "agent": Learner(algorithm, {"agent": ("agent",)}),
        },
        num_envs=128,
        num_steps=50,
        total_env_steps=3_000_000,
    )
