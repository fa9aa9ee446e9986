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
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from shoal.core.errors import require
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


@dataclasses.dataclass(frozen=True)
class TabularGame:
    """A game in sequence form. Plans, policies and values are listed in the order of `players`."""

    players: tuple[str, ...]
    sets: tuple[InformationSets, ...]
    sequences: np.ndarray  # int [L, players], where the entries of the payoff tensor are
    payoffs: np.ndarray  # float [L, players], what they are, weighted by chance

    def uniform(self, player: int) -> np.ndarray:
        """The policy `[I, A]` that plays every legal action with equal probability."""
        legal = self.sets[player].legal
        return legal / legal.sum(axis=1, keepdims=True)

    def plan(self, player: int, policy: np.ndarray) -> np.ndarray:
        """The realisation plan `[..., S]` of a behaviour policy `[..., I, A]`.

        Probabilities of legal actions must sum to 1 up to rounding; they are scaled to do so exactly.
        """
        sets = self.sets[player]
        whose = f"{self.players[player]}'s policy"
        policy = np.asarray(policy, np.float64)
        shape = f"[..., {', '.join(map(str, sets.legal.shape))}]"
        require(policy.shape[-2:] == sets.legal.shape, "plan", f"the shape of {whose}", policy.shape, shape)
        policy = np.where(sets.legal, policy, 0.0)
        total = policy.sum(axis=-1, keepdims=True)
        sound = bool((policy >= 0).all() and (np.abs(total - 1.0) < _ROUNDING).all())
        require(sound, "plan", whose, "something else", "probabilities that sum to 1 over the legal actions of a set")
        plan = np.zeros((*policy.shape[:-2], sets.num_sequences + 1))
        plan[..., 0] = 1.0
        for stage in sets.stages:
            reach = plan[..., sets.parent[stage], None]
            plan[..., sets.sequence[stage]] = reach * (policy / total)[..., stage, :]
        return plan[..., :-1]

    def policy(self, player: int, plan: np.ndarray) -> np.ndarray:
        """The behaviour policy `[..., I, A]` of a plan `[..., S]`; uniform where the plan never gets to."""
        sets = self.sets[player]
        plan = np.asarray(plan, np.float64)
        reach = np.append(plan, np.zeros((*plan.shape[:-1], 1)), axis=-1)[..., sets.sequence]
        total = reach.sum(axis=-1, keepdims=True)
        return np.where(total > 0, reach / np.where(total > 0, total, 1.0), self.uniform(player))

    def values(self, plans: Sequence[np.ndarray]) -> np.ndarray:
        """What each player expects, `[players]`, when each follows its plan `[S]`."""
        return self._weights(plans) @ self.payoffs

    def best_response(self, player: int, plans: Sequence[np.ndarray]) -> tuple[float, np.ndarray]:
        """The most that `player` can expect against the others' plans, and a pure plan `[S]` that earns it.

        The player's own entry of `plans` is not looked at.
        """
        value, choice = self._respond(player, plans)
        return value, self.plan(player, np.eye(self.sets[player].legal.shape[1])[choice])

    def nash_conv(self, plans: Sequence[np.ndarray]) -> float:
        """What the players would gain in sum if each, alone, changed to its best response."""
        best = [self._respond(player, plans)[0] for player in range(len(self.players))]
        return float(np.sum(best - self.values(plans)))

    def exploitability(self, plans: Sequence[np.ndarray]) -> float:
        """NashConv divided by the number of players."""
        return self.nash_conv(plans) / len(self.players)

    def payoff_table(self, plans: Sequence[np.ndarray]) -> np.ndarray:
        """Payoffs `[players, m0, m1, ...]` of all combinations of the players' plans `[m0, S0]`, `[m1, S1]`, ..."""
        *others, last = [np.asarray(bank, np.float64)[:, self.sequences[:, p]] for p, bank in enumerate(plans)]
        table = self.payoffs.T
        for reach in others:
            table = table[..., None, :] * reach
        return table @ last.T

    def payoff_matrix(self, player: int = 0) -> np.ndarray:
        """The payoffs of one player in a game for two as a dense matrix A `[S0, S1]`."""
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
                weight = weight * np.asarray(plan, np.float64)[self.sequences[:, player]]
        return weight


def tabulate(env: Any) -> TabularGame:
    """The exact tables of a world; it must be a `FiniteGame`, with one seat a player and views that tell the past."""
    tree = walk(env)
    numbered = [_numbered(found) for found in tree.found]
    sequences = np.stack([number[tree.ends[:, p]] for p, (_, number) in enumerate(numbered)], axis=1)
    entries, index = np.unique(sequences, axis=0, return_inverse=True)
    payoffs = [np.bincount(index.ravel(), column, minlength=len(entries)) for column in tree.payoffs.T]
    payoffs = np.stack(payoffs, axis=1)
    kept = (payoffs != 0).any(axis=1)
    return TabularGame(tree.players, tuple(sets for sets, _ in numbered), entries[kept], payoffs[kept])


def _numbered(found: Found) -> tuple[InformationSets, np.ndarray]:
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
