"""Environments with an answer that is known on paper: what `check_algorithm` trains in.

`Bandit`: one step; the best arm, and the value of the start, are in `means`.
`Target`: one step; the best continuous action is half the view, and is paid 0.
`TwoStep`: the first action decides what the second step pays; the value of the start is the discount.
`Turns`: agents that act in turn, agents that are absent, choices that are illegal; 2 is best.
`Memory`: what was seen at the start is asked for at the end. Without memory nothing above 0.5 is reached; with it, 1.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from shoal.core.env import Env
from shoal.core.spaces import Box, Discrete
from shoal.core.types import Group, Observation, Outcome

NO: Any = np.zeros((), bool)
YES: Any = np.ones((), bool)


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


@struct.dataclass
class Turn:
    cue: jax.Array  # [3] int32
    time: jax.Array  # int32


@dataclasses.dataclass(frozen=True)
class Turns(Env):
    """Of three agents two act, one after the other, and the third is never there; naming one's cue, 0 or 1, pays 1.

    The third choice is always illegal, and taking it all the same is paid -10. View (3): the cue, whether it is one's
    turn.
    """

    kind: ClassVar[str] = "cooperative"

    @property
    def groups(self):
        return {"agent": Group(3, Discrete(3), movers=1)}

    def reset(self, key, params):
        return Turn(jax.random.randint(key, (3,), 0, 2), jnp.int32(0))

    def step(self, key, state, actions, params):
        acting, action = jnp.arange(3) == state.time, actions["agent"]
        paid = jnp.where(action == 2, -10.0, 1.0 * (action == state.cue))
        return state.replace(time=state.time + 1), Outcome({"agent": acting * paid}, state.time == 1, NO)

    def observe(self, state, params):
        number = jnp.arange(3)
        present = number < 2
        active = present & (number == state.time)
        view = jnp.concatenate([jax.nn.one_hot(state.cue, 2), active[:, None].astype(jnp.float32)], axis=1)
        return {"agent": Observation(view, jnp.array([[True, True, False]] * 3), active, present)}


@struct.dataclass
class Recall:
    cue: jax.Array  # int32
    time: jax.Array  # int32


@dataclasses.dataclass(frozen=True)
class Memory(Env):
    """A cue, shown only at the start, is named `delay` blank views later, for 1. View (3): cue 0, 1, question."""

    delay: int = 3
    kind: ClassVar[str] = "cooperative"

    @property
    def groups(self):
        return {"agent": Group(1, Discrete(2))}

    def reset(self, key, params):
        return Recall(jax.random.randint(key, (), 0, 2, dtype=jnp.int32), jnp.zeros((), jnp.int32))

    def step(self, key, state, actions, params):
        asked = state.time == self.delay + 1
        right = asked & (actions["agent"] == state.cue)
        state = state.replace(time=state.time + 1)
        return state, Outcome({"agent": right.astype(jnp.float32)}, asked, jnp.zeros((), bool))

    def observe(self, state, params):
        cue = jax.nn.one_hot(state.cue, 2) * (state.time == 0)
        question = (state.time == self.delay + 1).astype(jnp.float32)
        return {"agent": Observation(jnp.append(cue, question)[None])}
