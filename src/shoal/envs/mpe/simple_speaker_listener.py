"""`mpe/simple_speaker_listener`: one knows the way but cannot move, the other moves but must be told.

**Rules.** A listener (radius 0.075) and three landmarks of different colours start at random in the square [-1, 1]².
One landmark is the goal. The speaker sees its colour and says one of three words; the listener sees the landmarks and
hears, a step later, what the speaker said. The listener is steered in one of four directions or left to glide. Nothing
collides, and the plane has no walls.

**Actions.** The speaker says one of three words; the listener makes one of five moves (stay, left, right, down, up).
With `continuous=True` the speaker's message is three numbers from 0 to 1, and the listener has five numbers from 0 to
1: the first has no effect, the others pull left, right, down and up.

**Observation** of the speaker, 3 values: the colour of the goal, 0.15 with 0.65 in the place of the landmark's number.
Of the listener, 11 values:

| values | what |
|---|---|
| 2 | own velocity |
| 6 | where each landmark is, seen from the listener |
| 3 | what the speaker said; one-hot if actions are discrete, 0 at the start |

**Reward.** Both get the negative squared distance between the listener and the goal.

**End.** Truncated after exactly `max_steps` steps; it never terminates.

**Source.** `simple_speaker_listener_v4` of the Multi-Particle Environments (Lowe et al. 2017, arXiv:1706.02275), as the
package `mpe2` 1.1 has it: the same views, rewards and ends from the same state and actions, to 1e-5. Version 1. One
departure: the speaker has no place in the plane; in the original it has one, which nobody sees.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.checks import require_flag, require_whole
from shoal.core.env import Env
from shoal.core.spaces import ActionNames
from shoal.core.types import Actions, Group, Observation, Outcome, Scene, Seat
from shoal.envs.mpe import _actions as acts
from shoal.envs.mpe import _physics as physics
from shoal.envs.mpe import _picture as picture

_WORDS = 3
_UNKNOWN = 3  # in place of a landmark's number, in pictures
_LANDMARK_COLOURS = ((0.65, 0.15, 0.15), (0.15, 0.65, 0.15), (0.15, 0.15, 0.65))
_SPEAKER_AT = (-1.3, 1.3)  # only drawn


class State(NamedTuple):
    position: jax.Array  # [1, 2], of the listener
    velocity: jax.Array  # [1, 2]
    landmark: jax.Array  # [3, 2]
    goal: jax.Array  # index of a landmark
    message: jax.Array  # [1, 3], what the speaker said last
    t: jax.Array


@dataclasses.dataclass(frozen=True)
class SimpleSpeakerListener(Env):
    """The speaker names the goal, the listener goes there."""

    max_steps: int = 25  # length of an episode
    continuous: bool = False  # numbers from 0 to 1 instead of words and moves

    kind: ClassVar[str] = "cooperative"

    def __post_init__(self):
        require_whole("mpe/simple_speaker_listener", 1, max_steps=self.max_steps)
        require_flag("mpe/simple_speaker_listener", continuous=self.continuous)

    @property
    def groups(self) -> dict[str, Group]:
        return {
            "speaker": Group(1, acts.action_space(self.continuous, moves=False, words=_WORDS)),
            "listener": Group(1, acts.action_space(self.continuous)),
        }

    def action_names(self, group: str) -> ActionNames:
        return acts.action_names(self.continuous, group == "listener", _WORDS if group == "speaker" else 0)

    @property
    def play_fps(self) -> float:
        return acts.PLAY_FPS

    def default_params(self) -> physics.Gliding:
        return physics.Gliding()

    def reset(self, key: jax.Array, params: physics.Gliding) -> State:
        place, (goal,) = physics.places_and_choices(key, 4, (3,))
        return State(place[:1], jnp.zeros((1, 2)), place[1:], goal, jnp.zeros((1, _WORDS)), jnp.int32(0))

    def step(self, key: jax.Array, state: State, actions: Actions, params: physics.Gliding) -> tuple[State, Outcome]:
        steer = acts.steering(actions["listener"], self.continuous)
        position, velocity = physics.glide(state.position, state.velocity, steer, params)
        message = acts.speech(actions["speaker"], _WORDS, self.continuous)
        state = State(position, velocity, state.landmark, state.goal, message, state.t + 1)
        squared = physics.squared_length(position - physics.pick(state.landmark, state.goal))
        reward = {"speaker": -squared, "listener": -squared}
        metrics = {"distance": jnp.sqrt(squared[0])}
        return state, Outcome(reward, jnp.bool_(False), state.t >= self.max_steps, metrics)

    def observe(self, state: State, params: physics.Gliding) -> dict[str, Observation]:
        colour = physics.pick(jnp.array(_LANDMARK_COLOURS), state.goal)[None]
        landmarks = state.landmark[None] - state.position[:, None]
        return {
            "speaker": Observation(colour),
            "listener": Observation(physics.side_by_side([state.velocity, landmarks, state.message])),
        }

    def scene_for(self, state: State, params: physics.Gliding, seat: Seat) -> Scene:
        """The listener is not shown the goal."""
        return self.scene(state._replace(goal=jnp.int32(_UNKNOWN)) if seat[0] == "listener" else state, params)

    def scene(self, state: State, params: physics.Gliding) -> Scene:
        colours = jnp.array([picture.RED, picture.GREEN, picture.BLUE, picture.GREY])
        speaker = jnp.array([_SPEAKER_AT])
        return picture.picture(
            picture.Layer(state.landmark, 0.04, colours[:_UNKNOWN]),
            picture.Layer(speaker, 0.1, colours[state.goal], "speaker"),
            picture.Layer(state.position, 0.075, picture.GREY, "listener"),
            labels=picture.words(state.message, speaker + jnp.array([0.25, 0.0])),
        )
