"""Symmetric games: one bank for all players, and games that are not symmetric, by hand."""

import dataclasses

import jax
import numpy as np
import pytest

from shoal.algorithms import PPO
from shoal.core.errors import OptionError
from shoal.envs.tabular import tabulate
from shoal.networks.torsos import Network
from shoal.populations.game import Game
from shoal.populations.inspect_population import exploit
from shoal.populations.oracles import LearnedOracle
from shoal.populations.population import PopulationConfig, beginning, oracle_of
from shoal.populations.psro import PSRO, average_mixtures, psro
from shoal.populations.symmetry import _looks, check_symmetric, exchanges
from shoal.presets import resolve
from shoal.training import checkpoint
from shoal.training.experiment import Experiment, Learner
from shoal.training.runner import Local, resume, run
from tests.populations.folders import Killed, kill_in

TINY = PPO(minibatches=2, epochs=1, gamma=1.0, network=Network(hidden=(8,), share_torso=True))
HAWK = ((-1.5, 1.0), (0.0, 0.5))
"""Hawks and doves, with a prize of 1 and wounds of 4: there are 1/4 hawks in the symmetric equilibrium."""


def matrix(payoffs, **options) -> Experiment:
    payoffs = np.asarray(payoffs, float)
    names = [f"player_{i}" for i in range(payoffs.ndim - 1 if payoffs.ndim > 2 else 2)]
    learners = {name: Learner(TINY, {name: (name,)}) for name in names}
    sizes = {"num_envs": 32, "num_steps": 2, "total_env_steps": 32 * 2 * 3}
    return Experiment("matrix/game", {"payoffs": payoffs.tolist(), **options}, learners=learners, **sizes)


def both(payoffs) -> np.ndarray:
    """A symmetric game for two by what the first player earns."""
    table = np.array(payoffs)
    return np.stack([table, table.T])


def test_hawks_and_doves_by_hand():
    """The best response to uniform play is a dove; half uniform play and half doves are 1/4 hawks, the equilibrium."""
    state = run(PopulationConfig(matrix(both(HAWK)), PSRO(iterations=1), "exact", symmetric=True)).standing["state"]
    one, other = state.banks.values()
    assert one is other
    assert [bank.shape for bank in state.mixtures] == [(2,), (2,)]
    np.testing.assert_allclose(state.table.mean[0], [[0.0, 0.75], [0.25, 0.5]], atol=1e-9)
    np.testing.assert_allclose(state.mixtures[0], [0.5, 0.5], atol=0.01)
    np.testing.assert_array_equal(state.mixtures[0], state.mixtures[1])
    assert state.history[-1]["nash_conv"] == pytest.approx(0.0, abs=0.03)
    assert len(state.history[-1]["gain"]) == 2


def test_rock_paper_scissors_with_one_exact_response_an_iteration():
    plan = PSRO("nash", iterations=6, target_nash_conv=1e-9)
    settings = PopulationConfig(resolve("psro/rock_paper_scissors"), plan, "exact", symmetric=True)
    state = run(settings).standing["state"]
    assert state.history[-1]["nash_conv"] == pytest.approx(0.0, abs=1e-9)
    np.testing.assert_allclose(state.table.mean[0], -state.table.mean[0].T, atol=1e-12)


def test_the_mean_of_equilibria():
    first, second = average_mixtures([np.array([1.0, 0.0]), np.array([0.5, 0.5])])
    assert first.tolist() == second.tolist() == [0.75, 0.25]


def test_plans_of_one_player_are_read_as_those_of_another():
    """In two rounds players meet the same situations in different orders."""
    tables = tabulate(Game(matrix(both(HAWK), num_rounds=2)).world)
    orders = exchanges(tables)
    np.testing.assert_array_equal(orders[0], np.arange(tables.sets[0].num_sequences))
    assert not np.array_equal(orders[0], orders[1])
    probabilities = {look: i / 10 for i, look in enumerate(sorted(_looks(tables.sets[0])))}
    one, other = (
        np.array([[probabilities[look], 1 - probabilities[look]] for look in _looks(sets)]) for sets in tables.sets
    )
    plans = [tables.plan(0, one), tables.plan(1, other)]
    np.testing.assert_allclose(plans[0][orders[1]], plans[1])
    values = tables.values([tables.plan(0, tables.uniform(0)), plans[1]])
    swapped = tables.values([plans[0], tables.plan(1, tables.uniform(1))])
    np.testing.assert_allclose(values, swapped[::-1])


RPS = PopulationConfig(
    matrix(both([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])), PSRO("uniform", iterations=1, episodes=64), symmetric=True
)


@pytest.mark.slow
def test_learnt_responses_of_one_player_serve_all():
    oracle = oracle_of(RPS, devices=1)
    assert isinstance(oracle, LearnedOracle)
    *_, state = psro(beginning(RPS, oracle), RPS.psro, oracle.respond, oracle.evaluate, oracle.measure)
    assert all(list(trainer.programs) == ["player_0"] for trainer in oracle._responses.values())
    assert state.banks["player_0"] is state.banks["player_1"]
    assert (state.table.count == np.full((2, 2), 64)).all()
    assert np.diagonal(state.table.mean[0]).tolist() == [0.0, 0.0]  # whoever plays itself wins nothing
    assert state.table.mean[0, 0, 1] != 0.0
    np.testing.assert_array_equal(state.table.mean[0], state.table.mean[1].T)


@pytest.mark.slow
def test_resume_to_the_bit(tmp_path):
    settings = dataclasses.replace(RPS, psro=dataclasses.replace(RPS.psro, iterations=2))
    whole = run(settings, on=Local(devices=1)).standing["state"]
    with pytest.raises(Killed):
        run(settings, tmp_path / "part", on=Local(devices=1), listener=kill_in(2))
    assert max(checkpoint.steps(tmp_path / "part" / "checkpoints")) == 1
    again = resume(tmp_path / "part", on=Local(devices=1)).standing["state"]
    assert again.banks["player_0"] is again.banks["player_1"]
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a[:3], b[:3]),
        *(state.banks["player_1"].policies for state in (whole, again)),
    )
    np.testing.assert_array_equal(whole.table.total, again.table.total)
    assert [gain.player for gain in exploit(tmp_path / "part", devices=1)] == ["player_0", "player_1"]


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"levels": 2}, {"psro": PSRO("league", iterations=2, episodes=64)}])
def test_pipelines_and_leagues_share_a_bank(changes):
    settings = PopulationConfig(matrix(both(HAWK)), PSRO("uniform", iterations=2, episodes=64), symmetric=True)
    state = run(dataclasses.replace(settings, **changes), on=Local(devices=1)).standing["state"]
    assert state.banks["player_0"] is state.banks["player_1"]
    assert len(state.banks["player_0"]) == (4 if "levels" in changes else 7)
    assert (state.table.count == 64).all()
    np.testing.assert_array_equal(state.table.mean[0], state.table.mean[1].T)


def test_pong_is_taken_at_its_word():
    check_symmetric(Game(resolve("psro/pong")))


def test_what_is_not_symmetric():
    with pytest.raises(OptionError, match="'cards/kuhn' is not symmetric: player_0 and player_1 do not decide in the"):
        run(PopulationConfig(resolve("psro/kuhn"), oracle="exact", symmetric=True))
    with pytest.raises(OptionError, match="earn different payoffs when they change places"):
        run(PopulationConfig(matrix([[1, -1], [-1, 1]]), symmetric=True))
    with pytest.raises(OptionError, match=r"different actions: Discrete\(n=1\) and Discrete\(n=2\)"):
        run(PopulationConfig(matrix([[1, -1]]), symmetric=True))
    experiment = matrix(both(HAWK))
    learners = dict(experiment.learners) | {"player_1": Learner(PPO(), {"player_1": ("player_1",)})}
    with pytest.raises(OptionError, match="have different algorithms or networks"):
        run(PopulationConfig(dataclasses.replace(experiment, learners=learners), symmetric=True))
    with pytest.raises(OptionError, match="symmetric must be left out for anytime with learnt responses"):
        PopulationConfig(experiment, PSRO("anytime"), symmetric=True)
