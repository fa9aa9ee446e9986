"""`mpe/simple_adversary`: agents hold a secret goal and must not give it away to the adversary who watches them.

**Rules.** `num_agents` agents, one adversary (all of radius 0.15) and `num_agents` landmarks start at random in the
square [-1, 1]². One landmark is the goal; the agents know which, the adversary does not. Each is steered in one of four
directions or left to glide. Nothing collides, and the plane has no walls. The agents do well to spread over all
landmarks, so that the adversary learns nothing from them.

**Actions.** One of five moves (stay, left, right, down, up), or with `continuous=True` five numbers from 0 to 1: the
first has no effect, the others pull left, right, down and up.

**Observation**, with *others* in the order adversary, then agents. The two groups' views differ in size:

| values | what |
|---|---|
| 2, agents only | where the goal is, seen from here |
| 2 × num_agents | where each landmark is, seen from here |
| 2 × num_agents | where each other is, seen from here |

**Reward.** The adversary gets the negative distance between itself and the goal. Every agent gets the distance between
the adversary and the goal, less the distance between the goal and the nearest agent.

**End.** Truncated after exactly `max_steps` steps; it never terminates.

**Source.** `simple_adversary_v3` of the Multi-Particle Environments (Lowe et al. 2017, arXiv:1706.02275), as the
package `mpe2` 1.1 has it: the same views, rewards and ends from the same state and actions, to 1e-5. Version 1.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.checks import MAX_COUNT, require_flag, require_whole
from shoal.core.env import Env
from shoal.core.spaces import ActionNames
from shoal.core.types import Actions, Group, Observation, Outcome, Scene, Seat
from shoal.envs.mpe import _actions as acts
from shoal.envs.mpe import _physics as physics
from shoal.envs.mpe import _picture as picture


class State(NamedTuple):
    """The adversary comes first, then the agents."""

    position: jax.Array  # [1 + agents, 2]
    velocity: jax.Array  # [1 + agents, 2]
    landmark: jax.Array  # [agents, 2]
    goal: jax.Array  # index of a landmark
    t: jax.Array


@dataclasses.dataclass(frozen=True)
class SimpleAdversary(Env):
    """Agents cover the goal and mislead the adversary; the adversary guesses it from what they do."""

    num_agents: int = 2  # number of agents without the adversary, and of landmarks
    max_steps: int = 25  # length of an episode
    continuous: bool = False  # five pulls from 0 to 1 instead of one of five moves

    kind: ClassVar[str] = "competitive"

    def __post_init__(self):
        owner = "mpe/simple_adversary"
        require_whole(owner, 1, at_most=MAX_COUNT, num_agents=self.num_agents)
        require_whole(owner, 1, max_steps=self.max_steps)
        require_flag(owner, continuous=self.continuous)

    @property
    def groups(self) -> dict[str, Group]:
        action = acts.action_space(self.continuous)
        return {"adversary": Group(1, action), "agent": Group(self.num_agents, action)}

    def action_names(self, group: str) -> ActionNames:
        return acts.action_names(self.continuous)

    @property
    def play_fps(self) -> float:
        return acts.PLAY_FPS

    def default_params(self) -> physics.Gliding:
        return physics.Gliding()

    def reset(self, key: jax.Array, params: physics.Gliding) -> State:
        n = self.num_agents + 1
        place, (goal,) = physics.places_and_choices(key, n + self.num_agents, (self.num_agents,))
        return State(place[:n], jnp.zeros((n, 2)), place[n:], goal, jnp.int32(0))

    def step(self, key: jax.Array, state: State, actions: Actions, params: physics.Gliding) -> tuple[State, Outcome]:
        steer = acts.steering(jnp.concatenate([actions["adversary"], actions["agent"]]), self.continuous)
        position, velocity = physics.glide(state.position, state.velocity, steer, params)
        state = State(position, velocity, state.landmark, state.goal, state.t + 1)
        distance = physics.length(position - physics.pick(state.landmark, state.goal))
        adversary, nearest = distance[0], physics.least(distance[1:])
        reward = {"adversary": -distance[:1], "agent": jnp.full(self.num_agents, adversary - nearest)}
        metrics = {"distance/adversary": adversary, "distance/nearest_agent": nearest}
        return state, Outcome(reward, jnp.bool_(False), state.t >= self.max_steps, metrics)

    def observe(self, state: State, params: physics.Gliding) -> dict[str, Observation]:
        goal = physics.pick(state.landmark, state.goal) - state.position[1:]
        landmarks = state.landmark[None] - state.position[:, None]
        others = physics.relative_to_others(state.position)
        return {
            "adversary": Observation(physics.side_by_side([landmarks[:1], others[:1]])),
            "agent": Observation(physics.side_by_side([goal, landmarks[1:], others[1:]])),
        }

    def scene_for(self, state: State, params: physics.Gliding, seat: Seat) -> Scene:
        """The adversary is not told which landmark is the goal."""
        return self.scene(state._replace(goal=jnp.int32(-1)) if seat[0] == "adversary" else state, params)

    def scene(self, state: State, params: physics.Gliding) -> Scene:
        is_goal = jnp.arange(self.num_agents) == state.goal
        return picture.picture(
            picture.Layer(state.landmark, 0.08, jnp.where(is_goal, picture.GREEN, picture.GREY)),
            picture.Layer(state.position[:1], 0.15, picture.RED, "adversary"),
            picture.Layer(state.position[1:], 0.15, picture.BLUE, "agent"),
        )
