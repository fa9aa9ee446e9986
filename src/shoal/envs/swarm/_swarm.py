"""What all swarm worlds share: options, parameters, state, one step of flight, and the common part of the views.

A world derives from `Swarm`, keeps a `SwarmState` in its state and a `SwarmParams` in its params, and calls `begin`,
`advance` and `view`. A feature whose option is 0 (wind, gusts, pushes, noise, loss, messages, obstacles, lag) is left
out of the compiled program: it costs nothing, and no random numbers are drawn for it.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.core import trees
from shoal.envs.swarm import _arena as arena
from shoal.envs.swarm import _comms as comms
from shoal.envs.swarm import _contact as contact
from shoal.envs.swarm import _dynamics as dynamics
from shoal.envs.swarm import _sensing as sensing
from shoal.envs.swarm import _views as views
from shoal.envs.swarm import _weather as weather
from shoal.envs.swarm._dynamics import Body, Physics
from shoal.envs.swarm._settings import Settings, SwarmParams

_compiled = functools.partial(jax.jit, static_argnums=0, inline=True)
"""Outside of `jit`, a method is then one program instead of hundreds; inside it changes nothing."""


class SwarmState(NamedTuple):
    """Parts that a world's options leave out are None."""

    body: Body
    near: sensing.Near  # whom agents may see
    crowd: sensing.Near | None  # whom they may touch; None where there are so few that it is anybody
    heading: jax.Array | None  # [n, 2]
    noise: jax.Array | None  # [n, 2 d] errors of position and velocity fixes
    wind: weather.Wind | None
    radio: comms.Radio | None
    obstacle: jax.Array | None  # [obstacles, 2]
    t: jax.Array


class Swarm(Settings):
    """Base of the swarm worlds: how a swarm begins, flies and sees."""

    @_compiled
    def begin(self, key: jax.Array, params: SwarmParams, obstacle: jax.Array | None = None) -> SwarmState:
        """The swarm at the start of an episode: at rest, at random, outside of obstacles.

        A world that places its obstacles itself hands over their centres.
        """
        place, stand, blow, err = jax.random.split(key, 4)
        draw = jax.random.uniform(place, (self.size, 3))
        position = self.radius + draw[:, :2] * (self.length - 2 * self.radius)
        if self.num_obstacles and obstacle is None:
            sizes = self.length, self.num_obstacles, self.obstacle_radius, self.radius
            obstacle = arena.place_obstacles(stand, *sizes)
        position = arena.clear(position, obstacle, self.obstacle_radius + self.radius)
        body, heading = self._at_rest(position, 2.0 * math.pi * draw[:, 2], params)
        near, crowd = self._lists(position, None)
        return SwarmState(
            body=body,
            near=near,
            crowd=crowd,
            heading=heading,
            noise=self._errors(err, params) if self.sensor_noise else None,
            wind=weather.first_wind(blow, params.wind, params.gusts) if self.wind or self.gusts else None,
            radio=self._radio() if self.message_size else None,
            obstacle=obstacle,
            t=jnp.int32(0),
        )

    @_compiled
    def advance(
        self,
        key: jax.Array,
        swarm: SwarmState,
        action: jax.Array,
        params: SwarmParams,
        physics: Physics | None = None,
        in_game: jax.Array | None = None,
    ) -> SwarmState:
        """The swarm a step later. `action` is `[n, a]`; agents not `in_game` stand still, unseen and unheard."""
        flags = {"gusts": self.gusts, "pushes": self.pushes, "noise": self.sensor_noise, "loss": self._lossy}
        drawn = [name for name, wanted in flags.items() if wanted]
        keys = dict(zip(drawn, jax.random.split(key, len(drawn)), strict=True)) if drawn else {}
        wind = swarm.wind
        if wind is not None and self.gusts:
            wind = weather.next_wind(keys["gusts"], wind, params.gusts, self.seconds)
        physics = self.physics_of(params) if physics is None else physics
        body = self._fly(keys, swarm._replace(wind=wind), action, params, physics, in_game)
        near, crowd = self._lists(body.position, in_game)
        return SwarmState(
            body=body,
            near=near,
            crowd=crowd,
            heading=sensing.heading_of(body, swarm.heading) if swarm.heading is not None else None,
            noise=self._errors(keys["noise"], params) if self.sensor_noise else None,
            wind=wind,
            radio=self._speak(keys, swarm.radio, action, params, in_game),
            obstacle=swarm.obstacle,
            t=swarm.t + 1,
        )

    def meet(self, swarm: SwarmState) -> arena.Encounters:
        """Where each agent's neighbours are and how they move, seen from it, without errors."""
        return sensing.meet(swarm.body, swarm.near)

    @_compiled
    def costs(
        self, swarm: SwarmState, params: SwarmParams, in_game: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """What each agent pays for touching others and obstacles and for flying too high or low, and its touches."""
        met, possible = self._crowd(swarm, in_game)
        touches = jnp.sum((contact.in_touch(met, self.radius) & possible).astype(jnp.float32), axis=1)
        if swarm.obstacle is not None:
            _, gap = views.nearest_surface(swarm.body.position, swarm.obstacle, self.obstacle_radius)
            touches = touches + (gap <= self.radius + contact.HAIR).astype(jnp.float32)
        cost = params.touch_penalty * touches
        if not self.is_planar:
            cost = cost + 0.1 * jnp.abs(swarm.body.position[:, 2] / views.FLIGHT_HEIGHT - 1.0)
        return cost, touches

    @functools.partial(jax.jit, static_argnums=(0, 4), inline=True)
    def view(self, swarm: SwarmState, params: SwarmParams, task: list[jax.Array], located: bool = True) -> jax.Array:
        """Views `[n, values]`: own motion, the nearest obstacle, the world's own parts `[n, ...]`, the neighbours.

        Without `located` an agent is not told where it is.
        """
        reach, fastest = self.reach_of(params), self.physics_of(params).max_speed
        parts = [views.own_motion(swarm.body, swarm.noise, swarm.heading, params.physics, fastest)]
        if located:
            parts.append(2.0 * views.fixes(swarm.body, swarm.noise)[0][:, :2] / self.length - 1.0)
        if swarm.obstacle is not None:
            parts.append(views.nearest_obstacle(swarm.body, swarm.noise, swarm.obstacle, self.obstacle_radius, reach))
        cosine = math.cos(math.radians(self.field_of_view / 2)) if self.field_of_view < 360 else None
        met = self.meet(swarm)
        others = views.neighbours(
            swarm.body, met, swarm.near, swarm.noise, reach, self.top_speed, swarm.heading, cosine
        )
        if swarm.radio is not None:
            said = comms.hear(swarm.radio, swarm.near.who, sensing.within(met, reach))
            others = jnp.concatenate([others, said], axis=-1)
        return jnp.concatenate([part.reshape(self.size, -1) for part in (*parts, *task, others)], axis=-1)

    @property
    def _lossy(self) -> bool:
        return bool(self.message_size and self.message_loss)

    def _at_rest(self, position: jax.Array, angle: jax.Array, params: SwarmParams):
        """Bodies at `position`, and their headings where a field of view needs them."""
        if self.is_planar:
            limited = self.field_of_view < 360
            heading = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=-1) if limited else None
            return dynamics.point_masses(position, bool(self.lag)), heading
        height = jnp.full((self.size, 1), views.FLIGHT_HEIGHT)
        raised = jnp.concatenate([position, height], axis=-1)
        return dynamics.quadrotors(raised, angle, self.physics_of(params)), None

    def _errors(self, key: jax.Array, params: SwarmParams) -> jax.Array:
        return params.sensor_noise * jax.random.normal(key, (self.size, 4 if self.is_planar else 6))

    def _radio(self) -> comms.Radio:
        slots = self.num_neighbours * len(self.teams)
        return comms.silence(self.size, slots, self.message_size, self.message_delay, self._lossy)

    def _speak(self, keys, radio, action, params, in_game) -> comms.Radio | None:
        if radio is None:
            return None
        message = action[:, -self.message_size :]
        radio = comms.speak(radio, message, self.message_tokens)
        if in_game is not None:
            said = jnp.where(in_game[None, :, None], radio.under_way, 0.0)
            radio = radio._replace(under_way=said)
        return comms.lose(radio, keys["loss"], params.message_loss) if self._lossy else radio

    def _fly(self, keys, swarm: SwarmState, action, params: SwarmParams, physics: Physics, in_game) -> Body:
        """The bodies a step later: disturbances, motion, then what stands in the way."""
        body = swarm.body
        velocity = body.velocity
        if self.pushes:
            velocity = weather.push(keys["pushes"], velocity, params.pushes, self.seconds)
        wind = None if swarm.wind is None else swarm.wind.mean + swarm.wind.gust
        command = action[:, : 2 if self.is_planar else 4]
        moved = dynamics.move(body._replace(velocity=velocity), command, physics, wind, self.seconds)
        way = body.position, moved.position
        reach = self.obstacle_radius + self.radius
        position, velocity = arena.sweep(*way, moved.velocity, swarm.obstacle, reach, params.bounce)
        position, velocity = arena.enclose(position, velocity, self.length, self.radius, params.bounce)
        moved = moved._replace(position=position, velocity=velocity)
        if self.size > 1:
            moved = self._apart(moved, swarm, params, physics, in_game)
        if in_game is None:
            return moved
        return trees.where(in_game, moved, body)

    def _apart(self, moved: Body, swarm: SwarmState, params: SwarmParams, physics: Physics, in_game) -> Body:
        """The bodies after contact; `swarm` is that at the start of the step."""
        met, possible = self._crowd(swarm, in_game)
        who = None
        if swarm.crowd is not None:
            who, possible = swarm.crowd.who, possible & sensing.mutual(met, swarm.crowd, tuple(self.teams.values()))
        pairs = contact.pairs(met, who, possible)
        hold = functools.partial(arena.enclose, side=self.length, radius=self.radius, bounce=0.0)
        position, velocity = contact.separate(
            moved.position, moved.velocity, pairs, physics.mass, params.bounce, self.radius, hold
        )
        position = arena.clear(position, swarm.obstacle, self.obstacle_radius + self.radius)
        position, velocity = hold(position, velocity)
        return moved._replace(position=position, velocity=dynamics.shorten(velocity, physics.max_speed))

    def _lists(self, position: jax.Array, in_game: jax.Array | None) -> tuple[sensing.Near, sensing.Near | None]:
        """Whom each agent may see, and whom it may touch, from one search."""
        teams, k = tuple(self.teams.values()), self.num_neighbours
        if self.size <= contact.FEW:
            return sensing.find_near(position, in_game, teams, k), None
        crowd = sensing.find_near(position, in_game, teams, max(k, contact.CONTACTS))
        return sensing.nearest_of(crowd, len(teams), k), crowd

    def _crowd(self, swarm: SwarmState, in_game: jax.Array | None) -> tuple[arena.Encounters, jax.Array]:
        """All whom an agent might touch, seen from it, and which of them are there, bool `[n, k]`."""
        met = sensing.meet_all(swarm.body) if swarm.crowd is None else sensing.meet(swarm.body, swarm.crowd)
        if in_game is None:
            return met, met.valid
        others = in_game[None] if swarm.crowd is None else in_game[swarm.crowd.who]
        return met, met.valid & in_game[:, None] & others
