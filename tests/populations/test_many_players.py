"""The whole loop with three players, against answers worked out on paper."""

import itertools

import numpy as np
import pytest

from shoal.algorithms import PPO
from shoal.networks.torsos import Network
from shoal.populations.population import PopulationConfig
from shoal.populations.psro import PSRO
from shoal.training.experiment import Experiment, Learner
from shoal.training.runner import Local, run

PROFILES = np.array(list(itertools.product((0, 1), repeat=3)))
LEARNING = PPO(
    learning_rate=1e-2, gamma=1.0, entropy_coef=0.0, anneal=True, network=Network(hidden=(16,), share_torso=True)
)


def game(earned, algorithm=LEARNING, updates=32) -> Experiment:
    """A game for three with two actions each, by what they earn `[8, 3]` in each profile."""
    names = [f"player_{i}" for i in range(3)]
    payoffs = np.moveaxis(np.asarray(earned, float).reshape(2, 2, 2, 3), -1, 0).tolist()
    learners = {name: Learner(algorithm, {name: (name,)}) for name in names}
    sizes = {"num_envs": 128, "num_steps": 2, "total_env_steps": 256 * updates}
    return Experiment("matrix/game", {"payoffs": payoffs}, learners=learners, **sizes)


def common_good():
    """Action 1 gives everybody 0.4 and costs 1; player i has i + 1 anyway. Nobody should ever give.

    Not to give is better by 0.6 whatever the others do, so all equilibria, coarse correlated ones too, are (0, 0, 0).
    """
    return np.array([1.0, 2.0, 3.0]) + 0.4 * PROFILES.sum(axis=1, keepdims=True) - PROFILES


def minority():
    """Who is alone wins 2 of the others; all alike: nothing. Half and half is the symmetric equilibrium."""
    count = PROFILES.sum(axis=1, keepdims=True)
    alone = np.where(PROFILES == 1, count == 1, count == 2)
    return np.where((count == 0) | (count == 3), 0.0, np.where(alone, 2.0, -1.0))


@pytest.mark.parametrize("solver", ["cce", "ce", "alpha_rank", "regret_matching"])
def test_an_exact_response_of_each_player_is_the_equilibrium(solver):
    state = run(PopulationConfig(game(common_good()), PSRO(solver, iterations=1), "exact")).standing["state"]
    assert state.table.sizes == (2, 2, 2)
    for mixture in state.mixtures:
        np.testing.assert_allclose(mixture, [0.0, 1.0], atol=1e-3)
    np.testing.assert_allclose(state.values, [1.0, 2.0, 3.0], atol=1e-3)
    assert state.history[-1]["nash_conv"] == pytest.approx(0.0, abs=5e-3)
    # From uniform play, each of three gains 0.6 / 2 by no longer giving: however much of it is mixed in.
    assert state.history[0]["nash_conv"] == pytest.approx(0.9)
    assert state.history[1]["gain"] == pytest.approx([0.3, 0.3, 0.3])


def test_fictitious_self_play_of_three_by_hand():
    """Uniform play and one response each: everybody gives in one of four games."""
    state = run(PopulationConfig(game(common_good()), PSRO("uniform", iterations=1), "exact")).standing["state"]
    np.testing.assert_allclose(state.values, np.array([1.0, 2.0, 3.0]) + 0.4 * 0.75 - 0.25)
    assert state.history[-1]["nash_conv"] == pytest.approx(3 * 0.25 * 0.6)


def test_three_who_share_a_bank_by_hand():
    """Responses are 0 (a tie), 1, 0, 1: the share of 1 is 1/2, 1/4, 1/2, 3/8, 1/2.

    Against 1/4, to play 1 earns 2 with 9/16 and -1 with 6/16, so 3/4, and what is shared is worth nothing.
    """
    state = run(PopulationConfig(game(minority()), PSRO("uniform", iterations=4), "exact", symmetric=True)).standing[
        "state"
    ]
    assert len(set(map(id, state.banks.values()))) == 1
    assert state.table.sizes == (5, 5, 5)
    far = [line["nash_conv"] for line in state.history]
    at = 2 * (5 / 8) ** 2 - 2 * (3 / 8) * (5 / 8)
    np.testing.assert_allclose(far, [0.0, 2.25, 0.0, 3 * at, 0.0], atol=1e-9)
    np.testing.assert_allclose(state.table.mean.sum(axis=0), 0.0, atol=1e-9)
    mean = state.table.mean
    for order in itertools.permutations(range(3)):  # who takes another's place earns what the other did
        for player, place in enumerate(order):
            np.testing.assert_allclose(np.transpose(mean[player], np.argsort(order)), mean[place], atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["uniform", "cce", "alpha_rank"])
def test_learnt_responses_of_three_players(solver):
    state = run(
        PopulationConfig(game(common_good()), PSRO(solver, iterations=2, episodes=500)), on=Local(devices=1)
    ).standing["state"]
    assert state.table.sizes == (3, 3, 3)
    assert (state.table.count == 500).all()
    newest = state.table.mean[:, -1, -1, -1]
    np.testing.assert_allclose(newest, [1.0, 2.0, 3.0], atol=0.05)
    if solver != "uniform":
        np.testing.assert_allclose(state.values, [1.0, 2.0, 3.0], atol=0.05)
        assert state.history[-1]["nash_conv"] < 0.15
    else:  # a third of fresh networks, which give in about half of their games
        assert state.history[-1]["nash_conv"] == pytest.approx(3 * 0.6 / 6, abs=0.1)


@pytest.mark.slow
def test_three_learners_who_share_a_bank():
    state = run(
        PopulationConfig(game(minority()), PSRO("uniform", iterations=4, episodes=200), symmetric=True),
        on=Local(devices=1),
    ).standing["state"]
    assert len(set(map(id, state.banks.values()))) == 1
    assert state.table.sizes == (5, 5, 5)
    assert (state.table.count == 200).all()
    np.testing.assert_allclose(state.values, 0.0, atol=1e-9)
    assert state.history[-1]["nash_conv"] < 1.0
