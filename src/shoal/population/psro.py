"""Policy-space response oracles (Lanctot et al. 2017): grow a population by best responses to mixtures of itself.

    repeat:  play the missing entries of the payoff table;  mixtures = meta-solver(payoffs);
             for every player, add a best response to the others' mixtures

`psro` is the loop alone. It is handed the game's sides as callables: `respond` trains (or computes) a best response of
every player, `evaluate` plays line-ups, `measure` says how far mixtures are from equilibrium where that is known. It
yields the state after every iteration, which is all that is needed to go on from there.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from shoal.core.errors import OptionError, require, require_positive
from shoal.core.types import PyTree
from shoal.population.bank import ROOM, Member, PolicyBank
from shoal.population.meta_solvers import META_SOLVERS, solve
from shoal.population.payoff import PayoffTable

Banks = Mapping[str, PolicyBank]
Mixtures = Sequence[np.ndarray]
Respond = Callable[["State"], Mapping[str, tuple[PyTree, dict[str, Any]]]]
"""Best responses by player to the state's mixtures, and what is to be remembered of each."""
Evaluate = Callable[["State", np.ndarray], tuple[np.ndarray, np.ndarray, int]]
"""Sums of returns and of squares `[M, players]` of line-ups `[M, players]`, and over how many episodes of each."""
Measure = Callable[["State"], dict[str, float]]
"""Figures such as `nash_conv` of the state's mixtures."""


MOST_ROOM = 64
"""Places of a bank at the start, at most: more would slow down every draw of an opponent."""


@dataclasses.dataclass(frozen=True)
class PSRO:
    """How a population grows."""

    meta_solver: str = "fictitious_play"  # what makes mixtures of payoffs
    solver_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # and its options
    iterations: int = 40  # best responses of every player, at most
    episodes: int = 2000  # played for each entry of the payoff table
    target_error: float | None = None  # and more until the standard error is at most this
    target_nash_conv: float | None = None  # stop when it is reached
    patience: int | None = None  # stop after so many best responses in a row that improve nothing
    improvement: float = 0.0  # what counts: a response must earn so much more than the mixture

    @property
    def room(self) -> int:
        """Places for all policies that there will be, if they are not too many: then nothing is compiled twice."""
        return min(MOST_ROOM, 1 << self.iterations.bit_length())

    def __post_init__(self):
        known = self.meta_solver in META_SOLVERS
        require(known, "PSRO", "meta_solver", self.meta_solver, " or ".join(repr(name) for name in META_SOLVERS))
        require_positive("PSRO", iterations=self.iterations, episodes=self.episodes)


@dataclasses.dataclass(frozen=True)
class State:
    """A population and what is known of it. history: one record of figures for every iteration."""

    banks: Banks
    table: PayoffTable
    mixtures: tuple[np.ndarray, ...]
    iteration: int
    history: tuple[dict[str, Any], ...] = ()

    @property
    def players(self) -> tuple[str, ...]:
        return tuple(self.banks)

    @property
    def values(self) -> np.ndarray:
        """What each player expects when all play their mixtures."""
        value = self.table.mean
        for mixture in reversed(self.mixtures):
            value = value @ mixture
        return value


def begin(policies: Mapping[str, PyTree], room: int = ROOM, symmetric: bool = False) -> State:
    """A population of one policy a player, with room for so many until banks grow."""
    if not policies:
        raise OptionError("a population needs a first policy for each player, got none")
    banks = {player: PolicyBank.of(policy, Member("0"), room) for player, policy in policies.items()}
    return State(banks, PayoffTable.empty(len(banks), symmetric), (), 0)


def psro(state: State, plan: PSRO, respond: Respond, evaluate: Evaluate, measure: Measure) -> Iterator[State]:
    """Grows the population; yields the state whenever its table, its mixtures and its figures are complete."""
    if not state.history:
        state = _settled(state, plan, evaluate, measure, time.perf_counter(), {})
        yield state
    while not _done(state, plan):
        began = time.perf_counter()
        responses = respond(state)
        trained = time.perf_counter() - began
        grown = {}
        for player, bank in state.banks.items():
            policy, info = responses[player]
            parent = info.pop("parent", None)
            grown[player] = bank.add(policy, Member(str(len(bank)), parent, state.iteration + 1, info=info))
        gain = _gain(state, responses)
        state = dataclasses.replace(state, banks=grown, iteration=state.iteration + 1)
        state = _settled(state, plan, evaluate, measure, began, {"respond_s": round(trained, 3)} | gain)
        yield state


def _settled(state: State, plan: PSRO, evaluate: Evaluate, measure: Measure, began: float, figures: dict) -> State:
    """With a complete table, its mixtures, and a line of history."""
    start = time.perf_counter()
    table = state.table.grown(tuple(len(bank) for bank in state.banks.values()))
    while len(lineups := table.missing(plan.episodes, plan.target_error)):
        table = table.added(lineups, *evaluate(dataclasses.replace(state, table=table), lineups))
    played = time.perf_counter() - start
    mixtures = tuple(solve(plan.meta_solver, table.mean, **plan.solver_options))
    state = dataclasses.replace(state, table=table, mixtures=mixtures)
    before = state.history[-1]["seconds"] if state.history else 0.0
    seconds = before + time.perf_counter() - began
    figures = figures | {"evaluate_s": round(played, 3), "seconds": round(seconds, 3)}
    line = {"iteration": state.iteration, "population": max(table.sizes)} | measure(state) | figures
    line |= {"value": float(state.values[0]), "support": [int((mix > 1e-3).sum()) for mix in mixtures]}
    line["mixtures"] = [mixture.round(6).tolist() for mixture in mixtures]
    return dataclasses.replace(state, history=(*state.history, line))


def _gain(state: State, responses: Mapping[str, tuple[PyTree, dict[str, Any]]]) -> dict[str, Any]:
    """How much more than its mixture each response earned while it was trained, where that is known."""
    values = dict(zip(state.players, state.values, strict=True))
    known = {player: info["earned"] for player, (_, info) in responses.items() if "earned" in info}
    return {"gain": [round(float(earned - values[player]), 5) for player, earned in known.items()]} if known else {}


def _done(state: State, plan: PSRO) -> bool:
    if state.iteration >= plan.iterations:
        return True
    reached = state.history[-1].get("nash_conv", np.inf)
    if plan.target_nash_conv is not None and reached <= plan.target_nash_conv:
        return True
    last = [line.get("gain") for line in state.history[-(plan.patience or 0) :]] if plan.patience else []
    return len(last) == plan.patience and all(gain and max(gain) <= plan.improvement for gain in last)
