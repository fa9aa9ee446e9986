"""The parts of a view that all swarm worlds share, scaled to about 1.

Views are given in the frame in which the actions act: that of the arena for point masses, and for quadrotors one that
is level and turned to where the nose points. They are made from the agents' own fixes, which sensor noise falsifies.
"""

import jax
import jax.numpy as jnp

from shoal.envs.swarm import _dynamics as dynamics
from shoal.envs.swarm._arena import HEIGHT, Encounters
from shoal.envs.swarm._dynamics import Body, Float, Physics, PointMass
from shoal.envs.swarm._sensing import Near, heading_of, in_view, within

FLIGHT_HEIGHT = HEIGHT / 2


def fixes(body: Body, noise: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Where the agents take themselves to be and how fast, `[n, d]` each."""
    if noise is None:
        return body.position, body.velocity
    d = body.position.shape[-1]
    return body.position + noise[:, :d], body.velocity + noise[:, d:]


def frame(body: Body) -> jax.Array | None:
    """The directions `[n, 2]` that views are turned to: a quadrotor's heading; None, no turn, in the plane."""
    return None if isinstance(body, PointMass) else dynamics.yaw(body.attitude)


def into_frame(vector: jax.Array, heading: jax.Array | None) -> jax.Array:
    """Vectors `[n, ..., d]` with their horizontal part turned so that `heading` becomes the x axis."""
    if heading is None:
        return vector
    shape = (heading.shape[0],) + (1,) * (vector.ndim - 2)
    cosine, sine = heading[:, 0].reshape(shape), heading[:, 1].reshape(shape)
    x, y = vector[..., 0], vector[..., 1]
    flat = jnp.stack([cosine * x + sine * y, cosine * y - sine * x], axis=-1)
    return jnp.concatenate([flat, vector[..., 2:]], axis=-1)


def nearest_surface(position: jax.Array, obstacle: jax.Array, radius: float) -> tuple[jax.Array, jax.Array]:
    """The way from each agent's centre to the nearest obstacle's surface, `[n, 2]`, and its length `[n]`."""
    best = jnp.full(position.shape[0], jnp.inf)
    way_x, way_y = jnp.zeros_like(best), jnp.zeros_like(best)
    for centre in obstacle:  # few, so written out
        x, y = centre[0] - position[:, 0], centre[1] - position[:, 1]
        distance = jnp.sqrt(x * x + y * y)
        gap = jnp.maximum(distance - radius, 0.0)
        nearer = gap < best
        best = jnp.where(nearer, gap, best)
        share = gap / jnp.maximum(distance, 1e-6)
        way_x, way_y = jnp.where(nearer, x * share, way_x), jnp.where(nearer, y * share, way_y)
    return jnp.stack([way_x, way_y], axis=-1), best


def own_motion(
    body: Body, noise: jax.Array | None, heading: jax.Array | None, physics: Physics, fastest: Float
) -> jax.Array:
    """Velocity, and a heading if it matters; for quadrotors also height, tilt, heading, body rates and thrust."""
    position, velocity = fixes(body, noise)
    parts = [into_frame(velocity, frame(body)) / _over_rows(fastest)]
    if isinstance(body, PointMass):
        parts += [] if heading is None else [heading]
    else:
        thrust = 2.0 * body.thrust / physics.max_force - 1.0
        parts += [position[:, 2:] / FLIGHT_HEIGHT - 1.0, dynamics.vertical(body.attitude), dynamics.yaw(body.attitude)]
        parts += [body.rates / physics.max_rate, thrust[:, None]]
    return jnp.concatenate(parts, axis=-1)


def nearest_obstacle(
    body: Body, noise: jax.Array | None, obstacle: jax.Array, radius: float, reach: Float
) -> jax.Array:
    """The way to the nearest obstacle's surface and 1, or zeros where none is within range, `[n, 3]`."""
    way, distance = nearest_surface(fixes(body, noise)[0], obstacle, radius)
    row = jnp.concatenate([into_frame(way, frame(body)) / _over_rows(reach), jnp.ones_like(way[:, :1])], axis=-1)
    return jnp.where((distance <= reach)[:, None], row, 0.0)


def neighbours(
    body: Body,
    met: Encounters,
    near: Near,
    noise: jax.Array | None,
    reach: Float,
    fastest: float,
    heading: jax.Array | None,
    half_angle_cosine: float | None,
) -> jax.Array:
    """For each neighbour in sight: where it is, how it moves relative to oneself, and 1; zeros for others."""
    offset, closing = met.offset, met.closing
    if noise is not None:
        error = noise[near.who] - noise[:, None]
        d = offset.shape[-1]
        offset, closing = offset + error[..., :d], closing + error[..., d:]
    seen = within(met, reach)
    if half_angle_cosine is not None:
        seen = seen & in_view(met, heading_of(body, heading), half_angle_cosine)
    scaled_offset = into_frame(offset, frame(body)) / _over_rows(reach, 3)
    scaled = [scaled_offset, into_frame(closing, frame(body)) / fastest, jnp.ones_like(offset[..., :1])]
    return jnp.where(seen[..., None], jnp.concatenate(scaled, axis=-1), 0.0)


def _over_rows(value: Float, ndim: int = 2) -> jax.Array:
    """One number, or `[n]` shaped to go with `[n, ...]` of `ndim` axes."""
    value = jnp.asarray(value, jnp.float32)
    return value.reshape(value.shape + (1,) * (ndim - 1)) if value.ndim else value
