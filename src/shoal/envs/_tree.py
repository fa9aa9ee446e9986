"""Every history of a small game, found by playing its world: all nodes of one depth at a time, as one batch.

Nothing about the rules is written a second time: `deal` gives the starts, `observe` says who moves, what they know and
what is legal, `step` gives the next states and the payoffs.
"""

import dataclasses
import itertools
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.env import Env
from shoal.core.errors import OptionError, WorldError
from shoal.core.spaces import Discrete
from shoal.core.types import PyTree, Seat

MAX_NODES = 1_000_000
"""A larger tree is refused."""
_BATCH = 2048


class FiniteGame(Protocol):
    """A world that can be enumerated: all chance is in the deal, `num_deals` equally likely ones; then none is left."""

    @property
    def num_deals(self) -> int: ...

    def deal(self, index: jax.Array) -> PyTree:
        """The state at the start of an episode for the deal number `index`."""
        ...


class Nodes(NamedTuple):
    """Some histories of equal length; all leaves `[N, ...]`, on the host.

    last: `[N, players]`, the last decision of each player, as its place in the player's `Found.decisions`; 0 is none.
    """

    state: PyTree
    last: np.ndarray
    payoff: np.ndarray  # [N, players], the rewards so far


@dataclasses.dataclass
class Found:
    """The information sets of one player as they are met; a decision is an information set and an action."""

    number: dict[bytes, int] = dataclasses.field(default_factory=dict)
    views: list[PyTree] = dataclasses.field(default_factory=list)
    legal: list[np.ndarray] = dataclasses.field(default_factory=list)
    parent: list[int] = dataclasses.field(default_factory=list)  # the decision before, 0 for none


class Tree(NamedTuple):
    """players: names. found: of each player. ends: `[L, players]`, last decisions; payoffs: `[L, players]`, in sum.

    Decisions are numbered 1 + information set * actions + action.
    """

    players: tuple[str, ...]
    found: list[Found]
    ends: np.ndarray
    payoffs: np.ndarray


def walk(env: Any) -> Tree:
    """Plays every history of a `FiniteGame`."""
    if not (hasattr(env, "deal") and hasattr(env, "num_deals")):
        raise OptionError(
            f"{type(env).__name__} does not say how it can be dealt: exact tables need `num_deals` and `deal(index)`"
        )
    seats = _seats(env)
    sizes = [_num_actions(env, seat) for seat in seats]
    found = [Found() for _ in seats]
    moves = np.array(list(itertools.product(*map(range, sizes))))
    look, advance = _programs(env, seats)
    start = _in_batches(jax.jit(jax.vmap(env.deal)), np.arange(env.num_deals, dtype=np.int32))
    nodes = Nodes(start, np.zeros((env.num_deals, len(seats)), np.int64), np.zeros((env.num_deals, len(seats))))
    ends, payoffs, num_nodes = [], [], 0
    while len(nodes.last):
        num_nodes += len(nodes.last)
        if num_nodes > MAX_NODES:
            raise OptionError(f"{type(env).__name__} has more than {MAX_NODES:,} histories: too many for exact tables")
        seen = _in_batches(look, nodes.state)
        here = [_information_sets(found[p], seen[p], nodes.last[:, p], name) for p, name in enumerate(env.players)]
        row, move = np.nonzero(_find_legal(seen, moves))
        decided = [
            np.where(seen[p].active[row], 1 + here[p][row] * size + moves[move, p], nodes.last[row, p])
            for p, size in enumerate(sizes)
        ]
        following, reward, over = _in_batches(advance, (_rows(nodes.state, row), moves[move]))
        last, payoff = np.stack(decided, axis=1), nodes.payoff[row] + reward
        ends.append(last[over])
        payoffs.append(payoff[over])
        nodes = Nodes(_rows(following, ~over), last[~over], payoff[~over])
    payoff = np.concatenate(payoffs) / env.num_deals
    return Tree(tuple(env.players), found, np.concatenate(ends), payoff)


class _Seen(NamedTuple):
    """What one player sees in each node, `[N, ...]`."""

    view: PyTree
    legal: Any
    active: Any


def _programs(env: Env, seats: list[Seat]) -> tuple[Any, Any]:
    """`look(states)` gives what each player sees; `advance((states, actions))` gives states, payoffs, ends."""
    params, groups = env.default_params(), env.groups

    def look(state: PyTree) -> list[_Seen]:
        seen = env.observe(state, params)

        def one(group: str, index: int) -> _Seen:
            obs, count = seen[group], groups[group].action.n  # pyright: ignore[reportAttributeAccessIssue]
            legal = jnp.ones(count, bool) if obs.legal is None else obs.legal[index]
            active = jnp.bool_(True) if obs.active is None else obs.active[index]
            return _Seen(jax.tree.map(lambda leaf: leaf[index], obs.view), legal, active)

        return [one(*seat) for seat in seats]

    def advance(inputs: tuple[PyTree, jax.Array]) -> tuple[PyTree, jax.Array, jax.Array]:
        state, chosen = inputs
        by_seat = dict(zip(seats, chosen, strict=True))
        actions = {
            name: jnp.stack([by_seat[name, i] for i in range(group.size)]).astype(jnp.int32)
            for name, group in groups.items()
        }
        state, outcome = env.step(jax.random.key(0), state, actions, params)
        reward = jnp.stack([outcome.reward[group][index] for group, index in seats])
        return state, reward, outcome.terminated | outcome.truncated

    return jax.jit(jax.vmap(look)), jax.jit(jax.vmap(advance))


def _information_sets(found: Found, seen: _Seen, last: np.ndarray, player: str) -> np.ndarray:
    """Numbers `[N]` of the information sets of one player; new ones are noted down."""
    leaves = [np.ascontiguousarray(leaf).reshape(len(last), -1).view(np.uint8) for leaf in jax.tree.leaves(seen.view)]
    keys = np.concatenate(leaves, axis=1)
    numbers = np.zeros(len(last), np.int64)
    for i in np.flatnonzero(seen.active):
        key = keys[i].tobytes()
        number = numbers[i] = found.number.setdefault(key, len(found.views))
        if number == len(found.views):
            found.views.append(_rows(seen.view, i))
            found.legal.append(seen.legal[i])
            found.parent.append(int(last[i]))
        elif found.parent[number] != last[i]:
            raise OptionError(
                f"{player} forgets what it has done: one view follows different decisions of its own. "
                "Exact tables need views that tell the whole past"
            )
        elif (found.legal[number] != seen.legal[i]).any():
            raise WorldError(f"{player} has other legal actions in the same view")
    return numbers


def _find_legal(seen: list[_Seen], moves: np.ndarray) -> np.ndarray:
    """Which joint actions may be taken, `[N, moves]`: legal ones, and 0 for who waits."""
    allowed = np.ones((len(seen[0].active), len(moves)), bool)
    for p, player in enumerate(seen):
        waits = np.arange(player.legal.shape[1]) == 0
        allowed &= np.where(player.active[:, None], player.legal, waits)[:, moves[:, p]]
    return allowed


def _seats(env: Env) -> list[Seat]:
    for player, seats in env.players.items():
        if len(seats) != 1:
            raise OptionError(f"{player} has {len(seats)} seats: exact tables need players with one seat each")
    return [seats[0] for seats in env.players.values()]


def _num_actions(env: Env, seat: Seat) -> int:
    action = env.groups[seat[0]].action
    if not isinstance(action, Discrete):
        raise OptionError(f"the actions of {seat[0]!r} are {action}: exact tables need Discrete ones")
    return action.n


def _in_batches(program: Any, rows: PyTree) -> Any:
    """`program(rows)` in batches of one size, so that it is compiled once."""
    count = len(jax.tree.leaves(rows)[0])
    results = []
    for start in range(0, count, _BATCH):
        index = np.minimum(np.arange(start, start + _BATCH), count - 1)
        results.append(jax.tree.map(np.asarray, program(_rows(rows, index))))
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:count], *results)


def _rows(tree: PyTree, index: Any) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[index], tree)
