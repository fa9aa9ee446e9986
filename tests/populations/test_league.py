"""Who meets whom in a league, by hand."""

import numpy as np
import pytest

from shoal.games.meta_solvers import priorities
from shoal.populations import league
from shoal.populations.bank import Member, PolicyBank


def bank(*roles):
    """The first policy is a main's, then snapshots of these roles."""
    held = PolicyBank.of(np.zeros(1), Member("0"))
    for i, role in enumerate(roles):
        held = held.add(np.full(1, float(i + 1)), Member(str(i + 1), info={"role": role}))
    return held


def test_priorities_by_hand():
    won = np.array([1.0, 0.5, 0.0])
    np.testing.assert_allclose(priorities(won), np.array([0, 0.25, 1.0]) / 1.25)
    np.testing.assert_allclose(priorities(won, "variance"), [0, 1, 0])
    np.testing.assert_allclose(priorities(np.ones(4)), [0.25] * 4)
    np.testing.assert_allclose(league.win_rate(np.array([-2.0, 0.0, 2.0]), -2.0, 2.0), [0, 0.5, 1.0])


def test_main_meets_the_newest_main_everybody_and_the_past():
    others = bank("main", "main_exploiter")
    assert league.newest(others, "main") == 1
    assert league.newest(others, "league_exploiter") == 1  # there is none yet
    probabilities = league.opponents("main", np.array([1.0, 1.0, 0.0]), others)
    np.testing.assert_allclose(probabilities, [0.075, 0.35 + 0.075, 0.5])


def test_main_exploiter_meets_the_newest_main_unless_it_is_hopeless():
    others = bank("main", "league_exploiter")
    np.testing.assert_allclose(league.opponents("main_exploiter", np.array([0.5, 0.4, 0.9]), others), [0, 1, 0])
    easier = league.opponents("main_exploiter", np.array([0.5, 0.0, 0.9]), others)
    np.testing.assert_allclose(easier, [0.5, 0.5, 0.0])


def test_exploiters_begin_anew():
    assert not league.restarts_from_scratch("main", 1.0, 100)
    assert league.restarts_from_scratch("main_exploiter", 0.8, 1)
    assert league.restarts_from_scratch("league_exploiter", 0.1, league.PATIENCE)
    assert not league.restarts_from_scratch("league_exploiter", 0.5, 2)


@pytest.mark.parametrize("role", league.ROLES)
def test_chances_sum_to_one(role):
    others = bank(*league.ROLES, *league.ROLES)
    won = np.random.default_rng(0).uniform(size=len(others))
    assert league.opponents(role, won, others).sum() == pytest.approx(1.0)


def test_roles_of_an_iteration_by_hand():
    everybody, mains = ("main", "main_exploiter", "league_exploiter"), ("main",)
    assert [league.trained_roles(i, 1) for i in (1, 2, 3)] == [everybody] * 3
    assert [league.trained_roles(i, 2) for i in (1, 2, 3, 4)] == [mains, everybody, mains, everybody]
    numbers = [i for i in range(1, 13) if league.trained_roles(i, league.EXPLOIT_EVERY) == everybody]
    assert numbers == [4, 8, 12]
