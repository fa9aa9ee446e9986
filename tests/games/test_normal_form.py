"""Correlated equilibria of games solved by hand, and the checks of payoff tensors."""

import numpy as np
import pytest

from shoal.core.errors import OptionError
from shoal.games.normal_form import (
    cce,
    ce,
    correlated,
    deviation_gain,
    marginals,
    nash_conv,
    payoff_tensor,
)

# Rows and columns: swerve, drive on.
CHICKEN = np.array([[[6.0, 2], [7, 0]], [[6, 7], [2, 0]]])
DILEMMA = np.array([[[3.0, 0], [5, 1]], [[3, 5], [0, 1]]])
# Rock, paper, scissors in which a tie pays 1 to both, winning 2 and losing -1.
FRIENDLY = np.array([[1.0, -1, 2], [2, 1, -1], [-1, 2, 1]])
FRIENDLY = np.stack([FRIENDLY, FRIENDLY.T])


def welfare(payoffs, joint):
    return float((payoffs.sum(axis=0) * joint).sum())


def test_chicken_with_a_traffic_light():
    # Told to swerve, driving on must not pay: 2 P(swerve, drive) >= P(swerve, swerve). So the best is 1/2, 1/4, 1/4,
    # with a welfare of 12/2 + 9/2. With two policies each, a CCE is a CE.
    for kind in ("ce", "cce"):
        joint = correlated(CHICKEN, kind)
        np.testing.assert_allclose(joint, [[1 / 2, 1 / 4], [1 / 4, 0]], atol=1e-9)
        assert welfare(CHICKEN, joint) == pytest.approx(10.5)
    np.testing.assert_allclose(ce(CHICKEN), [[3 / 4, 1 / 4]] * 2, atol=1e-9)


def test_coarse_is_more_than_correlated():
    # All on the diagonal is a CCE of welfare 2: against a uniform opponent each policy earns 2/3 < 1. It is no CE: told
    # rock, paper wins. By symmetry a CE has masses a on ties, b on wins and losses each; b >= a and a >= b follow.
    coarse, fine = correlated(FRIENDLY, "cce"), correlated(FRIENDLY, "ce")
    assert welfare(FRIENDLY, coarse) == pytest.approx(2)
    assert welfare(FRIENDLY, fine) == pytest.approx(4 / 3)
    assert deviation_gain(FRIENDLY, coarse, "cce") < 1e-9
    assert deviation_gain(FRIENDLY, np.eye(3) / 3, "cce") == pytest.approx(2 / 3 - 1)
    assert deviation_gain(FRIENDLY, np.eye(3) / 3, "ce") == pytest.approx(1)
    np.testing.assert_allclose(fine, 1 / 9, atol=1e-9)


def test_a_dominant_policy_is_all_there_is():
    for kind in ("ce", "cce"):
        np.testing.assert_allclose(correlated(DILEMMA, kind), [[0, 0], [0, 1]], atol=1e-12)


@pytest.mark.parametrize("kind", ["ce", "cce"])
@pytest.mark.parametrize("shape", [(4, 4), (6, 3), (2, 3, 4), (2, 2, 2, 2), (1, 3)])
def test_nobody_gains_by_deviating(kind, shape):
    for seed in range(3):
        payoffs = np.random.default_rng(seed).normal(size=(len(shape), *shape)) * 10.0 ** (3 * seed - 3)
        joint = correlated(payoffs, kind)
        assert joint.shape == shape
        assert joint.min() >= 0
        assert joint.sum() == pytest.approx(1, abs=1e-12)
        assert deviation_gain(payoffs, joint, kind) < 1e-9 * np.ptp(payoffs)


def test_coarse_welfare_is_at_least_the_correlated_and_that_at_least_a_nash():
    payoffs = np.random.default_rng(5).normal(size=(2, 8, 8))
    fine, coarse = (welfare(payoffs, correlated(payoffs, kind)) for kind in ("ce", "cce"))
    assert coarse >= fine - 1e-9
    pure = [
        payoffs[:, i, j].sum()
        for i in range(8)
        for j in range(8)
        if payoffs[0, i, j] == payoffs[0, :, j].max() and payoffs[1, i, j] == payoffs[1, i].max()
    ]
    assert pure, "this seed has pure equilibria to compare with"
    assert fine >= max(pure) - 1e-9


@pytest.mark.parametrize("solver", [ce, cce])
def test_marginals_are_a_nash_in_zero_sum_games(solver):
    for constant in (0.0, 3.0):
        table = np.random.default_rng(6).normal(size=(50, 40))
        payoffs = np.stack([table, constant - table])
        assert nash_conv(payoffs, solver(payoffs)) < 1e-9
    near = np.stack([table[:10], 1e-4 * np.random.default_rng(7).normal(size=(10, 40)) - table[:10]])
    assert nash_conv(near, cce(near)) < 1e-2


def test_marginals_and_nash_conv_by_hand():
    joint = np.arange(6.0).reshape(2, 3) / 15
    np.testing.assert_allclose(marginals(joint)[0], [3 / 15, 12 / 15])
    np.testing.assert_allclose(marginals(joint)[1], [3 / 15, 5 / 15, 7 / 15])
    # Both cooperate: each would gain 5 - 3. Three players, only the last of whom can gain.
    assert nash_conv(DILEMMA, [np.array([1.0, 0])] * 2) == pytest.approx(4)
    three = np.zeros((3, 2, 2, 2))
    three[2, 0, 1, 1] = 1
    assert nash_conv(three, [np.array([1.0, 0]), np.array([0.5, 0.5]), np.array([1.0, 0])]) == pytest.approx(0.5)


def test_bad_input_is_refused():
    with pytest.raises(OptionError, match="kind must be 'ce' or 'cce'"):
        correlated(CHICKEN, "nash")
    with pytest.raises(OptionError, match=r"joint's shape must be \(2, 2\)"):
        deviation_gain(CHICKEN, np.ones(4) / 4)
    for bad in (3.0, np.zeros(2), np.zeros((2, 3)), np.zeros((3, 2, 2)), np.zeros((0, 2))):
        with pytest.raises(OptionError, match="mine: the payoff tensor's shape must be"):
            payoff_tensor(bad, "mine")
    with pytest.raises(OptionError, match=r"got inf at \(0, 0, 1\) \(1 of 8"):
        payoff_tensor(np.where(CHICKEN == 2, [[0, np.inf], [2, 0]], CHICKEN))
    assert payoff_tensor(np.float32(CHICKEN)).dtype == np.float64
