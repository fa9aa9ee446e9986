"""The bank grows in steps and keeps what it holds; the table never forgets, nor plays twice what it knows."""

import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.errors import OptionError
from shoal.games.payoff import PayoffTable
from shoal.populations.bank import Member, PolicyBank


def policy(value, size=3):
    return {"w": jnp.full((size,), float(value)), "b": jnp.float32(value)}


def test_a_bank_doubles_its_room_and_keeps_every_policy():
    bank = PolicyBank.of(policy(0), Member("0"), room=2)
    rooms = []
    for i in range(1, 6):
        bank = bank.add(policy(i), Member(str(i), parent=i - 1, born=i))
        rooms.append(bank.capacity)
    assert rooms == [2, 4, 4, 8, 8]
    assert [float(bank[i]["b"]) for i in range(6)] == [0, 1, 2, 3, 4, 5]
    assert float(bank[-1]["b"]) == 5
    assert [member.parent for member in bank.members] == [None, 0, 1, 2, 3, 4]
    mixture = bank.mixture(np.array([0.5, 0, 0, 0, 0.25, 0.25]))
    assert mixture.tolist() == [0.5, 0, 0, 0, 0.25, 0.25, 0, 0]


def test_a_training_goes_on_from_the_newest_that_is_not_frozen():
    bank = PolicyBank.of(policy(0), Member("0")).add(policy(1), Member("1"))
    assert bank.newest == 1
    assert bank.add(policy(2), Member("of another run", frozen=True)).newest == 1


def test_exact_plans_stay_in_float64():
    bank = PolicyBank.of(np.array([1 / 3]), Member("0"), room=1).add(np.array([2 / 3]), Member("1"))
    assert bank.policies.dtype == np.float64
    assert bank[1][0] == 2 / 3


def test_what_a_bank_refuses():
    bank = PolicyBank.of(policy(0), Member("0"))
    with pytest.raises(OptionError, match=r"policy 'wide' does not fit the seat.*\(4,\).*\(3,\)"):
        bank.add(policy(1, size=4), Member("wide"))
    with pytest.raises(OptionError, match="another network or algorithm"):
        bank.add({"w": jnp.zeros(3)}, Member("other"))
    with pytest.raises(OptionError, match="the bank has 1 policies, there is no number 3"):
        bank[3]


def test_means_and_standard_errors_by_hand():
    table = PayoffTable.empty(2).grow((1, 2))
    assert table.missing_lineups(4).tolist() == [[0, 0], [0, 1]]
    returns = np.array([1.0, 3.0, 2.0, 6.0])  # mean 3, variance 14 / 3
    sums = np.array([[returns.sum(), -returns.sum()]]), np.array([[(returns**2).sum()] * 2])
    table = table.add_results(np.array([[0, 1]]), *sums, 4)
    np.testing.assert_allclose(table.mean[:, 0, 1], [3.0, -3.0])
    np.testing.assert_allclose(table.standard_error[:, 0, 1], np.sqrt(14 / 3 / 4))
    assert np.isnan(table.mean[0, 0, 0])
    assert np.isinf(table.standard_error[0, 0, 0])
    assert table.missing_lineups(4).tolist() == [[0, 0]]
    assert table.missing_lineups(4, error=0.5).tolist() == [[0, 0], [0, 1]]
    bigger = table.grow((2, 2))
    np.testing.assert_allclose(bigger.mean[:, 0, 1], [3.0, -3.0])
    assert bigger.missing_lineups(4).tolist() == [[0, 0], [1, 0], [1, 1]]
    with pytest.raises(OptionError, match=r"at least \(2, 2\)"):
        bigger.grow((1, 2))


def test_a_symmetric_game_is_played_once():
    table = PayoffTable.empty(2, symmetric=True).grow((2, 2))
    lineups = table.missing_lineups(1)
    assert lineups.tolist() == [[0, 0], [0, 1], [1, 1]]
    table = table.add_results(lineups, np.array([[0.0, 0.0], [5.0, -5.0], [0.0, 0.0]]), np.array([[1.0, 1.0]] * 3), 1)
    np.testing.assert_allclose(table.mean[0], [[0, 5], [-5, 0]])
    np.testing.assert_allclose(table.mean[1], [[0, -5], [5, 0]])
    assert not len(table.missing_lineups(1))


def test_three_players_symmetric():
    table = PayoffTable.empty(3, symmetric=True).grow((2, 2, 2))
    lineups = table.missing_lineups(1)
    assert lineups.tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 1], [1, 1, 1]]
    earned = np.array([[1.0, 1.0, 1.0], [2.0, 2.0, 7.0], [3.0, 4.0, 4.0], [5.0, 5.0, 5.0]])
    table = table.add_results(lineups, earned, earned**2, 1)
    assert table.mean[:, 1, 0, 0].tolist() == [7.0, 2.0, 2.0]
    assert table.mean[:, 1, 0, 1].tolist() == [4.0, 3.0, 4.0]
