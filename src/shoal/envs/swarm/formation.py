"""`swarm/formation`: agents take up a formation that travels across the arena, and hold it past obstacles.

**Rules.** Each agent has a place in a formation: a `shape` of `num_agents` places, `spacing` metres apart. Its centre
starts near the edge of the arena, in a direction drawn for each episode, travels straight through the middle to the
opposite edge at `pace` m/s, and stays there. Agents start at rest, anywhere. Places may lie inside obstacles for a
while: agents have to go round and close up again. Flight, contact, sensing, messages and weather are those of the whole
family: see `shoal.envs.swarm`.

| shape | places |
|---|---|
| ring | on a circle |
| line | side by side, along the x axis |
| wedge | two arms behind a leader, who is first along the x axis |
| block | a square of rows and columns, filled row by row |

**Actions.** Two numbers from -1 to 1, the force to pull with (quadrotors: thrust and three body rates), then
`message_size` numbers to say (with `message_tokens`: the largest of them is the word said).

**Observation**, planar, by default 26 values; k = `num_neighbours`. Quadrotors, a narrower field of view and messages
add what `shoal.envs.swarm` says:

| values | what |
|---|---|
| 2 | own velocity / max_speed |
| 2 | own position, from -1 to 1 |
| 3 | the way to the nearest obstacle's surface / sensing_range, and 1; 0 where none is within range |
| 2 | the way to one's place / sensing_range |
| 2 | the formation's velocity / max_speed |
| 5 k | the k nearest others in sight: offset / sensing_range, relative velocity / max_speed, and 1; else 0 |

**Reward.** Each agent gets `hold_reward` while it is within `tolerance` metres of its place, and pays `error_penalty`
for each metre that it is away from it, and `touch_penalty` for each other and each obstacle that it touches.

**End.** Truncated after `max_steps` steps; it never terminates.

**Metrics.** error: mean distance from the places, in metres; in_place: share of agents within the tolerance; touches:
contacts of agents.

**Source.** Our own, after formation control with a virtual structure (Lewis and Tan 1997). Version 1.
"""

import dataclasses
import math
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.checks import MAX_COUNT, require_above_zero, require_not_negative, require_whole
from shoal.core.errors import require
from shoal.core.types import Actions, Observation, Outcome, Scene
from shoal.envs.swarm._checks import MAX_SIDE
from shoal.envs.swarm._dynamics import Float, norm
from shoal.envs.swarm._picture import BLUE, TEAL, YELLOW, Marks, draw
from shoal.envs.swarm._swarm import Swarm, SwarmParams, SwarmState
from shoal.envs.swarm._views import fixes, frame, into_frame

Shape = Literal["ring", "line", "wedge", "block"]
_REWARDS = "hold_reward", "error_penalty"


class Params(NamedTuple):
    swarm: SwarmParams
    pace: Float
    tolerance: Float
    hold_reward: Float
    error_penalty: Float


class State(NamedTuple):
    swarm: SwarmState
    course: jax.Array  # [2] unit vector, the way that the formation goes


@dataclasses.dataclass(frozen=True)
class Formation(Swarm):
    """Agents hold a formation that travels past obstacles."""

    num_agents: int = 8  # at most 100,000
    num_obstacles: int = 4  # round, at most 32
    shape: Shape = "ring"  # or line, wedge, block
    spacing: float = 1.0  # metres between neighbouring places
    pace: float = 0.7  # speed of the formation, m/s
    tolerance: float = 0.3  # metres from one's place that count as being there
    hold_reward: float = 1.0  # reward per step for being in place
    error_penalty: float = 0.2  # penalty per metre from one's place, each step

    kind: ClassVar[str] = "cooperative"
    id: ClassVar[str] = "swarm/formation"

    def __post_init__(self):
        require_whole(self.id, 1, at_most=MAX_COUNT, num_agents=self.num_agents)
        shapes = "ring", "line", "wedge", "block"
        require(self.shape in shapes, self.id, "shape", self.shape, "'ring', 'line', 'wedge' or 'block'")
        require_above_zero(self.id, spacing=self.spacing, tolerance=self.tolerance)
        wide = f"at most {MAX_SIDE / 4 / self.num_agents:.4g} for {self.num_agents} agents"
        require(self.spacing * self.num_agents <= MAX_SIDE / 4, self.id, "spacing", self.spacing, wide)
        super().__post_init__()
        require_not_negative(self.id, pace=self.pace, **{name: getattr(self, name) for name in _REWARDS})
        apart = f"at least the diameter of an agent, {2 * self.radius}"
        require(self.spacing >= 2 * self.radius, self.id, "spacing", self.spacing, apart)
        room = f"at least {2 * self.extent:.4g}, so that the formation fits (spacing is {self.spacing:.4g})"
        require(self.length >= 2 * self.extent, self.id, "side", self.length, room)

    @property
    def places(self) -> np.ndarray:
        """Where each agent's place is, seen from the formation's centre, `[n, 2]`."""
        return _places(self.shape, self.num_agents) * self.spacing

    @property
    def extent(self) -> float:
        """How far a formation with its agents reaches from its centre."""
        return float(np.max(np.hypot(*self.places.T))) + 2 * self.radius

    @property
    def length(self) -> float:
        return max(super().length, 4 * self.extent) if self.side is None else self.side

    def default_params(self) -> Params:
        return Params(self.swarm_params(), *(float(getattr(self, name)) for name in Params._fields[1:]))

    def reset(self, key: jax.Array, params: Params) -> State:
        key, turn = jax.random.split(key)
        angle = 2.0 * math.pi * jax.random.uniform(turn)
        return State(self.begin(key, params.swarm), jnp.stack([jnp.cos(angle), jnp.sin(angle)]))

    def step(self, key: jax.Array, state: State, actions: Actions, params: Params) -> tuple[State, Outcome]:
        swarm = self.advance(key, state.swarm, actions["agent"], params.swarm)
        state = State(swarm, state.course)
        error = norm(self._slots(state, params)[0] - swarm.body.position[:, :2])
        there = (error <= params.tolerance).astype(jnp.float32)
        cost, touches = self.costs(swarm, params.swarm)
        reward = params.hold_reward * there - params.error_penalty * error - cost
        metrics = {"error": jnp.mean(error), "in_place": jnp.mean(there), "touches": jnp.sum(touches)}
        return state, Outcome({"agent": reward}, jnp.bool_(False), swarm.t >= self.max_steps, metrics)

    def observe(self, state: State, params: Params) -> dict[str, Observation]:
        swarm = state.swarm
        slot, velocity = self._slots(state, params)
        way = (slot - fixes(swarm.body, swarm.noise)[0][:, :2]) / params.swarm.sensing_range
        drift = jnp.broadcast_to(velocity / params.swarm.physics.max_speed, way.shape)
        task = [into_frame(part, frame(swarm.body)) for part in (way, drift)]
        return {"agent": Observation(self.view(swarm, params.swarm, task))}

    def scene(self, state: State, params: Params) -> Scene:
        slot, _ = self._slots(state, params)
        there = norm(slot - state.swarm.body.position[:, :2]) <= params.tolerance
        marks = (Marks(slot, 0.5 * self.radius, YELLOW),)
        return draw(self, state.swarm, jnp.where(there, TEAL, BLUE), marks=marks, links=False)

    def _slots(self, state: State, params: Params) -> tuple[jax.Array, jax.Array]:
        """Where the places are now, `[n, 2]`, and how fast they move, `[2]`."""
        half = 0.5 * self.length - self.extent
        gone = state.swarm.t.astype(jnp.float32) * self.seconds * params.pace
        along = jnp.minimum(gone, 2.0 * half) - half
        centre = 0.5 * self.length + along * state.course
        pace = jnp.where(gone < 2.0 * half, params.pace, 0.0)
        return centre + jnp.asarray(self.places, jnp.float32), pace * state.course


def _places(shape: Shape, n: int) -> np.ndarray:
    """Places around the origin, neighbours 1 apart, `[n, 2]`."""
    number = np.arange(n)
    match shape:
        case "ring":
            radius = 0.5 / math.sin(math.pi / n) if n > 1 else 0.0
            angle = 2 * math.pi * number / n
            points = radius * np.stack([np.cos(angle), np.sin(angle)], axis=-1)
        case "line":
            points = np.stack([number, np.zeros(n)], axis=-1)
        case "wedge":
            arm, step = np.where(number % 2, 1, -1), (number + 1) // 2
            points = math.sqrt(0.5) * np.stack([-step, arm * step], axis=-1)
        case "block":
            width = math.ceil(math.sqrt(n))
            points = np.stack([number % width, number // width], axis=-1)
    points = np.asarray(points, np.float64)
    return points - 0.5 * (points.min(axis=0) + points.max(axis=0))
