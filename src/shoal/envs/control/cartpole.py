"""`control/cartpole`: a pole stands on a cart; push the cart so that the pole does not fall.

**Rules.** The cart rolls on a track without friction, the pole turns freely about a pivot on it. In each step of 0.02 s
the cart is pushed with 10 N to the left or to the right; the motion follows by Euler's method, positions by the old
speeds. All four numbers of the state start at random in [-0.05, 0.05].

**Actions.** 0 pushes left, 1 pushes right. A number that is not an action pushes left.

**Observation**, 4 values:

| values | what |
|---|---|
| 1 | position of the cart, 0 in the middle |
| 1 | its velocity |
| 1 | angle of the pole in radians, 0 upright, positive to the right |
| 1 | its angular velocity |

**Reward.** 1 for every step, the last one included. With `sutton_barto_reward`, 0 for every step and -1 when the pole
falls or the cart leaves the track.

**End.** Terminated when the pole leans more than 12° or the cart is more than 2.4 from the middle; truncated after
`max_steps` steps.

**Source.** `CartPole-v1` of Gymnasium 1.x (Barto, Sutton and Anderson 1983): the same views, rewards and ends from the
same state and actions, to 1e-5. Version 1. One departure: float32 instead of float64.
"""

import dataclasses
import math
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.checks import require_flag, require_whole
from shoal.core.env import Env
from shoal.core.spaces import ActionNames, Discrete
from shoal.core.types import Actions, Group, Observation, Outcome, Scene
from shoal.envs.control import _drawing as drawing

_START = 0.05  # each number of the state starts within this of 0
_WHEEL = 0.08
_CART_HEIGHT = 0.24


class Params(NamedTuple):
    gravity: float | jax.Array = 9.8
    cart_mass: float | jax.Array = 1.0
    pole_mass: float | jax.Array = 0.1
    half_length: float | jax.Array = 0.5
    """From the pivot to the middle of the pole."""
    force: float | jax.Array = 10.0
    """Of a push."""
    step_seconds: float | jax.Array = 0.02
    max_position: float | jax.Array = 2.4
    """How far from the middle the cart may be."""
    max_angle: float | jax.Array = 12 * math.pi / 180
    """How far the pole may lean."""


class State(NamedTuple):
    position: jax.Array
    velocity: jax.Array
    angle: jax.Array
    angular_velocity: jax.Array
    t: jax.Array


@dataclasses.dataclass(frozen=True)
class CartPole(Env):
    """Keep a pole upright by pushing the cart it stands on."""

    max_steps: int = 500  # length of an episode
    sutton_barto_reward: bool = False  # -1 for falling instead of 1 for every step

    kind: ClassVar[str] = "cooperative"

    def __post_init__(self):
        require_whole("control/cartpole", 1, max_steps=self.max_steps)
        require_flag("control/cartpole", sutton_barto_reward=self.sutton_barto_reward)

    @property
    def groups(self) -> dict[str, Group]:
        return {"agent": Group(1, Discrete(2))}

    def action_names(self, group: str) -> ActionNames:
        return {"push": ("left", "right")}

    @property
    def play_fps(self) -> float:
        return 20.0

    def default_params(self) -> Params:
        return Params()

    def reset(self, key: jax.Array, params: Params) -> State:
        start = jax.random.uniform(key, (4,), minval=-_START, maxval=_START)
        return State(start[0], start[1], start[2], start[3], jnp.int32(0))

    def step(self, key: jax.Array, state: State, actions: Actions, params: Params) -> tuple[State, Outcome]:
        push = jnp.where(actions["agent"][0] == 1, params.force, -params.force)
        acceleration, angular_acceleration = _accelerations(state, push, params)
        seconds = params.step_seconds
        state = State(
            position=state.position + seconds * state.velocity,
            velocity=state.velocity + seconds * acceleration,
            angle=state.angle + seconds * state.angular_velocity,
            angular_velocity=state.angular_velocity + seconds * angular_acceleration,
            t=state.t + 1,
        )
        fallen = (jnp.abs(state.position) > params.max_position) | (jnp.abs(state.angle) > params.max_angle)
        reward = -fallen.astype(jnp.float32) if self.sutton_barto_reward else jnp.float32(1.0)
        return state, Outcome({"agent": reward[None]}, fallen, state.t >= self.max_steps)

    def observe(self, state: State, params: Params) -> dict[str, Observation]:
        return {"agent": Observation(jnp.stack(state[:4])[None])}

    def scene(self, state: State, params: Params) -> Scene:
        x, floor, width = state.position, 0.0, 3.0
        axle, deck = floor + _WHEEL, floor + 2 * _WHEEL
        pivot = drawing.point(x, deck + _CART_HEIGHT)
        lean = drawing.point(jnp.sin(state.angle), jnp.cos(state.angle))
        tip = pivot + 2.0 * params.half_length * lean
        edge = params.max_position
        return Scene(
            bounds=(-width, -0.6, width, 1.9),
            polygons=drawing.polygons(
                (drawing.box(drawing.point(x, deck + _CART_HEIGHT / 2), 0.32, _CART_HEIGHT / 2), drawing.BLUE),
                (drawing.bar(pivot, tip, 0.035), drawing.ORANGE),
            ),
            lines=drawing.lines(
                (drawing.point(-width, floor), drawing.point(width, floor), drawing.GREY),
                (drawing.point(-edge, floor - 0.12), drawing.point(-edge, floor + 0.12), drawing.RED),
                (drawing.point(edge, floor - 0.12), drawing.point(edge, floor + 0.12), drawing.RED),
            ),
            circles=drawing.circles(
                (drawing.point(x - 0.2, axle), _WHEEL, drawing.GREY, ""),
                (drawing.point(x + 0.2, axle), _WHEEL, drawing.GREY, ""),
                (pivot, 0.05, drawing.GREY, "cart"),
                (tip, 0.06, drawing.ORANGE, "pole"),
            ),
        )


def _accelerations(state: State, push: jax.Array, params: Params) -> tuple[jax.Array, jax.Array]:
    """Of the cart, and of the pole's angle."""
    cos, sin = jnp.cos(state.angle), jnp.sin(state.angle)
    mass = params.cart_mass + params.pole_mass
    moment = params.pole_mass * params.half_length
    pushed = (push + moment * state.angular_velocity**2 * sin) / mass
    turned = params.gravity * sin - cos * pushed
    angular = turned / (params.half_length * (4.0 / 3.0 - params.pole_mass * cos**2 / mass))
    return pushed - moment * angular * cos / mass, angular
