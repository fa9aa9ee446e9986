"""The valley that both mountain cars drive in: `height = 0.55 + 0.45 sin(3 x)`, a wall left, a flag right.

Gravity pulls with `-gravity cos(3 x)`; the speed is limited; the left wall stops the car.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.checks import require_finite, require_whole
from shoal.core.env import Env
from shoal.core.types import Observation, Scene
from shoal.envs.control import _drawing as drawing

_CORNERS = 64
_WHEEL = 0.03
_FLOOR = -0.15
_BODY = (
    (-0.09, 0.04),
    (0.09, 0.04),
    (0.09, 0.075),
    (0.05, 0.085),
    (0.02, 0.12),
    (-0.06, 0.12),
    (-0.09, 0.085),
)


class State(NamedTuple):
    position: jax.Array
    velocity: jax.Array
    t: jax.Array


class Params(NamedTuple):
    force: float | jax.Array
    """Acceleration at full throttle, per step."""
    goal_position: float | jax.Array
    goal_velocity: float | jax.Array
    """How fast the car must be there, at least."""
    gravity: float | jax.Array = 0.0025
    max_speed: float | jax.Array = 0.07
    min_position: float | jax.Array = -1.2
    """Where the wall is."""
    max_position: float | jax.Array = 0.6


@dataclasses.dataclass(frozen=True)
class Hill(Env):
    """What both cars have in common: where they start, what they see and how they are drawn."""

    max_steps: int = 200  # length of an episode
    goal_velocity: float = 0.0  # how fast the car must be at the goal, at least

    kind: ClassVar[str] = "cooperative"
    id: ClassVar[str]

    def __post_init__(self):
        require_whole(self.id, 1, max_steps=self.max_steps)
        require_finite(self.id, goal_velocity=self.goal_velocity)

    def reset(self, key: jax.Array, params: Params) -> State:
        """At rest, at the bottom of the valley."""
        return State(jax.random.uniform(key, minval=-0.6, maxval=-0.4), jnp.float32(0.0), jnp.int32(0))

    def observe(self, state: State, params: Params) -> dict[str, Observation]:
        return {"agent": Observation(jnp.stack([state.position, state.velocity])[None])}

    def scene(self, state: State, params: Params) -> Scene:
        return picture(state, params)


def drive(state: State, throttle: jax.Array, params: Params) -> tuple[State, jax.Array]:
    """The state after one step at a throttle from -1 to 1, and whether the goal is reached."""
    velocity = state.velocity + throttle * params.force - params.gravity * jnp.cos(3.0 * state.position)
    velocity = jnp.clip(velocity, -params.max_speed, params.max_speed)
    position = jnp.clip(state.position + velocity, params.min_position, params.max_position)
    velocity = jnp.where((position == params.min_position) & (velocity < 0.0), 0.0, velocity)
    reached = (position >= params.goal_position) & (velocity >= params.goal_velocity)
    return State(position, velocity, state.t + 1), reached


def picture(state: State, params: Params) -> Scene:
    """The valley, the car and the flag."""
    slope = jnp.arctan(1.35 * jnp.cos(3.0 * state.position))
    road = drawing.point(state.position, height(state.position))
    wheels = road + drawing.rotate(jnp.array([[-0.045, _WHEEL], [0.045, _WHEEL]]), slope)
    body = road + drawing.rotate(jnp.array(_BODY), slope)
    foot = drawing.point(params.goal_position, height(params.goal_position))
    mast = foot + drawing.point(0.0, 0.26)
    flag = jnp.stack([mast, mast + drawing.point(0.12, -0.04), mast + drawing.point(0.0, -0.08)])
    return Scene(
        bounds=(-1.3, _FLOOR - 0.05, 0.7, 1.4),
        polygons=drawing.polygons((_ground(params), drawing.GREY), (body, drawing.BLUE), (flag, drawing.GREEN)),
        lines=drawing.lines((foot, mast, drawing.GREEN)),
        circles=drawing.circles(
            (wheels[0], _WHEEL, drawing.GREY, ""),
            (wheels[1], _WHEEL, drawing.GREY, ""),
            (body.mean(0), 0.025, drawing.BLUE, "car"),
        ),
    )


def height(x: jax.Array | float) -> jax.Array:
    """Of the road, for the picture."""
    return 0.55 + 0.45 * jnp.sin(3.0 * x)


def _ground(params: Params) -> jax.Array:
    share = jnp.linspace(0.0, 1.0, _CORNERS - 2)
    x = params.min_position + share * (params.max_position - params.min_position)
    road = jnp.stack([x, height(x)], axis=-1)
    right, left = drawing.point(params.max_position, _FLOOR), drawing.point(params.min_position, _FLOOR)
    return jnp.concatenate([road, right[None], left[None]])
