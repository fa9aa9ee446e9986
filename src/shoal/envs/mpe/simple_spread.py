"""`mpe/simple_spread`: agents must cover as many landmarks as there are agents, without bumping into each other.

**Rules.** `num_agents` agents (discs of radius 0.15) and as many landmarks (points that nobody collides with) start at
random in the square [-1, 1]². An agent is steered in one of four directions or left to glide; agents that overlap push
each other apart. The plane has no walls.

**Actions.** One of five moves (stay, left, right, down, up), or with `continuous=True` five numbers from 0 to 1: the
first has no effect, the others pull left, right, down and up.

**Observation** of each agent, `6 * num_agents` values:

| values | what |
|---|---|
| 2 | own velocity |
| 2 | own position |
| 2 × num_agents | where each landmark is, seen from the agent |
| 2 × (num_agents - 1) | where each other agent is, seen from the agent |
| 2 × (num_agents - 1) | what the others say: always 0, they are silent in this world |

**Reward.** All agents share the negative sum, over the landmarks, of the distance to the nearest agent; each pays 1 for
every agent it touches. `local_ratio` weighs the second against the first: `(1 - local_ratio) * shared + local_ratio *
own`.

**End.** Truncated after exactly `max_steps` steps; it never terminates.

**Source.** `simple_spread_v3` of the Multi-Particle Environments (Lowe et al. 2017, arXiv:1706.02275), as the package
`mpe2` 1.1 has it: the same views, rewards and ends from the same state and actions, to 1e-5. Version 1. One departure:
two agents on exactly the same spot do not push each other, where the original divides 0 by 0.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.checks import MAX_COUNT, require_finite, require_flag, require_whole
from shoal.core.env import Env
from shoal.core.errors import require
from shoal.core.spaces import ActionNames
from shoal.core.types import Actions, Group, Observation, Outcome, Scene
from shoal.envs.mpe import _actions as acts
from shoal.envs.mpe import _physics as physics
from shoal.envs.mpe import _picture as picture

_LANDMARK_RADIUS = 0.05  # only drawn


class Params(NamedTuple):
    local_ratio: float | jax.Array
    """Weight of an agent's own collisions against the reward that all share."""
    acceleration: float | jax.Array
    """Force of a move."""
    damping: float | jax.Array
    """Share of the velocity that is lost in a step."""
    radius: float | jax.Array
    """Of an agent."""


class State(NamedTuple):
    position: jax.Array  # [n, 2]
    velocity: jax.Array  # [n, 2]
    landmark: jax.Array  # [n, 2]
    t: jax.Array


@dataclasses.dataclass(frozen=True)
class SimpleSpread(Env):
    """Cover every landmark, touch nobody."""

    num_agents: int = 3  # number of agents, and of landmarks
    local_ratio: float = 0.5  # weight of own collisions against the shared distance
    max_steps: int = 25  # length of an episode
    continuous: bool = False  # five pulls from 0 to 1 instead of one of five moves

    kind: ClassVar[str] = "cooperative"

    def __post_init__(self):
        owner = "mpe/simple_spread"
        require_whole(owner, 1, at_most=MAX_COUNT, num_agents=self.num_agents)
        require_whole(owner, 1, max_steps=self.max_steps)
        require_finite(owner, local_ratio=self.local_ratio)
        require(0 <= self.local_ratio <= 1, owner, "local_ratio", self.local_ratio, "between 0 and 1")
        require_flag(owner, continuous=self.continuous)

    @property
    def groups(self) -> dict[str, Group]:
        return {"agent": Group(self.num_agents, acts.action_space(self.continuous))}

    def action_names(self, group: str) -> ActionNames:
        return acts.action_names(self.continuous)

    @property
    def play_fps(self) -> float:
        return acts.PLAY_FPS

    def default_params(self) -> Params:
        return Params(local_ratio=self.local_ratio, acceleration=5.0, damping=0.25, radius=0.15)

    def reset(self, key: jax.Array, params: Params) -> State:
        n = self.num_agents
        place = jax.random.uniform(key, (2 * n, 2), minval=-1.0, maxval=1.0)
        return State(place[:n], jnp.zeros((n, 2)), place[n:], jnp.int32(0))

    def step(self, key: jax.Array, state: State, actions: Actions, params: Params) -> tuple[State, Outcome]:
        steer = acts.steering(actions["agent"], self.continuous) * params.acceleration
        agents = physics.discs(state.position, params.radius)
        contact = jnp.stack(physics.sum_over_others(physics.repulsion, agents, mirror=-1.0), axis=-1)
        state = State(
            position=physics.move(state.position, state.velocity),
            velocity=physics.accelerate(state.velocity, steer + contact, params.damping),
            landmark=state.landmark,
            t=state.t + 1,
        )
        touches, distance = self._touches_and_distance(state, params)
        reward = -(params.local_ratio * touches + (1.0 - params.local_ratio) * distance)
        metrics = {"touches": physics.total(touches), "distance": distance}
        return state, Outcome({"agent": reward}, jnp.bool_(False), state.t >= self.max_steps, metrics)

    def observe(self, state: State, params: Params) -> dict[str, Observation]:
        landmarks = state.landmark[None] - state.position[:, None]
        others = physics.relative_to_others(state.position)
        seen = [state.velocity, state.position, landmarks, others, jnp.zeros_like(others)]
        return {"agent": Observation(physics.side_by_side(seen))}

    def scene(self, state: State, params: Params) -> Scene:
        return picture.picture(
            picture.Layer(state.landmark, _LANDMARK_RADIUS, picture.GREY),
            picture.Layer(state.position, params.radius, picture.BLUE, "agent"),
        )

    def _touches_and_distance(self, state: State, params: Params) -> tuple[jax.Array, jax.Array]:
        """How many others each agent touches, and the landmarks' distances to their nearest agents, summed."""
        agents = physics.discs(state.position, params.radius)
        landmarks = physics.discs(state.landmark, _LANDMARK_RADIUS)
        touches = physics.sum_over_others(physics.touching, agents, mirror=1.0)
        nearest = physics.least(physics.all_pairs(physics.squared_distance, agents, landmarks))
        return touches, physics.total(jnp.sqrt(nearest))
