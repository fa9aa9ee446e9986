"""`control/acrobot`: two links hang from a pivot; swing the lower end above a line, with a motor between the links.

**Rules.** The first link turns about a fixed pivot, the second about the first one's end, where a motor applies a
torque of -1, 0 or 1. A step takes 0.2 s, by one Runge-Kutta step of fourth order; the links' speeds are kept within 4π
and 9π. Both angles (of the first link against hanging down, of the second against the first) and both velocities start
at random in [-0.1, 0.1].

**Actions.** 0, 1, 2: torque -1, 0, 1. A number that is not an action applies no torque.

**Observation**, 6 values:

| values | what |
|---|---|
| 2 | cosine and sine of the first angle |
| 2 | cosine and sine of the second angle |
| 2 | the two angular velocities |

**Reward.** -1 for every step, 0 for the one that reaches the goal.

**End.** Terminated when the free end is more than 1 above the pivot; truncated after `max_steps` steps.

**Source.** `Acrobot-v1` of Gymnasium 1.x (Sutton 1996; the equations of motion are those of Sutton and Barto's book):
the same views, rewards and ends from the same state and actions, to 1e-5. Version 1. One departure: float32 instead of
float64.
"""

import dataclasses
import math
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.checks import require_whole
from shoal.core.env import Env
from shoal.core.spaces import ActionNames, Discrete
from shoal.core.types import Actions, Group, Observation, Outcome, Scene
from shoal.envs.control import _drawing as drawing
from shoal.envs.control._angles import wrap_angle

_START = 0.1  # angles and velocities start within this of 0


class Params(NamedTuple):
    """The first of each pair is for the upper link, the second for the lower one."""

    gravity: float | jax.Array = 9.8
    length: tuple[float | jax.Array, float | jax.Array] = (1.0, 1.0)
    mass: tuple[float | jax.Array, float | jax.Array] = (1.0, 1.0)
    centre: tuple[float | jax.Array, float | jax.Array] = (0.5, 0.5)
    """How far along a link its centre of mass is."""
    inertia: tuple[float | jax.Array, float | jax.Array] = (1.0, 1.0)
    max_speed: tuple[float | jax.Array, float | jax.Array] = (4.0 * math.pi, 9.0 * math.pi)
    torque: float | jax.Array = 1.0
    """Of the motor."""
    goal: float | jax.Array = 1.0
    """How high above the pivot the free end must be."""
    step_seconds: float | jax.Array = 0.2


class State(NamedTuple):
    angle: tuple[jax.Array, jax.Array]
    velocity: tuple[jax.Array, jax.Array]
    t: jax.Array


Motion = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
"""Both angles and both angular velocities, or their rates of change."""


@dataclasses.dataclass(frozen=True)
class Acrobot(Env):
    """Swing the free end of two links above a line."""

    max_steps: int = 500  # length of an episode

    kind: ClassVar[str] = "cooperative"

    def __post_init__(self):
        require_whole("control/acrobot", 1, max_steps=self.max_steps)

    @property
    def groups(self) -> dict[str, Group]:
        return {"agent": Group(1, Discrete(3))}

    def action_names(self, group: str) -> ActionNames:
        return {"torque": ("clockwise", "nothing", "counterclockwise")}

    def default_params(self) -> Params:
        return Params()

    def reset(self, key: jax.Array, params: Params) -> State:
        start = jax.random.uniform(key, (4,), minval=-_START, maxval=_START)
        return State((start[0], start[1]), (start[2], start[3]), jnp.int32(0))

    def step(self, key: jax.Array, state: State, actions: Actions, params: Params) -> tuple[State, Outcome]:
        action = actions["agent"][0]
        torque = params.torque * ((action == 2).astype(jnp.float32) - (action == 0).astype(jnp.float32))
        upper, lower, *velocity = _integrate((*state.angle, *state.velocity), torque, params)
        limited = [jnp.clip(v, -most, most) for v, most in zip(velocity, params.max_speed, strict=True)]
        state = State((wrap_angle(upper), wrap_angle(lower)), (limited[0], limited[1]), state.t + 1)
        reached = _ends(state, params)[1][1] > params.goal
        reward = jnp.where(reached, 0.0, -1.0)
        return state, Outcome({"agent": reward[None]}, reached, state.t >= self.max_steps)

    def observe(self, state: State, params: Params) -> dict[str, Observation]:
        circular = [wave(angle) for angle in state.angle for wave in (jnp.cos, jnp.sin)]
        return {"agent": Observation(jnp.stack([*circular, *state.velocity])[None])}

    def scene(self, state: State, params: Params) -> Scene:
        pivot = drawing.point(0.0, 0.0)
        elbow, tip = (drawing.point(x, y) for x, y in _ends(state, params))
        goal = params.goal
        return Scene(
            bounds=(-2.4, -2.4, 2.4, 2.4),
            polygons=drawing.polygons(
                (drawing.bar(pivot, elbow, 0.09), drawing.BLUE),
                (drawing.bar(elbow, tip, 0.09), drawing.TEAL),
            ),
            lines=drawing.lines((drawing.point(-2.3, goal), drawing.point(2.3, goal), drawing.GREEN)),
            circles=drawing.circles(
                (pivot, 0.1, drawing.GREY, ""),
                (elbow, 0.1, drawing.YELLOW, ""),
                (tip, 0.1, drawing.TEAL, "end"),
            ),
        )


def _ends(state: State, params: Params) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """Where the two links end, seen from the pivot."""
    (upper, lower), (first, second) = state.angle, params.length
    elbow = first * jnp.sin(upper), -first * jnp.cos(upper)
    return elbow, (elbow[0] + second * jnp.sin(upper + lower), elbow[1] - second * jnp.cos(upper + lower))


def _integrate(motion: Motion, torque: jax.Array, params: Params) -> Motion:
    """One step of the classic Runge-Kutta method."""
    seconds = params.step_seconds

    def after(fraction: jax.Array | float, rate: Motion) -> Motion:
        return _each(lambda old, change: old + fraction * change, motion, rate)

    first = _rate(motion, torque, params)
    second = _rate(after(seconds / 2.0, first), torque, params)
    third = _rate(after(seconds / 2.0, second), torque, params)
    fourth = _rate(after(seconds, third), torque, params)
    mean = _each(lambda a, b, c, d: (a + 2.0 * b + 2.0 * c + d) / 6.0, first, second, third, fourth)
    return after(seconds, mean)


def _rate(motion: Motion, torque: jax.Array, params: Params) -> Motion:
    """The equations of motion."""
    upper, lower, upper_speed, lower_speed = motion
    (m1, m2), (c1, c2), (i1, i2), l1, g = params.mass, params.centre, params.inertia, params.length[0], params.gravity
    cos, sin = jnp.cos(lower), jnp.sin(lower)
    coupling = m2 * l1 * c2
    d1 = m1 * c1**2 + m2 * (l1**2 + c2**2) + 2.0 * coupling * cos + i1 + i2
    d2 = m2 * c2**2 + coupling * cos + i2
    weight = m2 * c2 * g * jnp.sin(upper + lower)
    swing = (lower_speed + 2.0 * upper_speed) * lower_speed
    pull = -coupling * swing * sin + (m1 * c1 + m2 * l1) * g * jnp.sin(upper) + weight
    ratio = d2 / d1
    driven = torque + ratio * pull - coupling * upper_speed**2 * sin - weight
    lower_rate = driven / (m2 * c2**2 + i2 - d2 * ratio)
    return upper_speed, lower_speed, -(d2 * lower_rate + pull) / d1, lower_rate


def _each(function, *motions: Motion) -> Motion:
    a, b, c, d = (function(*parts) for parts in zip(*motions, strict=True))
    return a, b, c, d
