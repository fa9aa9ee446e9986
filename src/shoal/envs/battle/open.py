"""`battle/open`: two armies fight on an open field, hundreds of agents a side.

**Rules.** Each cell of a field of `map_size` × `map_size`, walled in, holds at most one agent. The sides, `num_agents`
red and as many blue, are drawn up in blocks, mirror images of each other, left and right of the middle; a coin decides
who is where. Everybody starts with `health` points. In a step every agent moves or attacks:

1. All attacks fall at once, also those of agents that are struck down in the same step. An agent that stands on a cell
   attacked by enemies loses `damage` points for each of them; attacks on empty cells, walls or friends do nothing.
2. Who has no points left is dead and leaves the field. Everybody else regains `recovery` points, up to `health`.
3. Moves are made at once, onto cells that are now free: one on which an agent stands cannot be entered in this step,
   not even if that agent leaves it, so that nobody swaps places or follows. Of several agents that aim at one cell, the
   one whose number, drawn for everybody in every step, is highest goes there. All others stay where they are. A
   move of two cells jumps over what is between.

**Actions.** 21 choices, dx and dy being the way to go:

| action | what |
|---|---|
| 0 | stay |
| 1 - 12 | move to one of the 12 cells within a distance of 2, the nearest first |
| 13 - 20 | attack one of the 8 cells around |

The ways are listed in `battle/_field.py`. A number that is not an action counts as the nearest one.

**Observation.** A dict of two, of the same shape for both sides, so that one policy can play both. `map`: an image in
bytes of the cells around oneself, `2 view_radius + 1` a side, [x, y, channel] with x and y growing:

| channel | what |
|---|---|
| 0 | 255 for walls and beyond |
| 1, 2 | 255 where a friend (or oneself) is; its points, as a share of 255 |
| 3, 4 | the same for enemies |

`self`: 7 numbers:

| values | what |
|---|---|
| 1 | own points, as a share of `health` |
| 2 | own x and y, from 0 to 1 |
| 2 | share of the own side, and of the other, that is alive |
| 2 | the way to the middle of all enemies, in widths of the field |

**Reward**, for each agent by itself: `-step_cost` in every step, `-attack_cost` for every attack, `hit_reward` for one
that strikes an enemy, `-death_cost` for dying. `kill_reward` is shared equally by all who struck the enemy in the step
in which it died.

**End.** Terminated when a side (or both) has nobody left; truncated after `max_steps` steps. Who dies is neither active
nor present from then on.

**Source.** In the spirit of `battle_v4` of MAgent2 0.3 (Zheng et al. 2018, arXiv:1712.00600), with its points, damage,
recovery, rewards, ranges and channels. Departures: attacks fall at once, there in random order, so that who is struck
down before its turn does not strike; there the last blow earns all of `kill_reward`; there moves are made one after the
other, red first; views are square, there round; walls stand around the field, there on its outermost cells; by default
there are fewer agents and shorter episodes. The shares alive and the way to the enemies stand for its minimap.
Version 1.
"""

import dataclasses
import math
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.checks import MAX_COUNT, require_above_zero, require_finite, require_not_negative, require_whole
from shoal.core.env import Env
from shoal.core.errors import require
from shoal.core.spaces import ActionNames, Discrete
from shoal.core.types import Actions, Circles, Group, Lines, Observation, Outcome, Scene
from shoal.envs.battle._field import DX, DY, MOVES, NAMES, NUM_ACTIONS, REACH, cut_around, formation, room, take

_MAX_SIZE = 1_000
_NO_POINTS = 1e-3  # fewer are none, so that rounding decides over nobody's life
_FULL = 255


class Params(NamedTuple):
    health: float | jax.Array
    damage: float | jax.Array
    recovery: float | jax.Array
    step_cost: float | jax.Array
    attack_cost: float | jax.Array
    hit_reward: float | jax.Array
    kill_reward: float | jax.Array
    death_cost: float | jax.Array


class State(NamedTuple):
    """Red agents come first, then blue ones; all but the time are `[2 num_agents]`."""

    x: jax.Array  # int16
    y: jax.Array  # int16
    points: jax.Array  # 0 once an agent is dead
    action: jax.Array  # int8, the last one, for the picture
    t: jax.Array


class Blows(NamedTuple):
    """What the attacks of a step led to; `[2 num_agents]`."""

    hit: jax.Array  # bool, who struck an enemy
    points: jax.Array  # what everybody has left
    died: jax.Array  # bool
    earned: jax.Array  # for kills


@dataclasses.dataclass(frozen=True)
class OpenBattle(Env):
    """Two armies fight on an open field."""

    num_agents: int = 64  # on each side
    map_size: int = 40  # cells a side
    view_radius: int = 6  # how many cells one sees in each direction
    max_steps: int = 200  # length of an episode
    health: float = 10.0  # points at the start, and at most
    damage: float = 2.0  # points that an attack takes
    recovery: float = 0.1  # points regained in a step
    step_cost: float = 0.005  # paid in every step
    attack_cost: float = 0.1  # paid for an attack
    hit_reward: float = 0.2  # reward for striking an enemy
    kill_reward: float = 5.0  # reward for killing an enemy, shared by all that struck it
    death_cost: float = 0.1  # paid for dying

    kind: ClassVar[str] = "competitive"

    def __post_init__(self):
        owner = "battle/open"
        require_whole(owner, 1, at_most=MAX_COUNT, num_agents=self.num_agents)
        require_whole(owner, 1, view_radius=self.view_radius, max_steps=self.max_steps)
        require_whole(owner, 4, map_size=self.map_size)
        require(self.map_size <= _MAX_SIZE, owner, "map_size", self.map_size, f"at most {_MAX_SIZE}")
        require(
            self.view_radius <= self.map_size,
            owner,
            "view_radius",
            self.view_radius,
            f"at most map_size ({self.map_size})",
        )
        most = math.prod(room(self.map_size, spacing=1))
        allowed = f"at most {most}, for whom there is room with map_size={self.map_size}"
        require(self.num_agents <= most, owner, "num_agents", self.num_agents, allowed)
        require_above_zero(owner, health=self.health)
        require_not_negative(owner, damage=self.damage, recovery=self.recovery)
        require_finite(owner, **self.default_params()._asdict())

    @property
    def groups(self) -> dict[str, Group]:
        actions = Discrete(NUM_ACTIONS)
        return {"red": Group(self.num_agents, actions), "blue": Group(self.num_agents, actions)}

    def action_names(self, group: str) -> ActionNames:
        return {"action": NAMES}

    @property
    def play_fps(self) -> float:
        return 4.0

    def default_params(self) -> Params:
        return Params(*(getattr(self, name) for name in Params._fields))

    def reset(self, key: jax.Array, params: Params) -> State:
        x, y = formation(self.num_agents, self.map_size)
        mirrored = jnp.stack([x, self.map_size - 1 - x])
        x = jnp.where(jax.random.bernoulli(key), mirrored, mirrored[::-1]).ravel()
        n = 2 * self.num_agents
        points = jnp.full(n, params.health, jnp.float32)
        return State(x.astype(jnp.int16), jnp.int16(np.tile(y, 2)), points, jnp.zeros(n, jnp.int8), jnp.int32(0))

    def step(self, key: jax.Array, state: State, actions: Actions, params: Params) -> tuple[State, Outcome]:
        alive = state.points > 0
        action = jnp.clip(jnp.concatenate([actions["red"], actions["blue"]]), 0, NUM_ACTIONS - 1)
        attacks = alive & (action >= len(MOVES))
        target = self._cell(state.x + jnp.asarray(DX)[action], state.y + jnp.asarray(DY)[action])
        occupant = take(self._occupants(state), target)
        blows = self._strike(state, attacks, occupant, params)
        goes = blows.points > 0
        goes = self._may_go(key, goes & ~attacks & (action > 0), goes, target, occupant)
        state = State(
            x=jnp.where(goes, target // self._pitch - REACH, state.x).astype(jnp.int16),
            y=jnp.where(goes, target % self._pitch - REACH, state.y).astype(jnp.int16),
            points=blows.points,
            action=jnp.where(alive, action, 0).astype(jnp.int8),
            t=state.t + 1,
        )
        reward = params.hit_reward * blows.hit - params.attack_cost * attacks - params.step_cost * alive
        reward = reward + blows.earned - params.death_cost * blows.died
        return state, self._outcome(state, reward, blows.died)

    def observe(self, state: State, params: Params) -> dict[str, Observation]:
        alive = state.points > 0
        numbers = self._numbers(state, params)
        observation = {}
        for side, name in enumerate(self.groups):
            own = self._side(side)
            around = cut_around(self._paint(state, params, side), state.x[own], state.y[own], self.view_radius)
            view = {"map": around, "self": numbers[own]}
            observation[name] = Observation(view, active=alive[own], present=alive[own])
        return observation

    def global_state(self, state: State, params: Params) -> jax.Array:
        """The whole field as an image `[x, y, 4]` in bytes: where red is, its points, where blue is, its points."""
        edge = self.view_radius
        return self._paint(state, params, 0)[edge:-edge, edge:-edge, 1:]

    def scene(self, state: State, params: Params) -> Scene:
        """Discs as large as the points that are left; a line for each attack of the last step."""
        n, size = self.num_agents, float(self.map_size)
        alive = state.points > 0
        place = jnp.stack([state.x, state.y], axis=-1).astype(jnp.float32) + 0.5
        way = jnp.stack([jnp.asarray(DX)[state.action], jnp.asarray(DY)[state.action]], axis=-1)
        colour = jnp.repeat(jnp.array([4, 1]), n)
        circles = Circles(
            position=place,
            radius=0.2 + 0.25 * state.points / params.health,
            colour=colour,
            visible=alive,
            names=tuple(f"{name}_{i}" for name in self.groups for i in range(n)),
        )
        corners = size * jnp.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
        lines = Lines(
            start=jnp.concatenate([corners, place]),
            end=jnp.concatenate([jnp.roll(corners, -1, axis=0), place + way]),
            colour=jnp.concatenate([jnp.zeros(4, jnp.int32), colour]),
            visible=jnp.concatenate([jnp.ones(4, bool), alive & (state.action >= len(MOVES))]),
        )
        margin = 0.02 * size
        return Scene(bounds=(-margin, -margin, size + margin, size + margin), lines=lines, circles=circles)

    @property
    def _pitch(self) -> int:
        """Cells a side, with walls as thick as anybody can reach."""
        return self.map_size + 2 * REACH

    def _side(self, side: int) -> slice:
        return slice(side * self.num_agents, (side + 1) * self.num_agents)

    def _cell(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """Number of a cell, walls included."""
        return (x.astype(jnp.int32) + REACH) * self._pitch + y.astype(jnp.int32) + REACH

    def _occupants(self, state: State) -> jax.Array:
        """Who is on each cell: an agent's number, or 2n for nobody, or 2n + 1 for a wall."""
        nobody = 2 * self.num_agents
        field = np.full((self._pitch, self._pitch), nobody + 1, np.int32)
        field[REACH:-REACH, REACH:-REACH] = nobody
        cell = jnp.where(state.points > 0, self._cell(state.x, state.y), field.size)
        return jnp.asarray(field.ravel()).at[cell].set(jnp.arange(nobody), mode="drop")

    def _strike(self, state: State, attacks: jax.Array, occupant: jax.Array, params: Params) -> Blows:
        n = self.num_agents
        is_blue = jnp.arange(2 * n) >= n
        hit = attacks & (occupant < 2 * n) & ((occupant >= n) != is_blue)
        victim = jnp.where(hit, occupant, 2 * n)
        struck = jnp.zeros(2 * n + 1).at[victim].add(1.0)[:-1]
        points = state.points - params.damage * struck
        died = (state.points > 0) & (points < _NO_POINTS)
        points = jnp.where(points < _NO_POINTS, 0.0, jnp.minimum(points + params.recovery, params.health))
        bounty = jnp.where(died, params.kill_reward / jnp.maximum(struck, 1.0), 0.0)
        return Blows(hit, points, died, take(jnp.append(bounty, 0.0), victim))

    def _may_go(
        self, key: jax.Array, wants: jax.Array, alive: jax.Array, target: jax.Array, occupant: jax.Array
    ) -> jax.Array:
        """Who gets to the cell it aims at: free ones, and of several that aim at one, the highest number."""
        n = 2 * self.num_agents
        blocked = jnp.concatenate([alive, jnp.array([False, True])])
        claims = wants & ~take(blocked, occupant)
        shift = n.bit_length()
        number = (jax.random.bits(key, (n,)) >> shift << shift) | jnp.arange(1, n + 1, dtype=jnp.uint32)
        aimed = jnp.where(claims, target, self._pitch**2)
        highest = jnp.zeros(self._pitch**2, jnp.uint32).at[aimed].max(number, mode="drop")
        return claims & (take(highest, target) == number)

    def _outcome(self, state: State, reward: jax.Array, died: jax.Array) -> Outcome:
        alive = {name: jnp.mean(state.points[self._side(side)] > 0) for side, name in enumerate(self.groups)}
        terminated = (alive["red"] == 0) | (alive["blue"] == 0)
        metrics = {f"{name}_alive": share for name, share in alive.items()} | {
            "kills": jnp.sum(died, dtype=jnp.float32)
        }
        return Outcome(
            reward={name: reward[self._side(side)] for side, name in enumerate(self.groups)},
            terminated=terminated,
            truncated=(state.t >= self.max_steps) & ~terminated,
            metrics=metrics,
        )

    def _paint(self, state: State, params: Params, side: int) -> jax.Array:
        """The field as a side sees it, an image `[x, y, 5]` in bytes, with walls as wide as anybody can see."""
        edge = self.view_radius
        walls = np.zeros((self.map_size + 2 * edge, self.map_size + 2 * edge, 5), np.uint8)
        walls[..., 0] = _FULL
        walls[edge:-edge, edge:-edge, 0] = 0
        alive = state.points > 0
        points = jnp.clip(jnp.round(_FULL * state.points / params.health), 1, _FULL).astype(jnp.uint8)
        is_friend = (jnp.arange(2 * self.num_agents) >= self.num_agents) == bool(side)
        # One outer product for each kind of channel: five sources for each byte would be five branches.
        there = jnp.where(is_friend[:, None], jnp.array([0, 1, 0, 0, 0]), jnp.array([0, 0, 0, 1, 0]))
        colours = there * _FULL + jnp.roll(there, 1, axis=1) * points[:, None]
        x = jnp.where(alive, state.x.astype(jnp.int32) + edge, walls.shape[0])
        return jnp.asarray(walls).at[x, state.y.astype(jnp.int32) + edge].set(colours.astype(jnp.uint8), mode="drop")

    def _numbers(self, state: State, params: Params) -> jax.Array:
        """The part `self` of all views, `[2n, 7]`."""
        n, alive = self.num_agents, state.points > 0
        place = jnp.stack([state.x, state.y], axis=-1).astype(jnp.float32) / (self.map_size - 1)
        counts = jnp.stack([jnp.sum(alive[:n]), jnp.sum(alive[n:])]).astype(jnp.float32)
        total = (place * alive[:, None]).reshape(2, n, 2).sum(axis=1)
        middle = total / jnp.maximum(counts, 1.0)[:, None]
        enemies = jnp.repeat(middle[::-1], n, axis=0)
        shares = jnp.repeat(jnp.stack([counts, counts[::-1]], axis=1) / n, n, axis=0)
        way = jnp.where(shares[:, 1:] > 0, enemies - place, 0.0)
        return jnp.concatenate([state.points[:, None] / params.health, place, shares, way], axis=1)
