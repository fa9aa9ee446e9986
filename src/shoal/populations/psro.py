"""Policy-space response oracles (Lanctot et al. 2017): grow a population by best responses to mixtures of itself.

    repeat:  play the missing entries of the payoff table;  mixtures = meta-solver(payoffs);
             for every player, add a best response to the others' mixtures, broadened by some uniform play

`psro` is the loop alone. The game is given as callables: `respond` trains (or computes) a best response of every
player, `evaluate` plays line-ups, `measure` gives the distance of mixtures from equilibrium where that is known. It
yields the state after every iteration, which is all that is needed to continue from there.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from shoal.core.checks import check_types
from shoal.core.errors import OptionError, require, require_positive
from shoal.core.types import PyTree
from shoal.games.meta_solvers import META_SOLVERS, solve
from shoal.games.payoff import PayoffTable
from shoal.populations.bank import ROOM, Member, PolicyBank

Banks = Mapping[str, PolicyBank]
Mixtures = Sequence[np.ndarray]


class Response(NamedTuple):
    """A new policy of a player, and its record.

    parent: the member that its training started from, if any. replaces: the member whose place it takes; None for a new
    one.
    """

    policy: PyTree
    info: dict[str, Any]
    parent: int | None = None
    replaces: int | None = None


Respond = Callable[["PSROState"], Mapping[str, Sequence[Response]]]
"""New policies by player: best responses to the state's mixtures."""
Evaluate = Callable[["PSROState", np.ndarray], tuple[np.ndarray, np.ndarray, int]]
"""Sums of returns and of squares `[M, players]` of line-ups `[M, players]`, and the number of episodes of each."""
Mix = Callable[["PSROState"], Sequence[np.ndarray]]
"""One mixture for each player."""
Measure = Callable[["PSROState"], dict[str, float]]
"""Figures such as `nash_conv` of the state's mixtures."""


WITHOUT_PAYOFFS = ("uniform", "last", "recent")
"""Meta-solvers that depend on the size of the population alone."""
BEYOND_PAYOFFS = ("anytime", "league")
"""Meta-solvers that need more than payoffs: see `anytime` and `league`."""
UNIFORM_SHARE = 0.4
"""Default share of uniform play. Responses to a mixture alone are arbitrary in situations that the mixture never
reaches,
and each such gap costs an iteration later: on Leduc this share halves the iterations to a NashConv of 1.0 (exact
responses: 31 -> 15)."""
ROUNDING = 1e-6
"""A gain of at most this is rounding: payoffs are sums of many numbers."""
MOST_ROOM = 64
"""The largest initial capacity of a bank: more would slow down every draw of an opponent."""


@dataclasses.dataclass(frozen=True)
class PSRO:
    """How a population grows."""

    renamed: ClassVar[Mapping[str, str]] = {"breadth": "uniform_share"}  # entries of folders of earlier versions

    meta_solver: str = "fictitious_play"
    """what makes mixtures of payoffs: alpha_rank, cce, ce, fictitious_play, nash, prioritised, regret_matching,
    replicator; of the policies' age: last, recent, uniform; or anytime"""
    solver_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # and its options
    uniform_share: float | None = None
    """share of uniform play in what responses are trained against; by default 0.4, or 0 for last, recent and leagues"""
    iterations: int = 40  # best responses of every player, at most; in a league, snapshots of the main agents
    episodes: int = 2000  # played for each entry of the payoff table; 0: no table, where the meta-solver needs none
    target_error: float | None = None  # play more until the standard error is at most this
    target_nash_conv: float | None = None  # stop when it is reached; needs a game with exact tables
    patience: int | None = None  # stop after so many iterations in a row without a gain
    improvement: float = 0.0  # what counts as a gain: a response must earn so much more than the mixture

    def room_for(self, more: int = 0) -> int:
        """Capacity for all future policies, unless they are too many: then nothing is compiled twice.

        more: the number of initial policies.
        """
        return min(MOST_ROOM, 1 << (self.iterations + more).bit_length())

    def uniform_share_after(self, history: Sequence[Mapping[str, Any]] = ()) -> float:
        """The share of uniform play for the next responses; 0 after responses without a gain.

        Only responses to the mixtures themselves show whether a gain is still possible.
        """
        if history and self.gained_nothing(history[-1]):
            return 0.0
        payoffs = self.meta_solver not in (*WITHOUT_PAYOFFS, *BEYOND_PAYOFFS)
        return self.uniform_share if self.uniform_share is not None else UNIFORM_SHARE if payoffs else 0.0

    def gained_nothing(self, line: Mapping[str, Any]) -> bool:
        """Whether, in an iteration, no player's response improved on its mixture."""
        gain = line.get("gain")
        return bool(gain) and max(gain) <= max(self.improvement, ROUNDING)

    def __post_init__(self):
        check_types(self)
        names = (*META_SOLVERS, *BEYOND_PAYOFFS)
        require(self.meta_solver in names, "PSRO", "meta_solver", self.meta_solver, " or ".join(map(repr, names)))
        require_positive("PSRO", iterations=self.iterations)
        least = 0 if self.meta_solver in WITHOUT_PAYOFFS else 1
        if self.uniform_share is not None:
            require(0 <= self.uniform_share <= 1, "PSRO", "uniform_share", self.uniform_share, "a share from 0 to 1")
            narrow = self.meta_solver in BEYOND_PAYOFFS and self.uniform_share > 0
            require(
                not narrow,
                "PSRO",
                "uniform_share",
                self.uniform_share,
                f"0 with {self.meta_solver}, which picks opponents",
            )
        if self.target_nash_conv is not None:
            require(self.target_nash_conv >= 0, "PSRO", "target_nash_conv", self.target_nash_conv, "0 or more")
        if self.target_error is not None:
            require(self.target_error > 0, "PSRO", "target_error", self.target_error, "a positive number")
        if self.patience is not None:
            require(self.patience >= 1, "PSRO", "patience", self.patience, "at least 1")
        require(0 <= self.improvement < np.inf, "PSRO", "improvement", self.improvement, "0 or more")
        allowed = f"at least 1; only {', '.join(WITHOUT_PAYOFFS)} need no payoffs" if least else "0 or more"
        require(self.episodes >= least, "PSRO", "episodes", self.episodes, allowed)


@dataclasses.dataclass(frozen=True)
class PSROState:
    """A population and its payoffs. history: one record of figures per iteration."""

    banks: Banks
    table: PayoffTable
    mixtures: tuple[np.ndarray, ...]
    iteration: int
    history: tuple[dict[str, Any], ...] = ()

    @property
    def players(self) -> tuple[str, ...]:
        return tuple(self.banks)

    @property
    def learning(self) -> tuple[str, ...]:
        """The players whose responses are trained: in a symmetric game, where all share one bank, the first."""
        return self.players[:1] if self.table.symmetric else self.players

    @property
    def values(self) -> np.ndarray:
        """Each player's expected return when all play their mixtures."""
        value = self.table.mean
        for mixture in reversed(self.mixtures):
            value = value @ mixture
        return value


def begin_population(policies: Mapping[str, PyTree], room: int = ROOM, symmetric: bool = False) -> PSROState:
    """A population of one policy per player, capacity: of the new banks.

    symmetric: all players share one bank, which begins with the first player's policy.
    """
    if not policies:
        raise OptionError("a population needs a first policy for each player, got none")
    banks = {player: PolicyBank.of(policy, Member("0"), room) for player, policy in policies.items()}
    return PSROState(share_first_bank(banks) if symmetric else banks, PayoffTable.empty(len(banks), symmetric), (), 0)


def share_first_bank(banks: Banks) -> Banks:
    """The first player's bank, for all players."""
    return dict.fromkeys(banks, next(iter(banks.values())))


def average_mixtures(mixtures: Mixtures) -> tuple[np.ndarray, ...]:
    """The mean of the players' mixtures, for each of them.

    In a symmetric zero-sum game for two an equilibrium stays one: both players have the same set of optimal mixtures,
    and it is convex. Most solvers give all players the same mixture anyway.
    """
    mean = np.mean(mixtures, axis=0)
    return tuple(mean for _ in mixtures)


def solve_mixtures(plan: "PSRO", payoffs: np.ndarray, symmetric: bool) -> tuple[np.ndarray, ...]:
    """The mixtures that the plan's meta-solver computes from payoffs `[players, m0, m1, ...]`."""
    mixtures = tuple(solve(plan.meta_solver, payoffs, **plan.solver_options))
    return average_mixtures(mixtures) if symmetric else mixtures


def mix_with_uniform(mixtures: Mixtures, share: float) -> tuple[np.ndarray, ...]:
    """Mixtures with that share of uniform play."""
    return tuple((1 - share) * mixture + share / len(mixture) for mixture in mixtures)


def psro(
    state: PSROState, plan: PSRO, respond: Respond, evaluate: Evaluate, measure: Measure, mix: Mix | None = None
) -> Iterator[PSROState]:
    """Grows the population; yields the state whenever its table, mixtures and figures are complete.

    mix: computes mixtures for plans with `anytime` or `league`, which need more than payoffs.
    """
    while not (state.history and finished(state.history, plan)):
        state = iterate(state, plan, respond, evaluate, measure, mix)
        yield state


def iterate(
    state: PSROState, plan: PSRO, respond: Respond, evaluate: Evaluate, measure: Measure, mix: Mix | None = None
) -> PSROState:
    """One iteration: adds best responses; for a new population, only evaluates it."""
    complete_iteration, began = _CompleteIteration(plan, evaluate, measure, mix), time.perf_counter()
    if not state.history:
        return complete_iteration(state, began, {})
    share = plan.uniform_share_after(state.history)
    responses = respond(dataclasses.replace(state, mixtures=mix_with_uniform(state.mixtures, share)))
    trained = time.perf_counter() - began
    return complete_iteration(
        _add_responses(state, responses), began, {"uniform_share": share, "respond_s": round(trained, 3)}
    )


@dataclasses.dataclass(frozen=True)
class _CompleteIteration:
    """Completes a state: its table, its mixtures, and a line of history."""

    plan: PSRO
    evaluate: Evaluate
    measure: Measure
    mix: Mix | None

    def __call__(self, state: PSROState, began: float, figures: dict[str, Any]) -> PSROState:
        start = time.perf_counter()
        state = self._play_missing(state)
        played = time.perf_counter() - start
        figures = figures | _gain(state)
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

    def _play_missing(self, state: PSROState) -> PSROState:
        plan, table = self.plan, state.table.grow(tuple(len(bank) for bank in state.banks.values()))
        while plan.episodes and len(lineups := table.missing_lineups(plan.episodes, plan.target_error)):
            total, squares, episodes = self.evaluate(dataclasses.replace(state, table=table), lineups)
            if table.symmetric:
                total, squares = _average_same_policy(lineups, total), _average_same_policy(lineups, squares)
            table = table.add_results(lineups, total, squares, episodes)
        return dataclasses.replace(state, table=table)

    def _mixtures(self, state: PSROState) -> tuple[np.ndarray, ...]:
        plan = self.plan
        if plan.meta_solver in BEYOND_PAYOFFS:
            if self.mix is None:
                raise OptionError(f"{plan.meta_solver} needs more than payoffs; pass a function as `mix`")
            mixtures = tuple(self.mix(state))
            return average_mixtures(mixtures) if state.table.symmetric else mixtures
        payoffs = state.table.mean if plan.episodes else np.zeros_like(state.table.total)
        return solve_mixtures(plan, payoffs, state.table.symmetric)


def _average_same_policy(lineups: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Sums `[M, players]` averaged over players with the same policy in a line-up, as seats are equivalent."""
    same = lineups[:, :, None] == lineups[:, None, :]
    return (same @ sums[:, :, None])[..., 0] / same.sum(axis=2)


def _add_responses(state: PSROState, responses: Mapping[str, Sequence[Response]]) -> PSROState:
    """Adds the new policies to the banks; payoffs of policies that they replace are dropped."""
    banks, table = dict(state.banks), state.table
    for number, player in enumerate(state.learning):
        bank = banks[player]
        for policy, info, parent, replaces in responses[player]:
            if replaces is None:
                bank = bank.add(policy, Member(str(len(bank)), parent, state.iteration + 1, info=info))
                continue
            bank = bank.replace_policy(replaces, policy, **info)
            for axis in range(table.players) if table.symmetric else (number,):
                table = table.forget_policy(axis, replaces)
        banks[player] = bank
    banks = share_first_bank(banks) if table.symmetric else banks
    return dataclasses.replace(state, banks=banks, table=table, iteration=state.iteration + 1)


def _gain(state: PSROState) -> dict[str, Any]:
    """The gain of each player's best new policy over its mixture, against the others' mixtures.

    These are the mixtures before the population grew; as payoffs are means over episodes, gains have errors, too.
    """
    if not state.mixtures or not np.isfinite(state.table.mean).all():
        return {}
    old, gains = [len(mixture) for mixture in state.mixtures], []
    padded = [np.pad(m, (0, new - len(m))) for m, new in zip(state.mixtures, state.table.sizes, strict=True)]
    for player, payoffs in enumerate(state.table.mean):
        for other in reversed(range(len(padded))):
            if other != player:
                payoffs = np.tensordot(payoffs, padded[other], axes=(other, 0))
        earned = payoffs[old[player] :]
        if earned.size == 0:
            return {}
        gains.append(round(float(earned.max() - payoffs @ padded[player]), 5))
    return {"gain": gains}


def finished(history: Sequence[Mapping[str, Any]], plan: PSRO) -> bool:
    """Whether the run is complete after these iterations."""
    if history[-1]["iteration"] >= plan.iterations:
        return True
    reached = history[-1].get("nash_conv", np.inf)
    if plan.target_nash_conv is not None and reached <= plan.target_nash_conv:
        return True
    if plan.patience is None or len(history) <= plan.patience:
        return False
    last = history[-plan.patience :]
    return all(plan.gained_nothing(line) and not uniform_share_of(line) for line in last)


def uniform_share_of(line: Mapping[str, Any]) -> float:
    """The share of uniform play that the responses of an iteration met; folders of earlier versions call it breadth."""
    return line.get("uniform_share", line.get("breadth")) or 0.0
