"""`swarm/rendezvous`: scattered agents that see only a few neighbours must all meet in one place.

**Rules.** `num_agents` agents start at rest, at random in a square arena, and nobody tells them where to meet: an agent
does not know where it is, only how it moves, where its nearest neighbours are and how far the walls are, all within
`sensing_range`. They have met when every agent is within `meeting_radius` of the middle of the swarm (the mean of all
positions). Flight, contact, sensing, messages and weather are those of the whole family: see `shoal.envs.swarm`.

**Actions.** Two numbers from -1 to 1, the force to pull with (quadrotors: thrust and three body rates), then
`message_size` numbers to say (with `message_tokens`: the largest of them is the word said).

**Observation**, planar, by default 21 values; k = `num_neighbours`. Quadrotors, obstacles, a narrower field of view and
messages add what `shoal.envs.swarm` says:

| values | what |
|---|---|
| 2 | own velocity / max_speed |
| 4 | how near the left, right, lower and upper wall is: from 0, out of range, to 1, touching |
| 5 k | the k nearest others in sight: offset / sensing_range, relative velocity / max_speed, and 1; else 0 |

**Reward.** Each agent pays its own distance from the middle of the swarm, as a share of the arena's side, and
`touch_penalty` for each other and each obstacle that it touches; all get `meeting_reward` when they have met.

**End.** Terminated when all have met, truncated after `max_steps` steps.

**Metrics.** spread: mean distance from the middle, in metres; met: 1 in the step in which they meet; touches: contacts
of agents.

**Source.** Our own, after the rendezvous problem of multi-agent control (Ando et al. 1999). Version 1.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.checks import MAX_COUNT, require_above_zero, require_not_negative, require_whole
from shoal.core.types import Actions, Observation, Outcome, Scene
from shoal.envs.swarm._dynamics import Float, norm
from shoal.envs.swarm._picture import BLUE, TEAL, Marks, draw
from shoal.envs.swarm._swarm import Swarm, SwarmParams, SwarmState
from shoal.envs.swarm._views import fixes


class Params(NamedTuple):
    swarm: SwarmParams
    meeting_radius: Float
    meeting_reward: Float


class State(NamedTuple):
    swarm: SwarmState


@dataclasses.dataclass(frozen=True)
class Rendezvous(Swarm):
    """All agents meet in one place."""

    num_agents: int = 8  # at most 100,000
    max_steps: int = 150  # length of an episode
    touch_penalty: float = 0.0  # paid for each other that an agent touches, each step
    meeting_radius: float | None = None  # metres; None: room for all, 2 radii times the root of their number
    meeting_reward: float = 5.0  # to each, when all have met

    kind: ClassVar[str] = "cooperative"
    id: ClassVar[str] = "swarm/rendezvous"

    def __post_init__(self):
        require_whole(self.id, 1, at_most=MAX_COUNT, num_agents=self.num_agents)
        super().__post_init__()
        require_above_zero(self.id, meeting_radius=self._meeting_radius)
        require_not_negative(self.id, meeting_reward=self.meeting_reward)

    @property
    def _meeting_radius(self) -> float:
        return 2 * self.radius * self.num_agents**0.5 if self.meeting_radius is None else self.meeting_radius

    def default_params(self) -> Params:
        return Params(self.swarm_params(), float(self._meeting_radius), float(self.meeting_reward))

    def reset(self, key: jax.Array, params: Params) -> State:
        return State(self.begin(key, params.swarm))

    def step(self, key: jax.Array, state: State, actions: Actions, params: Params) -> tuple[State, Outcome]:
        swarm = self.advance(key, state.swarm, actions["agent"], params.swarm)
        distance = _from_middle(swarm)
        met = jnp.all(distance <= params.meeting_radius)
        cost, touches = self.costs(swarm, params.swarm)
        reward = jnp.where(met, params.meeting_reward, 0.0) - distance / self.length - cost
        metrics = {
            "spread": jnp.mean(distance),
            "met": met.astype(jnp.float32),
            "touches": jnp.sum(touches),
        }
        truncated = ~met & (swarm.t >= self.max_steps)
        return State(swarm), Outcome({"agent": reward}, met, truncated, metrics)

    def observe(self, state: State, params: Params) -> dict[str, Observation]:
        position, _ = fixes(state.swarm.body, state.swarm.noise)
        low = position[:, :2] - self.radius
        gaps = jnp.concatenate([low, self.length - 2 * self.radius - low], axis=-1)
        walls = jnp.clip(1.0 - gaps / params.swarm.sensing_range, 0.0, 1.0)
        return {"agent": Observation(self.view(state.swarm, params.swarm, [walls], False))}

    def scene(self, state: State, params: Params) -> Scene:
        middle = jnp.mean(state.swarm.body.position[:, :2], axis=0, keepdims=True)
        met = norm(state.swarm.body.position[:, :2] - middle) <= self._meeting_radius
        marks = (Marks(middle, 0.1, TEAL),)
        return draw(self, state.swarm, jnp.where(met, TEAL, BLUE), marks=marks)


def _from_middle(swarm: SwarmState) -> jax.Array:
    """Each agent's horizontal distance from the mean of all positions, `[n]`."""
    place = swarm.body.position[:, :2]
    return norm(place - jnp.mean(place, axis=0))
