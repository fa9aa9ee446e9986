"""`mpe/simple_reference`: two agents, each of whom knows only where the other one must go.

**Rules.** Two agents (radius 0.05) and three landmarks of different colours start at random in the square [-1, 1]².
Each agent has a goal among the landmarks (it may be the same), and only the other one sees its colour. Agents move and
speak at once: each is steered in one of four directions or left to glide, and says one of ten words, which the other
hears a step later. Nothing collides, and the plane has no walls.

**Actions.** One of 50 pairs of a move (stay, left, right, down, up) and a word: `move + 5 * word`. With
`continuous=True`, 15 numbers from 0 to 1: the first has no effect, the next four pull left, right, down and up, and the
last ten are the message.

**Observation** of each agent, 21 values:

| values | what |
|---|---|
| 2 | own velocity |
| 6 | where each landmark is, seen from the agent |
| 3 | colour of the other's goal, 0.25 with 0.75 in the place of the landmark's number |
| 10 | what the other said; one-hot if actions are discrete, 0 at the start |

**Reward.** An agent's own share is the negative distance between the *other* agent and that one's goal; what both share
is the mean of the two. `local_ratio` weighs the first against the second: `(1 - local_ratio) * shared + local_ratio *
own`.

**End.** Truncated after exactly `max_steps` steps; it never terminates.

**Source.** `simple_reference_v3` of the Multi-Particle Environments (Lowe et al. 2017, arXiv:1706.02275), as the
package `mpe2` 1.1 has it: the same views, rewards and ends from the same state and actions, to 1e-5. Version 1.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.checks import require_finite, require_flag, require_whole
from shoal.core.env import Env
from shoal.core.errors import require
from shoal.core.spaces import ActionNames
from shoal.core.types import Actions, Group, Observation, Outcome, Scene, Seat
from shoal.envs.mpe import _actions as acts
from shoal.envs.mpe import _physics as physics
from shoal.envs.mpe import _picture as picture

_WORDS = 10
_UNKNOWN = 3  # in place of a landmark's number, in pictures
_LANDMARK_COLOURS = ((0.75, 0.25, 0.25), (0.25, 0.75, 0.25), (0.25, 0.25, 0.75))


class Params(NamedTuple):
    local_ratio: float | jax.Array
    """Weight of the reward for the other agent's distance against the one for the mean of both."""
    acceleration: float | jax.Array = 5.0
    """Force of a move."""
    damping: float | jax.Array = 0.25
    """Share of the velocity that is lost in a step."""


class State(NamedTuple):
    position: jax.Array  # [2, 2]
    velocity: jax.Array  # [2, 2]
    landmark: jax.Array  # [3, 2]
    goal: jax.Array  # [2], the landmark that agent i knows of: the goal of the other
    message: jax.Array  # [2, 10], what agent i said last
    t: jax.Array


@dataclasses.dataclass(frozen=True)
class SimpleReference(Env):
    """Tell the other where to go, and go where the other tells."""

    local_ratio: float = 0.5  # weight of the other's distance against the mean of both
    max_steps: int = 25  # length of an episode
    continuous: bool = False  # 15 numbers from 0 to 1 instead of one of 50 pairs of move and word

    kind: ClassVar[str] = "cooperative"

    def __post_init__(self):
        owner = "mpe/simple_reference"
        require_whole(owner, 1, max_steps=self.max_steps)
        require_finite(owner, local_ratio=self.local_ratio)
        require(0 <= self.local_ratio <= 1, owner, "local_ratio", self.local_ratio, "between 0 and 1")
        require_flag(owner, continuous=self.continuous)

    @property
    def groups(self) -> dict[str, Group]:
        return {"agent": Group(2, acts.action_space(self.continuous, words=_WORDS))}

    def action_names(self, group: str) -> ActionNames:
        return acts.action_names(self.continuous, words=_WORDS)

    @property
    def play_fps(self) -> float:
        return acts.PLAY_FPS

    def default_params(self) -> Params:
        return Params(local_ratio=self.local_ratio)

    def reset(self, key: jax.Array, params: Params) -> State:
        place, goals = physics.places_and_choices(key, 5, (3, 3))
        return State(
            position=place[:2],
            velocity=jnp.zeros((2, 2)),
            landmark=place[2:],
            goal=jnp.stack(goals),
            message=jnp.zeros((2, _WORDS)),
            t=jnp.int32(0),
        )

    def step(self, key: jax.Array, state: State, actions: Actions, params: Params) -> tuple[State, Outcome]:
        steer, message = acts.steering_and_speech(actions["agent"], _WORDS, self.continuous)
        force = steer * params.acceleration
        state = State(
            position=physics.move(state.position, state.velocity),
            velocity=physics.accelerate(state.velocity, force, params.damping),
            landmark=state.landmark,
            goal=state.goal,
            message=message,
            t=state.t + 1,
        )
        others = physics.length(state.position[::-1] - physics.pick(state.landmark, state.goal))
        shared = 0.5 * (others[0] + others[1])
        reward = -((1.0 - params.local_ratio) * shared + params.local_ratio * others)
        return state, Outcome({"agent": reward}, jnp.bool_(False), state.t >= self.max_steps, {"distance": shared})

    def observe(self, state: State, params: Params) -> dict[str, Observation]:
        landmarks = state.landmark[None] - state.position[:, None]
        colour = physics.pick(jnp.array(_LANDMARK_COLOURS), state.goal)
        seen = [state.velocity, landmarks, colour, state.message[::-1]]
        return {"agent": Observation(physics.side_by_side(seen))}

    def scene_for(self, state: State, params: Params, seat: Seat) -> Scene:
        """An agent is shown the other's goal, not its own."""
        return self.scene(state._replace(goal=state.goal.at[1 - seat[1]].set(_UNKNOWN)), params)

    def scene(self, state: State, params: Params) -> Scene:
        colours = jnp.array([picture.RED, picture.GREEN, picture.BLUE, picture.GREY])
        return picture.picture(
            picture.Layer(state.landmark, 0.05, colours[:_UNKNOWN]),
            picture.Layer(state.position, 0.09, colours[state.goal[::-1]]),  # a rim in the colour of the agent's goal
            picture.Layer(state.position, 0.05, picture.GREY, "agent"),
            labels=picture.words(state.message, state.position + jnp.array([0.0, 0.2])),
        )
