"""`mpe/simple_tag`: slow adversaries hunt faster agents among obstacles.

**Rules.** `num_adversaries` adversaries (radius 0.075, speed at most 1.0, acceleration 3) and `num_good` agents (radius
0.05, speed at most 1.3, acceleration 4) start at random in the square [-1, 1]², `num_obstacles` obstacles (radius 0.2)
in [-0.9, 0.9]². An adversary or agent is steered in one of four directions or left to glide; all discs that overlap
push each other apart, obstacles without moving. The plane has no walls, but agents pay for leaving the square.

**Actions.** One of five moves (stay, left, right, down, up), or with `continuous=True` five numbers from 0 to 1: the
first has no effect, the others pull left, right, down and up.

**Observation**, with *others* in the order adversaries, then agents. The two groups' views differ in size:

| values | what |
|---|---|
| 2 | own velocity |
| 2 | own position |
| 2 × num_obstacles | where each obstacle is, seen from here |
| 2 × (num_adversaries + num_good - 1) | where each other is, seen from here |
| adversaries 2 × num_good, agents 2 × (num_good - 1) | velocities of the (other) agents |

**Reward.** Every adversary gets 10 for each pair of an adversary and an agent that touch. An agent pays 10 for each
adversary that touches it and, for each coordinate c with x = abs(c), a border penalty: nothing below 0.9,
`10 (x - 0.9)` up to 1, `min(exp(2x - 2), 10)` beyond.

**End.** Truncated after exactly `max_steps` steps; it never terminates.

**Source.** `simple_tag_v3` of the Multi-Particle Environments (Lowe et al. 2017, arXiv:1706.02275), as the package
`mpe2` 1.1 has it: the same views, rewards and ends from the same state and actions, to 1e-5. Version 1. One departure:
two discs on exactly the same spot do not push each other, where the original divides 0 by 0.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.checks import MAX_COUNT, require_flag, require_whole
from shoal.core.env import Env
from shoal.core.spaces import ActionNames
from shoal.core.types import Actions, Group, Observation, Outcome, Scene
from shoal.envs.mpe import _actions as acts
from shoal.envs.mpe import _physics as physics
from shoal.envs.mpe import _picture as picture

_CATCH = 10.0


class Params(NamedTuple):
    """The first of each pair is for adversaries, the second for agents."""

    acceleration: tuple[float | jax.Array, float | jax.Array] = (3.0, 4.0)
    max_speed: tuple[float | jax.Array, float | jax.Array] = (1.0, 1.3)
    radius: tuple[float | jax.Array, float | jax.Array] = (0.075, 0.05)
    obstacle_radius: float | jax.Array = 0.2
    damping: float | jax.Array = 0.25
    """Share of the velocity that is lost in a step."""


class State(NamedTuple):
    """Adversaries come first, then agents."""

    position: jax.Array  # [n, 2]
    velocity: jax.Array  # [n, 2]
    obstacle: jax.Array  # [obstacles, 2]
    t: jax.Array


@dataclasses.dataclass(frozen=True)
class SimpleTag(Env):
    """Adversaries catch agents; agents run, and stay within the square."""

    num_good: int = 1  # agents, who are hunted
    num_adversaries: int = 3  # who hunt
    num_obstacles: int = 2
    max_steps: int = 25  # length of an episode
    continuous: bool = False  # five pulls from 0 to 1 instead of one of five moves

    kind: ClassVar[str] = "competitive"

    def __post_init__(self):
        owner = "mpe/simple_tag"
        agents = {"num_good": self.num_good, "num_adversaries": self.num_adversaries}
        require_whole(owner, 1, at_most=MAX_COUNT, **agents)
        require_whole(owner, 0, at_most=MAX_COUNT, num_obstacles=self.num_obstacles)
        require_whole(owner, 1, max_steps=self.max_steps)
        require_flag(owner, continuous=self.continuous)

    @property
    def groups(self) -> dict[str, Group]:
        action = acts.action_space(self.continuous)
        return {"adversary": Group(self.num_adversaries, action), "agent": Group(self.num_good, action)}

    def action_names(self, group: str) -> ActionNames:
        return acts.action_names(self.continuous)

    @property
    def play_fps(self) -> float:
        return acts.PLAY_FPS

    def default_params(self) -> Params:
        return Params()

    def reset(self, key: jax.Array, params: Params) -> State:
        n = self.num_adversaries + self.num_good
        place = jax.random.uniform(key, (n + self.num_obstacles, 2), minval=-1.0, maxval=1.0)
        return State(place[:n], jnp.zeros((n, 2)), 0.9 * place[n:], jnp.int32(0))

    def step(self, key: jax.Array, state: State, actions: Actions, params: Params) -> tuple[State, Outcome]:
        action = jnp.concatenate([actions["adversary"], actions["agent"]])
        steer = acts.steering(action, self.continuous) * self._for_each(params.acceleration)[:, None]
        force = steer + self._contact(state, params)
        velocity = physics.accelerate(state.velocity, force, params.damping)
        state = State(
            position=physics.move(state.position, state.velocity),
            velocity=physics.limit_speed(velocity, self._for_each(params.max_speed)),
            obstacle=state.obstacle,
            t=state.t + 1,
        )
        touches = self._touches(state, params)
        catches = physics.total(touches)
        x, y = jnp.abs(state.position[self.num_adversaries :]).T
        reward = {
            "adversary": jnp.full(self.num_adversaries, _CATCH * catches),
            "agent": -(_CATCH * touches + physics.border_penalty(x) + physics.border_penalty(y)),
        }
        return state, Outcome(reward, jnp.bool_(False), state.t >= self.max_steps, {"catches": catches})

    def observe(self, state: State, params: Params) -> dict[str, Observation]:
        first = self.num_adversaries
        obstacles = state.obstacle[None] - state.position[:, None]
        others = physics.relative_to_others(state.position)
        speeds = state.velocity[first:]
        seen = [state.velocity, state.position, obstacles, others]
        hunted = jnp.broadcast_to(speeds[None], (first, *speeds.shape))
        return {
            "adversary": Observation(physics.side_by_side([*(part[:first] for part in seen), hunted])),
            "agent": Observation(physics.side_by_side([*(part[first:] for part in seen), physics.without_own(speeds)])),
        }

    def scene(self, state: State, params: Params) -> Scene:
        first = self.num_adversaries
        return picture.picture(
            picture.Layer(state.obstacle, params.obstacle_radius, picture.GREY),
            picture.Layer(state.position[:first], params.radius[0], picture.RED, "adversary"),
            picture.Layer(state.position[first:], params.radius[1], picture.GREEN, "agent"),
        )

    def _for_each(self, pair: tuple[float | jax.Array, float | jax.Array]) -> jax.Array:
        return physics.by_role(pair, self.num_adversaries, self.num_good)

    def _contact(self, state: State, params: Params) -> jax.Array:
        all_agents = physics.discs(state.position, self._for_each(params.radius))
        return physics.contact(all_agents, physics.discs(state.obstacle, params.obstacle_radius))

    def _touches(self, state: State, params: Params) -> jax.Array:
        """How many adversaries touch each agent."""
        adversaries = physics.discs(state.position[: self.num_adversaries], params.radius[0])
        agents = physics.discs(state.position[self.num_adversaries :], params.radius[1])
        return physics.sum_over(physics.touching, agents, adversaries)
