"""Every update of every learner is handed a key of its own, and learners begin with weights of their own."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from tests.worlds.bandit import Bandit

from shoal.core.algorithm import ActOutput, Algorithm
from shoal.core.registry import register
from shoal.training.experiment import Experiment, Learner
from shoal.training.fused import make_fused_program

UPDATES = 3


class State(struct.PyTreeNode):
    params: dict[str, jax.Array]
    keys: jax.Array
    updates: jax.Array
    hyper: dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class Recorder(Algorithm):
    """Does nothing but write down the keys that it is given."""

    name: ClassVar[str] = "recorder"

    def init(self, key, spec):
        keys = jnp.zeros((UPDATES + 1, 2), jnp.uint32).at[0].set(jax.random.key_data(key))
        return State(dict.fromkeys(spec.groups, jnp.float32(0.0)), keys, jnp.int32(0), self.hyper(spec))

    def initial_memory(self, params):
        return ()

    def act(self, params, observation, memory, key, explore):
        return ActOutput(jnp.int32(0), memory)

    def value(self, params, observation, memory):
        return jnp.float32(0.0)

    def update(self, state, experience, key, axis=None):
        keys = state.keys.at[state.updates + 1].set(jax.random.key_data(key))
        return state.replace(keys=keys, updates=state.updates + 1), {}


@dataclasses.dataclass(frozen=True)
class Pair(Bandit):
    """Two bandits side by side."""

    @property
    def groups(self):
        (one,) = super().groups.values()
        return {"a": one, "b": one}

    def step(self, key, state, actions, params):
        state, outcome = super().step(key, state, {"agent": actions["a"]}, params)
        (paid,) = outcome.reward.values()
        return state, outcome.replace(reward={"a": paid, "b": paid})

    def observe(self, state, params):
        (seen,) = super().observe(state, params).values()
        return {"a": seen, "b": seen}


def test_keys_are_used_once():
    register("keys/pair", Pair)
    learners = {name: Learner(Recorder(), {name: (name,)}) for name in "ab"}
    program = make_fused_program(
        Experiment("keys/pair", learners=learners, num_envs=2, num_steps=1, total_env_steps=6), 1
    )
    carry, _ = program.advance(program.init(), program.counts[UPDATES])
    keys = np.concatenate([np.asarray(carry.learners[name].keys) for name in "ab"])
    assert len(np.unique(keys, axis=0)) == 2 * (UPDATES + 1)
