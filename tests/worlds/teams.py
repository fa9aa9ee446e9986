"""Probes of one step, for one agent and for teams, each with an answer that is known on paper.

`Seen`: the view shows a cue; the action that equals it is paid 1, others 0.
`Masked`: the arm that would pay most is illegal in every episode, and taking it all the same is paid -10; 0.5 is best.
`Coordination`: two agents, each sees which of them it is, choose among three; only (0, 0) and (2, 2) pay, 1 and 0.6.
`Credit`: each of `size` agents sees a cue of its own, and all are paid the share of agents that named theirs. Who
learns from the team's pay alone must find out which part of it was its own doing.
`Parts`: one agent with two choices at once (`MultiDiscrete`), each with a cue to name; paid the share it got right.
`Rooms`: agents come and go: of three agents, two take turns being `active` over two steps and the third is not present.
An active agent is paid 1 for naming its cue; what the others do must not matter.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from shoal import Discrete, Env, Group, MultiDiscrete, Observation, Outcome

NO = np.zeros((), bool)
YES = np.ones((), bool)


@dataclasses.dataclass(frozen=True)
class Seen(Env):
    kind: ClassVar[str] = "cooperative"

    @property
    def groups(self):
        return {"agent": Group(1, Discrete(3))}

    def reset(self, key, params):
        return jax.random.randint(key, (1,), 0, 3)

    def step(self, key, state, actions, params):
        return state, Outcome({"agent": (actions["agent"] == state).astype(jnp.float32)}, YES, NO)

    def observe(self, state, params):
        return {"agent": Observation(jax.nn.one_hot(state, 3))}


@dataclasses.dataclass(frozen=True)
class Masked(Env):
    means: tuple[float, ...] = (0.1, 0.5, -10.0)
    kind: ClassVar[str] = "cooperative"

    @property
    def groups(self):
        return {"agent": Group(1, Discrete(3))}

    def reset(self, key, params):
        return jnp.zeros(1)

    def step(self, key, state, actions, params):
        return state, Outcome({"agent": jnp.array(self.means)[actions["agent"]]}, YES, NO)

    def observe(self, state, params):
        return {"agent": Observation(jnp.ones((1, 1)), legal=jnp.array([[True, True, False]]))}


@dataclasses.dataclass(frozen=True)
class Coordination(Env):
    payoff: tuple[tuple[float, ...], ...] = ((1.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.6))
    kind: ClassVar[str] = "cooperative"

    @property
    def groups(self):
        return {"agent": Group(2, Discrete(3))}

    def reset(self, key, params):
        return jnp.zeros(1)

    def step(self, key, state, actions, params):
        one, other = actions["agent"]
        paid = jnp.array(self.payoff)[one, other]
        return state, Outcome({"agent": jnp.full(2, 0.5) * paid}, YES, NO)

    def observe(self, state, params):
        return {"agent": Observation(jnp.eye(2))}


@dataclasses.dataclass(frozen=True)
class Credit(Env):
    size: int = 3
    kind: ClassVar[str] = "cooperative"

    @property
    def groups(self):
        return {"agent": Group(self.size, Discrete(2))}

    def reset(self, key, params):
        return jax.random.randint(key, (self.size,), 0, 2)

    def step(self, key, state, actions, params):
        share = jnp.mean((actions["agent"] == state).astype(jnp.float32))
        return state, Outcome({"agent": jnp.full(self.size, 1.0 / self.size) * share}, YES, NO)

    def observe(self, state, params):
        return {"agent": Observation(jax.nn.one_hot(state, 2))}


@dataclasses.dataclass(frozen=True)
class Parts(Env):
    kind: ClassVar[str] = "cooperative"

    @property
    def groups(self):
        return {"agent": Group(1, MultiDiscrete((2, 3)))}

    def reset(self, key, params):
        return jnp.floor(jax.random.uniform(key, (2,)) * jnp.array([2.0, 3.0])).astype(jnp.int32)

    def step(self, key, state, actions, params):
        right = jnp.mean((actions["agent"][0] == state).astype(jnp.float32))
        return state, Outcome({"agent": right[None]}, YES, NO)

    def observe(self, state, params):
        view = jnp.concatenate([jax.nn.one_hot(state[0], 2), jax.nn.one_hot(state[1], 3)])
        return {"agent": Observation(view[None])}


@struct.dataclass
class Turn:
    cue: jax.Array  # [3] int32
    time: jax.Array  # int32


@dataclasses.dataclass(frozen=True)
class Rooms(Env):
    kind: ClassVar[str] = "cooperative"

    @property
    def groups(self):
        return {"agent": Group(3, Discrete(2))}

    def reset(self, key, params):
        return Turn(jax.random.randint(key, (3,), 0, 2), jnp.int32(0))

    def step(self, key, state, actions, params):
        acting = jnp.arange(3) == state.time
        right = acting & (actions["agent"] == state.cue)
        return state.replace(time=state.time + 1), Outcome({"agent": right.astype(jnp.float32)}, state.time == 1, NO)

    def observe(self, state, params):
        number = jnp.arange(3)
        present = number < 2
        active = present & (number == state.time)
        view = jnp.concatenate([jax.nn.one_hot(state.cue, 2), active[:, None].astype(jnp.float32)], axis=1)
        return {"agent": Observation(view, active=active, present=present)}
