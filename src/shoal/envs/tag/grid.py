"""`tag/grid`: taggers hunt one runner on a grid.

**Rules.** `num_taggers` taggers and one runner live on whole coordinates (x, y) with 0 <= x, y <= `grid_length`, both
included. Taggers start at the centre, the runner at (0, 0); any number of agents may share a cell. All move at once.

**Actions.** Stay, +x, -x, +y, -y. A move that would leave the grid is clipped and costs the wall penalty. A number that
is not an action counts as staying.

**Observation.** The two groups' views have the same shape, so that one policy can play both. With `full_view` (the
default), `4 n + 1` values for n agents, taggers first, the runner last:

| values | what |
|---|---|
| n | x of every agent, divided by `grid_length` |
| n | y of every agent, likewise |
| n | 1 for the runner, 0 for the taggers |
| n | 1 for oneself, 0 for the others |
| 1 | time: steps so far divided by `max_steps` |

Without it, 6 values:

| values | what |
|---|---|
| 2 | own x and y, divided by `grid_length` |
| 2 | x and y of the runner; for the runner itself, of the nearest tagger (the first of several) |
| 1 | 1 for the runner, 0 for a tagger |
| 1 | time |

**Reward.** When a tagger stands on the runner's cell after a move, every tagger gets `tag_reward` and the runner pays
`tag_penalty`; otherwise every tagger pays `step_cost` and the runner gets it. Who bumps into a wall pays `wall_penalty`
on top.

**End.** Terminated when the runner is caught and after `max_steps` steps. Time is part of the game and of the view, so
the last step is an end like any other, with nothing to bootstrap from.

**Source.** `TagGridWorld` of WarpDrive 2.7.1 (Lan et al. 2022, JMLR 23), without a departure but for the defaults.
Version 1.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.checks import MAX_COUNT, require_finite, require_flag, require_whole
from shoal.core.env import Env
from shoal.core.errors import require
from shoal.core.spaces import ActionNames, Discrete
from shoal.core.types import Actions, Circles, Group, Lines, Observation, Outcome, Scene

_NUM_MOVES = 5
_MAX_LENGTH = 32_767  # squared distances must fit into 32 bits


class Params(NamedTuple):
    wall_penalty: float | jax.Array
    tag_reward: float | jax.Array
    tag_penalty: float | jax.Array
    step_cost: float | jax.Array


class Cells(NamedTuple):
    """Where the agents of a group are; int16 `[n]`, which halves the memory that a step moves."""

    x: jax.Array
    y: jax.Array


class State(NamedTuple):
    tagger: Cells
    runner: Cells
    t: jax.Array


@dataclasses.dataclass(frozen=True)
class TagGrid(Env):
    """Taggers hunt one runner on a grid."""

    num_taggers: int = 4
    grid_length: int = 100  # the largest coordinate; the smallest is 0
    max_steps: int = 100  # length of an episode
    full_view: bool = True  # see everybody, or only the one that matters
    wall_penalty: float = 0.1  # paid for bumping into a wall
    tag_reward: float = 10.0  # to every tagger when the runner is caught
    tag_penalty: float = 5.0  # paid by the runner when it is caught
    step_cost: float = 0.01  # paid by every tagger, and given to the runner, in any other step

    kind: ClassVar[str] = "competitive"

    def __post_init__(self):
        owner = "tag/grid"
        require_whole(owner, 1, at_most=MAX_COUNT, num_taggers=self.num_taggers)
        require_whole(owner, 1, max_steps=self.max_steps)
        require_whole(owner, 2, grid_length=self.grid_length)
        require(self.grid_length <= _MAX_LENGTH, owner, "grid_length", self.grid_length, f"at most {_MAX_LENGTH}")
        cells = (self.grid_length + 1) ** 2
        allowed = f"at most the number of cells, {cells} with grid_length={self.grid_length}"
        require(self.num_taggers <= cells, owner, "num_taggers", self.num_taggers, allowed)
        require_flag(owner, full_view=self.full_view)
        require_finite(owner, **self.default_params()._asdict())

    @property
    def groups(self) -> dict[str, Group]:
        return {"tagger": Group(self.num_taggers, Discrete(_NUM_MOVES)), "runner": Group(1, Discrete(_NUM_MOVES))}

    def action_names(self, group: str) -> ActionNames:
        return {"move": ("stay", "right", "left", "up", "down")}

    @property
    def play_fps(self) -> float:
        return 5.0

    def default_params(self) -> Params:
        return Params(self.wall_penalty, self.tag_reward, self.tag_penalty, self.step_cost)

    def reset(self, key: jax.Array, params: Params) -> State:
        # The start is a constant; without the barrier XLA works out the first view of every copy while it compiles.
        zero = jax.lax.optimization_barrier(jnp.int16(0))
        centre = jnp.full(self.num_taggers, self.grid_length // 2, jnp.int16) + zero
        corner = jnp.zeros(1, jnp.int16) + zero
        return State(Cells(centre, centre), Cells(corner, corner), zero.astype(jnp.int32))

    def step(self, key: jax.Array, state: State, actions: Actions, params: Params) -> tuple[State, Outcome]:
        tagger, tagger_bumps = self._move(state.tagger, actions["tagger"])
        runner, runner_bumps = self._move(state.runner, actions["runner"])
        state = State(tagger, runner, state.t + 1)
        caught = jnp.any((tagger.x == runner.x) & (tagger.y == runner.y))
        tagger_reward = jnp.where(caught, params.tag_reward, -params.step_cost)
        runner_reward = jnp.where(caught, -params.tag_penalty, params.step_cost)
        reward = {
            "tagger": tagger_reward - params.wall_penalty * tagger_bumps,
            "runner": runner_reward - params.wall_penalty * runner_bumps,
        }
        over = caught | (state.t >= self.max_steps)
        return state, Outcome(reward, over, jnp.bool_(False), {"caught": caught.astype(jnp.float32)})

    def observe(self, state: State, params: Params) -> dict[str, Observation]:
        view = self._full_view(state) if self.full_view else self._partial_view(state)
        return {name: Observation(rows) for name, rows in view.items()}

    def global_state(self, state: State, params: Params) -> jax.Array:
        """Every agent's x and y and the time, on the scale of the views."""
        x, y = _everybody(state)
        return jnp.concatenate([self._scale(x), self._scale(y), self._time(state)[None]])

    def scene(self, state: State, params: Params) -> Scene:
        n, length = self.num_taggers, float(self.grid_length)
        corners = length * jnp.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
        walls = Lines(corners, jnp.roll(corners, -1, axis=0), jnp.zeros(4, jnp.int32), jnp.ones(4, bool))
        circles = Circles(
            position=jnp.stack(_everybody(state), axis=-1).astype(jnp.float32),
            radius=jnp.full(n + 1, max(0.4, length / 100)),
            colour=jnp.where(jnp.arange(n + 1) < n, 4, 1),
            visible=jnp.ones(n + 1, bool),
            names=(*(f"tagger_{i}" for i in range(n)), "runner_0"),
        )
        margin = 0.02 * length + 0.5
        return Scene(bounds=(-margin, -margin, length + margin, length + margin), lines=walls, circles=circles)

    def _move(self, cells: Cells, action: jax.Array) -> tuple[Cells, jax.Array]:
        """New cells, and 1 for who bumped into a wall."""
        x, bumps_x = self._slide(cells.x, action == 1, action == 2)
        y, bumps_y = self._slide(cells.y, action == 3, action == 4)
        return Cells(x, y), (bumps_x | bumps_y).astype(jnp.float32)

    def _slide(self, place: jax.Array, up: jax.Array, down: jax.Array) -> tuple[jax.Array, jax.Array]:
        aim = place.astype(jnp.int32) + up.astype(jnp.int32) - down.astype(jnp.int32)
        new = jnp.clip(aim, 0, self.grid_length)
        return new.astype(jnp.int16), new != aim

    def _full_view(self, state: State) -> dict[str, jax.Array]:
        own = jnp.eye(self.num_taggers + 1)
        return {"tagger": self._full_rows(state, own[:-1]), "runner": self._full_rows(state, own[-1:])}

    def _full_rows(self, state: State, own: jax.Array) -> jax.Array:
        x, y = _everybody(state)
        is_runner = (jnp.arange(x.shape[0]) == self.num_taggers).astype(jnp.float32)
        rows = [jnp.broadcast_to(row, own.shape) for row in (self._scale(x), self._scale(y), is_runner)]
        return jnp.concatenate([*rows, own, jnp.broadcast_to(self._time(state), (own.shape[0], 1))], axis=1)

    def _partial_view(self, state: State) -> dict[str, jax.Array]:
        nearest = _nearest(state.tagger, state.runner)
        return {
            "tagger": self._partial_rows(state, state.tagger, state.runner, is_runner=0.0),
            "runner": self._partial_rows(state, state.runner, nearest, is_runner=1.0),
        }

    def _partial_rows(self, state: State, own: Cells, target: Cells, is_runner: float) -> jax.Array:
        shared = [*map(self._scale, target), jnp.float32([is_runner]), self._time(state)[None]]
        rest = jnp.concatenate([jnp.zeros(2), *shared])
        # A sum of outer products and not a stack: six sources for each value make a slow kernel on a GPU.
        column = jnp.eye(2, rest.shape[0])
        return self._scale(own.x)[:, None] * column[0] + self._scale(own.y)[:, None] * column[1] + rest

    def _scale(self, place: jax.Array) -> jax.Array:
        return place.astype(jnp.float32) / self.grid_length

    def _time(self, state: State) -> jax.Array:
        return state.t.astype(jnp.float32) / self.max_steps


def _everybody(state: State) -> Cells:
    """Taggers, then the runner."""
    return jax.tree.map(lambda tagger, runner: jnp.concatenate([tagger, runner]), state.tagger, state.runner)


def _nearest(tagger: Cells, runner: Cells) -> Cells:
    """The cell of the tagger nearest to the runner, the first one if several are."""
    apart = jax.tree.map(lambda a, b: a.astype(jnp.int32) - b.astype(jnp.int32), tagger, runner)
    distance = apart.x**2 + apart.y**2
    # Two plain minima: argmin, which carries pairs, does not vectorise.
    n = distance.shape[0]
    first = jnp.min(jnp.where(distance == jnp.min(distance), jnp.arange(n), n))
    return jax.tree.map(lambda place: place[first][None], tagger)
