"""One-agent probes, each with an answer that is known on paper: those of the package, and one more.

`Truncation`: pays 1 at every step and is cut short; since the final view is bootstrapped from, its value is
1 / (1 - discount) at every step. Who takes truncation for termination finds less.
"""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from shoal import Discrete, Env, Group, Observation, Outcome
from shoal.testing.probes import NO
from shoal.testing.probes import Bandit as Bandit
from shoal.testing.probes import Target as Target
from shoal.testing.probes import TwoStep as TwoStep


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
