"""`cards/leduc`: Leduc poker, two rounds of betting with a public card in between.

**Rules.** Six cards: three ranks (J, Q, K) in two suits; card c has rank c // 2. Two players pay an ante of 1 and get a
card each. Two rounds of betting follow, both begun by player 0, with a public card dealt between them. A raise is 2 in
the first round and 4 in the second, on top of what the other has paid; there are at most two raises a round. A round
ends when a raise is called or when both call without a raise. Who has a pair with the public card wins, else the higher
rank; equal ranks split the pot.

**Actions.** 0 fold, 1 call (or check, if there is nothing to call), 2 raise. Folding is legal only when there is a
raise to answer, raising only while the round has fewer than two raises, calling always. An illegal action counts as a
call. The action of the player who waits has no effect; its row of `legal` repeats that of the player to move.

**Observation** of each player, 30 values of 0 or 1; both see it all the time, whoever is to move:

| values | what |
|---|---|
| 2 | which player one is |
| 6 | own card |
| 6 | the public card, once it is dealt |
| 2 × 4 × 2 | for each round, for each of up to four actions in it: it was a call, it was a raise |

A fold ends the game and is not written down. With `suit_isomorphism=True` cards are shown by their rank: 3 values
instead of 6, 24 in all, which leaves out nothing that matters.

**Reward.** Paid at the end, and it sums to 0: the winner gets what the other has paid, 1 to 13.

**End.** Terminated after two to eight actions.

**Source.** Southey et al., *Bayes' bluff* (UAI 2005), as `leduc_poker` of OpenSpiel 2.0 has it: the same views, actions
and returns in every history, with and without `suit_isomorphism`. Version 1. Under uniformly random play player 0 wins
-0.078125 a game; with best play -0.0856064.

**Exact analysis.** `shoal.envs.tabular` has the whole game as tables: how far from an equilibrium is uniformly random
play?

    from shoal.envs.tabular import tabulate
    game = tabulate(shoal.make("cards/leduc"))
    plans = [game.plan(player, game.uniform(player)) for player in range(2)]
    print(f"{game.nash_conv(plans):.6f}")  # 4.747222
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from shoal.core.checks import require_flag
from shoal.core.env import Env
from shoal.core.spaces import ActionNames, Discrete, draw_index
from shoal.core.types import Actions, Group, Observation, Outcome, Scene, Seat
from shoal.envs.cards import _table as table

FOLD, CALL, RAISE = 0, 1, 2

_NUM_CARDS = 6
_PLACES = 4  # actions in a round at most: call, raise, raise, call
_MAX_RAISES = 2
_MAX_STAKE = 13


class State(NamedTuple):
    """All int32. betting: two bits an action, the lower one set by a call, the upper one by a raise."""

    cards: jax.Array  # [2]
    public: jax.Array  # drawn with the others, shown in the second round
    betting: jax.Array
    second: jax.Array  # 1 in the second round
    moves: jax.Array  # actions in this round
    raises: jax.Array  # raises in this round
    stake: jax.Array  # the most that a player has paid
    over: jax.Array  # bool


@dataclasses.dataclass(frozen=True)
class Leduc(Env):
    """Leduc poker: two players, six cards, two rounds of betting."""

    suit_isomorphism: bool = False  # show ranks instead of cards: 24 values instead of 30

    kind: ClassVar[str] = "competitive"
    num_deals: ClassVar[int] = _NUM_CARDS * (_NUM_CARDS - 1) * (_NUM_CARDS - 2)

    def __post_init__(self):
        require_flag("cards/leduc", suit_isomorphism=self.suit_isomorphism)

    @property
    def groups(self) -> dict[str, Group]:
        return {"player": Group(2, Discrete(3), movers=1)}

    @property
    def players(self) -> dict[str, tuple[Seat, ...]]:
        return table.PLAYERS

    def deal(self, index: jax.Array) -> State:
        """The start of a game for one of `num_deals` equally likely deals: first, second and public card."""
        first, rest = index // 20, index % 20
        second = table.without(rest // 4, first)
        public = table.without(rest % 4, jnp.minimum(first, second), jnp.maximum(first, second))
        nothing = jnp.zeros_like(index)
        return State(
            cards=jnp.stack([first, second]),
            public=public,
            betting=nothing,
            second=nothing,
            moves=nothing,
            raises=nothing,
            stake=nothing + 1,
            over=nothing > 0,
        )

    def reset(self, key: jax.Array, params: tuple) -> State:
        return self.deal(draw_index(jax.random.uniform(key), self.num_deals))

    def step(self, key: jax.Array, state: State, actions: Actions, params: tuple) -> tuple[State, Outcome]:
        mover = state.moves % 2
        action = jnp.where(mover == 0, actions["player"][0], actions["player"][1])
        fold = (action == FOLD) & (state.raises > 0)
        raised = (action == RAISE) & (state.raises < _MAX_RAISES)
        closed = ~fold & ~raised & (state.moves > 0)  # the round ends
        over = fold | (closed & (state.second == 1))
        size = 2 + 2 * state.second
        # Who folds has paid one raise less than the other, and loses that.
        loss = jnp.where(fold, state.stake - size, state.stake)
        sign = jnp.where(fold, jnp.where(mover == 0, -1, 1), _showdown(state))
        gain = jnp.where(over, loss * sign, 0)
        reward = jnp.stack([gain, -gain]).astype(jnp.float32)
        place = 2 * (_PLACES * state.second + state.moves)
        state = State(
            cards=state.cards,
            public=state.public,
            betting=state.betting | jnp.where(fold, 0, jnp.where(raised, 2, 1) << place),
            second=state.second | closed,
            moves=jnp.where(closed & ~over, 0, state.moves + 1),
            raises=jnp.where(closed & ~over, 0, state.raises + raised),
            stake=state.stake + jnp.where(raised, size, 0),
            over=over,
        )
        return state, Outcome({"player": reward}, over, jnp.bool_(False))

    def observe(self, state: State, params: tuple) -> dict[str, Observation]:
        kinds = _NUM_CARDS // 2 if self.suit_isomorphism else _NUM_CARDS
        cards, public = self._drop_suit(state.cards), self._drop_suit(state.public)
        common = (state.second << (2 + kinds + public)) | (state.betting << (2 + 2 * kinds))
        bits = (1 << jnp.arange(2)) | (4 << cards) | common
        legal = jnp.stack([state.raises > 0, jnp.bool_(True), state.raises < _MAX_RAISES])
        view = table.unpack_bits(bits, 2 + 2 * kinds + 2 * 2 * _PLACES)
        return {"player": Observation(view, jnp.broadcast_to(legal, (2, 3)), active=_turn(state))}

    def action_names(self, group: str) -> ActionNames:
        return {"move": ("fold", "call", "raise")}

    def scene(self, state: State, params: tuple) -> Scene:
        return self._picture(state)

    def scene_for(self, state: State, params: tuple, seat: Seat) -> Scene:
        """The other's card lies face down until the cards are shown, and stays so after a fold."""
        return self._picture(state, table.others(seat) & ~(state.over & ~_is_folded(state)))

    def _picture(self, state: State, hidden: jax.Array | None = None) -> Scene:
        betting = table.unpack_bits(state.betting, 2 * 2 * _PLACES).reshape(2, _PLACES, 2)
        last = (state.moves - 1) % 2
        folded = _is_folded(state)
        behind = jnp.where(state.over, folded, state.raises > 0)  # somebody has a raise to answer, or gave up
        owing = jnp.arange(2) == jnp.where(state.over, last, state.moves % 2)
        return table.picture(
            hands=state.cards,
            names=("J♠", "J♥", "Q♠", "Q♥", "K♠", "K♥"),
            paid=state.stake - jnp.where(behind & owing, 2 + 2 * state.second, 0),
            most=_MAX_STAKE,
            turn=_turn(state),
            betting=betting,
            folded=folded & (jnp.arange(2) == last),
            words=(("checks", "calls"), ("bets", "raises")),
            board=(state.public, state.second == 1),
            hidden=hidden,
        )

    def _drop_suit(self, card: jax.Array) -> jax.Array:
        return card // 2 if self.suit_isomorphism else card


def _showdown(state: State) -> jax.Array:
    """1 if player 0 has the better hand, -1 if player 1 has, 0 if they are equal."""
    rank, public = state.cards // 2, state.public // 2
    strength = jnp.where(rank == public, _NUM_CARDS, rank)
    return jnp.sign(strength[0] - strength[1])


def _turn(state: State) -> jax.Array:
    return (jnp.arange(2) == state.moves % 2) & ~state.over


def _is_folded(state: State) -> jax.Array:
    """Whether the game ended by a raise that was not called."""
    return state.over & (state.raises > 0) & ~_is_called(state)


def _is_called(state: State) -> jax.Array:
    """Whether the last action of a finished game was a call: only a fold leaves no trace in the betting."""
    place = 2 * (_PLACES * state.second + state.moves - 1)
    return ((state.betting >> place) & 1) == 1
