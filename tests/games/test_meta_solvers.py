"""Meta-solvers against games solved by hand, and against OpenSpiel's on random games."""

import time

import numpy as np
import pytest

from shoal.core.errors import OptionError, UnknownNameError
from shoal.games.meta_solvers import (
    META_SOLVERS,
    fictitious_play,
    last,
    nash,
    prioritised,
    regret_matching,
    replicator,
    solve,
    uniform,
    win_rates,
)
from shoal.games.normal_form import nash_conv

RPS = np.array([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]])
# Winning with rock pays 2: the equilibrium weighs a policy by what it is *not* in: (1, 2, 1) / 4.
BIASED_RPS = np.array([[0.0, -1, 2], [1, 0, -1], [-2, 1, 0]])
PENNIES = np.array([[1.0, -1], [-1, 1]])
DILEMMA = np.array([[[3.0, 0], [5, 1]], [[3, 5], [0, 1]]])


# Enough for what is tested, where it is not how good the answer is.
FEW = {name: {"iterations": 200} for name in ("fictitious_play", "replicator", "regret_matching")}


def zero_sum(table):
    return np.stack([table, -table])


def random_zero_sum(seed, rows, columns):
    return zero_sum(np.random.default_rng(seed).uniform(-1, 1, (rows, columns)))


@pytest.mark.parametrize("name", sorted(META_SOLVERS))
@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (2, 5), (1, 4)])
def test_every_solver_returns_distributions_and_leaves_its_input_alone(name, shape):
    payoffs = random_zero_sum(0, *shape)
    before = payoffs.copy()
    mixtures = solve(name, payoffs, **FEW.get(name, {}))
    np.testing.assert_array_equal(payoffs, before)
    assert [m.shape for m in mixtures] == [(shape[0],), (shape[1],)]
    for mixture in mixtures:
        assert mixture.dtype == np.float64
        assert mixture.min() >= 0
        assert mixture.sum() == pytest.approx(1, abs=1e-12)
    for one, two in zip(mixtures, solve(name, payoffs, **FEW.get(name, {})), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("name", [n for n in sorted(META_SOLVERS) if n != "nash"])
def test_every_other_solver_takes_three_players(name):
    mixtures = solve(name, np.random.default_rng(1).normal(size=(3, 2, 3, 4)), **FEW.get(name, {}))
    assert [m.shape for m in mixtures] == [(2,), (3,), (4,)]
    assert all(m.min() >= 0 and abs(m.sum() - 1) < 1e-12 for m in mixtures)


@pytest.mark.parametrize(
    ("table", "row", "column"),
    [
        (RPS, [1 / 3, 1 / 3, 1 / 3], [1 / 3, 1 / 3, 1 / 3]),
        (BIASED_RPS, [1 / 4, 1 / 2, 1 / 4], [1 / 4, 1 / 2, 1 / 4]),
        (PENNIES, [1 / 2, 1 / 2], [1 / 2, 1 / 2]),
        (np.array([[3.0, 1], [0, 2]]), [1 / 2, 1 / 2], [1 / 4, 3 / 4]),
        (np.array([[2.0, 3], [1, 0]]), [1, 0], [1, 0]),  # a saddle point
    ],
)
def test_nash_of_games_solved_by_hand(table, row, column):
    for payoffs in (zero_sum(table), np.stack([table, 7 - table]), 1e6 * zero_sum(table)):
        found = nash(payoffs)
        np.testing.assert_allclose(found[0], row, atol=1e-12)
        np.testing.assert_allclose(found[1], column, atol=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_left_to_gain_in_nash(seed):
    size = np.random.default_rng(seed).integers(2, 60, 2)
    payoffs = random_zero_sum(seed, *size)
    assert nash_conv(payoffs, nash(payoffs)) < 1e-9


def test_nash_refuses_what_it_cannot_solve():
    with pytest.raises(OptionError, match=r"zero-sum.*between 2 and 6.*cce"):
        nash(DILEMMA)
    with pytest.raises(OptionError, match=r"number of players must be 2.*regret_matching"):
        nash(np.zeros((3, 2, 2, 2)))
    nash(zero_sum(RPS) + np.array([1e-9, 0, 0])[None, :, None])  # rounding errors are forgiven


def test_fictitious_play_by_hand():
    # The uniform start leaves pennies tied, so ties go to policy 0. Then both play 0: row sums (1, -1), column sums
    # (-1, 1). Row stays at 0, column moves to 1 and stays; the row's sums are (0, 0) after 2 plays, and so on.
    first = fictitious_play(zero_sum(PENNIES), iterations=2)
    np.testing.assert_array_equal(first[0], [1, 0])
    np.testing.assert_array_equal(first[1], [0.5, 0.5])
    np.testing.assert_allclose(fictitious_play(DILEMMA, iterations=50), [[0, 1], [0, 1]])


def test_fictitious_play_gets_better():
    payoffs = random_zero_sum(3, 20, 20)
    gaps = [nash_conv(payoffs, fictitious_play(payoffs, iterations=n)) for n in (10, 100, 1000, 10_000)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 0.05


def test_fictitious_play_is_fast():
    payoffs = random_zero_sum(4, 50, 50)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        mixtures = fictitious_play(payoffs)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.2
    assert nash_conv(payoffs, mixtures) < 0.05


def test_three_players_agree_with_two_if_the_third_has_no_choice():
    payoffs = random_zero_sum(5, 4, 6)
    three = np.concatenate([payoffs, np.zeros((1, 4, 6))])[..., None]
    for solver in (fictitious_play, replicator, regret_matching):
        for one, two in zip(solver(payoffs, iterations=300), solver(three, iterations=300), strict=False):
            np.testing.assert_allclose(one, two, atol=1e-9)


def test_replicator_step_by_hand():
    # From (1/2, 1/2) each: cooperating earns 1.5, defecting 3; x + dt x (u - mean) = 1/2 -+ 0.1 * 1/2 * 0.75.
    found = replicator(DILEMMA, iterations=1, dt=0.1)
    np.testing.assert_allclose(found[0], [(0.5 + 0.4625) / 2, (0.5 + 0.5375) / 2], atol=1e-12)
    # A step so large that cooperation hits the bound of 0.1.
    found = replicator(DILEMMA, iterations=1, dt=10.0, gamma=0.1)
    np.testing.assert_allclose(found[1], [(0.5 + 0.1) / 2, (0.5 + 0.9) / 2], atol=1e-12)


@pytest.mark.parametrize(("solver", "bound"), [(replicator, 0.05), (regret_matching, 0.02)])
def test_averages_come_near_the_equilibrium(solver, bound):
    for table in (RPS, BIASED_RPS, PENNIES):
        assert nash_conv(zero_sum(table), solver(zero_sum(table))) < bound
    np.testing.assert_allclose(solver(DILEMMA), [[0, 1], [0, 1]], atol=0.02)


def test_regret_matching_step_by_hand():
    # Regrets after the uniform play of biased RPS are (1/3, 0, -1/3): rock is all that is regretted.
    found = regret_matching(zero_sum(BIASED_RPS), iterations=1)
    np.testing.assert_allclose(found[0], [2 / 3, 1 / 6, 1 / 6], atol=1e-12)


def test_uniform_and_last():
    payoffs = np.zeros((2, 2, 4))
    np.testing.assert_array_equal(uniform(payoffs)[1], [0.25] * 4)
    np.testing.assert_array_equal(last(payoffs)[0], [0, 1])
    np.testing.assert_array_equal(last(payoffs)[1], [0, 0, 0, 1])


def test_recent_by_hand():
    """Of four policies: from a quarter on the last three, from three quarters on the last."""
    game = np.zeros((2, 4, 2))
    np.testing.assert_allclose(solve("recent", game, delta=0.25)[0], [0, 1 / 3, 1 / 3, 1 / 3])
    np.testing.assert_allclose(solve("recent", game, delta=0.75)[0], [0, 0, 0, 1])
    np.testing.assert_allclose(solve("recent", game, delta=0.0)[1], [0.5, 0.5])
    np.testing.assert_allclose(solve("recent", game, delta=1.0)[1], [0, 1])


def test_prioritised_by_hand():
    # Win rates of player 0's newest policy, the last row: 0, 1/2, 1. Those of player 1's newest, the last column:
    # payoffs of player 1 are 1, 0 there, so its rates are 1 and 1/2.
    table = np.array([[0.0, 0, -1], [-1, 0, 1]])
    hard = prioritised(zero_sum(table), power=2)
    np.testing.assert_allclose(hard[1], np.array([1, 0.25, 0]) / 1.25)
    np.testing.assert_allclose(hard[0], [0, 1])
    np.testing.assert_allclose(prioritised(zero_sum(table), power=1)[1], np.array([1, 0.5, 0]) / 1.5)
    np.testing.assert_allclose(prioritised(zero_sum(table), weighting="variance")[1], [0, 1, 0])
    np.testing.assert_allclose(prioritised(zero_sum(table), bounds=(-3, 3), power=1)[1], np.array([4, 3, 2]) / 9)
    # Whoever beats everybody meets everybody alike.
    np.testing.assert_allclose(prioritised(np.stack([np.ones((2, 2)), -np.ones((2, 2))]))[1], [0.5, 0.5])
    np.testing.assert_allclose(win_rates(np.ones((2, 1, 1))), 0.5)


def test_bad_input_is_refused():
    bad = zero_sum(RPS)
    bad[1, 2, 0] = np.nan
    for name in META_SOLVERS:
        with pytest.raises(OptionError, match=r"shape must be \[players, m0, m1"):
            solve(name, RPS)
        with pytest.raises(OptionError, match="at least one policy"):
            solve(name, np.zeros((2, 0, 3)))
        with pytest.raises(OptionError, match=r"finite, got nan at \(1, 2, 0\)"):
            solve(name, bad)
    with pytest.raises(OptionError, match="one array of numbers"):
        solve("uniform", [[1.0, 2.0], [3.0]])
    with pytest.raises(UnknownNameError, match=r"unknown meta-solver 'nsah'\. Did you mean 'nash'"):
        solve("nsah", zero_sum(RPS))
    with pytest.raises(OptionError, match="meta-solver nash: every option must be one of tolerance, got 'iterations'"):
        solve("nash", zero_sum(RPS), iterations=3)
    for options in ({"iterations": 0}, {"iterations": 2.5}, {"dt": 0.0}, {"gamma": 0.4}):
        with pytest.raises(OptionError, match="replicator"):
            replicator(zero_sum(RPS), **options)
    for options in ({"weighting": "soft"}, {"power": 0.0}, {"bounds": (0, 1)}):
        with pytest.raises(OptionError, match=r"prioritised|win_rates"):
            prioritised(zero_sum(RPS), **options)


@pytest.mark.parametrize("shape", [(3, 3), (4, 6), (2, 3, 4)])
def test_dynamics_equal_openspiel(shape):
    pytest.importorskip("pyspiel", reason="compares with OpenSpiel")
    from open_spiel.python.algorithms import projected_replicator_dynamics as prd
    from open_spiel.python.algorithms import regret_matching as rm

    payoffs = np.random.default_rng(6).normal(size=(len(shape), *shape))
    theirs = prd.projected_replicator_dynamics(list(payoffs), prd_iterations=500, prd_dt=0.05, prd_gamma=1e-3)
    for one, two in zip(replicator(payoffs, iterations=500, dt=0.05, gamma=1e-3), theirs, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-9)
    theirs = rm.regret_matching(list(payoffs), iterations=500, gamma=1e-3)
    for one, two in zip(regret_matching(payoffs, iterations=500, gamma=1e-3), theirs, strict=True):
        # Theirs starts with regrets of 1e-6.
        np.testing.assert_allclose(one, two, atol=1e-4)


def test_fictitious_play_equals_openspiel():
    pyspiel = pytest.importorskip("pyspiel", reason="compares with OpenSpiel")
    from open_spiel.python.algorithms.fictitious_play import XFPSolver

    payoffs, iterations = random_zero_sum(7, 3, 4), 40
    game = pyspiel.convert_to_turn_based(pyspiel.create_matrix_game(payoffs[0].tolist(), payoffs[1].tolist()))
    solver = XFPSolver(game)
    for _ in range(iterations):
        solver.iteration()
    policy, state = solver.average_policy(), game.new_initial_state()
    for p, mixture in enumerate(fictitious_play(payoffs, iterations=iterations)):
        theirs = policy.action_probabilities(state, p)
        # Theirs counts the uniform play that the history starts with.
        ours = (iterations * mixture + 1 / len(mixture)) / (iterations + 1)
        np.testing.assert_allclose(ours, [theirs[a] for a in range(len(mixture))], atol=1e-9)
        state.apply_action(0)
