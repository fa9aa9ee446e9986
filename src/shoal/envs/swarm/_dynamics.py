"""How swarm agents move: a planar double integrator, and a quadrotor. All quantities are in SI units.

**Planar.** A point mass that is pulled with a force in the plane. The command u has length at most 1 (longer ones are
shortened), and the force follows it with a first-order lag of time constant `delay`:

    f' = f + (1 - exp(-h / delay)) (u max_force - f)

**Quadrotor.** A rigid body in space. The command is a collective thrust, from -1 (none) by 0 (half) to 1 (`max_force`),
and three body rates, from -1 to 1 times `max_rate`. Motors and rate loop follow it with the same first-order lag. The
thrust acts along the body's own z axis, gravity along the world's; the attitude is a unit quaternion (w, x, y, z) from
body to world, turned by the exact rotation of a substep. Substeps are at most `QUADROTOR_SUBSTEP` long.

**Both.** Drag is linear in the speed through the air, and integrated exactly, so it can only take energy relative to
the air, at any step length: with k = drag / mass and w the wind,

    v' = w + (v - w) exp(-k h) + (force / mass) (1 - exp(-k h)) / k

then v' is shortened to `max_speed` where it is longer, and the position moves by v' h. Where a quantity is `[n]`
instead of one number, every agent has its own.
"""

import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

Dynamics = Literal["planar", "quadrotor"]
Float = float | jax.Array
GRAVITY = 9.81
QUADROTOR_SUBSTEP = 0.025
_NO_TIME = 1e-6  # seconds; keeps a lag of 0 s from dividing by 0


class Physics(NamedTuple):
    """What the laws of motion depend on; each one number, or `[n]`."""

    mass: Float
    drag: Float  # N s/m
    delay: Float  # s, time constant of the motors
    max_speed: Float  # m/s
    max_force: Float  # N
    max_rate: Float  # rad/s, quadrotors only


class PointMass(NamedTuple):
    """`force` is None where the motors have no lag."""

    position: jax.Array  # [n, 2]
    velocity: jax.Array  # [n, 2]
    force: jax.Array | None  # [n, 2]


class Quadrotor(NamedTuple):
    position: jax.Array  # [n, 3]
    velocity: jax.Array  # [n, 3]
    attitude: jax.Array  # [n, 4]
    rates: jax.Array  # [n, 3], about the body's own axes
    thrust: jax.Array  # [n]


Body = PointMass | Quadrotor


def point_masses(position: jax.Array, lag: bool) -> PointMass:
    """Point masses at rest."""
    still = jnp.zeros_like(position)
    return PointMass(position, still, still if lag else None)


def quadrotors(position: jax.Array, heading: jax.Array, physics: Physics) -> Quadrotor:
    """Quadrotors at rest, level, hovering, turned about the vertical by `heading` `[n]`."""
    n = position.shape[0]
    flat = jnp.zeros(n)
    attitude = jnp.stack([jnp.cos(heading / 2), flat, flat, jnp.sin(heading / 2)], axis=-1)
    hover = jnp.broadcast_to(jnp.asarray(physics.mass * GRAVITY, jnp.float32), (n,))
    return Quadrotor(position, jnp.zeros((n, 3)), attitude, jnp.zeros((n, 3)), hover)


def move(body: Body, command: jax.Array, physics: Physics, wind: jax.Array | None, seconds: float) -> Body:
    """The bodies after `seconds` with nothing in their way; `wind` is `[2]`, or None for still air."""
    if isinstance(body, PointMass):
        return _move_point_mass(body, command, physics, wind, seconds)
    wind = None if wind is None else jnp.pad(wind, (0, 1))
    substeps = math.ceil(seconds / QUADROTOR_SUBSTEP - 1e-6)
    target = jnp.clip(command, -1.0, 1.0)
    for _ in range(substeps):
        body = _move_quadrotor(body, target, physics, wind, seconds / substeps)
    return body


def _move_point_mass(
    body: PointMass, command: jax.Array, physics: Physics, wind: jax.Array | None, seconds: float
) -> PointMass:
    force = shorten(command, 1.0) * _column(physics.max_force)
    if body.force is not None:
        force = _lag(body.force, force, physics.delay, seconds)
    velocity = _accelerate(body.velocity, force, physics, wind, seconds)
    lagging = None if body.force is None else force
    return PointMass(body.position + velocity * seconds, velocity, lagging)


def _move_quadrotor(
    body: Quadrotor, target: jax.Array, physics: Physics, wind: jax.Array | None, seconds: float
) -> Quadrotor:
    thrust = _lag(body.thrust, 0.5 * (target[:, 0] + 1.0) * physics.max_force, physics.delay, seconds)
    rates = _lag(body.rates, target[:, 1:] * _column(physics.max_rate), physics.delay, seconds)
    attitude = turn(body.attitude, rates * seconds)
    weight = jnp.stack([jnp.float32(0.0), jnp.float32(0.0), jnp.float32(GRAVITY)]) * _column(physics.mass)
    force = thrust[:, None] * body_axis(attitude) - weight
    velocity = _accelerate(body.velocity, force, physics, wind, seconds)
    return Quadrotor(body.position + velocity * seconds, velocity, attitude, rates, thrust)


def _accelerate(
    velocity: jax.Array, force: jax.Array, physics: Physics, wind: jax.Array | None, seconds: float
) -> jax.Array:
    """The velocity `[n, d]` after a force and the drag of the air acted for `seconds`, within the speed limit."""
    lost = jnp.asarray(physics.drag / physics.mass * seconds, jnp.float32)
    effect = jnp.where(lost > 1e-4, -jnp.expm1(-lost) / jnp.maximum(lost, 1e-4), 1.0 - 0.5 * lost) * seconds
    gain, kept = _column(effect / physics.mass), _column(jnp.exp(-lost))
    if wind is None:
        return shorten(velocity * kept + force * gain, physics.max_speed)
    return shorten(wind + (velocity - wind) * kept + force * gain, physics.max_speed)


def _lag(value: jax.Array, target: jax.Array, delay: Float, seconds: float) -> jax.Array:
    """`value` after it has followed `target` for `seconds` with a first-order lag."""
    return target + (value - target) * jnp.exp(-seconds / jnp.maximum(delay, _NO_TIME))


def shorten(vector: jax.Array, length: Float) -> jax.Array:
    """Vectors `[n, d]`, those longer than `length` (one number or `[n]`) shortened to it."""
    own = norm(vector)
    return vector * jnp.minimum(1.0, length / jnp.maximum(own, 1e-9))[:, None]


def norm(vector: jax.Array) -> jax.Array:
    """Lengths of vectors `[..., d]`."""
    return jnp.sqrt(squared_norm(vector))


def squared_norm(vector: jax.Array) -> jax.Array:
    """Squared lengths of vectors `[..., d]`, written out: a reduction over so short an axis would end a fusion."""
    return sum((vector[..., i] ** 2 for i in range(1, vector.shape[-1])), vector[..., 0] ** 2)


def dot(one: jax.Array, other: jax.Array) -> jax.Array:
    """Inner products of vectors `[..., d]`."""
    return sum((one[..., i] * other[..., i] for i in range(1, one.shape[-1])), one[..., 0] * other[..., 0])


def turn(attitude: jax.Array, angles: jax.Array) -> jax.Array:
    """Attitudes `[n, 4]` turned by rotation vectors `[n, 3]` about the body's own axes; kept at length 1."""
    angle = norm(angles)
    x, y, z = (angles * (jnp.sin(0.5 * angle) / jnp.maximum(angle, 1e-9))[:, None]).T
    w = jnp.cos(0.5 * angle)
    qw, qx, qy, qz = attitude.T
    product = jnp.stack(
        [
            qw * w - qx * x - qy * y - qz * z,
            qw * x + qx * w + qy * z - qz * y,
            qw * y - qx * z + qy * w + qz * x,
            qw * z + qx * y - qy * x + qz * w,
        ],
        axis=-1,
    )
    return product / norm(product)[:, None]


def body_axis(attitude: jax.Array) -> jax.Array:
    """The body's z axis, along which it is pulled, in the world's frame `[n, 3]`."""
    w, x, y, z = attitude.T
    return jnp.stack([2.0 * (x * z + w * y), 2.0 * (y * z - w * x), 1.0 - 2.0 * (x * x + y * y)], axis=-1)


def vertical(attitude: jax.Array) -> jax.Array:
    """The world's z axis in the body's frame `[n, 3]`: (0, 0, 1) when level."""
    w, x, y, z = attitude.T
    return jnp.stack([2.0 * (x * z - w * y), 2.0 * (y * z + w * x), 1.0 - 2.0 * (x * x + y * y)], axis=-1)


def yaw(attitude: jax.Array) -> jax.Array:
    """The horizontal direction that the body's x axis points in, a unit vector `[n, 2]`."""
    w, x, y, z = attitude.T
    forward = jnp.stack([1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y + w * z)], axis=-1)
    length = norm(forward)[:, None]
    upright = jnp.array([1.0, 0.0])  # a body whose nose points straight up or down has no heading: take east
    return jnp.where(length > 1e-6, forward / jnp.maximum(length, 1e-6), upright)


def _column(value: Float) -> jax.Array:
    """One number, or `[n]` as a column, to go with `[n, d]`."""
    value = jnp.asarray(value, jnp.float32)
    return value[:, None] if value.ndim else value
