"""Elo, cross-play and diversity by hand."""

import numpy as np
import pytest

from shoal.core.errors import OptionError
from shoal.games.ratings import cross_play, elo, elo_error, expected_cardinality, results


def expected_scores(ratings):
    return 1 / (1 + 10 ** ((ratings[None] - ratings[:, None]) / 400))


def test_elo_of_two_by_hand():
    # Ten wins to one are 400 points, which is what a scale of 400 means.
    np.testing.assert_allclose(elo([[0, 10], [1, 0]], prior=0.0), [1700, 1300], atol=1e-6)
    np.testing.assert_allclose(elo([[0, 10], [1, 0]], mean=0.0, scale=100, prior=0.0), [50, -50], atol=1e-6)
    np.testing.assert_allclose(elo([[5, 1], [1, 5]]), [1500, 1500])


def test_elo_finds_the_ratings_that_made_the_results():
    truth = np.array([-700.0, -100, 0, 300, 500])
    found = elo(expected_scores(truth), mean=0.0, prior=0.0)
    np.testing.assert_allclose(found, truth - truth.mean(), atol=1e-6)
    # It is the shares that count, not the number of games, as long as all play the same number.
    np.testing.assert_allclose(elo(1000 * expected_scores(truth), mean=0.0, prior=0.0), found, atol=1e-6)


def test_both_seats_of_a_symmetric_game_count():
    """The first policy wins as player 0 against the second, which draws with it as player 0: 3/4 of the games."""
    payoffs = np.array([[0.0, 1.0], [0.0, 0.0]])
    shares = results(np.stack([payoffs, -payoffs]), bounds=(-1.0, 1.0), symmetric=True)
    np.testing.assert_allclose(shares, [[0.0, 0.75], [0.25, 0.0]])


def test_the_prior_by_hand():
    """One game won: with strengths of ± ln 3 it has a chance of 9/10, a game against the mean one of 3/4.

    So what pulls up is 1/10, what pulls down is prior (3/4 - 1/2): they are in balance for a prior of 0.4.
    """
    apart = 400 / np.log(10) * np.log(3)
    np.testing.assert_allclose(elo([[0, 1], [0, 0]], prior=0.4), [1500 + apart, 1500 - apart], atol=1e-6)


def test_elo_with_a_prior_stands_clean_sheets():
    wins = np.triu(np.full((4, 4), 100.0), 1)
    with pytest.raises(OptionError, match="prior=0 no finite ratings"):
        elo(wins, prior=0.0)
    ratings = elo(wins)
    assert np.isfinite(ratings).all()
    assert list(np.argsort(-ratings)) == [0, 1, 2, 3]
    assert ratings.mean() == pytest.approx(1500)
    # The more drawn games are added, the closer together.
    assert np.ptp(elo(wins, prior=10.0)) < np.ptp(ratings)
    np.testing.assert_array_equal(ratings, elo(wins))


def test_the_error_of_two_by_hand():
    # Of shares p and 1 - p, the difference is 400 log10(p / (1 - p)), whose slope is 400 / ln 10 / (p (1 - p)).
    wins, error = [[0, 0.8], [0.2, 0]], [[0, 0.03], [0.03, 0]]
    slope = 400 / np.log(10) / (0.8 * 0.2)
    np.testing.assert_allclose(elo_error(wins, error, prior=0.0), [slope * 0.03 / 2] * 2, rtol=1e-6)


def test_errors_are_those_that_ratings_spread_by():
    """Ratings of many matrices of results, each off at random; some pairs have never met."""
    draws = np.random.default_rng(0)
    wins = expected_scores(np.array([-200.0, -50, 0, 250])) - np.eye(4) / 2
    error = np.array([[0, 0.02, 0.01, 0], [0.02, 0, 0.03, 0.01], [0.01, 0.03, 0, 0.02], [0, 0.01, 0.02, 0]])
    wins[[0, 3], [3, 0]] = 0.0
    noise = np.triu(draws.normal(size=(4000, 4, 4)), 1) * error
    spread = np.std([elo(wins + off - off.T) for off in noise], axis=0)
    np.testing.assert_allclose(elo_error(wins, error), spread, rtol=0.05)


@pytest.mark.parametrize("error", [np.full((3, 3), 0.1), -np.ones((2, 2)), [[0, 0.1], [0.2, 0]]])
def test_errors_must_fit(error):
    with pytest.raises(OptionError, match="elo_error: error"):
        elo_error([[0, 1], [1, 0]], error)


def test_elo_equals_openspiel():
    pytest.importorskip("pyspiel", reason="compares with OpenSpiel")
    from open_spiel.python.algorithms.elo import compute_ratings_from_matrices

    wins = np.random.default_rng(0).integers(1, 20, (6, 6)).astype(float)
    np.fill_diagonal(wins, 0)
    theirs = compute_ratings_from_matrices(wins.astype(int), smoothing_factor=0.0, convergence_delta=1e-12)
    np.testing.assert_allclose(elo(wins, mean=0.0, prior=0.0), theirs - theirs.mean(), atol=1e-2)


def test_results_of_a_payoff_tensor():
    table = np.array([[1.0, -1, 0]])
    expected = np.zeros((4, 4))
    expected[0, 1:], expected[1:, 0] = [1, 0, 0.5], [0, 1, 0.5]
    np.testing.assert_allclose(results(np.stack([table, -table])), expected)
    expected[0, 1:], expected[1:, 0] = [0.75, 0.25, 0.5], [0.25, 0.75, 0.5]
    np.testing.assert_allclose(results(np.stack([table, -table]), bounds=(-2, 2)), expected)
    rps = np.array([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]])
    shares = results(np.stack([rps, -rps]), symmetric=True)
    np.testing.assert_allclose(shares, [[0, 0, 1], [1, 0, 0], [0, 1, 0]])
    np.testing.assert_allclose(elo(shares, prior=0.0), 1500)
    with pytest.raises(OptionError, match="bounds"):
        results(np.stack([rps, -rps]), bounds=(0, 1))
    with pytest.raises(OptionError, match="number of players"):
        results(np.zeros((1, 3)))


def test_cross_play_by_hand():
    summary = cross_play([[10, 2, 4], [0, 8, 6], [1, 3, 9]])
    assert summary.self_play == pytest.approx(9)
    assert summary.cross_play == pytest.approx(16 / 6)
    assert summary.gap == pytest.approx(9 - 16 / 6)
    np.testing.assert_allclose(summary.with_others, [3, 3, 2])
    np.testing.assert_array_equal(summary.worst_partner, [1, 0, 0])
    np.testing.assert_allclose(summary.worst, [2, 0, 1])


def test_expected_cardinality_by_hand():
    # Three eigenvalues of 9 give 3 * 9/10; a copy of a policy doubles one of them and adds none.
    assert expected_cardinality(3 * np.eye(3)) == pytest.approx(2.7)
    copied = 3 * np.eye(3)[[0, 1, 2, 2]]
    assert expected_cardinality(copied) == pytest.approx(1.8 + 18 / 19)
    assert expected_cardinality(np.zeros((4, 2))) == 0
    table = np.random.default_rng(0).normal(size=(4, 6))
    by_definition = np.trace(np.eye(4) - np.linalg.inv(table @ table.T + np.eye(4)))
    assert expected_cardinality(table) == pytest.approx(by_definition)


def test_bad_input_is_refused():
    for bad in (np.zeros(3), np.zeros((2, 3)), np.zeros((0, 0)), [[0, np.nan], [1, 0]]):
        with pytest.raises(OptionError, match="elo"):
            elo(bad)
        with pytest.raises(OptionError, match="cross_play"):
            cross_play(bad)
    for options in ({"scale": 0.0}, {"prior": -1.0}):
        with pytest.raises(OptionError, match="elo"):
            elo(np.ones((2, 2)), **options)
    with pytest.raises(OptionError, match="at least 0"):
        elo([[0, -1], [1, 0]])
    with pytest.raises(OptionError, match="expected_cardinality"):
        expected_cardinality(np.zeros(3))
