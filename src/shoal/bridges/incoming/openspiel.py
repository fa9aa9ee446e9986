"""OpenSpiel: its games as worlds (`openspiel:leduc_poker`), Shoal's games as its games, and policies as its bots.

**In.** `make("kuhn_poker(players=3)")`, or `make("kuhn_poker", players=3)`, is a host environment with one group
`player`, one seat and one player for each of the game's. Its view is the information state tensor if the game has one,
else the observation tensor; boards, which OpenSpiel stores as [C, H, W], become [H, W, C]. `active` says whose turn it
is, `legal` what they may do; for waiting players all actions are legal. Chance is drawn from a generator that the seed
begins. Rewards are differences of `returns()`, so what is earned while others move is not lost. An illegal action of an
active player is an error, since OpenSpiel does not say what it does.

**Out.** `as_game("cards/leduc")` is a `pyspiel.Game` that OpenSpiel's own algorithms run on; see `as_game`.

**Bots.** `bot` and `policy_bot` let a function or a trained policy sit in a seat of `pyspiel.evaluate_bots`.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import pyspiel

from shoal.bridges.incoming._batches import stand_in_for
from shoal.bridges.outgoing.openspiel import as_game
from shoal.core.algorithm import Algorithm
from shoal.core.env import Env
from shoal.core.errors import OptionError, WorldError, require, unknown_name
from shoal.core.host import Observations
from shoal.core.spaces import Box, Discrete
from shoal.core.types import Group, Observation, Outcome, PyTree, Seat

__all__ = ["OpenSpiel", "as_game", "bot", "make", "policy_bot"]

GROUP = "player"
_SEED = "rng_seed"  # the parameter of games that draw their chance themselves


def make(name: str, **options: Any) -> Env:
    """A game by its name or game string, such as `goofspiel(num_cards=4)`; options are further parameters of it."""
    title = f"openspiel:{name}"
    game = _load(title, name, options)
    return stand_in_for(OpenSpiel(game, title), lambda: OpenSpiel(game, title))


class OpenSpiel:
    """An OpenSpiel game as a `HostEnv`."""

    def __init__(self, game: pyspiel.Game, name: str):
        kind = game.get_type()
        self.name, self.game = name, game
        self.masked = self.leaving = True
        self.view = View(game, name)
        turns = kind.dynamics == pyspiel.GameType.Dynamics.SEQUENTIAL
        self.num_actions = game.num_distinct_actions()
        self.groups: Mapping[str, Group] = {
            GROUP: Group(
                game.num_players(), Discrete(self.num_actions), Box(self.view.shape), movers=1 if turns else None
            )
        }
        self.players: dict[str, tuple[Seat, ...]] = {f"{GROUP}_{i}": ((GROUP, i),) for i in range(game.num_players())}
        self._random = np.random.default_rng()
        self._own_chance = kind.chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC
        self._state: pyspiel.State | None = None
        self._steps = 0

    def reset(self, seed: int | None) -> Observations:
        if seed is not None:
            self._random = np.random.default_rng(seed)
            self._reseed(seed)
        self._steps = 0
        state = self._state = self._past_chance(self.game.new_initial_state())
        self._returns = np.array(state.returns())
        return self._observe(state)

    def step(self, actions: Mapping[str, np.ndarray]) -> tuple[Observations, Outcome]:
        state = self._state
        if state is None or state.is_terminal():
            raise WorldError(f"{self.name}: a step after the end of an episode, or before `reset`")
        chosen = [int(action) for action in actions[GROUP]]
        for player in _movers(state):
            legal = state.legal_actions(player)
            if chosen[player] not in legal:
                raise WorldError(
                    f"{self.name}: player {player} took the action {chosen[player]} at step {self._steps}, "
                    f"where {legal} are legal"
                )
        if state.is_simultaneous_node():
            state.apply_actions([action if state.legal_actions(i) else 0 for i, action in enumerate(chosen)])
        else:
            state.apply_action(chosen[state.current_player()])
        self._steps += 1
        self._past_chance(state)
        returns = np.array(state.returns())
        reward: Any = (returns - self._returns).astype(np.float32)
        self._returns = returns
        over: Any = np.bool_(state.is_terminal())
        return self._observe(state), Outcome({GROUP: reward}, over, over & False)

    def close(self) -> None:
        self._state = None

    @property
    def state(self) -> pyspiel.State:
        """OpenSpiel's own state, for inspection."""
        if self._state is None:
            raise WorldError(f"{self.name}: no episode has begun; call `reset` first")
        return self._state

    def _reseed(self, seed: int) -> None:
        """Games that draw their chance inside take their seed as a parameter."""
        parameters = self.game.get_parameters()
        if self._own_chance and _SEED in self.game.get_type().parameter_specification:
            name = self.game.get_type().short_name
            self.game = pyspiel.load_game(name, {**parameters, _SEED: int(seed % 2**31)})

    def _past_chance(self, state: pyspiel.State) -> pyspiel.State:
        while state.is_chance_node():
            outcomes, probabilities = zip(*state.chance_outcomes(), strict=True)
            place = np.searchsorted(np.cumsum(probabilities), self._random.random() * sum(probabilities), side="right")
            state.apply_action(outcomes[min(int(place), len(outcomes) - 1)])
        return state

    def _observe(self, state: pyspiel.State) -> Observations:
        size = len(self.players)
        legal: Any = np.ones((size, self.num_actions), bool)
        active: Any = np.zeros(size, bool)
        present: Any = np.ones(size, bool)
        for player in _movers(state):
            active[player] = True
            legal[player] = legal_row(state, player, self.num_actions)
        views = np.stack([self.view(state, player) for player in range(size)])
        return {GROUP: Observation(views, legal, active, present)}


class View:
    """What a player of a game sees, as an array: `view(state, player)`; `shape` is its shape."""

    def __init__(self, game: pyspiel.Game, name: str):
        kind = game.get_type()
        if kind.dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD:
            raise OptionError(f"{name} is a mean field game: it has a distribution of players, not seats for them")
        if not (kind.provides_information_state_tensor or kind.provides_observation_tensor):
            raise OptionError(
                f"{name} has neither an information state tensor nor an observation tensor: nothing to learn from"
            )
        self._informed = kind.provides_information_state_tensor
        what = "information_state_tensor" if self._informed else "observation_tensor"
        try:
            shape, layout = getattr(game, f"{what}_shape")(), getattr(game, f"{what}_layout")()
        except pyspiel.SpielError as error:
            raise OptionError(f"{name} says that it has a tensor to learn from, but: {str(error).strip()}") from error
        self._theirs = tuple(shape)
        self._is_board = len(shape) == 3 and layout == pyspiel.TensorLayout.CHW
        self.shape = (shape[1], shape[2], shape[0]) if self._is_board else self._theirs

    def __call__(self, state: pyspiel.State, player: int) -> np.ndarray:
        tensor = state.information_state_tensor(player) if self._informed else state.observation_tensor(player)
        view = np.array(tensor, np.float32).reshape(self._theirs)
        return np.moveaxis(view, 0, -1) if self._is_board else view


def legal_row(state: pyspiel.State, player: int, num_actions: int) -> np.ndarray:
    """The legal actions of a player as a mask."""
    row = np.zeros(num_actions, bool)
    row[state.legal_actions(player)] = True
    return row


class _Bot(pyspiel.Bot):
    """A seat of an OpenSpiel match played by `decide(view, legal) -> probabilities`."""

    def __init__(self, game: pyspiel.Game, player: int, decide: Callable[..., Any], seed: int):
        pyspiel.Bot.__init__(self)
        self._view = View(game, str(game))
        self._num_actions = game.num_distinct_actions()
        self._player = player
        self._decide = decide
        self._random = np.random.default_rng(seed)

    def restart(self) -> None:
        pass

    def restart_at(self, state: pyspiel.State) -> None:
        pass

    def provides_policy(self) -> bool:
        return True

    def get_policy(self, state: pyspiel.State) -> list[tuple[int, float]]:
        _check_turn(state, self._player)
        legal = legal_row(state, self._player, self._num_actions)
        said = np.asarray(self._decide(self._view(state, self._player), legal), np.float64)
        allowed = f"a chance for each of {self._num_actions} actions"
        require(said.shape == legal.shape, "bot", "what decide returns", said.tolist(), allowed)
        probabilities = np.where(legal, said, 0.0)
        total = probabilities.sum()
        ok = (probabilities >= 0).all() and 0 < total < np.inf
        require(bool(ok), "bot", "policy", probabilities.tolist(), "a chance for every action, some of them above 0")
        return [(int(action), float(probabilities[action] / total)) for action in np.flatnonzero(legal)]

    def step_with_policy(self, state: pyspiel.State) -> tuple[list[tuple[int, float]], int]:
        policy = self.get_policy(state)
        actions, probabilities = zip(*policy, strict=True)
        return policy, int(self._random.choice(actions, p=np.array(probabilities) / sum(probabilities)))

    def step(self, state: pyspiel.State) -> int:
        return self.step_with_policy(state)[1]


class _PolicyBot(pyspiel.Bot):
    """A seat of an OpenSpiel match played by a trained policy; its memory is reset in every game."""

    def __init__(self, game: pyspiel.Game, player: int, algorithm: Algorithm, params: PyTree, seed: int, explore: bool):
        pyspiel.Bot.__init__(self)
        self._view = View(game, str(game))
        self._num_actions = game.num_distinct_actions()
        self._player = player
        self._begin = lambda: algorithm.initial_memory(params)
        self._memory = self._begin()
        self._key, self._moves = jax.random.key(seed), 0

        def act(params: PyTree, view: Any, legal: Any, memory: PyTree, key: jax.Array, move: Any) -> Any:
            there: Any = np.bool_(True)
            observation = Observation(view, legal, there, there)
            return algorithm.act(params, observation, memory, jax.random.fold_in(key, move), explore)

        self._params, self._act = params, jax.jit(act)

    def restart(self) -> None:
        self._memory = self._begin()

    def restart_at(self, state: pyspiel.State) -> None:
        self.restart()

    def step(self, state: pyspiel.State) -> int:
        _check_turn(state, self._player)
        legal = legal_row(state, self._player, self._num_actions)
        view = self._view(state, self._player)
        out = self._act(self._params, view, legal, self._memory, self._key, np.uint32(self._moves))
        self._memory, self._moves = out.memory, self._moves + 1
        return int(out.action)


def bot(game: pyspiel.Game, player: int, decide: Callable[[np.ndarray, np.ndarray], Any], seed: int = 0) -> Any:
    """A `pyspiel.Bot` that plays one seat by a function, such as a PyTorch network or a rule.

    `decide(view, legal)` gets the view that the game's world has and a mask of the legal actions, and returns a chance
    for every action; those of illegal ones are ignored, the others scaled to sum to 1.
    """
    _check_seat(game, player)
    return _Bot(game, player, decide, seed)


def policy_bot(
    game: pyspiel.Game, player: int, algorithm: Algorithm, params: PyTree, seed: int = 0, explore: bool = True
) -> Any:
    """A `pyspiel.Bot` that plays one seat by a policy trained on the game's world; `explore` as in `Algorithm.act`."""
    _check_seat(game, player)
    return _PolicyBot(game, player, algorithm, params, seed, explore)


def _check_seat(game: pyspiel.Game, player: int) -> None:
    seats = game.num_players()
    require(0 <= player < seats, "bot", "player", player, f"a seat of the game, 0 to {seats - 1}")


def _check_turn(state: pyspiel.State, player: int) -> None:
    movers = _movers(state)
    if player not in movers:
        now = "nobody is" if not movers else "chance is" if movers[0] < 0 else f"player {movers[0]} is"
        raise OptionError(f"bot: it sits in the seat of player {player}, but {now} to move: give each seat its own bot")


def _movers(state: pyspiel.State) -> list[int]:
    """Who has to choose now."""
    if state.is_terminal():
        return []
    if state.is_simultaneous_node():
        return [player for player in range(state.num_players()) if state.legal_actions(player)]
    return [state.current_player()]


def _load(title: str, name: str, options: Mapping[str, Any]) -> pyspiel.Game:
    short = name.partition("(")[0].strip()
    if short.startswith("python_"):
        importlib.import_module("open_spiel.python.games")  # registers those that are written in Python
    known = pyspiel.registered_names()
    if short not in known:
        raise OptionError(f"{title}: {unknown_name('OpenSpiel game', short, known)}")
    try:
        inside = pyspiel.game_parameters_from_string(name)
    except (pyspiel.SpielError, ValueError, RuntimeError) as error:
        raise OptionError(f"{title}: OpenSpiel cannot read the name: {str(error).strip()}") from error
    for option, value in options.items():
        twice = option in inside and inside[option] != value
        require(
            not twice, title, option, value, f"{inside.get(option)!r}, as the name has it, or left out of one of them"
        )
    try:
        parameters = {**inside, **options}
        parameters.pop("name", None)
        return pyspiel.load_game(short, parameters)
    except (pyspiel.SpielError, TypeError, LookupError, ValueError, RuntimeError) as error:
        said = f"{title}: OpenSpiel cannot load it: {str(error).strip()}"
        raise OptionError(f"{said}{_example(short, inside)}") from error


def _example(short: str, given: Mapping[str, Any]) -> str:
    """How the parameters of a game that does not load without any are written."""
    kind = next(kind for kind in pyspiel.registered_games() if kind.short_name == short)
    if kind.default_loadable or len(given) > 1:  # the name is one of those given
        return ""
    wanted = kind.parameter_specification
    games = ", ".join(f"{name}=kuhn_poker()" for name in ("game", "stage_game") if name in wanted)
    whole = f", such as 'openspiel:{short}({games})'" if games else ""
    return f". It takes the parameters {', '.join(wanted)}{whole}"
