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
from typing import Any, NamedTuple

import numpy as np

from shoal.core.errors import OptionError, require, require_positive
from shoal.core.types import PyTree
from shoal.population.bank import ROOM, Member, PolicyBank
from shoal.population.meta_solvers import META_SOLVERS, solve
from shoal.population.payoff import PayoffTable

Banks = Mapping[str, PolicyBank]
Mixtures = Sequence[np.ndarray]


class Response(NamedTuple):
    """A new policy of a player, and what is to be remembered of it.

    parent: the member it was trained on from, if any. replaces: the member whose place it takes; None for a new one.
    """

    policy: PyTree
    info: dict[str, Any]
    parent: int | None = None
    replaces: int | None = None


Respond = Callable[["State"], Mapping[str, Sequence[Response]]]
"""New policies by player: best responses to the state's mixtures."""
Evaluate = Callable[["State", np.ndarray], tuple[np.ndarray, np.ndarray, int]]
"""Sums of returns and of squares `[M, players]` of line-ups `[M, players]`, and over how many episodes of each."""
Mix = Callable[["State"], Sequence[np.ndarray]]
"""One mixture for each player."""
Measure = Callable[["State"], dict[str, float]]
"""Figures such as `nash_conv` of the state's mixtures."""


WITHOUT_PAYOFFS = ("uniform", "last", "recent")
"""Meta-solvers that look at the size of the population alone."""
BEYOND_PAYOFFS = ("anytime", "league")
"""What makes mixtures of more than payoffs: see `anytime` and `league`."""
MOST_ROOM = 64
"""Places of a bank at the start, at most: more would slow down every draw of an opponent."""


@dataclasses.dataclass(frozen=True)
class PSRO:
    """How a population grows."""

    meta_solver: str = "fictitious_play"  # what makes mixtures of payoffs
    solver_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # and its options
    iterations: int = 40  # best responses of every player, at most
    episodes: int = 2000  # played for each entry of the payoff table; 0: no table, where the meta-solver needs none
    target_error: float | None = None  # and more until the standard error is at most this
    target_nash_conv: float | None = None  # stop when it is reached
    patience: int | None = None  # stop after so many best responses in a row that improve nothing
    improvement: float = 0.0  # what counts: a response must earn so much more than the mixture

    @property
    def room(self) -> int:
        """Places for all policies that there will be, if they are not too many: then nothing is compiled twice."""
        return min(MOST_ROOM, 1 << self.iterations.bit_length())

    def __post_init__(self):
        names = (*META_SOLVERS, *BEYOND_PAYOFFS)
        require(self.meta_solver in names, "PSRO", "meta_solver", self.meta_solver, " or ".join(map(repr, names)))
        require_positive("PSRO", iterations=self.iterations)
        least = 0 if self.meta_solver in WITHOUT_PAYOFFS else 1
        allowed = f"at least 1; only {', '.join(WITHOUT_PAYOFFS)} need no payoffs" if least else "0 or more"
        require(self.episodes >= least, "PSRO", "episodes", self.episodes, allowed)


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


def psro(
    state: State, plan: PSRO, respond: Respond, evaluate: Evaluate, measure: Measure, mix: Mix | None = None
) -> Iterator[State]:
    """Grows the population; yields the state whenever its table, its mixtures and its figures are complete.

    mix: makes mixtures of more than payoffs, for plans that name `anytime` or `league`.
    """
    settle = _Settle(plan, evaluate, measure, mix)
    if not state.history:
        state = settle(state, time.perf_counter(), {})
        yield state
    while not _done(state, plan):
        began = time.perf_counter()
        responses = respond(state)
        trained = time.perf_counter() - began
        gain = _gain(state, responses)
        state = _grown(state, responses)
        state = settle(state, began, {"respond_s": round(trained, 3)} | gain)
        yield state


@dataclasses.dataclass(frozen=True)
class _Settle:
    """Completes a state: its table, its mixtures, and a line of history."""

    plan: PSRO
    evaluate: Evaluate
    measure: Measure
    mix: Mix | None

    def __call__(self, state: State, began: float, figures: dict[str, Any]) -> State:
        start = time.perf_counter()
        state = self._played(state)
        played = time.perf_counter() - start
        state = dataclasses.replace(state, mixtures=self._mixtures(state))
        before = state.history[-1]["seconds"] if state.history else 0.0
        line = {"iteration": state.iteration, "population": max(state.table.sizes)} | self.measure(state) | figures
        if self.plan.episodes:
            line["value"] = float(state.values[0])
        line["support"] = [int((mixture > 1e-3).sum()) for mixture in state.mixtures]
        line["mixtures"] = [mixture.round(6).tolist() for mixture in state.mixtures]
        seconds = before + time.perf_counter() - began
        line |= {"evaluate_s": round(played, 3), "seconds": round(seconds, 3)}
        return dataclasses.replace(state, history=(*state.history, line))

    def _played(self, state: State) -> State:
        plan, table = self.plan, state.table.grown(tuple(len(bank) for bank in state.banks.values()))
        while plan.episodes and len(lineups := table.missing(plan.episodes, plan.target_error)):
            table = table.added(lineups, *self.evaluate(dataclasses.replace(state, table=table), lineups))
        return dataclasses.replace(state, table=table)

    def _mixtures(self, state: State) -> tuple[np.ndarray, ...]:
        plan = self.plan
        if plan.meta_solver in BEYOND_PAYOFFS:
            if self.mix is None:
                raise OptionError(f"{plan.meta_solver} is not made of payoffs alone; give what mixes as `mix`")
            return tuple(self.mix(state))
        payoffs = state.table.mean if plan.episodes else np.zeros_like(state.table.total)
        return tuple(solve(plan.meta_solver, payoffs, **plan.solver_options))


def _grown(state: State, responses: Mapping[str, Sequence[Response]]) -> State:
    """With the new policies in the banks; what was known of those that they replace is forgotten."""
    banks, table = {}, state.table
    for number, (player, bank) in enumerate(state.banks.items()):
        for policy, info, parent, replaces in responses[player]:
            if replaces is None:
                bank = bank.add(policy, Member(str(len(bank)), parent, state.iteration + 1, info=info))
            else:
                bank, table = bank.replaced(replaces, policy, **info), table.forgotten(number, replaces)
        banks[player] = bank
    return dataclasses.replace(state, banks=banks, table=table, iteration=state.iteration + 1)


def _gain(state: State, responses: Mapping[str, Sequence[Response]]) -> dict[str, Any]:
    """How much more than its mixture the best response of each player earned while it was trained, if that is known."""
    values = dict(zip(state.players, state.values, strict=True))
    earned = {
        player: [new.info["earned"] for new in news if "earned" in new.info] for player, news in responses.items()
    }
    if not all(earned.values()) or not np.isfinite(state.values).all():
        return {}
    return {"gain": [round(float(max(got) - values[player]), 5) for player, got in earned.items()]}


def _done(state: State, plan: PSRO) -> bool:
    if state.iteration >= plan.iterations:
        return True
    reached = state.history[-1].get("nash_conv", np.inf)
    if plan.target_nash_conv is not None and reached <= plan.target_nash_conv:
        return True
    last = [line.get("gain") for line in state.history[-(plan.patience or 0) :]] if plan.patience else []
    return len(last) == plan.patience and all(gain and max(gain) <= plan.improvement for gain in last)
