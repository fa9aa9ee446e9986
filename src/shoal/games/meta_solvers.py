"""Meta-solvers: from a payoff tensor to one mixture over policies per player.

`solver(payoffs, **options) -> [mixture of player 0, mixture of player 1, ...]`, with `payoffs[players, m_0, m_1, ...]`
as in `normal_form.py`; every mixture is a float64 array `[m_p]`, at least 0, with sum 1. They are pure functions in
float64 on the host: the table is small, and linear programmes need the digits. `u_p(i, s)` is what policy `i` of player
`p` earns when the others play their mixtures `s`.
"""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from shoal.core.errors import OptionError, require, require_positive, unknown_name
from shoal.games.alpha_rank import alpha_rank
from shoal.games.normal_form import (
    as_distribution,
    cce,
    ce,
    constant_sum_miss,
    own_axis_first,
    payoff_tensor,
    policy_values,
    require_count,
    zero_sum_equilibrium,
)

MetaSolver = Callable[..., list[np.ndarray]]


def nash(payoffs: ArrayLike, tolerance: float = 1e-6) -> list[np.ndarray]:
    """A Nash equilibrium of a two-player zero-sum game, by one linear programme (von Neumann 1928, Dantzig 1951).

    maximise v  such that  sum_i x_i u(i, j) >= v for every j,  x >= 0,  sum x = 1; the other player's mixture is the
    dual solution. A constant sum is as good as zero. Payoffs that miss that by more than `tolerance` times the
    largest payoff are refused.
    """
    tensor = payoff_tensor(payoffs, "nash")
    others = "use ce, cce, regret_matching, replicator or alpha_rank for it"
    require(len(tensor) == 2, "nash", "the number of players", len(tensor), f"2; {others}")
    if constant_sum_miss(tensor) > tolerance:
        total = tensor.sum(axis=0)
        raise OptionError(
            "nash: the game must be zero-sum or constant-sum, but the players' payoffs add up to between "
            f"{total.min():.6g} and {total.max():.6g}; {others}"
        )
    return zero_sum_equilibrium((tensor[0] - tensor[1]) / 2)


def fictitious_play(payoffs: ArrayLike, iterations: int = 10_000) -> list[np.ndarray]:
    """How often each policy was the best reply to the history of the others' play (Brown 1951).

    a_p(t) = argmax_i of u_p(i, history of the others before t);   mixture_p(i) = share of t with a_p(t) = i

    All players move at once, ties go to the oldest policy, and the history starts with one uniform play of everybody,
    which is not counted in the mixture. Cumulated payoffs are kept, so that an iteration adds one row of the table.
    With three or more players the history is that of the others' joint play (Marden et al. 2009).
    """
    tensor = payoff_tensor(payoffs, "fictitious_play")
    require_count("fictitious_play", iterations=iterations)
    sizes = tensor.shape[1:]
    if len(sizes) == 2:
        counts = _fictitious_play_of_two(tensor, int(iterations))
    else:
        counts = _fictitious_play_of_many(tensor, int(iterations))
    return [count / count.sum() for count in counts]


def replicator(payoffs: ArrayLike, iterations: int = 10_000, dt: float = 0.01, gamma: float = 1e-6) -> list[np.ndarray]:
    """Time average of projected replicator dynamics (Lanctot et al. 2017), from the uniform mixture.

    x_p(i) <- projection of  x_p(i) + dt x_p(i) (u_p(i, x) - sum_k x_p(k) u_p(k, x))

    onto the nearest mixture whose entries are all at least `gamma`. `dt` times the range of payoffs should stay well
    below 1; `dt * iterations` is how much time passes.
    """
    tensor = payoff_tensor(payoffs, "replicator")
    sizes = tensor.shape[1:]
    require_count("replicator", iterations=iterations)
    require_positive("replicator", dt=dt)
    require(0 <= gamma <= 1 / max(sizes), "replicator", "gamma", gamma, f"from 0 to 1/{max(sizes)}, 1/policies")

    def step(p: int, mixture: np.ndarray, values: np.ndarray) -> np.ndarray:
        return _at_least(gamma, mixture + dt * mixture * (values - values @ mixture))

    return _time_average(tensor, step, int(iterations))


def regret_matching(payoffs: ArrayLike, iterations: int = 10_000, gamma: float = 0.0) -> list[np.ndarray]:
    """Average strategy of regret matching (Hart and Mas-Colell 2000), with everybody's expected regrets.

    R_p(i) <- R_p(i) + u_p(i, x) - sum_k x_p(k) u_p(k, x);   x_p = (1 - gamma) max(R_p, 0) / sum + gamma uniform

    and uniform while nothing is regretted. The average goes to a Nash equilibrium in two-player zero-sum games; with
    more players, the joint play goes to a coarse correlated equilibrium, whose marginals these are.
    """
    tensor = payoff_tensor(payoffs, "regret_matching")
    require_count("regret_matching", iterations=iterations)
    require(0 <= gamma <= 1, "regret_matching", "gamma", gamma, "from 0 to 1")
    regrets = [np.zeros(size) for size in tensor.shape[1:]]

    def step(p: int, mixture: np.ndarray, values: np.ndarray) -> np.ndarray:
        regrets[p] += values - values @ mixture
        positive = np.maximum(regrets[p], 0.0)
        total = positive.sum()
        uniform_part = gamma if total > 0 else 1.0
        return uniform_part / len(mixture) + (1 - uniform_part) * positive / (total if total > 0 else 1.0)

    return _time_average(tensor, step, int(iterations))


def uniform(payoffs: ArrayLike) -> list[np.ndarray]:
    """The same weight on every policy: PSRO with it is fictitious self-play."""
    return [np.full(size, 1 / size) for size in payoff_tensor(payoffs, "uniform").shape[1:]]


def last(payoffs: ArrayLike) -> list[np.ndarray]:
    """All weight on the newest policy of each player: PSRO with it is iterated best response, plain self-play."""
    return [np.eye(size)[-1] for size in payoff_tensor(payoffs, "last").shape[1:]]


def prioritised(
    payoffs: ArrayLike, weighting: str = "hard", power: float = 2.0, bounds: tuple[float, float] | None = None
) -> list[np.ndarray]:
    """Prioritised fictitious self-play (Vinyals et al. 2019): meet those more often whom the newest do not beat.

    Payoffs are first mapped to win rates, w = (u - low) / (high - low), with `bounds = (low, high)` or else the least
    and the greatest entry of the tensor (w = 1/2 if they are equal). The challengers of player q are the newest
    policies of all others; x_q(j) is the mean of their win rates when q plays its policy j. Then

    mixture_q(j) = f(x_q(j)) / sum,   f(x) = (1 - x)^power for `hard`,   f(x) = x (1 - x) for `variance`,

    and uniform where every f is 0.
    """
    tensor = payoff_tensor(payoffs, "prioritised")
    require(weighting in ("hard", "variance"), "prioritised", "weighting", weighting, "'hard' or 'variance'")
    require_positive("prioritised", power=power)
    require(len(tensor) > 1, "prioritised", "the number of players", len(tensor), "at least 2")
    rates = win_rates(tensor, bounds)
    mixtures = []
    for q in range(len(rates)):
        newest = tuple(slice(None) if p == q else -1 for p in range(len(rates)))
        x = np.mean([rates[p][newest] for p in range(len(rates)) if p != q], axis=0)
        mixtures.append(priorities(x, weighting, power))
    return mixtures


def priorities(won: np.ndarray, weighting: str = "hard", power: float = 2.0) -> np.ndarray:
    """Chances to be met, by the share of games won against each (see `prioritised`); alike if none matters."""
    weights = (1 - won) ** power if weighting == "hard" else won * (1 - won)
    total = weights.sum()
    return weights / total if total > 1e-9 else np.full(len(won), 1 / len(won))


def win_rates(payoffs: ArrayLike, bounds: tuple[float, float] | None = None) -> np.ndarray:
    """Payoffs mapped linearly to [0, 1], from `bounds` or else from the least and greatest payoff of the tensor."""
    tensor = payoff_tensor(payoffs, "win_rates")
    low, high = bounds if bounds is not None else (float(tensor.min()), float(tensor.max()))
    if bounds is not None:
        inside = low < high and low <= tensor.min() and tensor.max() <= high
        allowed = f"(low, high) around all payoffs, which go from {tensor.min():.6g} to {tensor.max():.6g}"
        require(bool(inside), "win_rates", "bounds", bounds, allowed)
    if low == high:
        return np.full(tensor.shape, 0.5)
    return (tensor - low) / (high - low)


def recent(payoffs: ArrayLike, delta: float = 0.5) -> list[np.ndarray]:
    """Equal weight on the newest policies, those from the share `delta` of the population on (Bansal et al. 2018).

    delta 1 is `last`, delta 0 is `uniform`: δ-uniform self-play.
    """
    require(0.0 <= delta <= 1.0, "recent", "delta", delta, "from 0 to 1")
    mixtures = []
    for size in payoff_tensor(payoffs, "recent").shape[1:]:
        first = min(int(delta * size), size - 1)
        mixtures.append(np.where(np.arange(size) >= first, 1.0 / (size - first), 0.0))
    return mixtures


META_SOLVERS: dict[str, MetaSolver] = {
    "nash": nash,
    "fictitious_play": fictitious_play,
    "replicator": replicator,
    "regret_matching": regret_matching,
    "uniform": uniform,
    "last": last,
    "recent": recent,
    "alpha_rank": alpha_rank,
    "prioritised": prioritised,
    "ce": ce,
    "cce": cce,
}


def solve(name: str, payoffs: ArrayLike, **options: Any) -> list[np.ndarray]:
    """The mixtures that the meta-solver `name` finds for `payoffs`. The solvers' keyword arguments are the options."""
    if name not in META_SOLVERS:
        raise unknown_name("meta-solver", name, META_SOLVERS)
    solver = META_SOLVERS[name]
    known = list(inspect.signature(solver).parameters)[1:]
    for option in options:
        allowed = f"one of {', '.join(known)}" if known else "left out: it has no options"
        require(option in known, f"meta-solver {name}", "every option", option, allowed)
    return solver(payoffs, **options)


def _fictitious_play_of_two(tensor: np.ndarray, iterations: int) -> list[np.ndarray]:
    """Counts of best replies. Kept bare: a few microseconds per iteration, however many policies."""
    replies_to_column = list(np.ascontiguousarray(tensor[0].T))
    replies_to_row = list(np.ascontiguousarray(tensor[1]))
    row_sums, column_sums = tensor[0].mean(axis=1), tensor[1].mean(axis=0)
    rows, columns = [], []
    for _ in range(iterations):
        row, column = row_sums.argmax(), column_sums.argmax()
        row_sums += replies_to_column[column]
        column_sums += replies_to_row[row]
        rows.append(row)
        columns.append(column)
    return [np.bincount(rows, minlength=tensor.shape[1]), np.bincount(columns, minlength=tensor.shape[2])]


def _fictitious_play_of_many(tensor: np.ndarray, iterations: int) -> list[np.ndarray]:
    tables = own_axis_first(tensor)
    sums = [table.reshape(len(table), -1).mean(axis=1) for table in tables]
    counts = [np.zeros(len(table)) for table in tables]
    for _ in range(iterations):
        replies = [int(total.argmax()) for total in sums]
        for p, reply in enumerate(replies):
            counts[p][reply] += 1
            sums[p] += tables[p][(slice(None), *replies[:p], *replies[p + 1 :])]
    return counts


def _time_average(
    tensor: np.ndarray, step: Callable[[int, np.ndarray, np.ndarray], np.ndarray], iterations: int
) -> list[np.ndarray]:
    """Mean of the uniform start and all iterates of `step(player, mixture, values) -> mixture`, all moving at once."""
    tables = own_axis_first(tensor)
    mixtures = [np.full(len(table), 1 / len(table)) for table in tables]
    sums = [mixture.copy() for mixture in mixtures]
    for _ in range(iterations):
        values = [policy_values(table, mixtures[:p] + mixtures[p + 1 :]) for p, table in enumerate(tables)]
        mixtures = [step(p, mixture, values[p]) for p, mixture in enumerate(mixtures)]
        for total, mixture in zip(sums, mixtures, strict=True):
            total += mixture
    return [as_distribution(total) for total in sums]


def _at_least(gamma: float, weights: np.ndarray) -> np.ndarray:
    """The nearest mixture with entries of at least `gamma` to weights of sum 1 (Wang and Carreira-Perpiñán 2013)."""
    if weights.min() >= gamma:
        return weights
    descending = np.sort(weights)[::-1]
    count = np.arange(1, len(weights) + 1)
    shift = (1 - np.cumsum(descending) - (len(weights) - count) * gamma) / count
    kept = np.flatnonzero(descending + shift > gamma)
    # With gamma = 1/policies none is above it: everything is shared out evenly.
    return np.maximum(weights + shift[kept[-1]], gamma) if len(kept) else np.full(len(weights), gamma)
