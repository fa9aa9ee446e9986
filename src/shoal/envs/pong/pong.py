"""`pong`: two paddles, one ball; who lets it pass gives a point away.

**Rules.** The court is the square [-1, 1]². The left player's paddle moves up and down at x = -0.9, the right one's at
x = 0.9; each is `paddle_length` long and stays inside the court. In a step both paddles move first, by `paddle_speed`
or not at all; then the ball flies for one step, at constant speed in straight lines. The floor and the ceiling, at
y = ±0.97 for the ball's centre, reflect it. When it reaches a paddle's x and is no further from the paddle's middle
than half its length plus the ball's radius of 0.03, it is sent back: its horizontal speed grows by a tenth, up to
`max_speed`, and its vertical speed changes by 0.06 times where it was hit (from -1, the lower end, to 1), within ±0.12.
All of this is exact in time: a step is cut where the ball is reflected, so that it cannot pass through a paddle however
fast it is. A ball that was missed flies on; at x = ±1 it is a point.

Every ball is served from the centre towards a side drawn at random, at `serve_speed` and with a vertical speed drawn at
random in [-0.04, 0.04]. Paddles start in the middle of their sides and stay where they are between points.

**Actions.** Stay, up, down. A number that is not an action counts as staying.

**Observation.** Both players see themselves on the left: for the right one everything is mirrored. So one policy can
play both sides (`--sharing all`), and plays itself while it learns. With `view="vector"`, 8 values:

| values | what |
|---|---|
| 2 | x and y of the ball |
| 2 | its velocity, times 10 |
| 1 | y of the own paddle |
| 1 | y of the other one |
| 2 | own points and the other's, divided by `points` |

With `view="image"`, 12 × 12 pixels of 3 bytes, the top row first, the own paddle in the first column, the other in the
last one. Points are not shown:

| plane | what |
|---|---|
| 0 | the ball |
| 1 | the ball one step before, which shows how it moves |
| 2 | both paddles |

Places between pixels are shared among the neighbours by their distance, so that positions and velocities much smaller
than a pixel can be told.

**Reward.** 1 for a point, -1 for a point of the other.

**End.** Terminated when a player has `points` points; truncated after `max_steps` steps.

**Source.** Our own, after Atari's Pong (1972). Version 1.
"""

import dataclasses
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.checks import require_above_zero, require_not_negative, require_whole
from shoal.core.env import Env
from shoal.core.errors import require
from shoal.core.spaces import ActionNames, Discrete
from shoal.core.types import Actions, Group, Observation, Outcome, Scene
from shoal.envs.pong import _views as views

_NUM_MOVES = 3
_FASTEST = 1.0  # so that a ball meets one paddle a step at most


class Params(NamedTuple):
    paddle_length: float | jax.Array
    paddle_speed: float | jax.Array
    serve_speed: float | jax.Array
    """Horizontal, of a new ball."""
    max_speed: float | jax.Array
    """Horizontal, at most."""
    speed_up: float | jax.Array = 1.1
    """By which the horizontal speed is multiplied when the ball is hit."""
    spin: float | jax.Array = 0.06
    """Vertical speed from a hit with the end of the paddle."""
    max_vertical: float | jax.Array = 0.12
    """Vertical speed at most; must be less than 1."""
    max_serve_vertical: float | jax.Array = 0.04
    """Vertical speed of a new ball at most."""


class Ball(NamedTuple):
    x: jax.Array
    y: jax.Array
    vx: jax.Array
    vy: jax.Array


class State(NamedTuple):
    """Pairs are left, then right. `before` is where the ball was one step ago."""

    ball: Ball
    before: tuple[jax.Array, jax.Array]
    paddle: tuple[jax.Array, jax.Array]
    score: tuple[jax.Array, jax.Array]
    t: jax.Array


@dataclasses.dataclass(frozen=True)
class Pong(Env):
    """Do not let the ball pass."""

    points: int = 5  # who has that many wins
    max_steps: int = 1000  # length of an episode at most
    view: Literal["vector", "image"] = "vector"  # what the players see: 8 numbers, or 12 x 12 pixels
    paddle_length: float = 0.4  # the court is 2 high
    paddle_speed: float = 0.05  # per step
    serve_speed: float = 0.05  # horizontal speed of a new ball, per step
    max_speed: float = 0.14  # horizontal speed at most

    kind: ClassVar[str] = "competitive"

    def __post_init__(self):
        owner = "pong"
        require_whole(owner, 1, points=self.points, max_steps=self.max_steps)
        require(self.view in ("vector", "image"), owner, "view", self.view, "'vector' or 'image'")
        require_above_zero(owner, paddle_length=self.paddle_length, serve_speed=self.serve_speed)
        require_not_negative(owner, paddle_speed=self.paddle_speed, max_speed=self.max_speed)
        require(self.paddle_length <= 2, owner, "paddle_length", self.paddle_length, "at most 2, the court's height")
        between = f"between serve_speed ({self.serve_speed}) and {_FASTEST}"
        require(self.serve_speed <= self.max_speed <= _FASTEST, owner, "max_speed", self.max_speed, between)

    @property
    def groups(self) -> dict[str, Group]:
        return {"left": Group(1, Discrete(_NUM_MOVES)), "right": Group(1, Discrete(_NUM_MOVES))}

    def action_names(self, group: str) -> ActionNames:
        return {"paddle": ("stay", "up", "down")}

    @property
    def play_fps(self) -> float:
        return 20.0

    def default_params(self) -> Params:
        return Params(self.paddle_length, self.paddle_speed, self.serve_speed, self.max_speed)

    def reset(self, key: jax.Array, params: Params) -> State:
        zero = jnp.float32(0.0)
        score = jnp.int32(0)
        return State(_serve(key, params), (zero, zero), (zero, zero), (score, score), jnp.int32(0))

    def step(self, key: jax.Array, state: State, actions: Actions, params: Params) -> tuple[State, Outcome]:
        left, right = (
            _move_paddle(paddle, actions[name][0], params)
            for paddle, name in zip(state.paddle, ("left", "right"), strict=True)
        )
        ball, hit = _fly(state.ball, left, right, params)
        won, lost = ~hit & (ball.x >= 1.0), ~hit & (ball.x <= -1.0)
        new = won | lost
        ball = jax.tree.map(lambda a, b: jnp.where(new, a, b), _serve(key, params), ball)
        before = jnp.where(new, 0.0, state.ball.x), jnp.where(new, 0.0, state.ball.y)
        score = state.score[0] + won.astype(jnp.int32), state.score[1] + lost.astype(jnp.int32)
        state = State(ball, before, (left, right), score, state.t + 1)
        plus, minus = won.astype(jnp.float32), lost.astype(jnp.float32)
        over = (score[0] >= self.points) | (score[1] >= self.points)
        reward = {"left": (plus - minus)[None], "right": (minus - plus)[None]}
        return state, Outcome(reward, over, state.t >= self.max_steps, {"hits": hit.astype(jnp.float32)})

    def observe(self, state: State, params: Params) -> dict[str, Observation]:
        draw = self._numbers if self.view == "vector" else _pixels
        return {"left": Observation(draw(state, params, 0)[None]), "right": Observation(draw(state, params, 1)[None])}

    def global_state(self, state: State, params: Params) -> jax.Array:
        """What the left player sees with the vector view."""
        return self._numbers(state, params, 0)

    def scene(self, state: State, params: Params) -> Scene:
        return views.picture(state.ball[:2], state.paddle, params.paddle_length, state.score, self.points)

    def _numbers(self, state: State, params: Params, side: int) -> jax.Array:
        mirror = 1.0 - 2.0 * side
        x, y, vx, vy = state.ball
        score = [points.astype(jnp.float32) / self.points for points in state.score]
        own, other = (side, 1 - side)
        return jnp.stack(
            [
                mirror * x,
                y,
                10.0 * mirror * vx,
                10.0 * vy,
                state.paddle[own],
                state.paddle[other],
                score[own],
                score[other],
            ]
        )


def _pixels(state: State, params: Params, side: int) -> jax.Array:
    mirror = 1.0 - 2.0 * side
    now, before = ((mirror * x, y) for x, y in (state.ball[:2], state.before))
    return views.image(now, before, state.paddle[side], state.paddle[1 - side], params.paddle_length)


def _serve(key: jax.Array, params: Params) -> Ball:
    """A new ball at the centre. One draw serves for the side and for the vertical speed."""
    drawn = 4.0 * jax.random.uniform(key) - 2.0
    right = drawn >= 0.0
    vertical = params.max_serve_vertical * jnp.where(right, drawn - 1.0, drawn + 1.0)
    zero = jnp.float32(0.0)
    return Ball(zero, zero, jnp.where(right, params.serve_speed, -params.serve_speed), vertical)


def _move_paddle(paddle: jax.Array, action: jax.Array, params: Params) -> jax.Array:
    most = 1.0 - params.paddle_length / 2.0
    way = (action == 1).astype(jnp.float32) - (action == 2).astype(jnp.float32)
    return jnp.clip(paddle + params.paddle_speed * way, -most, most)


def _fly(ball: Ball, left: jax.Array, right: jax.Array, params: Params) -> tuple[Ball, jax.Array]:
    """The ball one step later, and whether a paddle has hit it on the way."""
    ahead = jnp.sign(ball.vx)
    speed, place = ahead * ball.vx, ahead * ball.x
    reaches = (place < views.PADDLE_X) & (place + speed >= views.PADDLE_X)
    until = (views.PADDLE_X - place) / speed
    y, vy = _reflect(ball.y + until * ball.vy, ball.vy)
    reach = params.paddle_length / 2.0 + views.RADIUS
    offset = (y - jnp.where(ahead > 0, right, left)) / reach
    hit = reaches & (jnp.abs(offset) <= 1.0)
    back = -ahead * jnp.minimum(params.speed_up * speed, params.max_speed)
    spun = jnp.clip(vy + params.spin * offset, -params.max_vertical, params.max_vertical)
    x, vx = jnp.where(hit, ahead * views.PADDLE_X, ball.x), jnp.where(hit, back, ball.vx)
    y, vy = jnp.where(hit, y, ball.y), jnp.where(hit, spun, ball.vy)
    rest = jnp.where(hit, 1.0 - until, 1.0)
    y, vy = _reflect(y + rest * vy, vy)
    return Ball(x + rest * vx, y, vx, vy), hit


def _reflect(y: jax.Array, vy: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Height and vertical speed of a ball that would be at `y` if there were neither floor nor ceiling."""
    outside = jnp.abs(y) > views.CEILING
    return jnp.where(outside, jnp.sign(y) * 2.0 * views.CEILING - y, y), jnp.where(outside, -vy, vy)
