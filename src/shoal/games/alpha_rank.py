"""α-rank (Omidshafiei et al. 2019): which profiles a population drifts to when single players keep switching policies.

States are profiles `s = (i_0, i_1, ...)`, one policy per player (or, for one symmetric population, single policies).
With `n` the number of profiles that differ from `s` in one player's policy, the chain goes from `s` to such an `r`,
where player `p` switches, with probability

    finite α, population size m:   C(s, r) = 1/n (1 - exp(-x)) / (1 - exp(-m x)),   x = α (u_p(r) - u_p(s))
                                   (1/(n m) where x = 0)
    infinite α, noise ε:           C(s, r) = 1/n times 1 - ε if u_p(r) > u_p(s), 1/2 if equal, ε if less

and stays otherwise. The answer is the stationary distribution; for infinite α its limit as ε goes to 0, found by
halving ε from 1/2 until, after at least eleven halvings, the distribution no longer changes. In one symmetric
population of two players, `r` invades `s` by comparing `u(r, s)` with `u(s, r)`.

Decomposing the chain densely does not scale: 100 x 100 policies are 10,000 profiles, though each has only 198
neighbours. So jumps (staying left out, chain `P`) are balanced by GMRES, which only needs products. That suffices where
the graph of better replies has one sink, as in every two-player zero-sum game (Biggar and Shames 2023). With several
sinks, the chain may stay in each for a time of 1/ε, and then how the sinks compare is lost in rounding errors. This
shows in two different guesses that balance differently. Then one state `z_k` is picked in each sink, and the chain is
watched only when it is there; with `R` all other states that is exact, and as small as the number of sinks:

    V = P_zR (I - P_RR)^-1    (expected visits to R on the way, by GMRES: from anywhere some sink is near)
    S = P_zz + V P_Rz,   w = w S,   jumps = [w, w V],   stationary = jumps / (rate of leaving), normalised.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.sparse import csgraph
from scipy.sparse.linalg import LinearOperator, gmres

from shoal.core.errors import OptionError, require, require_positive
from shoal.games.normal_form import as_distribution, marginals, payoff_tensor, require_count

_ALL_WATCHED = 128  # chains up to this size are solved by elimination alone
_LEAST_ESCAPE = 1e-10  # below it, how often a watched state is left for another one is lost in rounding errors


@dataclass(frozen=True)
class _Chain:
    """Rates of switching: `(1 - 2 noise) better + noise` between neighbours, in a grid of profiles."""

    better: sparse.csr_array  # [N, N], from row to column
    incoming: sparse.csr_array  # its transpose, kept as rows because every product needs it
    shape: tuple[int, ...]
    noise: float = 0.0

    def leaving(self) -> np.ndarray:
        neighbours = sum(self.shape) - len(self.shape)
        return (1 - 2 * self.noise) * np.asarray(self.better.sum(axis=1)) + self.noise * neighbours

    def flow(self, weights: np.ndarray) -> np.ndarray:
        """How much arrives everywhere, when `weights` leave with these rates."""
        arriving = (1 - 2 * self.noise) * np.asarray(self.incoming @ weights)
        if self.noise:
            grid = weights.reshape(self.shape)
            near = -grid.ndim * grid
            for p in range(grid.ndim):
                near = near + grid.sum(axis=p, keepdims=True)
            arriving += self.noise * near.ravel()
        return arriving


def alpha_rank(
    payoffs: ArrayLike,
    alpha: float | None = None,
    population: int = 50,
    epsilon: float | None = None,
    symmetric: bool = False,
) -> list[np.ndarray]:
    """The players' marginals of the α-rank distribution; see `alpha_rank_joint` for the options."""
    joint = alpha_rank_joint(payoffs, alpha, population, epsilon, symmetric)
    return [joint, joint.copy()] if symmetric else marginals(joint)


def alpha_rank_joint(
    payoffs: ArrayLike,
    alpha: float | None = None,
    population: int = 50,
    epsilon: float | None = None,
    symmetric: bool = False,
) -> np.ndarray:
    """The stationary distribution over profiles `[m_0, m_1, ...]`, or over policies `[m]` if `symmetric`.

    - alpha: strength of selection, with a population of `population` per player; None for infinite.
    - epsilon: noise of infinite alpha, above 0 and at most 1/2; None for the limit of vanishing noise.
    - symmetric: one population plays a symmetric game of two against itself.
    """
    tensor = payoff_tensor(payoffs, "alpha_rank")
    require_count("alpha_rank", population=population)
    require(population >= 2, "alpha_rank", "population", population, "at least 2")
    if alpha is not None:
        require_positive("alpha_rank", alpha=alpha)
        require(epsilon is None, "alpha_rank", "epsilon", epsilon, "left out with a finite alpha")
    if epsilon is not None:
        require(0 < epsilon <= 0.5, "alpha_rank", "epsilon", epsilon, "above 0 and at most 1/2")
    if symmetric:
        _require_symmetric(tensor)
    shape = tensor.shape[1:2] if symmetric else tensor.shape[1:]
    if max(shape) == 1:
        return np.ones(shape)
    chain = _make_chain(_switches(tensor, symmetric), shape, alpha, population)
    start = np.full(np.prod(shape), 1 / np.prod(shape))
    # Where nobody loses by a switch, each switch happens with at least the chance of a neutral one.
    sinks = _sinks(chain.better, 0.0 if alpha is None else (1 - 1e-9) / population)
    if alpha is not None:
        pi, resolved = _stationary(chain, sinks, start)
        if not resolved:
            raise OptionError(
                f"alpha_rank: with alpha={alpha} and population={population} the chain has {len(sinks)} sinks that it "
                "never leaves, so no single stationary distribution. Lower alpha, or leave it out for infinite alpha"
            )
    elif epsilon is not None:
        pi, _ = _stationary(_with_noise(chain, epsilon), sinks, start)
    else:
        pi = _vanishing_noise(chain, sinks, start)
    return pi.reshape(shape)


def _vanishing_noise(chain: _Chain, sinks: list[np.ndarray], start: np.ndarray) -> np.ndarray:
    """The stationary distribution as the noise is halved, once it has settled."""
    pi = start
    for halvings in range(50):
        before = pi
        pi, resolved = _stationary(_with_noise(chain, 0.5 ** (halvings + 1)), sinks, before)
        if not resolved:
            return before
        if halvings > 10 and np.allclose(pi, before):
            break
    return pi


def _with_noise(chain: _Chain, noise: float) -> _Chain:
    return _Chain(chain.better, chain.incoming, chain.shape, noise)


def _switches(tensor: np.ndarray, symmetric: bool) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """For each player: states `s` and `r` that differ in its policy, and what it earns before and after the switch."""
    if symmetric:
        s, r = np.nonzero(~np.eye(tensor.shape[1], dtype=bool))
        return [(s, r, tensor[0, s, r], tensor[0, r, s])]
    found = []
    ids = np.arange(tensor[0].size).reshape(tensor.shape[1:])
    for p, table in enumerate(tensor):
        size = table.shape[p]
        lines, worth = (np.moveaxis(x, p, -1).reshape(-1, size) for x in (ids, table))
        a, b = np.nonzero(~np.eye(size, dtype=bool))
        found.append((lines[:, a].ravel(), lines[:, b].ravel(), worth[:, a].ravel(), worth[:, b].ravel()))
    return found


def _make_chain(switches: list, shape: tuple[int, ...], alpha: float | None, population: int) -> _Chain:
    s, r, before, after = (np.concatenate(parts) for parts in zip(*switches, strict=True))
    if alpha is None:
        # The relative tolerance of 1e-5 is that of OpenSpiel: sampled payoffs that are so close are one.
        rate = np.where(np.isclose(after, before, atol=1e-14), 0.5, after > before)
    else:
        rate = _fixation(alpha * (after - before), population)
    used = rate > 0
    size = int(np.prod(shape))
    better = sparse.csr_array((rate[used], (s[used], r[used])), shape=(size, size))
    return _Chain(better, better.T.tocsr(), shape)


def _fixation(x: np.ndarray, population: int) -> np.ndarray:
    """`(1 - exp(-x)) / (1 - exp(-m x))`, written so that nothing overflows on either side of 0."""
    size = np.abs(x)
    neutral = size < 1e-14
    safe = np.where(neutral, 1.0, size)
    gain = np.expm1(-safe) / np.expm1(-population * safe)
    loss = gain * np.exp(-(population - 1) * safe)
    return np.where(neutral, 1 / population, np.where(x > 0, gain, loss))


def _sinks(better: sparse.csr_array, least: float) -> list[np.ndarray]:
    """The strongly connected sets of states that no edge with a rate above `least` leaves."""
    graph = better.copy()
    graph.data = (graph.data > least).astype(np.float64)
    graph.eliminate_zeros()
    count, label = csgraph.connected_components(graph, directed=True, connection="strong")
    edges = graph.tocoo()
    leaves = label[edges.row] != label[edges.col]
    is_sink = np.ones(count, dtype=bool)
    is_sink[label[edges.row[leaves]]] = False
    order = np.argsort(label, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(label, minlength=count))[:-1])
    return [members[k] for k in np.flatnonzero(is_sink)]


def _stationary(chain: _Chain, sinks: list[np.ndarray], guess: np.ndarray) -> tuple[np.ndarray, bool]:
    """The stationary distribution, and whether rounding errors leave it unique. `guess` is where iterations start."""
    leaving, size = chain.leaving(), guess.size
    stuck = leaving < 1e-200
    if stuck.any():  # a strong alpha underflows to states that are never left
        return stuck / stuck.sum(), len(sinks) == 1
    if size <= _ALL_WATCHED:
        return _eliminate(np.stack([chain.flow(row) for row in np.eye(size)]), sinks[0][0])

    def jump(flux: np.ndarray) -> np.ndarray:
        return chain.flow(flux / leaving)

    flux = guess * leaving / (guess @ leaving)
    balanced, resolved = _balance(jump, flux), True
    if len(sinks) > 1:
        other = flux.copy()
        for k, sink in enumerate(sinks):
            other[sink] *= 1 + k % 7
        # Guesses that weigh the sinks differently end alike if the chain moves freely between them.
        if not np.allclose(balanced, _balance(jump, other / other.sum()), rtol=1e-8, atol=1e-14):
            balanced, resolved = _watch(jump, flux, sinks)
    return as_distribution(balanced / leaving), resolved


def _balance(jump: Callable[[np.ndarray], np.ndarray], flux: np.ndarray) -> np.ndarray:
    """Jumps in balance, `flux = flux P`, corrected from a guess by GMRES."""
    correction = _gmres(lambda v: v - jump(v), jump(flux) - flux, 1e-14 * float(np.linalg.norm(flux)))
    return flux + correction


def _watch(
    jump: Callable[[np.ndarray], np.ndarray], flux: np.ndarray, sinks: list[np.ndarray]
) -> tuple[np.ndarray, bool]:
    """Jumps in balance where sinks are hard to leave: the chain watched in the most visited state of each."""
    size = flux.size
    watched = np.array([sink[np.argmax(flux[sink])] for sink in sinks])
    rest = np.ones(size)
    rest[watched] = 0.0
    visits, between = np.zeros((len(watched), size)), np.zeros((len(watched), len(watched)))
    for k, z in enumerate(watched):
        first = jump(np.eye(1, size, z)[0])
        visits[k] = _gmres(lambda v: v - rest * jump(rest * v), rest * first, 1e-14)
        between[k] = (first + jump(visits[k]))[watched]
    np.fill_diagonal(between, 0.0)
    between = np.maximum(between, 0.0)  # rounding errors around 0
    weights, connected = _eliminate(between, 0)
    flux = weights @ visits
    flux[watched] = weights
    return flux, connected and bool(between.sum(axis=1).min() > _LEAST_ESCAPE)


def _gmres(product: Callable[[np.ndarray], np.ndarray], right: np.ndarray, error: float) -> np.ndarray:
    """The `x` with `product(x) = right` up to `error`, or what 1000 products come to."""
    operator = LinearOperator((right.size, right.size), matvec=product, dtype=np.float64)  # pyright: ignore[reportCallIssue]
    return gmres(operator, right, rtol=0.0, atol=error, restart=100, maxiter=10)[0]


def _eliminate(rates: np.ndarray, first: int) -> tuple[np.ndarray, bool]:
    """Stationary distribution of a small chain, by elimination without subtractions (Grassmann et al. 1985).

    Accurate in every entry, however small the rates. `first` is a state that is eliminated last; it must be in a sink,
    for states that cannot get back to it would have nowhere to go. False if there are such states.
    """
    size = len(rates)
    order = np.r_[first, np.delete(np.arange(size), first)]
    rates = rates[np.ix_(order, order)].copy()
    np.fill_diagonal(rates, 0.0)
    for n in range(size - 1, 0, -1):
        onwards = rates[n, :n].sum()
        if onwards <= 0:
            return np.full(size, 1 / size), False
        rates[:n, n] /= onwards
        rates[:n, :n] += np.outer(rates[:n, n], rates[n, :n])
    pi = np.zeros(size)
    pi[order[0]] = 1.0
    for n in range(1, size):
        pi[order[n]] = pi[order[:n]] @ rates[:n, n]
    return pi / pi.sum(), True


def _require_symmetric(tensor: np.ndarray) -> None:
    allowed = "that of a symmetric game of two: payoffs[1] is payoffs[0] transposed"
    require(len(tensor) == 2, "alpha_rank", "with symmetric=True the number of players", len(tensor), "2")
    same = tensor.shape[1] == tensor.shape[2] and np.allclose(tensor[1], tensor[0].T, rtol=1e-5, atol=1e-8)
    require(same, "alpha_rank", "with symmetric=True the payoff tensor", tensor.shape, allowed)
