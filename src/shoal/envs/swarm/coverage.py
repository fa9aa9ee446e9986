"""`swarm/coverage`: agents with downward cameras keep watch over an area; what nobody has seen for long grows stale.

**Rules.** The arena is a grid of square cells. A cell's staleness grows from 0, seen just now, to 1 within
`memory_seconds`, and starts at 1. An agent's camera sees every cell whose centre is within `camera` metres of it, to
either side along both axes (a quadrotor's sees farther the higher it flies: `camera` at half the arena's height), and
makes it fresh. Nobody is told which part to watch. Flight, contact, sensing, messages and weather are those of the
whole family: see `shoal.envs.swarm`.

**Actions.** Two numbers from -1 to 1, the force to pull with (quadrotors: thrust and three body rates), then
`message_size` numbers to say (with `message_tokens`: the largest of them is the word said).

**Observation**, planar, by default 44 values; k = `num_neighbours`, p = `patch`. Quadrotors, obstacles, a narrower
field of view and messages add what `shoal.envs.swarm` says:

| values | what |
|---|---|
| 2 | own velocity / max_speed |
| 2 | own position, from -1 to 1 |
| p × p | staleness of the cells around one's own, from the lower left, row by row; 0 outside of the arena |
| 5 k | the k nearest others in sight: offset / sensing_range, relative velocity / max_speed, and 1; else 0 |

**Reward.** Each agent gets the staleness that it removed, in cells; what several see at once they share. It pays
`touch_penalty` for each other and each obstacle that it touches. Since a cell that is fully stale grows no staler, the
sum is greatest when all are kept fresh.

**End.** Truncated after `max_steps` steps; it never terminates.

**Metrics.** freshness: 1 minus the mean staleness; touches: contacts of agents.

**Source.** Our own, after persistent surveillance and patrolling (Machado et al. 2002). Version 1.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from shoal.core.checks import MAX_COUNT, require_above_zero, require_whole
from shoal.core.errors import require
from shoal.core.types import Actions, Observation, Outcome, Polygons, Scene
from shoal.envs.swarm._dynamics import Body, Float
from shoal.envs.swarm._picture import BLUE, GREEN, RED, YELLOW, draw
from shoal.envs.swarm._swarm import Swarm, SwarmParams, SwarmState
from shoal.envs.swarm._views import FLIGHT_HEIGHT, fixes

MAX_CELLS = 10_000  # along a side


class Params(NamedTuple):
    swarm: SwarmParams
    camera: Float
    memory_seconds: Float


class State(NamedTuple):
    swarm: SwarmState
    stale: jax.Array  # [rows, columns], from 0 to 1


@dataclasses.dataclass(frozen=True)
class Coverage(Swarm):
    """Agents keep an area under watch."""

    num_agents: int = 8  # at most 100,000
    cells: int | None = None  # along each side; None: one a metre
    patch: int = 5  # cells seen along each side of the view, odd
    camera: float = 1.0  # metres to either side that a camera sees
    memory_seconds: float = 5.0  # until what was seen is worth nothing

    kind: ClassVar[str] = "cooperative"
    id: ClassVar[str] = "swarm/coverage"

    def __post_init__(self):
        require_whole(self.id, 1, at_most=MAX_COUNT, num_agents=self.num_agents)
        require_whole(self.id, 1, at_most=MAX_CELLS, patch=self.patch)
        super().__post_init__()
        if self.cells is not None:
            require_whole(self.id, 1, at_most=MAX_CELLS, cells=self.cells)
        fine = f"at most {MAX_CELLS} (None: one a metre, {self.num_cells:,} on this side)"
        require(self.num_cells <= MAX_CELLS, self.id, "cells", self.cells, fine)
        require(self.patch % 2 == 1, self.id, "patch", self.patch, "an odd number")
        require_above_zero(self.id, camera=self.camera, memory_seconds=self.memory_seconds)

    @property
    def num_cells(self) -> int:
        """Along each side."""
        return max(1, round(self.length)) if self.cells is None else self.cells

    def default_params(self) -> Params:
        return Params(self.swarm_params(), float(self.camera), float(self.memory_seconds))

    def reset(self, key: jax.Array, params: Params) -> State:
        return State(self.begin(key, params.swarm), jnp.ones((self.num_cells, self.num_cells)))

    def step(self, key: jax.Array, state: State, actions: Actions, params: Params) -> tuple[State, Outcome]:
        swarm = self.advance(key, state.swarm, actions["agent"], params.swarm)
        aged = jnp.minimum(state.stale + self.seconds / params.memory_seconds, 1.0)
        watchers, removed = self._watch(swarm.body, aged, params)
        state = State(swarm, jnp.where(watchers > 0.0, 0.0, aged))
        cost, touches = self.costs(swarm, params.swarm)
        metrics = {"freshness": 1.0 - jnp.mean(state.stale), "touches": jnp.sum(touches)}
        truncated = swarm.t >= self.max_steps
        return state, Outcome({"agent": removed - cost}, jnp.bool_(False), truncated, metrics)

    def observe(self, state: State, params: Params) -> dict[str, Observation]:
        place = fixes(state.swarm.body, state.swarm.noise)[0][:, :2]
        cell = jnp.clip((place * (self.num_cells / self.length)).astype(jnp.int32), 0, self.num_cells - 1)
        around = jnp.pad(state.stale, self.patch // 2)
        take = lambda at: lax.dynamic_slice(around, (at[1], at[0]), (self.patch, self.patch))  # noqa: E731
        return {"agent": Observation(self.view(state.swarm, params.swarm, [jax.vmap(take)(cell)]))}

    def scene(self, state: State, params: Params) -> Scene:
        size = self.length / self.num_cells
        corner = size * jnp.stack(jnp.meshgrid(jnp.arange(self.num_cells), jnp.arange(self.num_cells)), axis=-1)
        square = size * jnp.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
        stale = state.stale.ravel()
        tiles = Polygons(
            points=corner.reshape(-1, 1, 2) + square,
            colour=jnp.where(stale < 0.34, GREEN, jnp.where(stale < 0.67, YELLOW, RED)),
            visible=stale < 0.99,
        )
        return draw(self, state.swarm, BLUE, polygons=tiles, links=False)

    def _watch(self, body: Body, stale: jax.Array, params: Params) -> tuple[jax.Array, jax.Array]:
        """How many agents see each cell, and the staleness that each agent removes.

        A camera's square is a range of columns times a range of rows, so both are products of matrices: no scatter,
        and no array of agents times cells.
        """
        wide = params.camera
        if not self.is_planar:
            wide = (wide * body.position[:, 2] / FLIGHT_HEIGHT)[:, None]
        centre = (jnp.arange(self.num_cells) + 0.5) * (self.length / self.num_cells)
        columns = (jnp.abs(body.position[:, 0, None] - centre) <= wide).astype(jnp.float32)
        rows = (jnp.abs(body.position[:, 1, None] - centre) <= wide).astype(jnp.float32)
        watchers = rows.T @ columns  # exact in any precision: sums of zeros and ones
        share = stale / jnp.maximum(watchers, 1.0)
        removed = jnp.sum(jnp.matmul(rows, share, precision=lax.Precision.HIGHEST) * columns, axis=1)
        return watchers, removed
