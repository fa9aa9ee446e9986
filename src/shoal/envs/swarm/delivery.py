"""`swarm/delivery`: agents fetch parcels from pick-up stations and bring each to the station it is meant for.

**Rules.** An arena holds `num_pickups` pick-up stations, `num_drops` drop-off stations and `num_obstacles` obstacles,
placed at random, apart from each other. A pick-up station has room for `capacity` parcels, is full at the start and
gets new ones at random, `arrivals` a second on average. An agent that carries nothing and comes within `station_radius`
of one that has parcels takes one; if there are fewer parcels than takers, those with lower numbers get them.
The parcel's destination is drawn at random. It weighs `parcel_mass`, so its carrier is slower to start and to stop. An
agent that comes within `station_radius` of its parcel's destination drops it there. Agents fly over stations freely.
Flight, contact, sensing, messages and weather are those of the whole family: see `shoal.envs.swarm`.

**Actions.** Two numbers from -1 to 1, the force to pull with (quadrotors: thrust and three body rates), then
`message_size` numbers to say (with `message_tokens`: the largest of them is the word said). Parcels are
taken and dropped without being asked.

**Observation**, planar, by default 34 values; k = `num_neighbours`, s = `num_pickups`. Quadrotors, a narrower field of
view and messages add what `shoal.envs.swarm` says:

| values | what |
|---|---|
| 2 | own velocity / max_speed |
| 2 | own position, from -1 to 1 |
| 3 | the way to the nearest obstacle's surface / sensing_range, and 1; 0 where none is within range |
| 1 | 1 if one carries a parcel |
| 2 | the way to one's aim / half the arena's side |
| 3 s | each pick-up station: the way to it / half the arena's side, and its parcels as a share of the capacity |
| 5 k | the k nearest others in sight: offset / sensing_range, relative velocity / max_speed, and 1; else 0 |

An agent's aim is its parcel's destination or, if it carries none, the nearest pick-up station that has parcels (the
nearest of all, if none has any).

**Reward.** Each agent gets `pickup_reward` for a parcel that it takes, `delivery_reward` for one that it delivers, and
`progress_reward` for each metre that it comes nearer to its aim (negative if it moves away). It pays `touch_penalty`
for each other and each obstacle that it touches.

**End.** Truncated after `max_steps` steps; it never terminates.

**Metrics.** deliveries and pickups: in the step, by all; carrying: share of agents with a parcel; touches: contacts of
agents.

**Source.** Our own, after dynamic pick-up and delivery (Savelsbergh and Sol 1995). Version 1.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.checks import MAX_COUNT, require_above_zero, require_not_negative, require_whole
from shoal.core.errors import require
from shoal.core.types import Actions, Observation, Outcome, Scene
from shoal.envs.swarm._arena import place_obstacles, room_for_obstacles
from shoal.envs.swarm._dynamics import Float, norm, squared_norm
from shoal.envs.swarm._picture import BLUE, ORANGE, PURPLE, TEAL, YELLOW, Marks, draw
from shoal.envs.swarm._swarm import Swarm, SwarmParams, SwarmState
from shoal.envs.swarm._views import fixes, frame, into_frame

_NOT_NEGATIVE = "parcel_mass", "arrivals", "pickup_reward", "delivery_reward", "progress_reward"
MAX_STATIONS = 32  # of each kind; each is written out in the program


class Params(NamedTuple):
    swarm: SwarmParams
    station_radius: Float
    parcel_mass: Float
    arrivals: Float
    pickup_reward: Float
    delivery_reward: Float
    progress_reward: Float


class State(NamedTuple):
    swarm: SwarmState
    pickup: jax.Array  # [pickups, 2]
    drop: jax.Array  # [drops, 2]
    stock: jax.Array  # int32 [pickups]
    following: jax.Array  # int32 [pickups], destination of the parcel that is taken next
    cargo: jax.Array  # int32 [n], destination of the parcel that an agent carries; -1: none


@dataclasses.dataclass(frozen=True)
class Delivery(Swarm):
    """Agents bring parcels from station to station."""

    num_agents: int = 8  # at most 100,000
    num_obstacles: int = 2  # round, at most 32
    num_pickups: int = 3  # pick-up stations
    num_drops: int = 3  # drop-off stations
    station_radius: float = 0.6  # metres from its centre at which parcels change hands
    capacity: int = 4  # parcels that a pick-up station holds
    arrivals: float = 0.5  # new parcels at each pick-up station, a second
    parcel_mass: float = 0.3  # kg
    pickup_reward: float = 1.0  # reward for picking up a parcel
    delivery_reward: float = 5.0  # reward for delivering a parcel
    progress_reward: float = 0.2  # reward per metre of progress towards one's aim

    kind: ClassVar[str] = "cooperative"
    id: ClassVar[str] = "swarm/delivery"

    def __post_init__(self):
        whole = {name: getattr(self, name) for name in ("num_agents", "num_pickups", "num_drops", "capacity")}
        require_whole(self.id, 1, at_most=MAX_COUNT, **whole)
        for name in ("num_pickups", "num_drops"):
            require(getattr(self, name) <= MAX_STATIONS, self.id, name, getattr(self, name), f"at most {MAX_STATIONS}")
        super().__post_init__()
        require_above_zero(self.id, station_radius=self.station_radius)
        require_not_negative(self.id, **{name: getattr(self, name) for name in _NOT_NEGATIVE})
        fits = room_for_obstacles(self.length, self._num_sites, self._site_radius, self.radius)
        total = f"few enough, with {self.num_drops} drop-off stations and {self.num_obstacles} obstacles, or"
        total += f" small enough (radius {self._site_radius:.4g}), to fit on a side of {self.length:.4g}"
        require(fits, self.id, "num_pickups", self.num_pickups, total)

    @property
    def _num_sites(self) -> int:
        return self.num_pickups + self.num_drops + self.num_obstacles

    @property
    def _site_radius(self) -> float:
        return max(self.station_radius, self.obstacle_radius) if self.num_obstacles else self.station_radius

    def default_params(self) -> Params:
        return Params(self.swarm_params(), *(float(getattr(self, name)) for name in Params._fields[1:]))

    def reset(self, key: jax.Array, params: Params) -> State:
        key, places, orders = jax.random.split(key, 3)
        site = place_obstacles(places, self.length, self._num_sites, self._site_radius, self.radius)
        drop, pickup, obstacle = jnp.split(site, [self.num_drops, self.num_drops + self.num_pickups])
        return State(
            swarm=self.begin(key, params.swarm, obstacle=obstacle if self.num_obstacles else None),
            pickup=pickup,
            drop=drop,
            stock=jnp.full(self.num_pickups, self.capacity, jnp.int32),
            following=self._destinations(jax.random.uniform(orders, (self.num_pickups,))),
            cargo=jnp.full(self.num_agents, -1, jnp.int32),
        )

    def step(self, key: jax.Array, state: State, actions: Actions, params: Params) -> tuple[State, Outcome]:
        key, orders = jax.random.split(key)
        carrying = (state.cargo >= 0).astype(jnp.float32)
        physics = params.swarm.physics
        physics = physics._replace(mass=physics.mass + params.parcel_mass * carrying)
        swarm = self.advance(key, state.swarm, actions["agent"], params.swarm, physics=physics)
        aim, before, place = self._aim(state), state.swarm.body.position[:, :2], swarm.body.position[:, :2]
        nearer = norm(before - aim) - norm(place - aim)
        delivered = (state.cargo >= 0) & (squared_norm(place - aim) <= params.station_radius**2)
        cargo, stock = self._load(place, state, params)
        taken = cargo >= 0
        cargo = jnp.where(state.cargo < 0, cargo, jnp.where(delivered, -1, state.cargo))
        draw = jax.random.uniform(orders, (2, self.num_pickups))
        came = (draw[0] < params.arrivals * self.seconds).astype(jnp.int32)
        stock = jnp.minimum(stock + came, self.capacity)
        state = state._replace(swarm=swarm, stock=stock, following=self._destinations(draw[1]), cargo=cargo)
        return state, self._outcome(state, taken, delivered, nearer, params)

    def observe(self, state: State, params: Params) -> dict[str, Observation]:
        swarm = state.swarm
        place = fixes(swarm.body, swarm.noise)[0][:, :2]
        carrying = (state.cargo >= 0).astype(jnp.float32)[:, None]
        half, turn = 0.5 * self.length, frame(swarm.body)
        way = into_frame(self._aim(state) - place, turn) / half
        stations = into_frame(state.pickup[None] - place[:, None], turn) / half
        stock = jnp.broadcast_to(state.stock[:, None] / self.capacity, (*stations.shape[:2], 1)).astype(jnp.float32)
        task = [carrying, way, jnp.concatenate([stations, stock], axis=-1)]
        return {"agent": Observation(self.view(swarm, params.swarm, task))}

    def scene(self, state: State, params: Params) -> Scene:
        marks = (
            Marks(state.pickup, self.station_radius, ORANGE),
            Marks(state.drop, self.station_radius, PURPLE),
            Marks(state.pickup, 0.25 * self.station_radius, YELLOW, state.stock > 0),
        )
        return draw(self, state.swarm, jnp.where(state.cargo >= 0, TEAL, BLUE), marks=marks, links=False)

    def _destinations(self, draw: jax.Array) -> jax.Array:
        """Numbers of drop-off stations out of uniform draws."""
        return jnp.minimum((draw * self.num_drops).astype(jnp.int32), self.num_drops - 1)

    def _aim(self, state: State) -> jax.Array:
        """Where each agent should go, `[n, 2]`: its parcel's destination, or the nearest station that has parcels."""
        place = state.swarm.body.position[:, :2]
        aim, least = jnp.broadcast_to(state.pickup[0], place.shape), jnp.full(self.num_agents, jnp.inf)
        empty = jnp.where(state.stock > 0, 0.0, (2.0 * self.length) ** 2)  # farther than any that has parcels
        for station, penalty in zip(state.pickup, empty, strict=True):
            far = squared_norm(place - station) + penalty
            aim = jnp.where((far < least)[:, None], station, aim)
            least = jnp.minimum(far, least)
        for number, station in enumerate(state.drop):
            aim = jnp.where((state.cargo == number)[:, None], station, aim)
        return aim

    def _load(self, place: jax.Array, state: State, params: Params) -> tuple[jax.Array, jax.Array]:
        """Destinations of parcels taken in this step, `[n]`, -1 for who takes none; and the stations' stock then."""
        cargo, stock = jnp.full(self.num_agents, -1, jnp.int32), []
        for number, station in enumerate(state.pickup):
            wants = (state.cargo < 0) & (squared_norm(place - station) <= params.station_radius**2)
            rank = jnp.cumsum(wants.astype(jnp.int32)) - 1
            takes = wants & (rank < state.stock[number])
            cargo = jnp.where(takes, (state.following[number] + rank) % self.num_drops, cargo)
            stock.append(state.stock[number] - jnp.sum(takes, dtype=jnp.int32))
        return cargo, jnp.stack(stock)

    def _outcome(self, state: State, taken, delivered, nearer, params: Params) -> Outcome:
        taken, delivered = taken.astype(jnp.float32), delivered.astype(jnp.float32)
        cost, touches = self.costs(state.swarm, params.swarm)
        reward = (
            params.pickup_reward * taken + params.delivery_reward * delivered + params.progress_reward * nearer - cost
        )
        metrics = {
            "deliveries": jnp.sum(delivered),
            "pickups": jnp.sum(taken),
            "carrying": jnp.mean((state.cargo >= 0).astype(jnp.float32)),
            "touches": jnp.sum(touches),
        }
        truncated = state.swarm.t >= self.max_steps
        return Outcome({"agent": reward}, jnp.bool_(False), truncated, metrics)
