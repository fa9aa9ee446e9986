"""α-rank by hand, against OpenSpiel's dense one, and fast on large populations."""

import sys
import time
import types

import numpy as np
import pytest

from shoal.core.errors import OptionError
from shoal.games import alpha_rank as module
from shoal.games.alpha_rank import alpha_rank, alpha_rank_joint

RPS = np.array([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]])
DILEMMA = np.array([[[3.0, 0], [5, 1]], [[3, 5], [0, 1]]])
OPTIONS = [{}, {"epsilon": 0.01}, {"alpha": 1.0}, {"alpha": 0.1, "population": 20}]


def random_game(seed, *shape, zero_sum=False):
    payoffs = np.random.default_rng(seed).normal(size=(len(shape), *shape))
    return np.stack([payoffs[0], -payoffs[0]]) if zero_sum else payoffs


@pytest.fixture
def theirs(monkeypatch):
    pytest.importorskip("pyspiel", reason="compares with OpenSpiel")
    drawing = "open_spiel.python.egt.alpharank_visualizer"  # needs networkx, and is not needed here
    monkeypatch.setitem(sys.modules, drawing, types.ModuleType(drawing))
    monkeypatch.setattr("open_spiel.python.egt.alpharank_visualizer", sys.modules[drawing], raising=False)
    from open_spiel.python.egt import alpharank

    def compute(tables, alpha=None, population=50, epsilon=None):
        if alpha is not None:
            return alpharank.compute(tables, m=population, alpha=alpha)[2]
        if epsilon is not None:
            return alpharank.compute(tables, use_inf_alpha=True, inf_alpha_eps=epsilon)[2]
        return alpharank.sweep_pi_vs_epsilon(tables)

    return compute


def test_games_solved_by_hand():
    # Everybody defects; every cell of pennies is as good as the next, in a cycle; RPS as one population is a cycle too.
    np.testing.assert_allclose(alpha_rank(DILEMMA), [[0, 1], [0, 1]], atol=1e-4)
    pennies = np.array([[1.0, -1], [-1, 1]])
    np.testing.assert_allclose(alpha_rank_joint(np.stack([pennies, -pennies])), 0.25, atol=1e-12)
    np.testing.assert_allclose(alpha_rank(np.stack([RPS, -RPS]), symmetric=True)[0], [1 / 3] * 3, atol=1e-12)


def test_noise_by_hand():
    # One player with payoffs 1 and 0: it moves up with 1 - e and down with e.
    np.testing.assert_allclose(alpha_rank(np.array([[1.0, 0.0]]), epsilon=0.1)[0], [0.9, 0.1], atol=1e-12)
    # Fixation: up (1 - exp(-1)) / (1 - exp(-2)), down (1 - exp(1)) / (1 - exp(2)): their ratio is e.
    found = alpha_rank(np.array([[1.0, 0.0]]), alpha=1.0, population=2)[0]
    np.testing.assert_allclose(found, [np.e / (1 + np.e), 1 / (1 + np.e)], atol=1e-12)
    np.testing.assert_allclose(alpha_rank(np.array([[1.0, 1.0]]), alpha=1.0)[0], [0.5, 0.5])


def test_switches_that_make_no_difference_fix_with_the_chance_of_one_in_the_population():
    """One population of two in which A beats B by ln 2 / α, and C is as good as either.

    B becomes A with chance (1 - 1/2) / (1 - 1/4) = 2/3 and A becomes B with 1/3; all else is neutral, 1/2. In balance
    C has 1/3, and 5/6 A = 2/3 B + 1/6.
    """
    game = np.array([[0.0, np.log(2), 0], [0, 0, 0], [0, 0, 0]])
    found = alpha_rank(np.stack([game, game.T]), alpha=1.0, population=2, symmetric=True)[0]
    np.testing.assert_allclose(found, [11 / 27, 7 / 27, 9 / 27], atol=1e-12)
    # Of infinite strength with a noise of 1/3 they are the same chances: 2/3 up, 1/3 down, 1/2 between equals.
    found = alpha_rank(np.stack([game, game.T]), epsilon=1 / 3, symmetric=True)[0]
    np.testing.assert_allclose(found, [11 / 27, 7 / 27, 9 / 27], atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", [(3, 3), (5, 6), (2, 3, 4)])
def test_equals_openspiel(theirs, shape, options):
    for seed in range(2):
        payoffs = random_game(seed, *shape)
        found = alpha_rank_joint(payoffs, **options)
        np.testing.assert_allclose(found.ravel(), theirs(list(payoffs), **options), atol=1e-6)


@pytest.mark.parametrize("options", [{"epsilon": 1e-5}, {"alpha": 1.0}], ids=str)  # the sweep takes theirs too long
def test_equals_openspiel_beyond_elimination(theirs, options):
    payoffs = random_game(9, 11, 12, zero_sum=True)
    found = alpha_rank_joint(payoffs, **options)
    np.testing.assert_allclose(found.ravel(), theirs(list(payoffs), **options), atol=1e-9)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_one_population_equals_openspiel(theirs, options):
    table = np.random.default_rng(2).normal(size=(7, 7))
    found = alpha_rank(np.stack([table, table.T]), symmetric=True, **options)
    np.testing.assert_allclose(found[0], theirs([table], **options), atol=1e-6)
    np.testing.assert_array_equal(found[0], found[1])


def two_cycles(size):
    """Two groups of policies: meeting in the same group pays, and within a group it is a cycle. Two sinks, no Nash."""
    cycle = np.array([[[1, 0, -1][(j - i) % 3] for j in range(size)] for i in range(size)]) * 1.0
    cycle += np.random.default_rng(0).normal(size=cycle.shape) * 0.1
    here, there = np.kron(np.diag([1.0, 0.0]), cycle), np.kron(np.diag([0.0, 1.0]), cycle.T)
    together = np.kron([[5.0, 0], [0, 6.0]], np.ones((size, size)))
    apart = np.kron([[0.0, 1.0], [1.0, 0]], np.random.default_rng(1).normal(size=(size, size)))
    return np.stack([together + here + there + apart, together - here - there + apart])


@pytest.mark.parametrize("payoffs", [two_cycles(6), random_game(4, 5, 5, 6), random_game(0, 13, 13)], ids=len)
@pytest.mark.parametrize("options", [{}, {"epsilon": 0.01}, {"alpha": 0.05}], ids=str)
def test_products_agree_with_elimination(monkeypatch, payoffs, options):
    iterated = alpha_rank_joint(payoffs, **options)
    monkeypatch.setattr(module, "_ALL_WATCHED", 1000)
    np.testing.assert_allclose(iterated, alpha_rank_joint(payoffs, **options), atol=1e-7)


def test_sinks_that_hold_the_chain_are_watched(monkeypatch):
    calls = []
    watch = module._watch
    monkeypatch.setattr(module, "_watch", lambda *a: calls.append(len(a[2])) or watch(*a))
    alpha_rank_joint(two_cycles(6))
    assert calls
    assert set(calls) == {2}


@pytest.mark.parametrize(("size", "limit"), [(40, 1.0), (100, 5.0)])
def test_large_populations_are_fast(size, limit):
    strength = np.sort(np.random.default_rng(3).normal(size=size))
    noise = np.random.default_rng(4).normal(size=(size, size)) * 0.3
    table = np.tanh(strength[:, None] - strength[None]) + noise - noise.T
    seconds = []
    for _ in range(2):  # the better of two, and no time of others: the machine may be busy
        start = time.process_time()
        found = alpha_rank(np.stack([table, -table]))
        seconds.append(time.process_time() - start)
    assert min(seconds) < limit
    # Stronger policies weigh more.
    assert found[0][size // 2 :].sum() > 0.8


def test_bad_input_is_refused():
    symmetric = np.stack([RPS, RPS.T])
    for options in (
        {"alpha": 0.0},
        {"population": 1},
        {"population": 2.5},
        {"epsilon": 0.0},
        {"epsilon": 0.6},
        {"alpha": 1.0, "epsilon": 0.1},
    ):
        with pytest.raises(OptionError, match="alpha_rank"):
            alpha_rank(symmetric, **options)
    with pytest.raises(OptionError, match="symmetric game of two"):
        alpha_rank(np.stack([RPS, RPS]), symmetric=True)
    with pytest.raises(OptionError, match="number of players must be 2"):
        alpha_rank(np.zeros((3, 2, 2, 2)), symmetric=True)
    both = np.stack([np.eye(2), np.eye(2)])
    with pytest.raises(OptionError, match=r"2 sinks that it never leaves.*Lower alpha"):
        alpha_rank(both, alpha=1e4)
    np.testing.assert_allclose(alpha_rank_joint(both), np.eye(2) / 2, atol=1e-4)
