"""What disturbs a flight: wind with gusts, and sudden pushes.

**Wind.** Each episode has a mean wind of speed `wind` from a random direction. On top come gusts that are the same
everywhere and change slowly: each component is an Ornstein-Uhlenbeck process with standard deviation `gusts` and a
memory of `GUST_SECONDS`, exact at any step length. Wind acts through drag alone.

**Pushes.** Now and then, `PUSHES_PER_SECOND` times a second on average, an agent's velocity changes at once by `pushes`
(m/s) in a random horizontal direction; one random number per agent and step decides both whether and whither.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.envs.swarm._dynamics import Float

GUST_SECONDS = 5.0
PUSHES_PER_SECOND = 0.5


class Wind(NamedTuple):
    mean: jax.Array  # [2]
    gust: jax.Array  # [2]


def first_wind(key: jax.Array, speed: Float, gusts: Float) -> Wind:
    """The wind at the start of an episode, gusts in their steady state."""
    direction, gust = jax.random.split(key)
    angle = 2.0 * math.pi * jax.random.uniform(direction)
    mean = speed * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
    return Wind(mean, gusts * jax.random.normal(gust, (2,)))


def next_wind(key: jax.Array, wind: Wind, gusts: Float, seconds: float) -> Wind:
    """The wind a step later."""
    kept = math.exp(-seconds / GUST_SECONDS)
    fresh = math.sqrt(1.0 - kept * kept) * gusts * jax.random.normal(key, (2,))
    return wind._replace(gust=kept * wind.gust + fresh)


def push(key: jax.Array, velocity: jax.Array, strength: Float, seconds: float) -> jax.Array:
    """Velocities `[n, d]` after this step's pushes."""
    chance = 1.0 - math.exp(-PUSHES_PER_SECOND * seconds)
    draw = jax.random.uniform(key, velocity.shape[:1])
    angle = draw * (2.0 * math.pi / chance)  # given that a push happens, uniform over the circle
    size = jnp.where(draw < chance, strength, 0.0)
    push = jnp.stack([size * jnp.cos(angle), size * jnp.sin(angle)], axis=-1)
    return velocity + jnp.pad(push, ((0, 0), (0, velocity.shape[-1] - 2)))
