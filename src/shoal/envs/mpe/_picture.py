"""Pictures of the particle worlds: discs in layers, and what is being said."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.types import Circles, Labels, Scene
from shoal.envs.mpe._actions import ALPHABET

BOUNDS = (-1.5, -1.5, 1.5, 1.5)
GREY, BLUE, ORANGE, GREEN, RED, PURPLE, TEAL, YELLOW = range(8)


class Layer(NamedTuple):
    """Discs of one kind. Those of a named kind are `name_0`, `name_1`, ... and can be followed in a replay."""

    position: jax.Array  # [k, 2]
    radius: float | jax.Array
    colour: int | jax.Array  # one for all, or [k]
    name: str = ""


def picture(*layers: Layer, labels: Labels | None = None) -> Scene:
    """Layers of discs, later ones on top, and labels."""
    circles = Circles(
        position=jnp.concatenate([layer.position for layer in layers]),
        radius=jnp.concatenate([jnp.full(len(layer.position), layer.radius, jnp.float32) for layer in layers]),
        colour=jnp.concatenate([_for_each(layer) for layer in layers]),
        visible=jnp.ones(sum(len(layer.position) for layer in layers), bool),
        names=tuple(name for layer in layers for name in _names(layer)),
    )
    return Scene(bounds=BOUNDS, circles=circles, labels=labels)


def words(message: jax.Array, position: jax.Array) -> Labels:
    """The loudest word of each message `[n, words]`, as a letter at `position` `[n, 2]`; nothing where all are 0."""
    n, size = message.shape
    loudest = jnp.arange(size) == jnp.argmax(message, axis=1)[:, None]
    return Labels(
        position=jnp.repeat(position, size, axis=0),
        visible=(loudest & jnp.any(message != 0, axis=1)[:, None]).ravel(),
        text=tuple(f"“{ALPHABET[word]}”" for _ in range(n) for word in range(size)),
    )


def _for_each(layer: Layer) -> jax.Array:
    return jnp.broadcast_to(jnp.asarray(layer.colour, jnp.int32), (len(layer.position),))


def _names(layer: Layer) -> tuple[str, ...]:
    return tuple(f"{layer.name}_{i}" if layer.name else "" for i in range(len(layer.position)))
