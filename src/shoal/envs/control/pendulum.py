"""`control/pendulum`: swing a pendulum up and hold it there, with a motor too weak to lift it at once.

**Rules.** A rod of length 1 and mass 1 turns about its end. In each step of 0.05 s a torque of at most 2 acts on it;
its speed is kept within 8. The angle (0 is upright, positive is anticlockwise) starts anywhere, the angular velocity in
[-1, 1].

**Actions.** One number from -2 to 2, the torque; it is clipped to that range.

**Observation**, 3 values:

| values | what |
|---|---|
| 2 | cosine and sine of the angle |
| 1 | angular velocity |

**Reward.** `-(angle² + 0.1 velocity² + 0.001 torque²)`, with angle (from -π to π) and velocity before the step.

**End.** Truncated after exactly `max_steps` steps; it never terminates.

**Source.** `Pendulum-v1` of Gymnasium 1.x: the same views, rewards and ends from the same state and actions, to 1e-5.
Version 1. Two departures: float32 instead of float64, and the angle is kept between -π and π, which views and rewards
do not show.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.checks import require_finite, require_whole
from shoal.core.env import Env
from shoal.core.spaces import ActionNames, Box
from shoal.core.types import Actions, Group, Observation, Outcome, Scene
from shoal.envs.control import _drawing as drawing
from shoal.envs.control._angles import wrap_angle

_MAX_TORQUE = 2.0


class Params(NamedTuple):
    gravity: float | jax.Array = 10.0
    mass: float | jax.Array = 1.0
    length: float | jax.Array = 1.0
    max_speed: float | jax.Array = 8.0
    step_seconds: float | jax.Array = 0.05


class State(NamedTuple):
    angle: jax.Array
    velocity: jax.Array
    t: jax.Array


@dataclasses.dataclass(frozen=True)
class Pendulum(Env):
    """Swing a pendulum up and keep it upright."""

    max_steps: int = 200  # length of an episode
    gravity: float = 10.0

    kind: ClassVar[str] = "cooperative"

    def __post_init__(self):
        require_whole("control/pendulum", 1, max_steps=self.max_steps)
        require_finite("control/pendulum", gravity=self.gravity)

    @property
    def groups(self) -> dict[str, Group]:
        return {"agent": Group(1, Box((1,), -_MAX_TORQUE, _MAX_TORQUE))}

    def action_names(self, group: str) -> ActionNames:
        return {"torque": ()}

    @property
    def play_fps(self) -> float:
        return 15.0

    def default_params(self) -> Params:
        return Params(gravity=self.gravity)

    def reset(self, key: jax.Array, params: Params) -> State:
        start = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        return State(jnp.pi * start[0], start[1], jnp.int32(0))

    def step(self, key: jax.Array, state: State, actions: Actions, params: Params) -> tuple[State, Outcome]:
        torque = jnp.clip(actions["agent"][0, 0], -_MAX_TORQUE, _MAX_TORQUE)
        cost = state.angle**2 + 0.1 * state.velocity**2 + 0.001 * torque**2
        weight = 1.5 * params.gravity / params.length * jnp.sin(state.angle)
        motor = 3.0 / (params.mass * params.length**2) * torque
        velocity = state.velocity + (weight + motor) * params.step_seconds
        velocity = jnp.clip(velocity, -params.max_speed, params.max_speed)
        state = State(wrap_angle(state.angle + velocity * params.step_seconds), velocity, state.t + 1)
        return state, Outcome({"agent": -cost[None]}, jnp.bool_(False), state.t >= self.max_steps)

    def observe(self, state: State, params: Params) -> dict[str, Observation]:
        view = jnp.stack([jnp.cos(state.angle), jnp.sin(state.angle), state.velocity])
        return {"agent": Observation(view[None])}

    def scene(self, state: State, params: Params) -> Scene:
        pivot = drawing.point(0.0, 0.0)
        tip = params.length * drawing.point(-jnp.sin(state.angle), jnp.cos(state.angle))
        goal = drawing.point(0.0, 1.0) * params.length
        return Scene(
            bounds=(-1.4, -1.4, 1.4, 1.4),
            polygons=drawing.polygons(
                (drawing.box(pivot, 0.18, 0.18), drawing.GREY),
                (drawing.bar(pivot, tip, 0.07), drawing.ORANGE),
            ),
            lines=drawing.lines((1.2 * goal, 1.3 * goal, drawing.GREEN)),
            circles=drawing.circles(
                (pivot, 0.05, drawing.GREY, ""),
                (goal, 0.12, drawing.GREEN, ""),
                (tip, 0.09, drawing.ORANGE, "pendulum"),
            ),
        )
