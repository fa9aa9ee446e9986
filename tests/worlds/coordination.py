"""A probe for teams: two must do different things at once, and only one of them is paid.

Both see a cue c (0 or 1). If agent 0 plays c and agent 1 plays 1 - c, agent 0 is paid 1; in all other cases nobody is
paid anything. Agent 1 never gets a reward of its own, so it can learn its part only from what the team gets. With three
actions each, random play earns 1 / 9 in a step and the best play 1; `mean` of the team is half of that.

View (4): one-hot of who one is, one-hot of the cue.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from shoal import Discrete, Env, Group, Observation, Outcome


@dataclasses.dataclass(frozen=True)
class Coordination(Env):
    kind: ClassVar[str] = "cooperative"

    @property
    def groups(self):
        return {"agent": Group(2, Discrete(3))}

    def reset(self, key, params):
        return jax.random.randint(key, (), 0, 2, dtype=jnp.int32)

    def step(self, key, state, actions, params):
        first, second = actions["agent"]
        right = (first == state) & (second == 1 - state)
        reward = jnp.stack([right, jnp.zeros_like(right)]).astype(jnp.float32)
        return state, Outcome({"agent": reward}, np.ones((), bool), np.zeros((), bool))

    def observe(self, state, params):
        cue = jnp.tile(jax.nn.one_hot(state, 2), (2, 1))
        return {"agent": Observation(jnp.concatenate([jnp.eye(2), cue], axis=1))}


@dataclasses.dataclass(frozen=True)
class Endless(Env):
    """Pays agent i of `size` i at every step, for ever; cut short after `length` steps. The view is 1.

    The team gets the mean, m = (size - 1) / 2, so its value is m / (1 - discount).
    """

    length: int = 5
    size: int = 3
    kind: ClassVar[str] = "cooperative"

    @property
    def groups(self):
        return {"agent": Group(self.size, Discrete(2))}

    def reset(self, key, params):
        return jnp.zeros((), jnp.int32)

    def step(self, key, state, actions, params):
        reward = jnp.arange(self.size, dtype=jnp.float32)
        return state + 1, Outcome({"agent": reward}, np.zeros((), bool), state + 1 >= self.length)

    def observe(self, state, params):
        return {"agent": Observation(jnp.ones((self.size, 1)))}
