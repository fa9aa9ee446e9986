"""Angles brought back into one turn."""

import math

import jax
import jax.numpy as jnp

_TURN = 2.0 * math.pi


def wrap_angle(angle: jax.Array) -> jax.Array:
    """The same direction, between -π and π."""
    return angle - _TURN * jnp.round(angle / _TURN)
