"""Two groups that have nothing in common but the reward: other views, other actions.

A load lies on a line and must be brought to a goal. Two scouts (discrete: nudge it left, not at all, right) see the
goal; three carriers (continuous: how hard to pull, -1 to 1) are strong and do not see it. All are paid minus the
distance between load and goal, so the value of a state depends on what the other group sees: a joint critic helps.
Cut short after `horizon` steps.

Views: scout (3) load, goal, own number; carrier (2) load, its last movement.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from shoal import Box, Circles, Discrete, Env, Group, Observation, Outcome, Scene


@struct.dataclass
class State:
    load: jax.Array
    movement: jax.Array
    goal: jax.Array
    time: jax.Array  # int32


@dataclasses.dataclass(frozen=True)
class TwoTeams(Env):
    horizon: int = 10
    num_scouts: int = 2
    num_carriers: int = 3
    kind: ClassVar[str] = "cooperative"

    @property
    def groups(self):
        pull = Box((1,), -1.0, 1.0)
        return {"scout": Group(self.num_scouts, Discrete(3)), "carrier": Group(self.num_carriers, pull)}

    def default_params(self):
        return {"nudge": jnp.float32(0.05), "pull": jnp.float32(0.2)}

    def sample_params(self, key):
        factor = jax.random.uniform(key, minval=0.8, maxval=1.2)
        return jax.tree.map(lambda leaf: leaf * factor, self.default_params())

    def reset(self, key, params):
        load, goal = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        return State(load, jnp.zeros_like(load), goal, jnp.zeros((), jnp.int32))

    def step(self, key, state, actions, params):
        nudge = params["nudge"] * jnp.mean(actions["scout"] - 1.0)
        pull = params["pull"] * jnp.mean(jnp.clip(actions["carrier"], -1.0, 1.0))
        load = jnp.clip(state.load + nudge + pull, -1.0, 1.0)
        state = State(load, load - state.load, state.goal, state.time + 1)
        distance = jnp.abs(load - state.goal)
        reward = {name: jnp.full(group.size, -distance) for name, group in self.groups.items()}
        return state, Outcome(reward, jnp.zeros((), bool), state.time >= self.horizon, {"distance": distance})

    def observe(self, state, params):
        number = jnp.arange(self.num_scouts, dtype=jnp.float32)
        scout = jnp.stack([jnp.full_like(number, state.load), jnp.full_like(number, state.goal), number], axis=1)
        carrier = jnp.tile(jnp.stack([state.load, state.movement]), (self.num_carriers, 1))
        return {"scout": Observation(scout), "carrier": Observation(carrier)}

    def scene(self, state, params):
        position = jnp.stack([jnp.stack([state.load, state.goal]), jnp.zeros(2)], axis=1)
        circles = Circles(position, jnp.full(2, 0.05), jnp.array([1, 3]), jnp.ones(2, bool), names=("load", "goal"))
        return Scene(bounds=(-1.1, -0.5, 1.1, 0.5), circles=circles)
