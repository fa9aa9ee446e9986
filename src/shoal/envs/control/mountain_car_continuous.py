"""`control/mountain_car_continuous`: an underpowered car must rock itself out of a valley, and save fuel.

**Rules.** The car's position is between -1.2, where a wall stops it, and 0.6; its speed is at most 0.07. In each step
the velocity changes by `0.0015 throttle - 0.0025 cos(3 position)`, then the position by the velocity. It starts at rest
at random in [-0.6, -0.4], near the lowest point.

**Actions.** One number from -1 to 1, the throttle; it is clipped to that range.

**Observation**, 2 values: position and velocity.

**Reward.** `-0.1 action²` for every step (the action as it was given, not clipped), and 100 for reaching the goal.

**End.** Terminated when the car is at 0.45 or beyond with a velocity of at least `goal_velocity`; truncated after
`max_steps` steps.

**Source.** `MountainCarContinuous-v0` of Gymnasium 1.x (Moore 1990): the same views, rewards and ends from the same
state and actions, to 1e-5. Version 1. No departure: from step to step Gymnasium keeps this car's state in float32 too.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from shoal.core.spaces import ActionNames, Box
from shoal.core.types import Actions, Group, Outcome
from shoal.envs.control import _hill as hill

_GOAL_REWARD = 100.0
_FUEL = 0.1


@dataclasses.dataclass(frozen=True)
class MountainCarContinuous(hill.Hill):
    """Rock a car out of a valley with as little fuel as can be."""

    max_steps: int = 999  # length of an episode

    id: ClassVar[str] = "control/mountain_car_continuous"

    @property
    def groups(self) -> dict[str, Group]:
        return {"agent": Group(1, Box((1,), -1.0, 1.0))}

    def action_names(self, group: str) -> ActionNames:
        return {"throttle": ()}

    @property
    def play_fps(self) -> float:
        return 20.0

    def default_params(self) -> hill.Params:
        return hill.Params(force=0.0015, goal_position=0.45, goal_velocity=self.goal_velocity)

    def step(
        self, key: jax.Array, state: hill.State, actions: Actions, params: hill.Params
    ) -> tuple[hill.State, Outcome]:
        action = actions["agent"][0, 0]
        state, reached = hill.drive(state, jnp.clip(action, -1.0, 1.0), params)
        reward = jnp.where(reached, _GOAL_REWARD, 0.0) - _FUEL * action**2
        return state, Outcome({"agent": reward[None]}, reached, state.t >= self.max_steps)
