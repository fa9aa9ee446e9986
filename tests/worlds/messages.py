"""One knows, the other acts: a word said in one step is heard in the next.

Both agents choose a move and a word (`MultiDiscrete`). Agent 0 sees the goal; agent 1 does not, but the team is paid 1
for each step after the first in which agent 1's move is the goal. Words lie in the state until the other has heard
them. A game has `length` steps: at most `length` - 1 can be earned, and (length - 1) / num_goals without words.

View (2 + goals + words): one-hot of who one is, of the goal (zeros for agent 1), of the word heard (zeros at first).
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from shoal import Env, Group, MultiDiscrete, Observation, Outcome


@struct.dataclass
class State:
    goal: jax.Array  # int32
    said: jax.Array  # [2] int32, each agent's last word; -1 before the first
    time: jax.Array  # int32


@dataclasses.dataclass(frozen=True)
class Messages(Env):
    num_goals: int = 3
    num_words: int = 4
    length: int = 3
    kind: ClassVar[str] = "cooperative"

    @property
    def groups(self):
        return {"agent": Group(2, MultiDiscrete((self.num_goals, self.num_words)))}

    def reset(self, key, params):
        goal = jax.random.randint(key, (), 0, self.num_goals, dtype=jnp.int32)
        return State(goal, jnp.full(2, -1, jnp.int32), jnp.zeros((), jnp.int32))

    def step(self, key, state, actions, params):
        move, word = actions["agent"][1, 0], actions["agent"][:, 1]
        right = (move == state.goal) & (state.time > 0)
        state = state.replace(said=word, time=state.time + 1)
        reward = {"agent": jnp.full(2, right, jnp.float32)}
        return state, Outcome(reward, state.time >= self.length, jnp.zeros((), bool))

    def observe(self, state, params):
        goal = jnp.stack([jax.nn.one_hot(state.goal, self.num_goals), jnp.zeros(self.num_goals)])
        heard = jax.nn.one_hot(state.said[::-1], self.num_words)
        return {"agent": Observation(jnp.concatenate([jnp.eye(2), goal, heard], axis=1))}
