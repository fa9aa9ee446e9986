"""`tag/continuous`: taggers hunt many runners in a square.

**Rules.** `num_taggers` taggers and `num_runners` runners move in the square [0, L]², L = `side`. They start anywhere
in it, at rest, heading in one of the four directions of the axes. In each step an agent changes its acceleration a and
turns, then moves:

    a ← a + Δa,  θ ← (θ + Δθ) mod 2π,  v ← clip(v + a, 0, max_speed * skill),  a ← 0 if v is at either bound,
    (x, y) ← clip((x, y) + v (cos θ, sin θ), 0, L)

A runner whose nearest tagger is closer than `tagging_distance` × L is tagged, and leaves the game unless
`runners_leave` is False. Who has left neither moves nor acts, and is not paid.

**Actions.** Two choices, of Δa and of Δθ: 0 changes nothing, 1 .. `num_accelerations` (`num_turns`) are evenly spaced
from the least to the greatest change.

**Observation**, with k = `num_neighbours`: for each of the k nearest others in the game, nearest first, 7 values, then
one for the time; `7 k + 1` in all. Where fewer than k others are left, the rest is 0. With `full_view`, all others in
order of number, whether in the game or not. Δ is the other's value minus one's own.

| value | what |
|---|---|
| Δx / (√2 L), Δy / (√2 L) | where the other is |
| Δv / max_speed | how much faster it is |
| Δa / max_speed | how much more it accelerates |
| Δθ / 2π | how it is turned, both angles being within [0, 2π), up to rounding |
| role | 1 for a tagger, 0 for a runner |
| in the game | 1, or 0 for one that has left |
| t / `max_steps` | time, once, at the end |

**Reward.** For agents in the game: `step_penalty` is paid by taggers, `step_reward` goes to runners, `edge_penalty` is
paid by who was clipped at the edge; a tagged runner pays `tag_penalty`, and its nearest tagger gets `tag_reward` for
each runner it tags. After step `max_steps` the runners still in the game get `end_reward`.

**End.** Terminated after `max_steps` steps and when no runner is left. Time is part of the game and of the view, and
its end is paid for, so the last step is an end like any other, with nothing to bootstrap from.

**Source.** `TagContinuous` of WarpDrive 2.7.1 (Lan et al. 2022, JMLR 23). Version 1. Departures: every episode draws
its own start, where the release draws one for all copies and episodes; a tagger is paid for each of several runners
that it tags at once, where the release loses some in a race; the views show who is in the game after the step, where
the release shows it from before the tags; a runner tagged in the last step does not get the end reward.
"""

import dataclasses
import math
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.core import trees
from shoal.core.checks import (
    MAX_COUNT,
    require_above_zero,
    require_finite,
    require_flag,
    require_not_negative,
    require_whole,
)
from shoal.core.env import Env
from shoal.core.errors import require
from shoal.core.spaces import ActionNames, MultiDiscrete
from shoal.core.types import Actions, Circles, Group, Lines, Observation, Outcome, Scene
from shoal.ops.neighbours import k_nearest

_TWO_PI = 2.0 * math.pi
_AT_ONCE = 32
"""Taggers that a runner's nearest is searched among without a loop."""
_HAIR = 1e-4
"""Headings, speeds and edges are compared with this much slack, relative to a step's size: opposite actions cancel
exactly on paper, and rounding, which differs between devices, must not turn a heading of 0 into one of 2π."""


class Params(NamedTuple):
    """See the fields of `TagContinuous`."""

    side: float | jax.Array
    max_speed: float | jax.Array
    tagger_skill: float | jax.Array
    runner_skill: float | jax.Array
    max_acceleration: float | jax.Array
    max_turn: float | jax.Array
    tagging_distance: float | jax.Array
    tag_reward: float | jax.Array
    tag_penalty: float | jax.Array
    end_reward: float | jax.Array
    step_penalty: float | jax.Array
    step_reward: float | jax.Array
    edge_penalty: float | jax.Array


class State(NamedTuple):
    """Taggers come first, then runners; all but `t` are `[n]`."""

    x: jax.Array
    y: jax.Array
    speed: jax.Array
    heading: jax.Array
    acceleration: jax.Array
    in_game: jax.Array
    t: jax.Array


@dataclasses.dataclass(frozen=True)
class TagContinuous(Env):
    """Taggers hunt many runners in a square."""

    num_taggers: int = 10
    num_runners: int = 100
    max_steps: int = 500  # length of an episode
    full_view: bool = False  # see all others instead of the nearest ones
    num_neighbours: int = 10  # how many of the nearest others are seen
    runners_leave: bool = True  # whether a tagged runner leaves the game
    num_accelerations: int = 20  # choices of acceleration besides none
    num_turns: int = 20  # choices of turn besides none
    side: float = 20.0  # side of the square
    max_speed: float = 1.0
    tagger_skill: float = 1.0  # multiplies max_speed for taggers
    runner_skill: float = 1.0  # multiplies max_speed for runners
    max_acceleration: float = 0.1  # changes of acceleration range from minus this to this
    max_turn: float = 0.75 * math.pi  # turns range from minus this to this, in radians
    tagging_distance: float = 0.02  # as a share of the side
    tag_reward: float = 10.0  # to a tagger, for each runner
    tag_penalty: float = 10.0  # paid by a tagged runner
    end_reward: float = 1.0  # to runners in the game after the last step
    step_penalty: float = 0.0  # paid by taggers in every step
    step_reward: float = 0.0  # to runners in every step
    edge_penalty: float = 0.0  # paid for being clipped at the edge

    kind: ClassVar[str] = "competitive"

    def __post_init__(self):
        owner = "tag/continuous"
        sizes = "num_taggers", "num_runners", "num_neighbours", "num_accelerations", "num_turns"
        require_whole(owner, 1, at_most=MAX_COUNT, **{name: getattr(self, name) for name in sizes})
        require_whole(owner, 1, max_steps=self.max_steps)
        require_flag(owner, full_view=self.full_view, runners_leave=self.runners_leave)
        others = self.num_agents - 1
        allowed = f"at most the number of other agents, {others}"
        require(self.full_view or self.num_neighbours <= others, owner, "num_neighbours", self.num_neighbours, allowed)
        require_finite(owner, **self.default_params()._asdict())
        require_above_zero(owner, side=self.side, max_speed=self.max_speed)
        skills = {"tagger_skill": self.tagger_skill, "runner_skill": self.runner_skill}
        bounds = {"max_acceleration": self.max_acceleration, "max_turn": self.max_turn}
        require_not_negative(owner, **skills, **bounds, tagging_distance=self.tagging_distance)
        require(self.tagging_distance <= 1, owner, "tagging_distance", self.tagging_distance, "between 0 and 1")

    @property
    def num_agents(self) -> int:
        return self.num_taggers + self.num_runners

    @property
    def groups(self) -> dict[str, Group]:
        action = MultiDiscrete((self.num_accelerations + 1, self.num_turns + 1))
        return {"tagger": Group(self.num_taggers, action), "runner": Group(self.num_runners, action)}

    def action_names(self, group: str) -> ActionNames:
        return {
            "speed": ("nothing", *_grades(self.num_accelerations, "slower", "faster")),
            "turn": ("nothing", *_grades(self.num_turns, "right", "left")),
        }

    def default_params(self) -> Params:
        return Params(*(getattr(self, name) for name in Params._fields))

    def reset(self, key: jax.Array, params: Params) -> State:
        n = self.num_agents
        draw = jax.random.uniform(key, (3, n))
        heading = (math.pi / 2) * jnp.floor(4.0 * draw[2])
        still = jnp.zeros(n)
        x, y = params.side * draw[0], params.side * draw[1]
        return State(x, y, still, heading, still, jnp.ones(n, bool), jnp.int32(0))

    def step(self, key: jax.Array, state: State, actions: Actions, params: Params) -> tuple[State, Outcome]:
        state, clipped = self._move(state, jnp.concatenate([actions["tagger"], actions["runner"]]), params)
        caught, tags = self._tags(state, params)
        first = self.num_taggers
        running = state.in_game[first:]
        staying = running & ~caught if self.runners_leave else running
        over = state.t >= self.max_steps
        edge = params.edge_penalty * clipped
        runner_reward = (
            params.step_reward
            - edge[first:]
            - params.tag_penalty * caught.astype(jnp.float32)
            + jnp.where(over, params.end_reward, 0.0) * staying.astype(jnp.float32)
        )
        reward = {
            "tagger": params.tag_reward * tags - params.step_penalty - edge[:first],
            "runner": jnp.where(running, runner_reward, 0.0),
        }
        state = state._replace(in_game=jnp.concatenate([state.in_game[:first], staying]))
        terminated = over | ~jnp.any(staying)
        return state, Outcome(reward, terminated, jnp.bool_(False), {"tags": jnp.sum(caught.astype(jnp.float32))})

    def observe(self, state: State, params: Params) -> dict[str, Observation]:
        rows = jnp.concatenate([self._scale(state, params), self._flags(state)], axis=1)
        views = self._all_others(rows, state) if self.full_view else self._nearest_others(rows, state)
        first = self.num_taggers
        running = state.in_game[first:]
        return {
            "tagger": Observation(views[:first]),
            "runner": Observation(views[first:], active=running, present=running),
        }

    def global_state(self, state: State, params: Params) -> jax.Array:
        """Every agent's place, speed, acceleration, heading, role and whether it is in the game; then the time."""
        scaled = jnp.concatenate([self._scale(state, params), self._flags(state)], axis=1)
        return jnp.append(scaled.ravel(), self._time(state))

    def scene(self, state: State, params: Params) -> Scene:
        n, side = self.num_agents, self.side
        corners = params.side * jnp.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
        walls = Lines(corners, jnp.roll(corners, -1, axis=0), jnp.zeros(4, jnp.int32), jnp.ones(4, bool))
        taggers = tuple(f"tagger_{i}" for i in range(self.num_taggers))
        runners = tuple(f"runner_{i}" for i in range(self.num_runners))
        circles = Circles(
            position=jnp.stack([state.x, state.y], axis=-1),
            radius=jnp.full(n, 0.01 * side),
            colour=jnp.where(self._is_tagger(), 4, 1),
            visible=state.in_game,
            heading=state.heading,
            names=taggers + runners,
        )
        margin = 0.03 * side
        return Scene(bounds=(-margin, -margin, side + margin, side + margin), lines=walls, circles=circles)

    def _is_tagger(self) -> jax.Array:
        return jnp.arange(self.num_agents) < self.num_taggers

    def _move(self, state: State, action: jax.Array, params: Params) -> tuple[State, jax.Array]:
        """The state after the moves, and 1 for who was clipped at the edge."""
        faster = _change(action[:, 0], self.num_accelerations, params.max_acceleration)
        turn = _change(action[:, 1], self.num_turns, params.max_turn)
        heading = jnp.mod(state.heading + turn + _HAIR, _TWO_PI) - _HAIR
        top = params.max_speed * jnp.where(self._is_tagger(), params.tagger_skill, params.runner_skill)
        acceleration = state.acceleration + faster
        speed = jnp.clip(state.speed + acceleration, 0.0, top)
        at_bound = (speed <= _HAIR * top) | (speed >= (1.0 - _HAIR) * top)
        acceleration = jnp.where(at_bound, 0.0, acceleration)
        aim_x, aim_y = state.x + speed * jnp.cos(heading), state.y + speed * jnp.sin(heading)
        x, y = jnp.clip(aim_x, 0.0, params.side), jnp.clip(aim_y, 0.0, params.side)
        beyond = jnp.maximum(jnp.abs(aim_x - x), jnp.abs(aim_y - y))
        clipped = state.in_game & (beyond > _HAIR * top)
        new = {"x": x, "y": y, "speed": speed, "heading": heading, "acceleration": acceleration}
        kept = {name: jnp.where(state.in_game, value, getattr(state, name)) for name, value in new.items()}
        return state._replace(**kept, t=state.t + 1), clipped.astype(jnp.float32)

    def _tags(self, state: State, params: Params) -> tuple[jax.Array, jax.Array]:
        """Which runners are caught, bool [runners], and how many each tagger caught, [taggers]."""
        first = self.num_taggers
        found = _nearest(state.x[:first], state.y[:first], state.x[first:], state.y[first:])
        nearest, who = trees.compute_once(found)
        reach = params.tagging_distance * params.side
        caught = state.in_game[first:] & (nearest < reach * reach)
        return caught, self._count(who, caught)

    def _count(self, who: jax.Array, caught: jax.Array) -> jax.Array:
        """How many of the caught runners each tagger is the nearest to; many taggers on a GPU by adding ones up."""
        first = self.num_taggers
        if jax.default_backend() != "cpu" and first > _AT_ONCE:
            return jnp.zeros(first).at[jnp.where(caught, who, first)].add(1.0, mode="drop")
        tagger = jax.lax.broadcasted_iota(jnp.int32, (first, self.num_runners), 0)
        return jnp.sum(((tagger == who[None]) & caught[None]).astype(jnp.float32), axis=1)

    def _scale(self, state: State, params: Params) -> jax.Array:
        """x, y, v, a and θ `[n, 5]` on the scale of the views."""
        across, fast = math.sqrt(2.0) * params.side, params.max_speed
        columns = [
            state.x / across,
            state.y / across,
            state.speed / fast,
            state.acceleration / fast,
            state.heading / _TWO_PI,
        ]
        return jnp.stack(columns, axis=-1)

    def _flags(self, state: State) -> jax.Array:
        """Role and being in the game, `[n, 2]`."""
        return jnp.stack([self._is_tagger(), state.in_game], axis=-1).astype(jnp.float32)

    def _nearest_others(self, rows: jax.Array, state: State) -> jax.Array:
        """Views of the nearest others, and the time."""
        position = jnp.stack([state.x, state.y], axis=-1)
        index, valid = k_nearest(position, state.in_game, self.num_neighbours)
        # Behind the barrier the rows lie in memory when they are picked; without it a GPU works out each value picked.
        rows = jax.lax.optimization_barrier(rows)
        others = jnp.where(valid[:, :, None], rows[index] - _own(rows)[:, None], 0.0)
        others = others.reshape(rows.shape[0], self.num_neighbours * rows.shape[1])
        # A choice between columns fuses with the picking; a concatenation takes half as long again on a GPU.
        last = jnp.arange(others.shape[1] + 1) == others.shape[1]
        return jnp.where(last, self._time(state), jnp.pad(others, ((0, 0), (0, 1))))

    def _all_others(self, rows: jax.Array, state: State) -> jax.Array:
        """Views of all others, in order of number."""
        n, width = rows.shape
        before_own = jnp.arange(n - 1)[None, :] < jnp.arange(n)[:, None]
        others = jnp.where(before_own[:, :, None], rows[None, :-1], rows[None, 1:]) - _own(rows)[:, None]
        time = jnp.broadcast_to(self._time(state), (n, 1))
        return jnp.concatenate([others.reshape(n, (n - 1) * width), time], axis=1)

    def _time(self, state: State) -> jax.Array:
        return state.t.astype(jnp.float32) / self.max_steps


def _nearest(x: jax.Array, y: jax.Array, to_x: jax.Array, to_y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The squared distance of the nearest of some points to each of others, and its number, the first of several.

    Point after point, so that a GPU keeps the nearest so far in registers: reductions would go over all pairs twice.
    """
    parts = math.ceil(x.shape[0] / _AT_ONCE)
    padding = (0, parts * _AT_ONCE - x.shape[0]) if parts > 1 else (0, 0)
    x, y = (jnp.pad(c, padding, constant_values=jnp.inf).reshape(parts, -1) for c in (x, y))

    def search(nearest, points):
        (least, who), (x, y, number) = nearest, points
        away_x, away_y = x[:, None] - to_x, y[:, None] - to_y
        for i, distance in enumerate(away_x * away_x + away_y * away_y):
            who = jax.lax.select(distance < least, jnp.broadcast_to(number + i, who.shape), who)
            least = jax.lax.min(distance, least)
        return (least, who), None

    nearest = jnp.full(to_x.shape, jnp.inf), jnp.zeros(to_x.shape, jnp.int32)
    numbers = _AT_ONCE * jnp.arange(parts, dtype=jnp.int32)
    if parts == 1:
        return search(nearest, (x[0], y[0], numbers[0]))[0]
    return jax.lax.scan(search, nearest, (x, y, numbers))[0]


def _change(choice: jax.Array, num_choices: int, largest: float | jax.Array) -> jax.Array:
    """What a choice stands for: 0 is no change, 1 .. num_choices are evenly spaced from -largest to largest.

    A lone choice besides 0 stands for -largest.
    """
    position = (choice - 1).astype(jnp.float32) * (2.0 / max(num_choices - 1, 1)) - 1.0
    return jnp.where(choice == 0, 0.0, largest * position)


def _grades(num_choices: int, least: str, most: str) -> tuple[str, ...]:
    """Names of the choices besides none, from the least change to the greatest, in per cent of these."""
    shares = [2.0 * i / max(num_choices - 1, 1) - 1.0 for i in range(num_choices)]
    words = [(least if share < 0 else most, round(100 * abs(share))) for share in shares]
    return tuple(word if percent == 100 else f"{word} {percent} %" for word, percent in words)


def _own(rows: jax.Array) -> jax.Array:
    """What is subtracted from the rows of others: one's own values, but for the two flags, which stay as they are."""
    return jnp.where(jnp.arange(rows.shape[1]) < rows.shape[1] - 2, rows, 0.0)
