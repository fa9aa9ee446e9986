"""Every option is checked by its annotation where it is handed over; under `vmap` floats are tracers, and pass."""

import dataclasses
import json
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algorithms import ALGORITHMS, DQN, PPO, SAC
from shoal.cluster.plan import ClusterPlan
from shoal.core.checks import check_types
from shoal.core.errors import OptionError
from shoal.envs.wrappers import WRAPPERS, FrameStack
from shoal.networks.torsos import Network
from shoal.populations.evolution.strategies import STRATEGIES
from shoal.populations.pbt.plan import PBT
from shoal.populations.psro import PSRO
from shoal.training.experiment import Experiment, Learner
from shoal.training.sweep_plan import Range

SETTINGS = [*ALGORITHMS.values(), Network, Learner, *WRAPPERS.values(), *STRATEGIES.values(), ClusterPlan, PSRO]
WRONG = {float: "fast", int: 2.5, bool: 1, str: 3}
"""For each kind of option, what it is not."""


@pytest.mark.parametrize("cls", SETTINGS, ids=lambda cls: cls.__name__)
def test_no_option_takes_a_value_of_another_kind(cls):
    hints = typing.get_type_hints(cls)
    options = [field.name for field in dataclasses.fields(cls) if field.init and field.name != "env"]
    for option in options:  # but for a wrapper's world, which is refused in words of its own
        with pytest.raises(OptionError, match=rf"\b{option} must be .*, got "):
            cls(**{option: WRONG.get(hints[option], object())})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: PPO(learning_rate="fast"), "PPO: learning_rate must be a number, got 'fast'"),
        (lambda: PPO(learning_rate=None), "PPO: learning_rate must be a number, got None"),
        (lambda: PPO(gamma=True), "PPO: gamma must be a number, got True"),
        (lambda: PPO(epochs=2.0), "PPO: epochs must be a whole number, got 2.0"),
        (lambda: PPO(gamma=np.ones(3)), "PPO: gamma must be a number, got array"),
        (lambda: DQN(mixer="mean"), "DQN: mixer must be 'none', 'sum' or 'monotonic', got 'mean'"),
        (lambda: SAC(network=64), "SAC: network must be a Network, got 64"),
        (lambda: Network(hidden=64), "Network: hidden must be a tuple, each entry a whole number, got 64"),
        (lambda: Network(hidden=(64, "64")), "Network: hidden must be a tuple"),
        (lambda: Learner("ppo"), "learner: algorithm must be an Algorithm, got 'ppo'"),
        (lambda: Learner(PPO), "learner: algorithm must be an Algorithm, got <class"),  # pyright: ignore
        (lambda: Learner(PPO(), {"agent": "agent"}), "learner: policies must be a mapping"),
        (lambda: Experiment(env=3), "experiment: env must be text, got 3"),
        (lambda: Experiment("pong", num_envs="many"), "experiment: num_envs must be a whole number, got 'many'"),
        (lambda: Experiment("pong", total_env_steps=10**4000), "experiment: total_env_steps must be less than 2^63"),
        (lambda: Experiment("pong", wrappers=(FrameStack(),) * 65), "experiment: wrappers must be 64 at most, got 65"),
        (lambda: Experiment("pong", learners=PPO()), "experiment: learners must be a mapping, each entry a Learner"),
        (lambda: Experiment("pong", learners={"a": PPO()}), "experiment: learners must be a mapping"),
        (lambda: FrameStack(count="4"), "frame_stack: count must be a whole number, got '4'"),
        (lambda: Range("1", 2), "range: start must be a number, got '1'"),
        (lambda: PBT("pong", {}), "pbt: experiment must be an Experiment, got 'pong'"),
    ],
)
def test_what_is_said(make, words):
    with pytest.raises(OptionError) as caught:
        make()
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400


def test_tracers_pass():
    rates = jnp.array([0.1, 0.2])
    doubled = jax.jit(jax.vmap(lambda rate: 2 * PPO(learning_rate=rate, clip_eps=rate).learning_rate))(rates)
    np.testing.assert_allclose(doubled, 2 * rates)
    with pytest.raises(OptionError, match="epochs must be a whole number"):  # it decides what is compiled
        jax.vmap(lambda n: PPO(epochs=n).epochs)(jnp.array([1, 2]))


def test_numbers_of_numpy_and_jax_become_plain_and_lists_tuples():
    made = PPO(learning_rate=np.float32(0.5), gamma=jnp.float32(0.5), epochs=np.int64(3), anneal=np.bool_(True))
    made = dataclasses.replace(made, network=Network(hidden=[8, np.int32(4)]))
    assert made == PPO(learning_rate=0.5, gamma=0.5, epochs=3, anneal=True, network=Network(hidden=(8, 4)))
    experiment = Experiment("pong", learners={"all": Learner(made, {"all": ["left", "right"]})}, num_envs=np.int64(8))
    assert Experiment.from_dict(json.loads(json.dumps(experiment.to_dict()))) == experiment
    assert hash(made) == hash(dataclasses.replace(made))


def test_annotations_that_mean_something_only_where_they_stand():
    class Local: ...

    @dataclasses.dataclass(frozen=True)
    class Odd:
        one: "Local"
        two: int = 3

    check_types(Odd(Local(), "not looked at"))
