"""One-agent probes, each with an answer that is known on paper.

`Bandit`: one step; the best arm, and the value of the start, are in `means`.
`Target`: one step; the best continuous action is half the view, and is paid 0.
`Truncation`: pays 1 at every step and is cut short; since the final view is bootstrapped from, its value is
1 / (1 - discount) at every step. Who takes truncation for termination finds less.
`TwoStep`: the first action decides what the second step pays; the value of the start is the discount.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from shoal import Box, Discrete, Env, Group, Observation, Outcome

NO = np.zeros((), bool)
YES = np.ones((), bool)


@dataclasses.dataclass(frozen=True)
class Bandit(Env):
    """Arm i pays `means[i]`. The view is 1."""

    means: tuple[float, ...] = (0.1, 0.9, 0.5)
    kind: ClassVar[str] = "cooperative"

    @property
    def groups(self):
        return {"agent": Group(1, Discrete(len(self.means)))}

    @property
    def best(self) -> int:
        return max(range(len(self.means)), key=self.means.__getitem__)

    def default_params(self):
        return {"means": jnp.array(self.means, jnp.float32)}

    def reset(self, key, params):
        return ()

    def step(self, key, state, actions, params):
        return (), Outcome({"agent": params["means"][actions["agent"]]}, YES, NO)

    def observe(self, state, params):
        return {"agent": Observation(jnp.ones((1, 1)))}


@dataclasses.dataclass(frozen=True)
class Target(Env):
    """The view is a number x in [-1, 1]; an action a is paid -(a - x / 2)²."""

    kind: ClassVar[str] = "cooperative"

    @property
    def groups(self):
        return {"agent": Group(1, Box((1,), -1.0, 1.0))}

    def reset(self, key, params):
        return jax.random.uniform(key, (1, 1), minval=-1.0, maxval=1.0)

    def step(self, key, state, actions, params):
        return state, Outcome({"agent": -jnp.square(actions["agent"] - state / 2)[:, 0]}, YES, NO)

    def observe(self, state, params):
        return {"agent": Observation(state)}


@dataclasses.dataclass(frozen=True)
class Truncation(Env):
    """Pays 1 at every step, whatever is done; cut short after `length` steps. The view is 1, so time is not seen."""

    length: int = 5
    kind: ClassVar[str] = "cooperative"

    @property
    def groups(self):
        return {"agent": Group(1, Discrete(2))}

    def reset(self, key, params):
        return jnp.zeros((), jnp.int32)

    def step(self, key, state, actions, params):
        return state + 1, Outcome({"agent": jnp.ones(1)}, NO, state + 1 >= self.length)

    def observe(self, state, params):
        return {"agent": Observation(jnp.ones((1, 1)))}


@struct.dataclass
class Choice:
    time: jax.Array  # int32
    first: jax.Array  # int32, what was chosen in the first step


@dataclasses.dataclass(frozen=True)
class TwoStep(Env):
    """The second step pays 1 if the first action was 1. View (2): whether it is the second step, the first action."""

    kind: ClassVar[str] = "cooperative"

    @property
    def groups(self):
        return {"agent": Group(1, Discrete(2))}

    def reset(self, key, params):
        return Choice(jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    def step(self, key, state, actions, params):
        second = state.time == 1
        reward = (second & (state.first == 1)).astype(jnp.float32)
        chosen = jnp.where(second, state.first, actions["agent"][0])
        return Choice(state.time + 1, chosen), Outcome({"agent": reward[None]}, second, NO)

    def observe(self, state, params):
        return {"agent": Observation(jnp.stack([state.time, state.first]).astype(jnp.float32)[None])}
