"""`cards/kuhn`: Kuhn poker, the smallest poker worth the name: three cards, one bet.

**Rules.** Two players pay an ante of 1 and get a different card each out of three (0 to 2). In turn, beginning with
player 0, they pass or bet 1. After two passes, or when a bet is answered by a bet (a call), the cards are shown and the
higher one takes the pot. Who passes after a bet (a fold) loses the ante.

**Actions.** 0 pass, 1 bet. Both are always legal. The action of the player who waits has no effect.

**Observation** of each player, 11 values of 0 or 1; both see it all the time, whoever is to move:

| values | what |
|---|---|
| 2 | which player one is |
| 3 | own card |
| 3 × 2 | for each of up to three actions so far: it was a pass, it was a bet |

**Reward.** Paid at the end, and it sums to 0: the winner gets 1, or 2 if there was a bet that was called.

**End.** Terminated after two or three actions.

**Source.** Kuhn, *A simplified two-person poker* (1950), as `kuhn_poker` of OpenSpiel 2.0 has it: the same views,
actions and returns in every history. Version 1. Under uniformly random play player 0 wins 0.125 a game; with best play
it loses 1/18.

**Exact analysis.** `shoal.envs.tabular` has the whole game as tables: how far from an equilibrium is uniformly random
play?

    from shoal.envs.tabular import tabulate
    game = tabulate(shoal.make("cards/kuhn"))
    plans = [game.plan(player, game.uniform(player)) for player in range(2)]
    print(f"{game.nash_conv(plans):.6f}")  # 0.916667
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.env import Env
from shoal.core.spaces import ActionNames, Discrete, draw_index
from shoal.core.types import Actions, Group, Observation, Outcome, Scene, Seat
from shoal.envs.cards import _table as table

PASS, BET = 0, 1

_NUM_CARDS = 3
_BETTING = 2 + _NUM_CARDS  # where the actions begin in a view
_NUM_VALUES = _BETTING + 3 * 2


class State(NamedTuple):
    """All int32. betting: two bits an action, the lower one set by a pass, the upper one by a bet."""

    cards: jax.Array  # [2]
    betting: jax.Array
    moves: jax.Array  # how many actions there were
    bets: jax.Array  # how many of them were bets
    over: jax.Array  # bool


@dataclasses.dataclass(frozen=True)
class Kuhn(Env):
    """Kuhn poker: two players, three cards, one bet."""

    kind: ClassVar[str] = "competitive"
    num_deals: ClassVar[int] = _NUM_CARDS * (_NUM_CARDS - 1)

    @property
    def groups(self) -> dict[str, Group]:
        return {"player": Group(2, Discrete(2), movers=1)}

    @property
    def players(self) -> dict[str, tuple[Seat, ...]]:
        return table.PLAYERS

    def deal(self, index: jax.Array) -> State:
        """The start of a game for one of `num_deals` equally likely deals."""
        first, rest = index // (_NUM_CARDS - 1), index % (_NUM_CARDS - 1)
        nothing = jnp.zeros_like(index)
        return State(jnp.stack([first, table.without(rest, first)]), nothing, nothing, nothing, nothing > 0)

    def reset(self, key: jax.Array, params: tuple) -> State:
        return self.deal(draw_index(jax.random.uniform(key), self.num_deals))

    def step(self, key: jax.Array, state: State, actions: Actions, params: tuple) -> tuple[State, Outcome]:
        mover = state.moves % 2
        bet = jnp.where(mover == 0, actions["player"][0], actions["player"][1]) == BET
        answered = state.bets > 0  # whatever follows a bet ends the game
        over = answered | (~bet & (state.moves == 1))
        higher = jnp.where(state.cards[0] > state.cards[1], 1, -1)
        folder = jnp.where(mover == 0, -1, 1)
        gain = jnp.where(over, jnp.where(answered, jnp.where(bet, 2 * higher, folder), higher), 0)
        reward = jnp.stack([gain, -gain]).astype(jnp.float32)
        state = State(
            cards=state.cards,
            betting=state.betting | (jnp.where(bet, 2, 1) << (2 * state.moves)),
            moves=state.moves + 1,
            bets=state.bets + bet,
            over=over,
        )
        return state, Outcome({"player": reward}, over, jnp.bool_(False))

    def observe(self, state: State, params: tuple) -> dict[str, Observation]:
        bits = (1 << jnp.arange(2)) | (4 << state.cards) | (state.betting << _BETTING)
        return {"player": Observation(table.unpack_bits(bits, _NUM_VALUES), active=self._turn(state))}

    def action_names(self, group: str) -> ActionNames:
        return {"move": ("pass", "bet")}

    def scene(self, state: State, params: tuple) -> Scene:
        return self._picture(state)

    def scene_for(self, state: State, params: tuple, seat: Seat) -> Scene:
        """The other's card lies face down until the cards are shown, and stays so after a fold."""
        return self._picture(state, table.others(seat) & ~(state.over & ~_is_folded(state)))

    def _picture(self, state: State, hidden: jax.Array | None = None) -> Scene:
        betting = table.unpack_bits(state.betting, 6).reshape(1, 3, 2)
        bets = betting[0, :, 1]
        return table.picture(
            hands=state.cards,
            names=("J", "Q", "K"),
            paid=1 + jnp.stack([bets[0] + bets[2], bets[1]]),
            most=2,
            turn=self._turn(state),
            betting=betting,
            folded=_is_folded(state) & (jnp.arange(2) == (state.moves - 1) % 2),
            words=(("checks", "folds"), ("bets", "calls")),
            hidden=hidden,
        )

    def _turn(self, state: State) -> jax.Array:
        return (jnp.arange(2) == state.moves % 2) & ~state.over


def _is_folded(state: State) -> jax.Array:
    """Whether the game ended by a bet that was not called."""
    return state.over & (state.bets == 1)
