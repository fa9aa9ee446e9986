"""`swarm/pursuit`: a team of pursuers hunts a team of faster, shorter-sighted evaders among obstacles.

**Rules.** `num_pursuers` pursuers and `num_evaders` evaders start at random in an arena with `num_obstacles` obstacles.
The teams differ: the options of the family describe the pursuers, and an evader has `evader_speed` times their speed,
`evader_agility` times their force (quadrotors: body rates) and `evader_range` times their sensing range. An evader that
is within `catch_radius` of a pursuer after a step is caught and leaves: it neither acts nor is seen, heard or paid any
more. Flight, contact, sensing, messages and weather are those of the whole family: see `shoal.envs.swarm`.

**Actions.** Two numbers from -1 to 1, the force to pull with (quadrotors: thrust and three body rates), then
`message_size` numbers to say (with `message_tokens`: the largest of them is the word said). Everybody hears everybody.

**Observation** of both teams, planar, by default 37 values; k = `num_neighbours`. Quadrotors, a narrower field of view
and messages add what `shoal.envs.swarm` says:

| values | what |
|---|---|
| 2 | own velocity / own max_speed |
| 2 | own position, from -1 to 1 |
| 3 | the way to the nearest obstacle's surface / own sensing range, and 1; 0 where none is within range |
| 5 k | the k nearest other pursuers in sight: offset / own range, relative velocity / top speed, and 1; else 0 |
| 5 k | the k nearest other evaders in sight, likewise |

**Reward.** A pursuer gets `catch_reward` for each evader within `catch_radius` of it, and pays `chase_penalty` times
its distance from the nearest evader still in the game, as a share of the arena's side. An evader pays `catch_reward`
when it is caught, and gets `escape_reward` in each step in which it is not. All pay `touch_penalty` for each other and
each obstacle that they touch.

**End.** Terminated when all evaders are caught, truncated after `max_steps` steps.

**Metrics.** catches: evaders caught in the step; free: share of the evaders still in the game; touches: contacts of
agents.

**Source.** Our own, after pursuit and evasion with teams (Vidal et al. 2002). Version 1.
"""

import dataclasses
import math
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.checks import MAX_COUNT, require_above_zero, require_not_negative, require_whole
from shoal.core.types import Actions, Observation, Outcome, Scene
from shoal.envs.swarm._dynamics import Float, Physics, norm
from shoal.envs.swarm._picture import GREEN, RED, draw
from shoal.envs.swarm._swarm import Swarm, SwarmParams, SwarmState

_ABILITIES = "evader_speed", "evader_agility", "evader_range", "catch_radius"
AREA_AN_AGENT = 20.0
"""Square metres when `side` is left out: more than in other worlds, or there is no escape."""
_REWARDS = "catch_reward", "chase_penalty", "escape_reward"


class Params(NamedTuple):
    swarm: SwarmParams
    catch_radius: Float
    catch_reward: Float
    chase_penalty: Float
    escape_reward: Float


class State(NamedTuple):
    """Pursuers come first, then evaders."""

    swarm: SwarmState
    free: jax.Array  # bool [evaders]


@dataclasses.dataclass(frozen=True)
class Pursuit(Swarm):
    """Pursuers hunt evaders."""

    num_pursuers: int = 5  # hunters
    num_evaders: int = 2  # hunted
    side: float | None = None  # side of the square arena in metres; None: 20 m² per agent, at least 6
    num_obstacles: int = 3  # round, at most 32
    evader_speed: float = 1.2  # times that of pursuers
    evader_agility: float = 1.5  # their force (quadrotors: body rates) times that of pursuers
    evader_range: float = 0.75  # how far they see, times that of pursuers
    catch_radius: float = 0.8  # metres between centres
    catch_reward: float = 10.0  # to a pursuer for each catch; an evader pays it
    chase_penalty: float = 0.2  # paid by pursuers for their distance from the nearest evader, as a share of the side
    escape_reward: float = 0.05  # to a free evader, each step

    kind: ClassVar[str] = "competitive"
    id: ClassVar[str] = "swarm/pursuit"

    def __post_init__(self):
        teams = {"num_pursuers": self.num_pursuers, "num_evaders": self.num_evaders}
        require_whole(self.id, 1, at_most=MAX_COUNT, **teams)
        require_above_zero(self.id, **{name: getattr(self, name) for name in _ABILITIES})
        super().__post_init__()
        require_not_negative(self.id, **{name: getattr(self, name) for name in _REWARDS})

    @property
    def teams(self) -> dict[str, int]:
        return {"pursuer": self.num_pursuers, "evader": self.num_evaders}

    @property
    def length(self) -> float:
        return max(6.0, math.sqrt(AREA_AN_AGENT * self.size)) if self.side is None else self.side

    @property
    def top_speed(self) -> float:
        return self.speed * max(1.0, self.evader_speed)

    def default_params(self) -> Params:
        return Params(self.swarm_params(), *(float(getattr(self, name)) for name in Params._fields[1:]))

    def physics_of(self, params: SwarmParams) -> Physics:
        agile = {"max_force" if self.is_planar else "max_rate": self.evader_agility}
        ratios = {"max_speed": self.evader_speed} | agile
        scaled = {name: self._by_team(getattr(params.physics, name), ratio) for name, ratio in ratios.items()}
        return params.physics._replace(**scaled)

    def reach_of(self, params: SwarmParams) -> jax.Array:
        return self._by_team(params.sensing_range, self.evader_range)

    def reset(self, key: jax.Array, params: Params) -> State:
        return State(self.begin(key, params.swarm), jnp.ones(self.num_evaders, bool))

    def step(self, key: jax.Array, state: State, actions: Actions, params: Params) -> tuple[State, Outcome]:
        first = self.num_pursuers
        action = jnp.concatenate([actions["pursuer"], actions["evader"]])
        in_game = self._in_game(state.free)
        swarm = self.advance(key, state.swarm, action, params.swarm, in_game=in_game)
        met, k = self.meet(swarm), self.num_neighbours
        distance = jnp.where(met.valid, norm(met.offset), jnp.inf)
        close = distance <= params.catch_radius
        caught = state.free & jnp.any(close[first:, :k], axis=1)
        catches = jnp.sum(close[:first, k:].astype(jnp.float32), axis=1)
        away = jnp.min(distance[:first, k:], axis=1) / self.length
        cost, touches = self.costs(swarm, params.swarm, in_game)
        reward = {
            "pursuer": params.catch_reward * catches
            - params.chase_penalty * jnp.where(jnp.isfinite(away), away, 0.0)
            - cost[:first],
            "evader": jnp.where(caught, -params.catch_reward, params.escape_reward) - cost[first:],
        }
        reward["evader"] = jnp.where(state.free, reward["evader"], 0.0)
        metrics = {
            "catches": jnp.sum(caught.astype(jnp.float32)),
            "free": jnp.mean((state.free & ~caught).astype(jnp.float32)),
            "touches": jnp.sum(touches),
        }
        state = self._without(swarm, state.free & ~caught)
        over = ~jnp.any(state.free)
        return state, Outcome(reward, over, ~over & (swarm.t >= self.max_steps), metrics)

    def observe(self, state: State, params: Params) -> dict[str, Observation]:
        view, first = self.view(state.swarm, params.swarm, []), self.num_pursuers
        return {
            "pursuer": Observation(view[:first]),
            "evader": Observation(view[first:], active=state.free, present=state.free),
        }

    def scene(self, state: State, params: Params) -> Scene:
        hunting = jnp.arange(self.size) < self.num_pursuers
        return draw(self, state.swarm, jnp.where(hunting, RED, GREEN), visible=self._in_game(state.free), links=False)

    def _in_game(self, free: jax.Array) -> jax.Array:
        return jnp.concatenate([jnp.ones(self.num_pursuers, bool), free])

    def _by_team(self, value: Float, ratio: float) -> jax.Array:
        """`value` for pursuers and `ratio` times it for evaders, `[n]`."""
        hunting = jnp.arange(self.size) < self.num_pursuers
        return jnp.where(hunting, value, value * ratio).astype(jnp.float32)

    def _without(self, swarm: SwarmState, free: jax.Array) -> State:
        """The state after those no longer free have left, on nobody's list."""
        near = swarm.near
        near = near._replace(valid=near.valid & self._in_game(free)[near.who])
        return State(swarm._replace(near=near), free)
