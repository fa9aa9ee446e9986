"""Small games as exact tables: information sets, sequences, payoffs, best responses, distance from equilibrium.

`tabulate(world)` plays every history of a world that says how it can be dealt (`cards/kuhn`, `cards/leduc`, the matrix
games; `FiniteGame` says what is needed). All numbers are float64, on the host.

**Sequence form.** What a player knows when it decides is an *information set* I; it is told apart by the view. A
*sequence* is an information set and an action there, (I, a), which under perfect recall stands for all own decisions up
to that one; sequence 0 is the empty one. parent(I) is the sequence that leads to I. A behaviour policy π(a | I) becomes
a *realisation plan* x, how likely one's own decisions make each sequence:

    x[0] = 1,    x[(I, a)] = x[parent(I)] π(a | I).

Each history that ends the game has one last sequence for every player; its payoff, times the chance of its deal, is
an entry of the payoff tensor at those sequences. With plans x and y of two players and the entries as a matrix A,
player 0 expects

    u(x, y) = Σ_h A[s0(h), s1(h)] x[s0(h)] y[s1(h)] = xᵀ A y,

linear in every plan. So the plan of a mixture of policies is the mixture of their plans, which weighs them by how
likely they reach a state, as it must be; payoffs of all pairs of two populations are one matrix product X A Yᵀ.

**Best response.** With all others fixed, g = A y says what each sequence earns by the histories that end there. From
the last information sets to the first,

    v(I) = max_a q(I, a),    q(I, a) = g[(I, a)] + Σ v(J) over information sets J with parent(J) = (I, a);

g[0] plus the v of all first information sets is the value of the best response, an argmax in every set is the policy.

**NashConv** is the sum, over the players, of what each would gain by its best response; **exploitability** is NashConv
divided by the number of players. Both are 0 in a Nash equilibrium and nowhere else.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from shoal.core.errors import OptionError, require
from shoal.core.types import PyTree
from shoal.envs._tree import FiniteGame, Found, walk

_ROUNDING = 1e-4

__all__ = ["FiniteGame", "InformationSets", "TabularGame", "tabulate"]


@dataclasses.dataclass(frozen=True)
class InformationSets:
    """All information sets of one player, in an order in which every one comes after those that lead to it."""

    views: PyTree  # [I, ...], as `observe` hands them out: a network evaluates them in one batch
    legal: np.ndarray  # bool [I, A]
    parent: np.ndarray  # int [I], the sequence that leads here
    sequence: np.ndarray  # int [I, A], the sequence of each action; `num_sequences` where it is illegal
    stages: tuple[slice, ...]  # those with 0, 1, 2, ... own decisions before them
    num_sequences: int

    def __len__(self) -> int:
        return len(self.parent)

    @functools.cached_property
    def first(self) -> np.ndarray:
        """The first sequence `[I]` of each information set; those of one set follow each other."""
        return self.sequence.min(axis=1)


@dataclasses.dataclass(frozen=True)
class TabularGame:
    """A game in sequence form. Plans, policies and values are listed in the order of `players`."""

    players: tuple[str, ...]
    sets: tuple[InformationSets, ...]
    sequences: np.ndarray  # int [L, players], where the entries of the payoff tensor are
    payoffs: np.ndarray  # float [L, players], what they are, weighted by chance

    def uniform(self, player: int) -> np.ndarray:
        """The policy `[I, A]` that plays every legal action with equal probability."""
        legal = self._own("uniform", player).legal
        return legal / legal.sum(axis=1, keepdims=True)

    def plan(self, player: int, policy: np.ndarray) -> np.ndarray:
        """The realisation plan `[..., S]` of a behaviour policy `[..., I, A]`.

        Probabilities of legal actions must sum to 1 up to rounding; they are scaled to do so exactly.
        """
        sets = self._own("plan", player)
        whose = f"{self.players[player]}'s policy"
        given = _numbers("plan", whose, policy)
        shape = f"[..., {', '.join(map(str, sets.legal.shape))}]"
        require(given.shape[-2:] == sets.legal.shape, "plan", f"the shape of {whose}", given.shape, shape)
        policy = np.where(sets.legal, given, 0.0)
        with np.errstate(invalid="ignore"):  # infinities
            total = policy.sum(axis=-1, keepdims=True)
        sound = (policy >= 0).all(axis=-1) & (np.abs(total[..., 0] - 1.0) < _ROUNDING)
        if not sound.all():
            where = tuple(np.argwhere(~sound)[0])
            legal = np.flatnonzero(sets.legal[where[-1]]).tolist()
            raise OptionError(
                f"plan: {whose} must be probabilities that sum to 1 over the legal actions of every information set; "
                f"in the set {where[-1]}, where {legal} are legal, it is {given[where].tolist()}"
            )
        plan = np.zeros((*policy.shape[:-2], sets.num_sequences + 1))
        plan[..., 0] = 1.0
        for stage in sets.stages:
            reach = plan[..., sets.parent[stage], None]
            plan[..., sets.sequence[stage]] = reach * (policy / total)[..., stage, :]
        return plan[..., :-1]

    def policy(self, player: int, plan: np.ndarray) -> np.ndarray:
        """The behaviour policy `[..., I, A]` of a plan `[..., S]`; uniform where the plan never gets to."""
        sets = self._own("policy", player)
        plan = _check_values("policy", self.players[player], sets, plan)
        reach = np.append(plan, np.zeros((*plan.shape[:-1], 1)), axis=-1)[..., sets.sequence]
        total = reach.sum(axis=-1, keepdims=True)
        return np.where(total > 0, reach / np.where(total > 0, total, 1.0), self.uniform(player))

    def values(self, plans: Sequence[np.ndarray]) -> np.ndarray:
        """What each player expects, `[players]`, when each follows its plan `[S]`."""
        return self._weights(self._plans("values", plans)) @ self.payoffs

    def best_response(self, player: int, plans: Sequence[np.ndarray]) -> tuple[float, np.ndarray]:
        """The most that `player` can expect against the others' plans, and a pure plan `[S]` that earns it.

        The player's own entry of `plans` is not looked at.
        """
        sets = self._own("best_response", player)
        value, choice = self._respond(player, self._plans("best_response", plans, leave_out=player))
        return value, self.plan(player, np.eye(sets.legal.shape[1])[choice])

    def nash_conv(self, plans: Sequence[np.ndarray]) -> float:
        """What the players would gain in sum if each, alone, changed to its best response."""
        plans = self._plans("nash_conv", plans)
        best = [self._respond(player, plans)[0] for player in range(len(self.players))]
        return float(np.sum(best - self._weights(plans) @ self.payoffs))

    def exploitability(self, plans: Sequence[np.ndarray]) -> float:
        """NashConv divided by the number of players."""
        return self.nash_conv(plans) / len(self.players)

    def payoff_table(self, plans: Sequence[np.ndarray]) -> np.ndarray:
        """Payoffs `[players, m0, m1, ...]` of all combinations of the players' plans `[m0, S0]`, `[m1, S1]`, ..."""
        banks = self._plans("payoff_table", plans, ndim=2)
        *others, last = [bank[:, self.sequences[:, p]] for p, bank in enumerate(banks)]
        table = self.payoffs.T
        for reach in others:
            table = table[..., None, :] * reach
        return table @ last.T

    def payoff_matrix(self, player: int = 0) -> np.ndarray:
        """The payoffs of one player in a game for two as a dense matrix A `[S0, S1]`."""
        self._own("payoff_matrix", player)
        require(len(self.players) == 2, "payoff_matrix", "number of players", len(self.players), "2")
        matrix = np.zeros([sets.num_sequences for sets in self.sets])
        matrix[self.sequences[:, 0], self.sequences[:, 1]] = self.payoffs[:, player]
        return matrix

    def _respond(self, player: int, plans: Sequence[np.ndarray]) -> tuple[float, np.ndarray]:
        """The value of a best response, and its action `[I]` in every information set."""
        sets = self.sets[player]
        weight = self._weights(plans, leave_out=player) * self.payoffs[:, player]
        earned = np.bincount(self.sequences[:, player], weight, minlength=sets.num_sequences + 1)
        earned[-1] = -np.inf  # illegal actions
        choice = np.zeros(len(sets), np.int64)
        for stage in reversed(sets.stages):
            worth = earned[sets.sequence[stage]]
            choice[stage] = worth.argmax(axis=1)
            earned[:-1] += np.bincount(sets.parent[stage], worth.max(axis=1), minlength=sets.num_sequences)
        return float(earned[0]), choice

    def _weights(self, plans: Sequence[np.ndarray], leave_out: int | None = None) -> np.ndarray:
        """How likely the players' plans together, but for one's, make each entry `[L]`."""
        weight = np.ones(len(self.sequences))
        for player, plan in enumerate(plans):
            if player != leave_out:
                weight = weight * plan[self.sequences[:, player]]
        return weight

    def _own(self, caller: str, player: int) -> InformationSets:
        """The information sets of a player, if there is one of that number."""
        known = isinstance(player, int | np.integer) and not isinstance(player, bool)
        last = len(self.players) - 1
        allowed = f"a whole number from 0 to {last}, for {', '.join(self.players)}"
        require(known and 0 <= player <= last, caller, "player", player, allowed)
        return self.sets[player]

    def _plans(self, caller: str, plans: Any, ndim: int = 1, leave_out: int | None = None) -> list[np.ndarray]:
        """The plans as arrays, if there is a sound one for each player; the one left out is not looked at."""
        listed = isinstance(plans, list | tuple) or getattr(plans, "ndim", 0) > 0
        if not listed or len(plans) != len(self.players):
            raise OptionError(
                f"{caller}: plans must be a list with a plan for each of the {len(self.players)} players "
                f"({', '.join(self.players)}), got {_in_words(plans)}"
            )
        rest = zip(self.players, self.sets, plans, strict=True)
        return [
            np.empty(0) if player == leave_out else _check_values(caller, name, sets, plan, ndim)
            for player, (name, sets, plan) in enumerate(rest)
        ]


def _check_values(caller: str, name: str, sets: InformationSets, value: Any, ndim: int | None = None) -> np.ndarray:
    """A plan `[S]`, many `[m, S]` or, without `ndim`, any number `[..., S]`, if that is what it is."""
    plan = _numbers(caller, f"{name}'s plan", value)
    if plan.shape[-1:] != (sets.num_sequences,) or ndim not in (None, plan.ndim):
        shape = {None: "..., ", 1: "", 2: "m, "}[ndim] + str(sets.num_sequences)
        is_policy = plan.shape[-2:] == sets.legal.shape
        hint = ". This looks like a policy: turn it into a plan with game.plan(player, policy)" if is_policy else ""
        raise OptionError(f"{caller}: {name}'s plan must be an array of shape [{shape}], got {_in_words(value)}{hint}")
    flaw = _flaw(sets, plan)
    if flaw:
        raise OptionError(
            f"{caller}: {name}'s plan must be a realisation plan, as game.plan(player, policy) makes it, but {flaw}"
        )
    return plan


def _flaw(sets: InformationSets, plan: np.ndarray) -> str:
    """Why numbers `[..., S]` are no plan; nothing if they are one. Cheap: it is done before every calculation."""
    if not (plan.min(initial=0.0) >= -_ROUNDING and plan.max(initial=0.0) <= 1.0 + _ROUNDING):  # not a number: neither
        where = tuple(np.argwhere(~((plan >= -_ROUNDING) & (plan <= 1.0 + _ROUNDING)))[0])
        return f"its entry {where[-1]} is {plan[where]:g}, which is no probability"
    least = plan[..., 0].min(initial=1.0)
    if least < 1.0 - _ROUNDING:
        return f"its entry 0, of the empty sequence, is {least:g} and not 1"
    total, reach = np.add.reduceat(plan, sets.first, axis=-1), plan.take(sets.parent, axis=-1)
    gap = np.abs(total - reach)
    if gap.max(initial=0.0) > _ROUNDING:
        where = np.unravel_index(gap.argmax(), gap.shape)
        return (
            f"over the actions of the information set {where[-1]} it sums to {total[where]:g} and not to "
            f"{reach[where]:g}, the entry of the sequence that leads there"
        )
    return ""


def _numbers(caller: str, whose: str, value: Any) -> np.ndarray:
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise OptionError(f"{caller}: {whose} must be an array of numbers, got {_in_words(value)}") from None


def _in_words(value: Any) -> str:
    """What was given instead of a plan or of plans, in short."""
    if hasattr(value, "shape"):
        return f"an array of shape {tuple(value.shape)}"
    text = repr(value)
    if isinstance(value, list | tuple) and len(text) > 60:
        return f"a {type(value).__name__} of {len(value)}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def tabulate(env: Any) -> TabularGame:
    """The exact tables of a world; it must be a `FiniteGame`, with one seat a player and views that tell the past."""
    tree = walk(env)
    numbered = [_number(found) for found in tree.found]
    sequences = np.stack([number[tree.ends[:, p]] for p, (_, number) in enumerate(numbered)], axis=1)
    entries, index = np.unique(sequences, axis=0, return_inverse=True)
    payoffs = [np.bincount(index.ravel(), column, minlength=len(entries)) for column in tree.payoffs.T]
    payoffs = np.stack(payoffs, axis=1)
    kept = (payoffs != 0).any(axis=1)
    return TabularGame(tree.players, tuple(sets for sets, _ in numbered), entries[kept], payoffs[kept])


def _number(found: Found) -> tuple[InformationSets, np.ndarray]:
    """Information sets in order of stages, and the sequence of each decision as the tree numbers them."""
    legal, before = np.stack(found.legal), np.array(found.parent)
    count, actions = legal.shape
    owner = (before - 1) // actions  # the information set of the decision before
    stage = np.zeros(count, np.int64)
    for i in range(count):  # a set is met after those that lead to it
        stage[i] = stage[owner[i]] + 1 if before[i] else 0
    order = np.argsort(stage, kind="stable")
    sequence = np.where(legal[order], np.cumsum(legal[order]).reshape(count, actions), legal.sum() + 1)
    number = np.zeros(1 + count * actions, np.int64)
    number[1:].reshape(count, actions)[order] = sequence
    ends = np.cumsum(np.bincount(stage))
    sets = InformationSets(
        views=jax.tree.map(lambda *rows: np.stack(rows)[order], *found.views),
        legal=legal[order],
        parent=number[before[order]],
        sequence=sequence,
        stages=tuple(slice(int(start), int(end)) for start, end in zip([0, *ends], ends, strict=False)),
        num_sequences=int(legal.sum()) + 1,
    )
    return sets, number
