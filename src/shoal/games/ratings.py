"""How good and how different the policies of a population are: Elo, cross-play, diversity.

All functions are pure, in float64 on the host. α-rank, the other rating, is in `alpha_rank.py`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csgraph

from shoal.core.errors import OptionError, require, require_positive
from shoal.games.normal_form import payoff_tensor

_MOST_BLOCKS = 1000
"""Of games that are resampled as one."""


@dataclass(frozen=True)
class CrossPlay:
    """How policies do with each other, compared with how they do with themselves."""

    self_play: float  # mean of the diagonal
    cross_play: float  # mean of everything off the diagonal
    gap: float  # self_play - cross_play: high if a policy relies on conventions that the others do not know
    with_others: np.ndarray  # [n], mean of each policy's row without the diagonal
    worst_partner: np.ndarray  # [n], which other policy each one does worst with
    worst: np.ndarray  # [n], what it gets there


def elo(wins: ArrayLike, mean: float = 1500.0, scale: float = 400.0, prior: float = 0.01) -> np.ndarray:
    """Elo ratings `[n]` of greatest likelihood for a matrix of results, with the given `mean`.

    `wins[i, j]` is how many games `i` won against `j`, a draw counting half on both sides; shares of games do as well
    (see `results`). The diagonal is ignored. With P(i beats j) = 1 / (1 + 10^((R_j - R_i) / scale)), the ratings
    maximise

        sum over i, j of wins[i, j] log P(i beats j)  +  prior/2 sum over i of log P(i beats M) P(M beats i),

    M a policy of the mean rating: `prior` drawn games of everybody against it. They hold the ratings finite where
    somebody has won or lost all games. With `prior = 0` such results are refused. Newton's method from equal ratings;
    the answer depends on nothing else.
    """
    wins = _square(wins, "elo", "wins")
    require(bool((wins >= 0).all()), "elo", "every entry of wins", float(wins.min()), "at least 0")
    require_positive("elo", scale=scale)
    require(prior >= 0, "elo", "prior", prior, "at least 0")
    wins = wins - np.diag(np.diag(wins))
    if prior == 0 and csgraph.connected_components(wins > 0, directed=True, connection="strong")[0] > 1:
        raise OptionError(
            "elo: with prior=0 no finite ratings fit these results, because a group of policies has never lost to (or "
            "never met) the rest. Set prior to a small number of drawn games, such as 0.01, or play more games"
        )
    return mean + scale / np.log(10) * _most_likely_strengths(wins, prior)


def elo_error(wins: ArrayLike, error: ArrayLike, scale: float = 400.0, prior: float = 0.01) -> np.ndarray:
    """Standard errors `[n]` of `elo(wins)` to first order, of ratings that only matrices of results are known for.

    `error[i, j]`: the standard error of `wins[i, j]`, as large as that of `wins[j, i]`, which is off by the opposite: a
    game that one has not won, the other has. Different pairs are off independently. With H the curvature of the
    likelihood at the ratings, and C the covariance of what each has won in all its games, that of the ratings is
    H^-1 C H^-1.
    """
    wins, error = _square(wins, "elo_error", "wins"), _square(error, "elo_error", "error")
    same = error.shape == wins.shape and bool((error >= 0).all()) and np.allclose(error, error.T)
    require(same, "elo_error", "error", "others", "as many as wins, at least 0, and symmetric")
    strength = (elo(wins, 0.0, scale, prior)) * np.log(10) / scale
    wins = wins - np.diag(np.diag(wins))
    squares = np.square(error - np.diag(np.diag(error)))
    covariance = np.diag(squares.sum(axis=1)) - squares
    centred = np.eye(len(wins)) - 1 / len(wins)
    inverse = centred @ np.linalg.inv(_curvature(strength, wins + wins.T, prior))
    return scale / np.log(10) * np.sqrt(np.clip(np.diag(inverse @ covariance @ inverse.T), 0.0, None))


def elo_interval(
    shares: ArrayLike, prior: float = 0.01, seed: int = 0, resamples: int = 400
) -> tuple[np.ndarray, np.ndarray]:
    """The ends `[n]` of 95 % intervals of Elo ratings, by bootstrap over games.

    shares: `[games, n, n]`, how much `i` won of every game against `j`. Games of the same number are resampled
    together, as those that were begun alike are; more than 1,000 in a row of equal blocks of them.
    """
    shares = np.asarray(shares, np.float64)
    require(shares.ndim == 3 and len(shares) > 0, "elo_interval", "shares' shape", shares.shape, "[games, n, n]")
    blocks = np.stack([block.sum(axis=0) for block in np.array_split(shares, min(len(shares), _MOST_BLOCKS))])
    draws = np.random.default_rng(seed)
    found = []
    for _ in range(resamples):
        times = np.bincount(draws.integers(0, len(blocks), len(blocks)), minlength=len(blocks))
        found.append(elo(np.tensordot(times, blocks, axes=1), prior=prior))
    low, high = np.percentile(found, [2.5, 97.5], axis=0)
    return low, high


def results(payoffs: ArrayLike, bounds: tuple[float, float] | None = None, symmetric: bool = False) -> np.ndarray:
    """A matrix for `elo` from the payoff tensor of a two-player game: shares of games won, a draw being a half.

    Payoffs are mapped linearly to [0, 1] from `bounds`, or else from the least and the greatest entry. If `symmetric`,
    both axes are the same policies, and the matrix is `[m, m]`. Otherwise it is `[m_0 + m_1, m_0 + m_1]`, the policies
    of player 0 first, and zero between policies of the same player, who never meet.
    """
    tensor = payoff_tensor(payoffs, "results")
    require(len(tensor) == 2, "results", "the number of players", len(tensor), "2")
    low, high = bounds if bounds is not None else (float(tensor.min()), float(tensor.max()))
    inside = bool(low <= tensor.min() and tensor.max() <= high)
    require(inside, "results", "bounds", bounds, f"around all payoffs, {tensor.min():.6g} to {tensor.max():.6g}")
    # Shares of both players, so that the two sides of a game add up to one even if the payoffs do not quite.
    share = np.full(tensor[0].shape, 0.5) if low == high else 0.5 + (tensor[0] - tensor[1]) / (2 * (high - low))
    rows, columns = tensor.shape[1], tensor.shape[2]
    if symmetric:
        require(rows == columns, "results", "with symmetric=True the shape", tensor.shape, "[2, m, m]")
        both = (share + 1 - share.T) / 2  # as player 0 and as player 1
        return both - np.diag(np.diag(both))
    matrix = np.zeros((rows + columns, rows + columns))
    matrix[:rows, rows:], matrix[rows:, :rows] = share, 1 - share.T
    return matrix


def cross_play(returns: ArrayLike) -> CrossPlay:
    """Summary of a matrix `[n, n]` of returns of policy `i` (row) together with policy `j` (column)."""
    returns = _square(returns, "cross_play", "returns")
    n = len(returns)
    require(n > 1, "cross_play", "the number of policies", n, "at least 2")
    others = returns[~np.eye(n, dtype=bool)].reshape(n, n - 1)
    worst = others.argmin(axis=1)
    return CrossPlay(
        self_play=float(np.diag(returns).mean()),
        cross_play=float(others.mean()),
        gap=float(np.diag(returns).mean() - others.mean()),
        with_others=others.mean(axis=1),
        worst_partner=worst + (worst >= np.arange(n)),
        worst=others.min(axis=1),
    )


def expected_cardinality(payoffs: ArrayLike) -> float:
    """How many effectively different policies a table of payoffs `[n, m]` shows (Perez-Nieves et al. 2021).

        L = M Mᵀ,   E|Y| = trace(I - (L + I)^-1) = sum over k of l_k / (1 + l_k),   l_k the eigenvalues of L:

    the expected number of policies that a determinantal point process with kernel L draws, rows of M the policies. It
    lies between 0 and the rank of M, and grows with the scale of payoffs: compare populations of one game only.
    """
    table = np.asarray(payoffs, dtype=np.float64)
    owner = "expected_cardinality"
    require(table.ndim == 2 and table.size > 0, owner, "payoffs' shape", table.shape, "[policies, opponents]")
    require(bool(np.isfinite(table).all()), owner, "payoffs", "NaN or infinity", "finite")
    squares = np.linalg.svd(table, compute_uv=False) ** 2
    return float((squares / (1 + squares)).sum())


def _most_likely_strengths(wins: np.ndarray, prior: float) -> np.ndarray:
    """Natural logarithms of the Bradley-Terry strengths, mean 0: damped Newton steps on a concave function."""
    n = len(wins)
    games = wins + wins.T
    won = wins.sum(axis=1)
    strength = np.zeros(n)

    def likelihood(x: np.ndarray) -> float:
        pairs = -(wins * np.logaddexp(0.0, x[None] - x[:, None])).sum()
        return float(pairs - prior / 2 * (np.logaddexp(0.0, x) + np.logaddexp(0.0, -x)).sum())

    for _ in range(200):
        own = 1 / (1 + np.exp(-strength))
        gradient = won - (games * _chances(strength)).sum(axis=1) + prior * (0.5 - own)
        step = np.linalg.solve(_curvature(strength, games, prior), gradient)
        size = min(1.0, 5.0 / max(float(np.abs(step).max()), 1e-300))
        now = likelihood(strength)
        while size > 1e-12 and likelihood(strength + size * step) < now - 1e-12 * abs(now):
            size /= 2
        strength = strength + size * step
        if np.abs(step).max() < 1e-12:
            break
    return strength - strength.mean()


def _chances(strength: np.ndarray) -> np.ndarray:
    """How likely each beats each other."""
    return 1 / (1 + np.exp(np.clip(strength[None] - strength[:, None], -700, 700)))


def _curvature(strength: np.ndarray, games: np.ndarray, prior: float) -> np.ndarray:
    """Minus the second derivatives of the likelihood."""
    chance, own = _chances(strength), 1 / (1 + np.exp(-strength))
    curve = games * chance * (1 - chance)
    # The ones fix the mean, which the games leave open; they change nothing else, as the gradient sums to 0.
    open_mean = np.full(games.shape, 1e-3 * (prior == 0))
    return np.diag(curve.sum(axis=1) + prior * own * (1 - own)) - curve + open_mean


def _square(matrix: ArrayLike, owner: str, option: str) -> np.ndarray:
    array = np.asarray(matrix, dtype=np.float64)
    square = array.ndim == 2 and array.shape[0] == array.shape[1] and array.size > 0
    require(square, owner, f"{option}' shape" if option.endswith("s") else f"{option}'s shape", array.shape, "[n, n]")
    require(bool(np.isfinite(array).all()), owner, option, "NaN or infinity", "finite")
    return array
