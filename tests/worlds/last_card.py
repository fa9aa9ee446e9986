"""A card game for three: taking turns, dropping out, waiting, legal masks, a payoff at the end.

Everybody gets a different card and pays the ante. In turn, who is still in folds (0), pays one ante (1) or pays two
(2, once a game). After `rounds` turns each, or when one is left, the highest card still in takes the pot. Who folds
loses what it has paid, there and then, and is gone; who waits is present and not active. The payoffs of a game sum
to 0. An illegal 2 counts as 1.

View (8): own card, own payments, pot, may pay two, who is in (from oneself on, 3), whether it is one's turn.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from shoal import Discrete, Env, Group, Observation, Outcome

FOLD, PAY, PAY_TWO = 0, 1, 2


@struct.dataclass
class State:
    cards: jax.Array  # [3] int32, all different
    paid: jax.Array  # [3]
    raised: jax.Array  # [3] bool, has paid two before
    folded: jax.Array  # [3] bool
    moves: jax.Array  # [3] int32
    turn: jax.Array  # int32, always somebody who has not folded


@dataclasses.dataclass(frozen=True)
class LastCard(Env):
    num_cards: int = 6
    rounds: int = 2
    kind: ClassVar[str] = "competitive"

    @property
    def groups(self):
        return {"player": Group(3, Discrete(3), movers=1)}

    @property
    def players(self):
        return {f"player {i}": (("player", i),) for i in range(3)}

    def default_params(self):
        return {"ante": jnp.float32(1.0)}

    def reset(self, key, params):
        return State(
            cards=jax.random.permutation(key, self.num_cards)[:3].astype(jnp.int32),
            paid=jnp.full(3, params["ante"], jnp.float32),
            raised=jnp.zeros(3, bool),
            folded=jnp.zeros(3, bool),
            moves=jnp.zeros(3, jnp.int32),
            turn=jnp.zeros((), jnp.int32),
        )

    def step(self, key, state, actions, params):
        mover = jnp.arange(3) == state.turn
        action = actions["player"][state.turn]
        two = (action == PAY_TWO) & ~state.raised[state.turn]
        cost = params["ante"] * jnp.where(action == FOLD, 0.0, jnp.where(two, 2.0, 1.0))
        state = state.replace(
            paid=state.paid + mover * cost,
            raised=state.raised | (mover & two),
            folded=state.folded | (mover & (action == FOLD)),
            moves=state.moves + mover,
        )
        following = (state.turn + 1 + jnp.arange(3)) % 3
        state = state.replace(turn=following[jnp.argmax(~state.folded[following])])
        over = (jnp.sum(~state.folded) == 1) | jnp.all(state.folded | (state.moves >= self.rounds))
        winner = jnp.arange(3) == jnp.argmax(jnp.where(state.folded, -1, state.cards))
        showdown = ~state.folded * (winner * jnp.sum(state.paid) - state.paid)
        reward = jnp.where(over, showdown, 0.0) - state.paid * (mover & state.folded)
        return state, Outcome({"player": reward}, terminated=over, truncated=jnp.zeros((), bool))

    def observe(self, state, params):
        mover = jnp.arange(3) == state.turn
        may_pay_two = mover & ~state.raised
        still_in = jnp.stack([jnp.roll(~state.folded, -i) for i in range(3)])
        columns = [state.cards / self.num_cards, state.paid, jnp.full(3, jnp.sum(state.paid)), may_pay_two]
        view = jnp.concatenate([jnp.stack(columns, 1), still_in, mover[:, None]], axis=1).astype(jnp.float32)
        legal = jnp.stack([mover, jnp.ones(3, bool), may_pay_two], axis=1)
        return {"player": Observation(view, legal, active=mover, present=~state.folded)}
