"""`control/mountain_car`: an underpowered car must rock itself out of a valley.

**Rules.** The car's position is between -1.2, where a wall stops it, and 0.6; its speed is at most 0.07. In each step
the velocity changes by `0.001 throttle - 0.0025 cos(3 position)`, then the position by the velocity. It starts at rest
at random in [-0.6, -0.4], near the lowest point.

**Actions.** 0, 1, 2: throttle -1, 0, 1. A number that is not an action lets the car roll.

**Observation**, 2 values: position and velocity.

**Reward.** -1 for every step.

**End.** Terminated when the car is at 0.5 or beyond with a velocity of at least `goal_velocity`; truncated after
`max_steps` steps.

**Source.** `MountainCar-v0` of Gymnasium 1.x (Moore 1990): the same views, rewards and ends from the same state and
actions, to 1e-5. Version 1. One departure: float32 instead of float64.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from shoal.core.spaces import ActionNames, Discrete
from shoal.core.types import Actions, Group, Outcome
from shoal.envs.control import _hill as hill


@dataclasses.dataclass(frozen=True)
class MountainCar(hill.Hill):
    """Rock a car out of a valley."""

    id: ClassVar[str] = "control/mountain_car"

    @property
    def groups(self) -> dict[str, Group]:
        return {"agent": Group(1, Discrete(3))}

    def action_names(self, group: str) -> ActionNames:
        return {"throttle": ("left", "nothing", "right")}

    @property
    def play_fps(self) -> float:
        return 20.0

    def default_params(self) -> hill.Params:
        return hill.Params(force=0.001, goal_position=0.5, goal_velocity=self.goal_velocity)

    def step(
        self, key: jax.Array, state: hill.State, actions: Actions, params: hill.Params
    ) -> tuple[hill.State, Outcome]:
        action = actions["agent"][0]
        throttle = (action == 2).astype(jnp.float32) - (action == 0).astype(jnp.float32)
        state, reached = hill.drive(state, throttle, params)
        return state, Outcome({"agent": -jnp.ones(1)}, reached, state.t >= self.max_steps)
