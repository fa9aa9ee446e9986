"""Evaluation by a world that pays what can be counted: one episode a copy, none twice, at its best unless told."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from shoal import Discrete, Env, Group, Observation, Outcome
from shoal.algorithms import PPO
from shoal.core.registry import register
from shoal.networks.torsos import Network
from shoal.training import evaluate as module
from shoal.training.evaluate import evaluate
from shoal.training.experiment import Experiment, Learner


@struct.dataclass
class State:
    left: jax.Array  # steps that are left
    luck: jax.Array  # what the first agent is paid at every step


@dataclasses.dataclass(frozen=True)
class Uneven(Env):
    """Episodes of one to four steps. Each step pays the first agent a number of the episode, the second its action."""

    kind: ClassVar[str] = "cooperative"

    @property
    def groups(self):
        return {"lucky": Group(1, Discrete(2)), "busy": Group(2, Discrete(2))}

    def reset(self, key, params):
        for_length, for_luck = jax.random.split(key)
        return State(jax.random.randint(for_length, (), 1, 5), jax.random.uniform(for_luck))

    def step(self, key, state, actions, params):
        paid = {"lucky": state.luck[None], "busy": 1.0 + actions["busy"]}
        return state.replace(left=state.left - 1), Outcome(paid, state.left <= 1, jnp.zeros((), bool))

    def observe(self, state, params):
        return {"lucky": Observation(jnp.zeros((1, 1))), "busy": Observation(jnp.zeros((2, 1)))}


@pytest.fixture
def setup(monkeypatch):
    register("evaluate/uneven", Uneven)
    monkeypatch.setattr(module, "BATCH", 16)
    learner = Learner(PPO(network=Network(hidden=())))
    return Experiment("evaluate/uneven", learners={"learner": learner}, num_envs=4, num_steps=1).setup


def test_one_episode_a_copy_and_none_twice(setup):
    """Thirty-two episodes in two batches, by policies that find both actions alike and so take the first."""
    algorithm, spec = setup.learners["learner"]
    policies = algorithm.init(jax.random.key(0), spec).params
    policies = {name: one.replace(weights=jax.tree.map(jnp.zeros_like, one.weights)) for name, one in policies.items()}
    found = evaluate(setup, policies, 32)
    assert set(found.lengths.tolist()) == {1, 2, 3, 4}
    np.testing.assert_array_equal(found.returns["busy"], 2 * found.lengths)  # two agents, paid 1 a step each
    luck = found.returns["lucky"] / found.lengths
    assert luck.max() < 1
    assert len(np.unique(luck)) == 32


@pytest.mark.parametrize(
    ("kind", "sizes", "has_best"),
    [
        ("cooperative", {"left": 1, "right": 1}, True),
        ("mixed", {"left": 1, "right": 1}, False),
        ("mixed", {"all": 3}, True),
        ("competitive", {"left": 1, "right": 1}, False),
        ("competitive", {"all": 3}, False),
    ],
)
def test_there_is_a_best_only_where_all_have_one_aim(kind, sizes, has_best):
    """The sum of several sides' returns says nothing, unless they are said to cooperate."""
    world = type("World", (Env,), {"kind": kind, "groups": {name: Group(n, Discrete(2)) for name, n in sizes.items()}})
    found = module.Evaluation({name: np.ones(4) for name in sizes}, np.ones(4))
    assert (found.better_return(None, world()) is not None) == has_best
