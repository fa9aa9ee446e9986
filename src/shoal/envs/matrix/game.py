"""`matrix/game`: any game given by a table of payoffs, for two players or more.

**Rules.** All players choose at once; the payoff tensor says what each of them gets. With `num_rounds=1` that is all.
With more, the same game is played again and again, and everybody remembers what was done in the round before.

**Payoffs.** The option `payoffs` is a tensor of shape `[n, a1, ..., an]` for n players, of whom player i has ai
actions: `payoffs[i][x1]...[xn]` is what player i gets when they choose x1 to xn. For a zero-sum game of two players one
matrix will do: what player 0 wins of player 1. Give lists, tuples or arrays; on the command line, JSON:

    shoal train matrix/game --env.payoffs "[[0, -1, 1], [1, 0, -1], [-1, 1, 0]]"
    shoal train matrix/game --env.payoffs "[[[3, 0], [5, 1]], [[3, 5], [0, 1]]]" --env.num-rounds 50

The default is the battle of the sexes: both prefer to meet, player 0 at the one place, player 1 at the other.

**Actions.** Player i chooses one of ai; they may have different numbers of actions, so each player is a group of its
own: `player_0`, `player_1`, ...

**Observation** of each player. In a game that is played once there is nothing to see: one value, always 1. In a
repeated game, 1 + a1 + ... + an values:

| values | what |
|---|---|
| 1 | 1 in the first round, then 0 |
| ai | own action in the last round, one-hot (zeros in the first) |
| the rest | the other players' actions, one-hot, beginning with the next player |

Players with equally many actions may share a policy, because everybody sees the table from its own place.

**Reward.** Each player's payoff, in every round.

**End.** A game that is played once terminates after one step. A repeated game is truncated after `num_rounds` rounds:
nobody sees how many are left, so for the learner it goes on for ever, and its discount γ says how much the future
counts.

**Params.** The payoffs are params: one can vmap over games.

**Exact tables.** `shoal.envs.tabular.tabulate` takes games of one or two rounds; beyond, players forget.

**Source.** Textbook; version 1.
"""

import dataclasses
import functools
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.checks import require_whole
from shoal.core.env import Env
from shoal.core.errors import require
from shoal.core.spaces import ActionNames, Discrete
from shoal.core.types import Actions, Group, Observation, Outcome, Scene
from shoal.envs.matrix._payoffs import as_tuples, payoff_tensor
from shoal.envs.matrix._picture import picture

_BATTLE_OF_THE_SEXES = (((2.0, 0.0), (0.0, 1.0)), ((1.0, 0.0), (0.0, 2.0)))


class Params(NamedTuple):
    payoffs: jax.Array  # [n, a1, ..., an]


class State(NamedTuple):
    last: jax.Array  # int32 [n], the actions of the last round, -1 before the first
    t: jax.Array


@dataclasses.dataclass(frozen=True)
class MatrixGame(Env):
    """Any game given by a table of payoffs, once or repeated."""

    payoffs: tuple[Any, ...] = _BATTLE_OF_THE_SEXES  # [players, actions, actions, ...], or one matrix if zero-sum
    num_rounds: int = 1  # how often the game is played in an episode

    kind: ClassVar[str] = "mixed"
    id: ClassVar[str] = "matrix/game"
    moves: ClassVar[tuple[str, ...]] = ()
    """What the actions are called, if everybody has the same."""
    num_deals: ClassVar[int] = 1

    def __post_init__(self):
        sizes = payoff_tensor(self.id, self.payoffs).shape[1:]
        allowed = f"{len(self.moves)} for every player: {', '.join(self.moves)}. Others: matrix/game"
        named = not self.moves or set(sizes) == {len(self.moves)}
        require(named, self.id, "numbers of actions in payoffs", sizes, allowed)
        object.__setattr__(self, "payoffs", as_tuples(self.payoffs))
        require_whole(self.id, 1, num_rounds=self.num_rounds)

    @property
    def num_actions(self) -> tuple[int, ...]:
        """Of each player."""
        return _tensor(self.id, self.payoffs).shape[1:]

    @property
    def groups(self) -> dict[str, Group]:
        return {f"player_{i}": Group(1, Discrete(count)) for i, count in enumerate(self.num_actions)}

    def action_names(self, group: str) -> ActionNames:
        return {"move": self.moves} if self.moves else super().action_names(group)

    @property
    def play_fps(self) -> float:
        """It waits: all choose at once, and nobody is hurried."""
        return 0.0

    def default_params(self) -> Params:
        return Params(jnp.asarray(_tensor(self.id, self.payoffs), jnp.float32))

    def deal(self, index: jax.Array) -> State:
        """The start of a game; there is only one."""
        return State(jnp.full(len(self.num_actions), -1, jnp.int32), jnp.int32(0))

    def reset(self, key: jax.Array, params: Params) -> State:
        # The start is a constant; without the barrier XLA works out the first view of every copy while it compiles.
        return jax.lax.optimization_barrier(self.deal(jnp.int32(0)))

    def step(self, key: jax.Array, state: State, actions: Actions, params: Params) -> tuple[State, Outcome]:
        chosen = [actions[name][0].astype(jnp.int32) for name in self.groups]
        payoff = params.payoffs
        for action in chosen:  # take one axis after the other; a one-hot sum is cheaper than a gather
            payoff = jnp.moveaxis(payoff, 1, -1)
            payoff = jnp.sum(jnp.where(jnp.arange(payoff.shape[-1]) == action, payoff, 0.0), axis=-1)
        state = State(jnp.stack(chosen), state.t + 1)
        over, once = state.t >= self.num_rounds, self.num_rounds == 1
        reward = {name: payoff[i : i + 1] for i, name in enumerate(self.groups)}
        return state, Outcome(reward, over & once, over & (not once), self._shares(state))

    def observe(self, state: State, params: Params) -> dict[str, Observation]:
        if self.num_rounds == 1:
            return {name: Observation(jnp.ones((1, 1))) for name in self.groups}
        start = (state.last[:1] < 0).astype(jnp.float32)
        done = [jax.nn.one_hot(state.last[i], count) for i, count in enumerate(self.num_actions)]
        return {
            name: Observation(jnp.concatenate([start, *done[i:], *done[:i]])[None])
            for i, name in enumerate(self.groups)
        }

    def scene(self, state: State, params: Params) -> Scene:
        return picture(_tensor(self.id, self.payoffs), self.moves, state.last)

    def _shares(self, state: State) -> dict[str, jax.Array]:
        """The share of the players that made each move, if the moves have names."""
        return {name: jnp.mean((state.last == i).astype(jnp.float32)) for i, name in enumerate(self.moves)}


@functools.lru_cache(maxsize=256)
def _tensor(owner: str, payoffs: tuple[Any, ...]) -> np.ndarray:
    tensor = payoff_tensor(owner, payoffs)
    tensor.flags.writeable = False
    return tensor
