"""`mpe/simple_crypto`: Alice sends Bob a secret over a channel that Eve listens to.

**Rules.** At the start a message (one bit) and a key (another) are drawn. Alice sees both, Bob sees the key. In every
step each of the three says one of four words: Alice's is what Bob and Eve hear a step later, Bob's and Eve's are their
guesses of the message. Alice and Bob do well to agree on words that mean something only together with the key.

**Actions.** One of four words, or with `continuous=True` four numbers from 0 to 1.

**Observation.** Bits are written one-hot, as four numbers of which the last two are 0; Alice's word is one-hot if
actions are discrete, and 0 at the start.

| agent | values | what |
|---|---|---|
| eve | 4 | Alice's word |
| bob | 4 + 4 | the key, Alice's word |
| alice | 4 + 4 | the message, the key |

**Reward.** A guess is wrong by its squared distance to the message's four numbers: 0 or, for another word, 2; saying
nothing (all 0) counts as 0. Eve pays by how much she is wrong. Alice and Bob each get by how much Eve is wrong, less by
how much Bob is.

**End.** Truncated after exactly `max_steps` steps; it never terminates.

**Source.** `simple_crypto_v3` of the Multi-Particle Environments (Lowe et al. 2017, arXiv:1706.02275), as the package
`mpe2` 1.1 has it: the same views, rewards and ends from the same state and actions, to 1e-5. Version 1. One departure:
nobody has a place in the plane; in the original they have one, which nobody sees.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.checks import require_flag, require_whole
from shoal.core.env import Env
from shoal.core.spaces import ActionNames
from shoal.core.types import Actions, Group, Labels, Lines, Observation, Outcome, Scene, Seat
from shoal.envs.mpe import _actions as acts
from shoal.envs.mpe import _physics as physics
from shoal.envs.mpe import _picture as picture

_WORDS = 4
_EVE, _BOB, _ALICE = 0, 1, 2
_PLACES = ((0.0, -0.8), (0.9, 0.5), (-0.9, 0.5))  # only drawn


class State(NamedTuple):
    goal: jax.Array  # the message, 0 or 1
    key: jax.Array  # 0 or 1
    said: jax.Array  # [3, 4], what Eve, Bob and Alice said last
    t: jax.Array


@dataclasses.dataclass(frozen=True)
class SimpleCrypto(Env):
    """Alice and Bob share a key; Eve listens in."""

    max_steps: int = 25  # length of an episode
    continuous: bool = False  # four numbers from 0 to 1 instead of one of four words

    kind: ClassVar[str] = "competitive"

    def __post_init__(self):
        require_whole("mpe/simple_crypto", 1, max_steps=self.max_steps)
        require_flag("mpe/simple_crypto", continuous=self.continuous)

    @property
    def groups(self) -> dict[str, Group]:
        one = Group(1, acts.action_space(self.continuous, moves=False, words=_WORDS))
        return {"eve": one, "bob": one, "alice": one}

    @property
    def players(self) -> dict[str, tuple[Seat, ...]]:
        """Alice and Bob are one side."""
        return {"eve": (("eve", 0),), "alice_and_bob": (("alice", 0), ("bob", 0))}

    def action_names(self, group: str) -> ActionNames:
        return acts.action_names(self.continuous, moves=False, words=_WORDS)

    @property
    def play_fps(self) -> float:
        return 0.0  # nothing moves

    def default_params(self) -> tuple[()]:
        return ()

    def reset(self, key: jax.Array, params: tuple[()]) -> State:
        _, (goal, secret) = physics.places_and_choices(key, 0, (2, 2))
        return State(goal, secret, jnp.zeros((3, _WORDS)), jnp.int32(0))

    def step(self, key: jax.Array, state: State, actions: Actions, params: tuple[()]) -> tuple[State, Outcome]:
        action = jnp.concatenate([actions["eve"], actions["bob"], actions["alice"]])
        said = acts.speech(action, _WORDS, self.continuous)
        state = State(state.goal, state.key, said, state.t + 1)
        eve, bob = _wrong(said[_EVE], state.goal), _wrong(said[_BOB], state.goal)
        reward = {"eve": -eve[None], "bob": (eve - bob)[None], "alice": (eve - bob)[None]}
        metrics = {"wrong/eve": eve, "wrong/bob": bob}
        return state, Outcome(reward, jnp.bool_(False), state.t >= self.max_steps, metrics)

    def observe(self, state: State, params: tuple[()]) -> dict[str, Observation]:
        heard, secret, goal = state.said[_ALICE], _one_hot(state.key), _one_hot(state.goal)
        return {
            "eve": Observation(heard[None]),
            "bob": Observation(jnp.concatenate([secret, heard])[None]),
            "alice": Observation(jnp.concatenate([goal, secret])[None]),
        }

    def scene(self, state: State, params: tuple[()]) -> Scene:
        """Alice's word goes to Bob and Eve; Bob and Eve are green where their guess is right."""
        return self._picture(state, message=True, key=True, verdict=True)

    def scene_for(self, state: State, params: tuple[()], seat: Seat) -> Scene:
        """Alice knows message and key, Bob the key, Eve neither; nobody is told whose guess is right."""
        return self._picture(state, message=seat[0] == "alice", key=seat[0] != "eve", verdict=False)

    def _picture(self, state: State, message: bool, key: bool, verdict: bool) -> Scene:
        places = jnp.array(_PLACES)
        right = state.said[:, :2] @ jnp.ones(2) > 0
        right = right & (jnp.argmax(state.said, axis=1) == state.goal)
        guess = jnp.where(right, picture.GREEN, picture.RED) if verdict else jnp.full(len(right), picture.GREY)
        said = picture.words(state.said, places + jnp.array([0.0, 0.3]))
        known = Labels(
            position=jnp.repeat(places[_ALICE, None] - jnp.array([[0.25, 0.3], [0.25, 0.45]]), 2, axis=0),
            visible=jnp.stack([state.goal == 0, state.goal == 1, state.key == 0, state.key == 1])
            & jnp.array([message, message, key, key]),
            text=("message A", "message B", "key A", "key B"),
        )
        labels = Labels(
            position=jnp.concatenate([said.position, known.position]),
            visible=jnp.concatenate([said.visible, known.visible]),
            text=said.text + known.text,
        )
        lines = Lines(
            start=jnp.stack([places[_ALICE]] * 2),
            end=places[: _BOB + 1],
            colour=jnp.array([picture.GREY, picture.GREY]),
            visible=jnp.ones(2, bool),
        )
        scene = picture.picture(
            picture.Layer(places[_ALICE, None], 0.15, picture.BLUE, "alice"),
            picture.Layer(places[_BOB, None], 0.15, guess[_BOB], "bob"),
            picture.Layer(places[_EVE, None], 0.15, guess[_EVE], "eve"),
            labels=labels,
        )
        return scene.replace(lines=lines)


def _one_hot(bit: jax.Array) -> jax.Array:
    return (bit == jnp.arange(_WORDS)).astype(jnp.float32)


def _wrong(said: jax.Array, goal: jax.Array) -> jax.Array:
    """The squared distance between what was said and the message; 0 if nothing was."""
    silent = ~physics.either(said != 0)
    return jnp.where(silent, 0.0, physics.total((said - _one_hot(goal)) ** 2))
