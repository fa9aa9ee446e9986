"""Figures over seeds, worked out by hand and against scipy."""

import numpy as np
import pytest
import scipy.stats

from shoal.training import statistics as s


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 3.0], 2.0),  # half of each
        ([0.0, 1.0, 5.0], (0.25 * 0 + 1.0 + 0.25 * 5) / 1.5),
        ([0.0, 1.0, 2.0, 100.0], 1.5),
        ([5.0, 1.0, 2.0, 3.0, 4.0], (0.75 * 2 + 3 + 0.75 * 4) / 2.5),  # the ends of the middle half cut 2 and 4
        ([0.0, 0.0, 10.0, 20.0, 30.0, 99.0], (0.5 * 0 + 10 + 20 + 0.5 * 30) / 3),
    ],
)
def test_the_interquartile_mean_with_edges_that_count_in_part(values, expected):
    assert s.iqm(np.array(values)) == pytest.approx(expected)
    assert s.iqm(np.array(values)[::-1]) == pytest.approx(expected)


def test_the_interquartile_mean_is_scipys_trimmed_mean_where_nothing_is_cut_in_part():
    values = np.random.default_rng(1).normal(size=(3, 8))
    np.testing.assert_allclose(s.iqm(values), scipy.stats.trim_mean(values, 0.25, axis=1))


def test_the_interval_of_two_seeds_is_known():
    """Of two seeds every other sample has both; a quarter each has the first or the second alone."""
    assert s.interval(np.array([0.0, 1.0]), np.mean) == (0.0, 1.0)
    means = np.mean(s.resample([np.array([0.0, 1.0])]), axis=-1)
    assert set(means) == {0.0, 0.5, 1.0}
    assert np.mean(means == 0.5) == pytest.approx(0.5, abs=0.04)


def test_the_interval_is_that_of_scipys_bootstrap():
    values = np.random.default_rng(3).normal(10.0, 2.0, size=30)
    for figure in (np.mean, s.iqm):
        theirs = scipy.stats.bootstrap(
            (values,), figure, n_resamples=20_000, method="percentile", rng=np.random.default_rng(5)
        ).confidence_interval
        assert s.stratified_interval([values], figure) == pytest.approx((theirs.low, theirs.high), abs=0.06)


def test_seeds_are_drawn_within_their_stratum():
    """Strata far apart: every sample has as many values of each as there are, so the mean hardly varies."""
    strata = [np.array([0.0, 0.1, 0.2]), np.array([100.0, 100.1])]
    drawn = s.resample(strata)
    assert drawn.shape == (s.DRAWS, 5)
    assert (np.sort(drawn, axis=1)[:, 2] < 50).all()
    assert (np.sort(drawn, axis=1)[:, 3] > 50).all()
    low, high = s.stratified_interval(strata, np.mean)
    assert 40.0 <= low < high <= 40.2
    pooled_low, pooled_high = s.interval(np.concatenate(strata), np.mean)
    assert pooled_high - pooled_low > 50


def test_curves_are_worked_through_in_parts_to_the_same_numbers(monkeypatch):
    strata = [np.random.default_rng(0).normal(size=(10, n)) for n in (3, 4)]
    whole = s.stratified_interval(strata)
    monkeypatch.setattr(s, "MOST_AT_ONCE", 3 * 7 * s.DRAWS)
    np.testing.assert_array_equal(s.stratified_interval(strata), whole)
    assert s.stratified_interval([values[4] for values in strata]) == pytest.approx([whole[0][4], whole[1][4]])


@pytest.mark.parametrize("strata", [[np.array([1.0])], [np.array([1.0, 2.0]), np.array([3.0])], []])
def test_one_seed_has_no_interval(strata):
    assert s.stratified_interval(strata) is None
    assert s.profile_interval(strata, np.zeros(2)) is None
    assert s.improvement_interval(strata, strata) is None


def test_a_profile_by_hand():
    scores, thresholds = np.array([1.0, 2.0, 2.0, 4.0]), np.array([0.0, 1.0, 1.5, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(s.profile(scores, thresholds), [1.0, 0.75, 0.75, 0.25, 0.25, 0.0])
    low, high = s.profile_interval([scores], thresholds)
    np.testing.assert_array_equal((low[0], high[0], low[-1], high[-1]), (1.0, 1.0, 0.0, 0.0))
    # At 1.5, each of 4 draws is greater with 3/4: none is with (1/4)^4 = 0.4 %, at most one with 5.1 %.
    assert (low[2], high[2]) == (0.25, 1.0)


def test_improvement_by_hand():
    one, other = np.array([1.0, 2.0, 3.0]), np.array([2.0, 0.0])
    # 1 > 0; 2 = 2 counts half, 2 > 0; 3 > 2, 3 > 0: 4.5 of 6
    assert s.improvement([one], [other]) == pytest.approx(4.5 / 6)
    assert s.improvement([other], [one]) == pytest.approx(1.5 / 6)
    assert s.improvement([one], [one]) == 0.5
    assert s.improvement([one, other], [other, one]) == pytest.approx(0.5)  # the mean over environments
    u = scipy.stats.mannwhitneyu(one, other).statistic
    assert s.improvement([one], [other]) == pytest.approx(u / 6)


def test_the_interval_of_an_improvement():
    numbers = np.random.default_rng(2)
    one, other = numbers.normal(0.5, 1.0, 20), numbers.normal(0.0, 1.0, 15)
    low, high = s.improvement_interval([one], [other])

    def figure(x, y):
        return np.mean((x[:, None] > y) + 0.5 * (x[:, None] == y))

    theirs = scipy.stats.bootstrap(
        (one, other), figure, n_resamples=4000, method="percentile", vectorized=False, rng=np.random.default_rng(5)
    ).confidence_interval
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.03)
    assert s.improvement_interval([one + 100], [other]) == (1.0, 1.0)


def test_the_interval_of_an_improvement_is_of_the_mean_over_environments():
    less, more = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    assert s.improvement_interval([less, more, more], [more, less, less]) == pytest.approx((2 / 3, 2 / 3))
