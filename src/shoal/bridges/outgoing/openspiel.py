"""A Shoal world as an OpenSpiel game: `as_game`. OpenSpiel's states are nodes of a tree that the world is played along.

Every seat of the world is a player of the game. What is random is decided by one chance node at the start: the deal, in
worlds that say how they can be dealt (`num_deals` and `deal`, as exact tables need them too); in others one of
`num_seeds` seeds, from which everything random follows. So histories can be replayed, cloned and stored.
"""

import dataclasses
import functools
import hashlib
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pyspiel

from shoal.core.env import Env, describe
from shoal.core.errors import OptionError, WorldError, require
from shoal.core.registry import make as make_world
from shoal.core.spaces import Discrete
from shoal.core.types import PyTree, Seat
from shoal.envs._tree import walk

_Kind = pyspiel.GameType
_registered: "dict[str, CompiledGame]" = {}


def as_game(
    world: Env | str,
    *,
    num_seeds: int = 1000,
    max_length: int = 10_000,
    utility: tuple[float, float] = (-math.inf, math.inf),
    **options: Any,
) -> pyspiel.Game:
    """A world, or the id and options of one, as a `pyspiel.Game`; OpenSpiel knows it as `shoal_<id>` from then on.

    A world whose groups have one mover at a time is a turn-based game, any other one a game with simultaneous moves.
    Actions must be `Discrete`. Small worlds that can be dealt are played through once, so that the game knows its
    longest history, its utilities and whether they sum to zero, and its views are information states; their payoffs are
    handed over at the end if moves are made in turn. All others have observations only: give them `num_seeds`, the
    number of equally likely beginnings; `max_length`; and the least and the most `utility` if you know them.
    """
    require(num_seeds >= 1, "as_game", "num_seeds", num_seeds, "at least 1")
    name, env = (world, make_world(world, **options)) if isinstance(world, str) else (type(world).__name__, world)
    if options and not isinstance(world, str):
        raise OptionError(f"as_game: options {sorted(options)} are for worlds given by their id; this one is made")
    details = (num_seeds, max_length, utility, sorted(options.items()), "" if isinstance(world, str) else repr(world))
    if details != (1000, 10_000, (-math.inf, math.inf), [], ""):
        name += "_" + hashlib.sha256(repr(details).encode()).hexdigest()[:8]
    short = "shoal_" + "".join(letter if letter.isalnum() else "_" for letter in name.lower())
    if short not in _registered:
        plan = _compile_game(env, short, name, num_seeds, max_length, utility)
        # A class of its own, like every Python game of OpenSpiel's: a function would be freed too late at the exit.
        pyspiel.register_game(plan.kind, type("ShoalGame", (ShoalGame,), {"plan": plan}))
        _registered[short] = plan
    return pyspiel.load_game(short)


class Node:
    """A place in the tree of histories; immutable, except for its cached children."""

    def __init__(self, state: PyTree, seen: "NodeView", total: np.ndarray):
        self.state, self.seen, self.total = state, seen, total
        self.children: dict[tuple[int, ...], Node] = {}

    def __deepcopy__(self, memo: dict) -> "Node":
        return self  # OpenSpiel copies states all the time


class NodeView(NamedTuple):
    """What is known at a node: rewards `[seats]` of the step to it, whether it is the end, and what each seat sees."""

    reward: Any
    over: Any
    active: Any  # [seats]
    legal: list[Any]  # of each seat, [actions]
    view: list[Any]  # of each seat, flat


@dataclasses.dataclass(frozen=True, eq=False)
class CompiledGame:
    """All that is the same in every history of a game."""

    kind: Any  # pyspiel.GameType
    info: Any  # pyspiel.GameInfo
    num_deals: int
    in_turn: bool
    remembers: bool  # nodes keep their children: only small trees may
    sizes: tuple[int, ...]  # of each seat's view
    begin: Any
    advance: Any

    def __deepcopy__(self, memo: dict) -> "CompiledGame":
        return self

    def __reduce__(self) -> Any:
        return _register_game, (self.kind.short_name,)

    @functools.cached_property
    def roots(self) -> dict[int, Node]:
        return {}

    def root(self, deal: int) -> Node:
        if deal in self.roots:
            return self.roots[deal]
        state, seen = self.begin(np.uint32(deal))
        node = Node(state, jax.device_get(seen), np.zeros(len(self.sizes)))
        if self.remembers:
            self.roots[deal] = node
        return node

    def child(self, node: Node, deal: int, move: int, chosen: tuple[int, ...]) -> Node:
        if chosen in node.children:
            return node.children[chosen]
        actions = np.array(chosen, np.int32)
        state, seen = self.advance(np.uint32(deal), np.uint32(move), node.state, actions)
        seen = jax.device_get(seen)
        child = Node(state, seen, node.total + seen.reward)
        if self.remembers:
            node.children[chosen] = child
        return child


def _compile_game(
    env: Env, short: str, name: str, num_seeds: int, max_length: int, utility: tuple[float, float]
) -> CompiledGame:
    spec = describe(env)
    seats = [(group, i) for group, entry in spec.groups.items() for i in range(entry.size)]
    counts = [
        _num_actions(name, group, entry.action) for group, entry in spec.groups.items() for _ in range(entry.size)
    ]
    dealt = hasattr(env, "deal") and hasattr(env, "num_deals")
    num_deals = int(env.num_deals) if dealt else num_seeds  # pyright: ignore[reportAttributeAccessIssue]
    in_turn = len(spec.groups) == 1 and next(iter(spec.groups.values())).movers == 1
    begin, advance = _programs(env, seats, dealt)
    known = _measure_game(env, in_turn) if dealt else None
    found = known or GameExtent(*utility, max_length, None)
    kind = _Kind(
        short_name=short,
        long_name=f"Shoal: {name}",
        dynamics=_Kind.Dynamics.SEQUENTIAL if in_turn else _Kind.Dynamics.SIMULTANEOUS,
        chance_mode=_Kind.ChanceMode.EXPLICIT_STOCHASTIC if num_deals > 1 else _Kind.ChanceMode.DETERMINISTIC,
        information=_Kind.Information.IMPERFECT_INFORMATION,
        utility=_Kind.Utility.ZERO_SUM if found.utility_sum == 0 else _Kind.Utility.GENERAL_SUM,
        reward_model=_Kind.RewardModel.TERMINAL if in_turn and known else _Kind.RewardModel.REWARDS,
        max_num_players=len(seats),
        min_num_players=len(seats),
        provides_information_state_string=known is not None,
        provides_information_state_tensor=known is not None,
        provides_observation_string=True,
        provides_observation_tensor=True,
    )
    info = pyspiel.GameInfo(
        num_distinct_actions=max(counts),
        max_chance_outcomes=num_deals if num_deals > 1 else 0,
        num_players=len(seats),
        min_utility=found.least,
        max_utility=found.most,
        utility_sum=found.utility_sum,
        max_game_length=found.length,
    )
    _, shapes = jax.eval_shape(begin, jax.ShapeDtypeStruct((), jnp.uint32))
    sizes = tuple(view.shape[0] for view in shapes.view)
    return CompiledGame(kind, info, num_deals, in_turn, known is not None, sizes, begin, advance)


class GameExtent(NamedTuple):
    """The result of playing every history of a small game."""

    least: float
    most: float
    length: int
    utility_sum: float | None


def _measure_game(env: Any, in_turn: bool) -> GameExtent | None:
    """None if the game is too large, its players have several seats, or its views forget the past."""
    try:
        tree = walk(env)
    except OptionError:
        return None
    payoffs = np.round(tree.payoffs * env.num_deals, 9)
    sums = payoffs.sum(axis=1)
    depths = []
    for player, found in enumerate(tree.found):
        actions = len(found.legal[0]) if found.legal else 1
        depth = np.zeros(1 + len(found.parent) * actions, np.int64)
        for number, parent in enumerate(found.parent):  # a set is met after those that lead to it
            depth[1 + number * actions : 1 + (number + 1) * actions] = depth[parent] + 1
        depths.append(depth[tree.ends[:, player]])
    length = np.sum(depths, axis=0) if in_turn else np.max(depths, axis=0)
    constant = float(sums[0]) if np.ptp(sums) == 0 else None
    return GameExtent(float(payoffs.min()), float(payoffs.max()), int(length.max()), constant)


def _programs(env: Any, seats: list[Seat], dealt: bool) -> tuple[Any, Any]:
    """`begin(deal)` and `advance(deal, move, state, actions)`, compiled; both give a state and what is `Seen` there."""
    params, groups = env.default_params(), env.groups

    def key(deal: jax.Array, move: Any) -> jax.Array:
        return jax.random.fold_in(jax.random.fold_in(jax.random.key(0), deal), move)

    def seen(state: PyTree, reward: jax.Array, over: jax.Array) -> NodeView:
        said = env.observe(state, params)
        active, legal, views = [], [], []
        for group, i in seats:
            obs, count = said[group], groups[group].action.n
            active.append(jnp.bool_(True) if obs.active is None else obs.active[i])
            legal.append(jnp.ones(count, bool) if obs.legal is None else obs.legal[i])
            views.append(jnp.concatenate([leaf[i].ravel().astype(jnp.float32) for leaf in jax.tree.leaves(obs.view)]))
        return NodeView(reward, over, jnp.stack(active), legal, views)

    def begin(deal: jax.Array) -> tuple[PyTree, NodeView]:
        state = env.deal(deal.astype(jnp.int32)) if dealt else env.reset(key(deal, 0), params)
        return state, seen(state, jnp.zeros(len(seats)), jnp.bool_(False))

    def advance(deal: jax.Array, move: jax.Array, state: PyTree, chosen: jax.Array) -> tuple[PyTree, NodeView]:
        places = {
            name: jnp.array([seats.index((name, i)) for i in range(group.size)]) for name, group in groups.items()
        }
        actions = {name: chosen[place] for name, place in places.items()}
        state, outcome = env.step(key(deal, move + 1), state, actions, params)
        reward = jnp.stack([outcome.reward[group][i] for group, i in seats])
        return state, seen(state, reward, outcome.terminated | outcome.truncated)

    return jax.jit(begin), jax.jit(advance)


def _num_actions(name: str, group: str, action: Any) -> int:
    if not isinstance(action, Discrete):
        raise OptionError(
            f"as_game: {name} cannot be an OpenSpiel game: the actions of {group!r} are {action}, and OpenSpiel's are "
            "Discrete"
        )
    return action.n


def _register_game(short: str) -> CompiledGame:
    if short not in _registered:
        raise OptionError(f"the game {short!r} is not known in this process: call as_game for its world first")
    return _registered[short]


class ShoalGame(pyspiel.Game):
    """The game of a plan."""

    plan: CompiledGame

    def __init__(self, params: Any = None):
        super().__init__(self.plan.kind, self.plan.info, params or {})

    def new_initial_state(self) -> "ShoalState":
        return ShoalState(self)

    def make_py_observer(self, iig_obs_type: Any = None, params: Any = None) -> "Observer":
        return Observer(self.plan)


class ShoalState(pyspiel.State):
    """A history: the deal and the moves, as a node of the tree."""

    def __init__(self, game: ShoalGame):
        super().__init__(game)
        self.plan = game.plan
        self.deal, self.move = 0, 0
        self.node = self.plan.root(0) if self.plan.num_deals == 1 else None

    def current_player(self) -> int:
        if self.node is None:
            return pyspiel.PlayerId.CHANCE
        if self.node.seen.over:
            return pyspiel.PlayerId.TERMINAL
        if not self.plan.in_turn:
            return pyspiel.PlayerId.SIMULTANEOUS
        movers = np.flatnonzero(self.node.seen.active)
        if len(movers) != 1:
            raise WorldError(f"{self.plan.kind.long_name}: {len(movers)} agents are active, in a game with one mover")
        return int(movers[0])

    def is_terminal(self) -> bool:
        return self.node is not None and bool(self.node.seen.over)

    def chance_outcomes(self) -> list[tuple[int, float]]:
        return [(deal, 1.0 / self.plan.num_deals) for deal in range(self.plan.num_deals)]

    def _legal_actions(self, player: int) -> list[int]:
        if self.node is None or self.node.seen.over or player < 0:
            return []
        if not self.node.seen.active[player]:
            return [] if self.plan.in_turn else [0]
        return np.flatnonzero(self.node.seen.legal[player]).tolist()

    def _apply_action(self, action: int) -> None:
        if self.node is None:
            self._require(0 <= action < self.plan.num_deals, "chance", action, f"0 to {self.plan.num_deals - 1}")
            self.deal, self.node = int(action), self.plan.root(int(action))
            return
        mover = self.current_player()
        self._check(mover, action)
        self._move([action if seat == mover else 0 for seat in range(len(self.plan.sizes))])

    def _apply_actions(self, actions: list[int]) -> None:
        self._require(len(actions) == len(self.plan.sizes), "all players", actions, "one for each of them")
        for player, action in enumerate(actions):
            self._check(player, action)
        self._move(actions)

    def _check(self, player: int, action: int) -> None:
        """Refuses an action that is not legal; who waits may say anything in a game with simultaneous moves."""
        over = self.node is None or bool(self.node.seen.over)
        self._require(not over, f"player {player}", action, "none: no player is to move here")
        assert self.node is not None
        legal = self.node.seen.legal[player]
        fine = not self.node.seen.active[player] or (0 <= action < len(legal) and legal[action])
        self._require(fine, f"player {player}", action, f"one of {np.flatnonzero(legal).tolist()}")

    def _require(self, fine: bool, who: str, action: Any, allowed: str) -> None:
        if not fine:
            title, history = self.plan.kind.long_name, self.history()
            raise OptionError(f"{title}: the action of {who} after {history} must be {allowed}, got {action}")

    def _move(self, actions: list[int]) -> None:
        assert self.node is not None
        self.node = self.plan.child(self.node, self.deal, self.move, tuple(int(action) for action in actions))
        self.move += 1

    def _action_to_string(self, player: int, action: int) -> str:
        return f"{'deal' if player == pyspiel.PlayerId.CHANCE else 'action'} {action}"

    def returns(self) -> list[float]:
        at_end = self.plan.kind.reward_model == _Kind.RewardModel.TERMINAL
        if self.node is None or (at_end and not self.node.seen.over):
            return [0.0] * len(self.plan.sizes)
        return self.node.total.tolist()

    def rewards(self) -> list[float]:
        if self.plan.kind.reward_model == _Kind.RewardModel.TERMINAL or self.node is None:
            return self.returns()
        return np.asarray(self.node.seen.reward, np.float64).tolist()

    def __str__(self) -> str:
        return " ".join(map(str, self.history()))


class Observer:
    """What a player sees, as OpenSpiel asks for it; seats with smaller views have zeros behind them."""

    def __init__(self, plan: CompiledGame):
        self._sizes = plan.sizes
        self.tensor = np.zeros(max(plan.sizes), np.float32)
        self.dict = {"view": self.tensor}

    def set_from(self, state: ShoalState, player: int) -> None:
        self.tensor.fill(0)
        if state.node is not None:
            self.tensor[: self._sizes[player]] = state.node.seen.view[player]

    def string_from(self, state: ShoalState, player: int) -> str:
        view = [] if state.node is None else state.node.seen.view[player]
        return f"player {player} sees " + " ".join(f"{value:.9g}" for value in view)
