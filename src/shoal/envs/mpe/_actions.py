"""What the agents of the particle worlds can ask for: to move, to say a word, or both at once.

A discrete action of an agent who moves is one of five moves, of one who only speaks one of `words` words, and of one
who does both one of `5 * words` pairs: the action is `move + 5 * word`. A continuous action is a row of numbers from 0
to 1: five pulls for those who move (the first has no effect), then, for those who speak, the message itself.
"""

import jax
import jax.numpy as jnp

from shoal.core.spaces import ActionNames, Box, Discrete

MOVES = ("stay", "left", "right", "down", "up")
NUM_MOVES = len(MOVES)
PLAY_FPS = 4.0
"""Steps a second when a person plays: an episode has but 25."""
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def action_space(continuous: bool, moves: bool = True, words: int = 0) -> Discrete | Box:
    """What an agent can do who moves, or has `words` words to say, or both."""
    if continuous:
        return Box((NUM_MOVES * moves + words,), low=0.0, high=1.0)
    return Discrete((NUM_MOVES if moves else 1) * max(words, 1))


def action_names(continuous: bool, moves: bool = True, words: int = 0) -> ActionNames:
    """What the actions of such an agent are called; words are letters, as in pictures."""
    letters = tuple(ALPHABET[:words])
    if continuous:
        return dict.fromkeys((*(MOVES if moves else ()), *(f"word {letter}" for letter in letters)), ())
    return ({"move": MOVES} if moves else {}) | ({"word": letters} if words else {})


def steering(action: jax.Array, continuous: bool) -> jax.Array:
    """The direction `[n, 2]` that actions of agents who only move ask for, each coordinate in [-1, 1].

    Continuous actions are clipped to [0, 1]; a discrete one that is not a move is taken as staying.
    """
    if continuous:
        pull = jnp.clip(action, 0.0, 1.0)
        return jnp.stack([pull[:, 2] - pull[:, 1], pull[:, 4] - pull[:, 3]], axis=-1)
    return jnp.stack([_sign(action == 2, action == 1), _sign(action == 4, action == 3)], axis=-1)


def speech(action: jax.Array, words: int, continuous: bool) -> jax.Array:
    """The message `[n, words]` in actions of agents who only speak.

    A discrete action is a word, handed on one-hot; one that is no word says nothing, which is all zeros.
    """
    if continuous:
        return jnp.clip(action, 0.0, 1.0)
    return (action[:, None] == jnp.arange(words)).astype(jnp.float32)


def steering_and_speech(action: jax.Array, words: int, continuous: bool) -> tuple[jax.Array, jax.Array]:
    """Direction `[n, 2]` and message `[n, words]` in actions of agents who move and speak.

    A discrete action outside of `5 * words` stays and says nothing.
    """
    if continuous:
        return steering(action[:, :NUM_MOVES], True), speech(action[:, NUM_MOVES:], words, True)
    # In floats the quotient is exact for such small numbers, and several times faster than dividing integers.
    word = jnp.floor((action.astype(jnp.float32) + 0.5) / NUM_MOVES).astype(jnp.int32)
    is_action = (word >= 0) & (word < words)
    return steering(jnp.where(is_action, action - NUM_MOVES * word, 0), False), speech(word, words, False)


def _sign(plus: jax.Array, minus: jax.Array) -> jax.Array:
    return plus.astype(jnp.float32) - minus.astype(jnp.float32)
