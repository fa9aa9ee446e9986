"""Games in normal form: what a payoff tensor must be, what deviating is worth, and correlated equilibria.

A payoff tensor is `payoffs[players, m_0, m_1, ...]` in float64: entry `[p, i_0, i_1, ...]` is what player `p` expects
when every player `q` plays its policy `i_q`. A mixture is one distribution `[m_p]` per player, a joint distribution one
array `[m_0, m_1, ...]` over all profiles of policies.

A joint distribution `s` is a correlated equilibrium (CE, Aumann 1974) if nobody who is told its part gains by playing
something else, and a coarse correlated equilibrium (CCE, Moulin and Vial 1978) if nobody gains by deciding, before it
is told, to always play one policy `b`:

    CE:   for all p, a, b:   sum over i with i_p = a of s(i) (u_p(b, i_-p) - u_p(i)) <= 0
    CCE:  for all p, b:      sum over all i          of s(i) (u_p(b, i_-p) - u_p(i)) <= 0

Both are polytopes; the linear programme below picks a point of greatest welfare, the sum of all players' payoffs.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.optimize import linprog

from shoal.core.errors import OptionError, require, require_positive

# Tighter than what HiGHS takes for granted (1e-7), so that nothing is left to gain but rounding errors.
HIGHS_OPTIONS = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


def payoff_tensor(payoffs: ArrayLike, owner: str = "payoffs") -> np.ndarray:
    """`payoffs` as a float64 array, or an `OptionError` that says what is wrong with it.

    There must be one axis of policies for each player after the axis of players, at least one policy on each, and
    only finite numbers.
    """
    try:
        tensor = np.asarray(payoffs, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"{owner}: the payoffs must be one array of numbers [players, m0, m1, ...] ({error})"
        ) from None
    players = tensor.shape[0] if tensor.ndim else 0
    require(
        players > 0 and tensor.ndim == players + 1,
        owner,
        "the payoff tensor's shape",
        tensor.shape,
        "[players, m0, m1, ...] with one axis of policies for each player; stack one table per player with np.stack",
    )
    require(tensor.size > 0, owner, "the payoff tensor's shape", tensor.shape, "at least one policy for each player")
    bad = np.argwhere(~np.isfinite(tensor))
    if len(bad):
        at = tuple(int(i) for i in bad[0])
        raise OptionError(
            f"{owner}: all payoffs must be finite, got {tensor[at]} at {at} ({len(bad)} of {tensor.size} entries). "
            "Play the entries that are missing, or leave out the policies that fail"
        )
    return tensor


def own_axis_first(payoffs: np.ndarray) -> list[np.ndarray]:
    """Each player's table with its own policies on axis 0 and the others' after it, in their order."""
    return [np.ascontiguousarray(np.moveaxis(table, p, 0)) for p, table in enumerate(payoffs)]


def policy_values(table: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    """What each policy of a player earns against independent mixtures; `table` is one of `own_axis_first`."""
    for mixture in reversed(others):
        table = table @ mixture
    return table


def nash_conv(payoffs: ArrayLike, mixtures: Sequence[np.ndarray]) -> float:
    """Sum over the players of what the best policy of the table gains over the player's own mixture."""
    tables = own_axis_first(payoff_tensor(payoffs, "nash_conv"))
    total = 0.0
    for p, table in enumerate(tables):
        values = policy_values(table, [*mixtures[:p], *mixtures[p + 1 :]])
        total += float(values.max() - values @ mixtures[p])
    return total


def marginals(joint: np.ndarray) -> list[np.ndarray]:
    """The mixture of each player under a joint distribution `[m_0, m_1, ...]`."""
    axes = range(joint.ndim)
    return [joint.sum(axis=tuple(q for q in axes if q != p)) for p in axes]


def as_distribution(weights: np.ndarray) -> np.ndarray:
    """Weights without the rounding errors of a solver: nothing below 0, and a sum of 1."""
    weights = np.maximum(weights, 0.0)
    return weights / weights.sum()


def deviation_gain(payoffs: ArrayLike, joint: ArrayLike, kind: str = "cce") -> float:
    """What the most tempted player gains by the best deviation of `kind` from `joint`: at most 0 in an equilibrium.

    For `cce` the deviation is one fixed policy, for `ce` a map from what the player is told to what it plays instead
    (obeying is one, so that this is never below 0).
    """
    tensor = payoff_tensor(payoffs, "deviation_gain")
    _require_kind("deviation_gain", kind)
    joint = np.asarray(joint, dtype=np.float64)
    require(joint.shape == tensor.shape[1:], "deviation_gain", "joint's shape", joint.shape, str(tensor.shape[1:]))
    gains = []
    for p, table in enumerate(own_axis_first(tensor)):
        size = len(table)
        plays = np.moveaxis(joint, p, 0).reshape(size, -1)
        # worth[a, b]: told a, playing b, weighted by how often a is told.
        worth = plays @ table.reshape(size, -1).T
        told = np.trace(worth)
        gains.append(worth.max(axis=1).sum() - told if kind == "ce" else worth.sum(axis=0).max() - told)
    return float(max(gains))


def constant_sum_miss(payoffs: np.ndarray) -> float:
    """By how much the sum of all players' payoffs varies between profiles, in units of the largest payoff."""
    return float(np.ptp(payoffs.sum(axis=0))) / max(float(np.abs(payoffs).max()), 1e-300)


def zero_sum_equilibrium(table: np.ndarray) -> list[np.ndarray]:
    """Both players' mixtures in an equilibrium of the zero-sum game in which the row player earns `table`."""
    scaled = (table - table.mean()) / max(float(np.ptp(table)), 1e-300)
    rows, columns = scaled.shape
    result = linprog(
        np.append(np.zeros(rows), -1.0),
        A_ub=np.column_stack([-scaled.T, np.ones(columns)]),
        b_ub=np.zeros(columns),
        A_eq=np.append(np.ones(rows), 0.0)[None],
        b_eq=np.ones(1),
        bounds=[(0, None)] * rows + [(None, None)],
        method="highs",
        options=HIGHS_OPTIONS,
    )
    if result.x is None:
        raise OptionError(f"the linear programme of {rows} x {columns} policies was not solved ({result.message})")
    return [as_distribution(result.x[:rows]), as_distribution(-result.ineqlin.marginals)]


def correlated(payoffs: ArrayLike, kind: str = "cce") -> np.ndarray:
    """The joint distribution `[m_0, m_1, ...]` of a correlated equilibrium of greatest welfare.

    `kind` is `ce` or `cce`. Any number of players, any payoffs. Where several have the same welfare (as all have in a
    constant-sum game), it is one of the linear programme's choice; of two players with a constant sum, a Nash
    equilibrium.
    """
    tensor = payoff_tensor(payoffs, "correlated")
    _require_kind("correlated", kind)
    if len(tensor) == 2 and constant_sum_miss(tensor) < 1e-12:
        # Everything has the same welfare. The large programme is then degenerate, and slow; this one is small.
        return np.multiply.outer(*zero_sum_equilibrium((tensor[0] - tensor[1]) / 2))
    shape, profiles = tensor.shape[1:], math.prod(tensor.shape[1:])
    # In units of the largest payoff, so that the tolerances of the solver mean the same in every game.
    scaled = tensor / max(float(np.ptp(tensor)), 1e-300)
    constraints = sparse.csr_array(sparse.vstack([_incentives(scaled, p, kind) for p in range(len(scaled))]))
    result = linprog(
        -(scaled - scaled.mean()).sum(axis=0).ravel(),
        A_ub=constraints,
        b_ub=np.zeros(len(constraints.indptr) - 1),
        A_eq=np.ones((1, profiles)),
        b_eq=np.ones(1),
        bounds=(0, None),
        method="highs",
        options=HIGHS_OPTIONS,
    )
    if result.x is None:
        raise OptionError(f"correlated: the linear programme of {profiles} profiles was not solved ({result.message})")
    return as_distribution(result.x).reshape(shape)


def ce(payoffs: ArrayLike) -> list[np.ndarray]:
    """The marginals of the correlated equilibrium of greatest welfare, which need not be an equilibrium themselves."""
    return marginals(correlated(payoffs, "ce"))


def cce(payoffs: ArrayLike) -> list[np.ndarray]:
    """The marginals of the coarse correlated equilibrium of greatest welfare; in 2-player zero-sum games, a Nash."""
    return marginals(correlated(payoffs, "cce"))


def _incentives(payoffs: np.ndarray, p: int, kind: str) -> sparse.csr_array:
    """One row for each deviation of player `p`, one column for each profile: the gain where that profile is told."""
    shape, size = payoffs.shape[1:], payoffs.shape[1 + p]
    # gain[b, i] = u_p(b, i_-p) - u_p(i)
    swapped = np.moveaxis(payoffs[p], p, 0)
    gain = np.stack([np.broadcast_to(np.expand_dims(swapped[b], p), shape) - payoffs[p] for b in range(size)])
    gain = gain.reshape(size, -1)
    if kind == "cce":
        return sparse.csr_array(gain)
    told = np.indices(shape)[p].ravel()
    rows, columns = np.broadcast_arrays(np.arange(size)[:, None] * size + told, np.arange(told.size))
    matrix = sparse.csr_array((gain.ravel(), (rows.ravel(), columns.ravel())), shape=(size * size, told.size))
    matrix.eliminate_zeros()
    return matrix[np.arange(size * size) % (size + 1) != 0]  # without the rows of playing what one is told


def _require_kind(owner: str, kind: str) -> None:
    require(kind in ("ce", "cce"), owner, "kind", kind, "'ce' or 'cce'")


def require_count(owner: str, **options: int) -> None:
    """Each option must be a whole number of at least 1."""
    require_positive(owner, **options)
    for option, got in options.items():
        require(int(got) == got, owner, option, got, "a whole number")
