"""`mpe/simple`: one agent goes to one landmark. The smallest particle world, for trying things out.

**Rules.** An agent and a landmark start at random in the square [-1, 1]². The agent is steered in one of four
directions or left to glide. Nothing collides, and the plane has no walls.

**Actions.** One of five moves (stay, left, right, down, up), or with `continuous=True` five numbers from 0 to 1: the
first has no effect, the others pull left, right, down and up.

**Observation**, 4 values:

| values | what |
|---|---|
| 2 | own velocity |
| 2 | where the landmark is, seen from the agent |

**Reward.** The negative squared distance between agent and landmark.

**End.** Truncated after exactly `max_steps` steps; it never terminates.

**Source.** `simple_v3` of the Multi-Particle Environments (Lowe et al. 2017, arXiv:1706.02275), as the package `mpe2`
1.1 has it: the same views, rewards and ends from the same state and actions, to 1e-5. Version 1.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.checks import require_flag, require_whole
from shoal.core.env import Env
from shoal.core.spaces import ActionNames
from shoal.core.types import Actions, Group, Observation, Outcome, Scene
from shoal.envs.mpe import _actions as acts
from shoal.envs.mpe import _physics as physics
from shoal.envs.mpe import _picture as picture


class State(NamedTuple):
    position: jax.Array  # [1, 2]
    velocity: jax.Array  # [1, 2]
    landmark: jax.Array  # [1, 2]
    t: jax.Array


@dataclasses.dataclass(frozen=True)
class Simple(Env):
    """Go to the landmark."""

    max_steps: int = 25  # length of an episode
    continuous: bool = False  # five pulls from 0 to 1 instead of one of five moves

    kind: ClassVar[str] = "cooperative"

    def __post_init__(self):
        require_whole("mpe/simple", 1, max_steps=self.max_steps)
        require_flag("mpe/simple", continuous=self.continuous)

    @property
    def groups(self) -> dict[str, Group]:
        return {"agent": Group(1, acts.action_space(self.continuous))}

    def action_names(self, group: str) -> ActionNames:
        return acts.action_names(self.continuous)

    @property
    def play_fps(self) -> float:
        return acts.PLAY_FPS

    def default_params(self) -> physics.Gliding:
        return physics.Gliding()

    def reset(self, key: jax.Array, params: physics.Gliding) -> State:
        place = jax.random.uniform(key, (2, 2), minval=-1.0, maxval=1.0)
        return State(place[:1], jnp.zeros((1, 2)), place[1:], jnp.int32(0))

    def step(self, key: jax.Array, state: State, actions: Actions, params: physics.Gliding) -> tuple[State, Outcome]:
        steer = acts.steering(actions["agent"], self.continuous)
        position, velocity = physics.glide(state.position, state.velocity, steer, params)
        state = State(position, velocity, state.landmark, state.t + 1)
        squared = physics.squared_length(position - state.landmark)
        return state, Outcome({"agent": -squared}, jnp.bool_(False), state.t >= self.max_steps)

    def observe(self, state: State, params: physics.Gliding) -> dict[str, Observation]:
        view = physics.side_by_side([state.velocity, state.landmark - state.position])
        return {"agent": Observation(view)}

    def scene(self, state: State, params: physics.Gliding) -> Scene:
        return picture.picture(
            picture.Layer(state.landmark, 0.05, picture.RED),
            picture.Layer(state.position, 0.05, picture.BLUE, "agent"),
        )
