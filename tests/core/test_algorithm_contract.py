"""An algorithm of somebody's that breaks the contract is told what to fix when a run begins; nothing is computed."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import struct

from shoal.core.algorithm import ActOutput, Algorithm, ReplayTraits, Traits
from shoal.core.contract import contract_problems
from shoal.core.errors import AlgorithmError
from shoal.training.experiment import Experiment, Learner
from shoal.training.fused import make_fused_program


class State(struct.PyTreeNode):
    params: Any
    hyper: Any


@dataclasses.dataclass(frozen=True)
class Right(Algorithm):
    """Does nothing, by the book."""

    rate: float = 0.1

    def init(self, key, spec):
        return State({name: jnp.zeros(1) for name in spec.groups}, self.hyper(spec))

    def act(self, params, observation, memory, key, explore):
        return ActOutput(jnp.int32(0), memory)

    def value(self, params, observation, memory):
        return params[0]

    def update(self, state, experience, key, axis=None):
        return state, {"rate": state.hyper["rate"]}


class NoTraits(Right):
    traits = "none"  # pyright: ignore[reportAssignmentType]


class HalfReplay(Right):
    @property
    def traits(self):
        return Traits(replay=ReplayTraits(1, 1, 1))


class NoGroups(Right):
    def init(self, key, spec):
        return State({}, self.hyper(spec))


class NoHyper(Right):
    def init(self, key, spec):
        return State({name: jnp.zeros(1) for name in spec.groups}, {"total_updates": jnp.ones(())})


class Floats(Right):
    def act(self, params, observation, memory, key, explore):
        return ActOutput(jnp.zeros(1), memory)


class Remembers(Right):
    def act(self, params, observation, memory, key, explore):
        return ActOutput(jnp.int32(0), jnp.zeros(3))


class Tuple(Right):
    def act(self, params, observation, memory, key, explore):
        return jnp.int32(0), memory


class Values(Right):
    def value(self, params, observation, memory):
        return params


class Branches(Right):
    def act(self, params, observation, memory, key, explore):
        return ActOutput(jnp.int32(0 if params[0] > 0 else 1), memory)


class Grows(Right):
    def update(self, state, experience, key, axis=None):
        return state.replace(params={name: jnp.zeros(2) for name in state.params}), {}


class Alone(Right):
    def update(self, state, experience, key, axis=None):
        return state


class Wide(Right):
    def update(self, state, experience, key, axis=None):
        return state, {"reward": experience.trajectories["agent"].reward}


class Fails(Right):
    def update(self, state, experience, key, axis=None):
        return state, {"x": experience.rewards}


def experiment(algorithm):
    return Experiment("control/cartpole", learners={"l": Learner(algorithm)}, num_envs=2, num_steps=2)


def test_the_contract_can_be_kept():
    ((algorithm, spec),) = experiment(Right()).setup.learners.values()
    assert list(contract_problems(algorithm, spec)) == []
    make_fused_program(experiment(Right()), 1).check()


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (NoTraits, "traits: it is 'none'. Return a shoal.core.algorithm.Traits"),
        (HalfReplay, "traits: `replay` is set, or the class derives from Replays, not both"),
        (NoGroups, r"init: `state.params` is \[\], the groups are \['agent'\]"),
        (NoHyper, r"init: `state.hyper` lacks rate. Begin `update` with `self = self.traced\(state.hyper\)`"),
        (Floats, r"act: the action is float32\[1\]. One agent's action of Discrete\(n=2\) is int32\[\]"),
        (Remembers, "act: the memory has changed its form"),
        (Tuple, "act: it returns tuple. Return an ActOutput"),
        (Values, r"value: it returns float32\[1\]. Return one number"),
        (
            Branches,
            r"act \(test_algorithm_contract.py, line \d+: `return ActOutput.*it needs the truth of a value",
        ),
        (Grows, r"the state has changed its form: params.agent was float32\[1\] and is float32\[2\]. Keep its"),
        (Alone, "update: it returns State. Return the state and a dict of metrics"),
        (Wide, r"update: the metric 'reward' has the shape \[2, 2, 1\]. Metrics are scalars"),
        (
            Fails,
            r"update \(test_algorithm_contract.py, line \d+: `return state.*it raised AttributeError",
        ),
    ],
)
def test_what_is_broken_is_said_before_anything_is_compiled(cls, why):
    with pytest.raises(AlgorithmError, match=f"{cls.__name__}: .*{why}"):
        make_fused_program(experiment(cls()), 1).check()


def test_keys_are_not_the_same_as_numbers():
    """A leaf that is a PRNG key is compared like any other."""

    class Keyed(Right):
        def init(self, key, spec):
            return State(dict.fromkeys(spec.groups, key), self.hyper(spec))

        def value(self, params, observation, memory):
            return jax.random.uniform(params)

    make_fused_program(experiment(Keyed()), 1).check()
