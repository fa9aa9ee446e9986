"""The cross-play table on returns worked out by hand: line-ups, errors, games won, ratings, teams."""

import numpy as np
import pytest

from shoal.core.errors import OptionError
from shoal.games.cross_table import CrossTable, cross_lineups, find_relation, is_zero_sum
from shoal.games.ratings import elo, elo_interval


def table_of(returns, place, kind="competitive", one_team=False):
    return CrossTable(returns, place, find_relation(returns, kind, one_team))


def two(first):
    """Two contenders; what the first side earns in the line-ups (0, 0), (0, 1), (1, 0), (1, 1), zero-sum."""
    first = np.array(first, float)
    _, place = cross_lineups(2, 2)
    return table_of(np.stack([first, -first], axis=-1), place)


def test_every_lineup_is_played_once():
    lineups, place = cross_lineups(2, 2)
    assert lineups.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert place[0].tolist() == [[0, 1], [2, 3]]
    assert place[1].tolist() == [[0, 2], [1, 3]], "on the second side, the row is the second of the line-up"
    lineups, place = cross_lineups(2, 3)
    assert len(lineups) == 8
    assert lineups[place[1, 0, 1]].tolist() == [1, 0, 1]


def test_means_and_errors_by_hand():
    table = two([[0, 0, 0, 0], [1, 1, 1, -1], [-1, 1, -1, -1], [0, 0, 0, 0]])
    mean, error = table.matrix
    # 0 against 1: first side 1, 1, 1, -1; second side 1, -1, 1, 1: in the episodes 1, 0, 1, 0
    assert mean[0, 1] == 0.5
    assert mean[1, 0] == -0.5
    np.testing.assert_allclose(error[0, 1], np.std([1, 0, 1, 0], ddof=1) / 2)
    assert table.by_side[0][:, 0, 1].tolist() == [0.5, 0.5]
    assert table.with_others[0].tolist() == [0.5, -0.5]
    assert table.win_rate[0].tolist() == [[0.5, 0.75], [0.25, 0.5]]
    assert table.order == [0, 1]
    assert np.isinf(two([[0], [1], [-1], [0]]).matrix[1]).all(), "one episode says nothing of the error"


def test_elo_of_known_win_rates():
    """Three quarters of the games are a difference of 400 log10(3), but for the drawn game of the prior."""
    wins, losses = 3000, 1000
    first = np.zeros((4, 4000))
    first[1] = np.random.default_rng(0).permutation(np.repeat([1, -1], [wins, losses]))
    first[2] = -first[1]
    rating, low, high = two(first).ratings()
    assert abs(rating[0] - rating[1] - 400 * np.log10(3)) < 1
    assert np.mean(rating) == pytest.approx(1500)
    assert low[0] < rating[0] < high[0]
    # the error of log(p / (1 - p)) is 1 / sqrt(n p (1 - p)); both ratings move by half of it, in opposite directions
    expected = 2 * 1.96 * 400 / np.log(10) / np.sqrt(4000 * 0.75 * 0.25) / 2
    np.testing.assert_allclose(high[0] - low[0], expected, rtol=0.2)


def test_an_interval_is_the_same_for_the_same_seed_and_shrinks_with_games():
    won = np.random.default_rng(0).random((4000, 2, 2)) < 0.6
    won[:, 1, 0] = ~won[:, 0, 1]
    low, high = elo_interval(won)
    again = elo_interval(won)
    assert low.tobytes() == again[0].tobytes()
    assert ((low < elo(won.sum(axis=0))) & (elo(won.sum(axis=0)) < high)).all()
    fewer = elo_interval(won[:1000])
    np.testing.assert_allclose((fewer[1] - fewer[0])[0] / (high - low)[0], 2, rtol=0.25)
    with pytest.raises(OptionError, match=r"shares' shape must be \[games, n, n\]"):
        elo_interval(won[0])


def test_relations():
    one = np.array([[1.0, -1.0], [2.0, -2.0]])
    assert is_zero_sum(one)
    assert find_relation(one, "competitive", False) == "zero-sum"
    assert find_relation(one, "mixed", False) == "zero-sum", "it is what is earned that counts"
    assert find_relation(one + 1, "competitive", False) == "opposed"
    assert find_relation(one + 1, "mixed", False) == "general"
    assert find_relation(one, "cooperative", False) == "team"
    assert find_relation(one, "mixed", True) == "team"


def test_sides_that_earn_unlike_amounts_are_compared_by_the_sum_over_both():
    """The first side earns 10 more than the second whoever plays it; contender 1 earns 1 more than 0 on each."""
    _, place = cross_lineups(2, 2)
    strength = np.array([0.0, 1.0])
    pairs = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    returns = np.repeat((strength[pairs] + [10, 0])[:, None], 8, axis=1)
    table = table_of(returns, place)
    assert table.relation == "opposed"
    assert table.win_rate[0][1, 0] == 1.0
    assert table.matrix[0][1, 0] - table.matrix[0][0, 1] == 1.0
    general = table_of(returns, place, "mixed")
    assert general.shares is None
    assert general.ratings() is None
    assert general.order == [1, 0]


def test_teams_share_what_they_earn():
    _, place = cross_lineups(2, 2)
    returns = np.array([[[1.0, 2.0]] * 3, [[0.0, 1.0]] * 3, [[0.5, 0.5]] * 3, [[2.0, 3.0]] * 3])
    table = table_of(returns, place, "cooperative")
    assert table.matrix[0].tolist() == [[3.0, 1.0], [1.0, 5.0]]
    found = table.cross_play
    assert (found["self_play"], found["cross_play"], found["gap"]) == (4.0, 1.0, 3.0)
    assert found["gap_error"] == 0.0
    assert two([[0, 0]] * 4).cross_play is None


def test_what_a_table_refuses():
    _, place = cross_lineups(2, 2)
    with pytest.raises(OptionError, match=r"returns' shape must be \[line-ups, episodes, 2\]"):
        CrossTable(np.zeros((4, 3, 1)), place, "zero-sum")
    with pytest.raises(OptionError, match="at least 2"):
        CrossTable(np.zeros((1, 3, 2)), cross_lineups(1, 2)[1], "zero-sum")
