"""Anytime PSRO (McAleer et al. 2022): the mixture of a population that is least exploitable by any policy.

PSRO's mixtures are an equilibrium among the policies there are, and may become more exploitable when one is added.
Here each player's mixture w of its policies' plans X minimises the return of a best response, in the population or not:

    min over w of  max over plans y of  (w X) B y.

As the population grows the set of mixtures grows, so exploitability never rises. For games for two with exact tables
this is one linear programme: with the constraints F y = f of plans, the inner maximum is, by duality, min f v over v
with Fᵀ v >= Bᵀ Xᵀ w. Without tables, y ranges over the known policies of the other player: those of its bank, and a
best response that is still being trained. `minimax_mixture` is the mixture against those, by a no-regret method.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array, hstack

from shoal.core.errors import OptionError, require
from shoal.envs.tabular import InformationSets, TabularGame


def least_exploitable(game: TabularGame, player: int, plans: np.ndarray) -> np.ndarray:
    """The mixture `[m]` of a player's plans `[m, S]` against which the other player's best return is least."""
    require(len(game.players) == 2, "anytime", "the number of players", len(game.players), "2")
    other = 1 - player
    earns = game.payoff_matrix(other)  # [S0, S1]
    reached = plans @ (earns if player == 0 else earns.T)  # [m, S of the other]: payoff of each of its sequences
    constraints = plan_constraints(game.sets[other])  # [1 + I, S]
    count, sets = len(plans), 1 + len(game.sets[other])
    above: Any = hstack([csr_array(reached.T), -constraints.T]).tocsr()  # (w X B)_s - (Fᵀ v)_s <= 0
    cost = np.zeros(count + sets)
    cost[count] = 1.0  # f is 1 for the empty sequence, else 0
    total = csr_array(([1.0] * count, ([0] * count, range(count))), shape=(1, len(cost)))
    bounds = [(0, None)] * count + [(None, None)] * sets
    found = linprog(
        cost, A_ub=above, b_ub=np.zeros(reached.shape[1]), A_eq=total, b_eq=[1.0], bounds=bounds, method="highs"
    )
    if found.status != 0:
        raise OptionError(f"anytime: the linear programme was not solved: {found.message}")
    weights = np.maximum(found.x[:count], 0.0)
    return weights / weights.sum()


def minimax_mixture(payoffs: ArrayLike, steps: int = 2000) -> np.ndarray:
    """The mixture `[m]` of a player's policies against which the best of the other's policies earns least.

    payoffs[m, c]: the return of each known policy c of the other player against each own policy m. Regret matching+
    (Tammelin 2014) from equal weights, against an opponent that knows the mixture w:

        c = argmax of w payoffs,    r = max(0, r + w payoffs[:, c] - payoffs[:, c]),    w = r / sum r

    The result is the mean of all w, the t-th weighted by t. Its distance from the optimum is the regret: of the order
    of the range of payoffs divided by the root of `steps`.
    """
    table = np.asarray(payoffs, np.float64)
    require(
        table.ndim == 2 and table.size > 0, "minimax_mixture", "payoffs' shape", table.shape, "[policies, opponents]"
    )
    require(
        bool(np.isfinite(table).all()), "minimax_mixture", "payoffs", "NaN or infinity", "finite: play what is missing"
    )
    equal = np.full(len(table), 1 / len(table))
    weights, regret, total = equal, np.zeros(len(table)), np.zeros(len(table))
    for step in range(1, steps + 1):
        total += step * weights
        loss = table[:, np.argmax(weights @ table)]
        regret = np.maximum(regret + weights @ loss - loss, 0.0)
        weights = regret / regret.sum() if regret.sum() > 0 else weights
    return total / total.sum()


def worst_case(payoffs: ArrayLike, mixture: np.ndarray) -> float:
    """The most that a known policy of the other player earns, `payoffs[m, c]`, against a mixture of the first ones."""
    return float((mixture @ np.asarray(payoffs, np.float64)[: len(mixture)]).max())


def plan_constraints(sets: InformationSets) -> csr_array:
    """The constraints of plans, F `[1 + I, S]`: the first entry is 1, actions sum to the sequence before them."""
    owner, sequence = np.nonzero(sets.legal)[0], sets.sequence[sets.legal]
    rows = np.concatenate([[0], owner + 1, np.arange(len(sets)) + 1])
    columns = np.concatenate([[0], sequence, sets.parent])
    values = np.concatenate([[1.0], np.ones(len(owner)), -np.ones(len(sets))])
    return coo_array((values, (rows, columns)), shape=(1 + len(sets), sets.num_sequences)).tocsr()
