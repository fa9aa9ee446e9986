"""A probe for memory: a cue that is shown only at the start must be recalled later.

The first view shows one of two cues, `delay` blank views follow, then the question. The answer (0 or 1) is paid 1 if it
is the cue, else 0, and ends the episode; earlier actions do nothing. Without memory nothing above 0.5 can be reached;
with it, 1.

View (3): cue 0, cue 1, question.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from shoal import Discrete, Env, Group, Observation, Outcome


@struct.dataclass
class State:
    cue: jax.Array  # int32
    time: jax.Array  # int32


@dataclasses.dataclass(frozen=True)
class Memory(Env):
    delay: int = 3
    kind: ClassVar[str] = "cooperative"

    @property
    def groups(self):
        return {"agent": Group(1, Discrete(2))}

    def reset(self, key, params):
        return State(jax.random.randint(key, (), 0, 2, dtype=jnp.int32), jnp.zeros((), jnp.int32))

    def step(self, key, state, actions, params):
        asked = state.time == self.delay + 1
        right = asked & (actions["agent"] == state.cue)
        state = state.replace(time=state.time + 1)
        return state, Outcome({"agent": right.astype(jnp.float32)}, asked, jnp.zeros((), bool))

    def observe(self, state, params):
        cue = jax.nn.one_hot(state.cue, 2) * (state.time == 0)
        question = (state.time == self.delay + 1).astype(jnp.float32)
        return {"agent": Observation(jnp.append(cue, question)[None])}
