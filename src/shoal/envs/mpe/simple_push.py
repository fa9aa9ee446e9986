"""`mpe/simple_push`: an agent goes to its goal, and an adversary gets in its way.

**Rules.** An agent, an adversary (discs of radius 0.05) and two landmarks (points that nobody collides with) start at
random in the square [-1, 1]². One landmark is the goal; the agent knows which, the adversary must tell from what the
agent does. Each is steered in one of four directions or left to glide; when they overlap they push each other apart.
The plane has no walls.

**Actions.** One of five moves (stay, left, right, down, up), or with `continuous=True` five numbers from 0 to 1: the
first has no effect, the others pull left, right, down and up.

**Observation** of the agent, 19 values, and of the adversary, 8 values (the rows marked *):

| values | what |
|---|---|
| 2 * | own velocity |
| 2 | where the goal is, seen from the agent |
| 3 | the agent's colour: 0.25, with 0.75 in second place if the goal is the first landmark, in third if the second |
| 4 * | where each landmark is, seen from here |
| 6 | the landmarks' colours: 0.1, with 0.9 in second place for the first, in third for the second |
| 2 * | where the other is, seen from here |

**Reward.** The agent gets the negative distance between itself and the goal. The adversary gets the agent's distance to
the goal less its own: it wants to be there itself, and the agent far away.

**End.** Truncated after exactly `max_steps` steps; it never terminates.

**Source.** `simple_push_v3` of the Multi-Particle Environments (Lowe et al. 2017, arXiv:1706.02275), as the package
`mpe2` 1.1 has it: the same views, rewards and ends from the same state and actions, to 1e-5. Version 1. One departure:
agent and adversary on exactly the same spot do not push each other, where the original divides 0 by 0.
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

_LANDMARK_COLOURS = ((0.1, 0.9, 0.1), (0.1, 0.1, 0.9))
_AGENT_COLOURS = ((0.25, 0.75, 0.25), (0.25, 0.25, 0.75))  # by its goal


class Params(NamedTuple):
    acceleration: float | jax.Array = 5.0
    """Force of a move."""
    damping: float | jax.Array = 0.25
    """Share of the velocity that is lost in a step."""
    radius: float | jax.Array = 0.05
    """Of agent and adversary."""


class State(NamedTuple):
    """The adversary comes first, then the agent."""

    position: jax.Array  # [2, 2]
    velocity: jax.Array  # [2, 2]
    landmark: jax.Array  # [2, 2]
    goal: jax.Array  # index of a landmark
    t: jax.Array


@dataclasses.dataclass(frozen=True)
class SimplePush(Env):
    """The agent reaches its goal; the adversary, who does not know it, keeps it away."""

    max_steps: int = 25  # length of an episode
    continuous: bool = False  # five pulls from 0 to 1 instead of one of five moves

    kind: ClassVar[str] = "competitive"

    def __post_init__(self):
        require_whole("mpe/simple_push", 1, max_steps=self.max_steps)
        require_flag("mpe/simple_push", continuous=self.continuous)

    @property
    def groups(self) -> dict[str, Group]:
        action = acts.action_space(self.continuous)
        return {"adversary": Group(1, action), "agent": Group(1, action)}

    def action_names(self, group: str) -> ActionNames:
        return acts.action_names(self.continuous)

    @property
    def play_fps(self) -> float:
        return acts.PLAY_FPS

    def default_params(self) -> Params:
        return Params()

    def reset(self, key: jax.Array, params: Params) -> State:
        place, (goal,) = physics.places_and_choices(key, 4, (2,))
        return State(place[:2], jnp.zeros((2, 2)), place[2:], goal, jnp.int32(0))

    def step(self, key: jax.Array, state: State, actions: Actions, params: Params) -> tuple[State, Outcome]:
        steer = acts.steering(jnp.concatenate([actions["adversary"], actions["agent"]]), self.continuous)
        both = physics.discs(state.position, params.radius)
        contact = jnp.stack(physics.sum_over_others(physics.repulsion, both, mirror=-1.0), axis=-1)
        force = steer * params.acceleration + contact
        state = State(
            position=physics.move(state.position, state.velocity),
            velocity=physics.accelerate(state.velocity, force, params.damping),
            landmark=state.landmark,
            goal=state.goal,
            t=state.t + 1,
        )
        distance = physics.length(state.position - physics.pick(state.landmark, state.goal))
        reward = {"adversary": distance[1:] - distance[:1], "agent": -distance[1:]}
        metrics = {"distance/adversary": distance[0], "distance/agent": distance[1]}
        return state, Outcome(reward, jnp.bool_(False), state.t >= self.max_steps, metrics)

    def observe(self, state: State, params: Params) -> dict[str, Observation]:
        landmarks = state.landmark[None] - state.position[:, None]
        others = physics.relative_to_others(state.position)
        goal = physics.pick(state.landmark, state.goal) - state.position[1:]
        colour = physics.pick(jnp.array(_AGENT_COLOURS), state.goal)[None]
        colours = jnp.array(_LANDMARK_COLOURS)[None]
        adversary = [state.velocity[:1], landmarks[:1], others[:1]]
        agent = [state.velocity[1:], goal, colour, landmarks[1:], colours, others[1:]]
        return {
            "adversary": Observation(physics.side_by_side(adversary)),
            "agent": Observation(physics.side_by_side(agent)),
        }

    def scene_for(self, state: State, params: Params, seat: Seat) -> Scene:
        """The adversary is not told which landmark is the goal."""
        return self.scene(state._replace(goal=jnp.int32(-1)) if seat[0] == "adversary" else state, params)

    def scene(self, state: State, params: Params) -> Scene:
        is_goal = jnp.arange(2) == state.goal
        return picture.picture(
            picture.Layer(state.landmark, 0.05, jnp.where(is_goal, picture.GREEN, picture.GREY)),
            picture.Layer(state.position[:1], params.radius, picture.RED, "adversary"),
            picture.Layer(state.position[1:], params.radius, picture.BLUE, "agent"),
        )
