"""The message channel: agents speak a few numbers as part of their action, and neighbours hear them later.

What an agent says in step t is heard in the view that follows step t + `message_delay` by those who have it among their
nearest neighbours, within `sensing_range`, at that time. Each listener loses each message with probability
`message_loss`, independently. A lost message, like that of an empty slot, reads 0.

Messages are numbers from -1 to 1. With `message_tokens` they are one of `message_size` words: the largest number counts
(the first of equals), and it is heard as a 1 among zeros.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from shoal.envs.swarm._dynamics import Float

_CHANCES = 1 << 16
"""Losses are drawn with 16 bits each: half the random numbers, and a probability that is right to 1.5e-5."""


class Radio(NamedTuple):
    """`under_way[0]` was said last, `under_way[-1]` is being heard. `lost` is None where no message is ever lost."""

    under_way: jax.Array  # [delay + 1, n, size]
    lost: jax.Array | None  # [n, slots] bool


def silence(n: int, slots: int, size: int, delay: int, lossy: bool) -> Radio:
    """A channel on which nobody has spoken."""
    return Radio(jnp.zeros((delay + 1, n, size)), jnp.zeros((n, slots), bool) if lossy else None)


def speak(radio: Radio, message: jax.Array, tokens: bool) -> Radio:
    """The channel a step later, after everybody said `message` `[n, size]`; who has left should say 0."""
    said = _as_token(message) if tokens else jnp.clip(message, -1.0, 1.0)
    return radio._replace(under_way=jnp.concatenate([said[None], radio.under_way[:-1]]))


def lose(radio: Radio, key: jax.Array, loss: Float) -> Radio:
    """The channel with this step's losses drawn."""
    assert radio.lost is not None
    chance = jax.random.bits(key, radio.lost.shape, "uint16").astype(jnp.float32)
    return radio._replace(lost=chance < jnp.asarray(loss, jnp.float32) * _CHANCES)


def hear(radio: Radio, index: jax.Array, reached: jax.Array) -> jax.Array:
    """What each agent hears from its neighbours, `[n, slots, size]`; `reached` says which are within range."""
    heard = reached if radio.lost is None else reached & ~radio.lost
    return jnp.where(heard[..., None], radio.under_way[-1][index], 0.0)


def _as_token(message: jax.Array) -> jax.Array:
    word = jnp.argmax(message, axis=-1)
    return (jnp.arange(message.shape[-1]) == word[:, None]).astype(jnp.float32)
