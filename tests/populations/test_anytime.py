"""Anytime PSRO with learnt responses: mixtures by hand, what is kept, what is compiled, resuming, monotone curves."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from shoal.algorithms import PPO
from shoal.core.errors import OptionError
from shoal.games.payoff import PayoffTable
from shoal.networks.torsos import Network
from shoal.populations.anytime import minimax_mixture, worst_case
from shoal.populations.anytime_oracle import AnytimeOracle, split_updates
from shoal.populations.bank import Member, PolicyBank
from shoal.populations.game import Game
from shoal.populations.population import PopulationConfig, load, oracle_of
from shoal.populations.psro import PSRO, PSROState, begin_population, psro
from shoal.presets import resolve
from shoal.training.run import create
from shoal.training.runner import Local, run
from tests.populations.folders import save

TINY = PPO(minibatches=2, epochs=1, gamma=1.0, network=Network(hidden=(8,), share_torso=True))
HEAVY = np.array([[0.0, -1.0, 3.0], [1.0, 0.0, -1.0], [-3.0, 1.0, 0.0]])
"""Rock-paper-scissors in which rock wins 3. Rock earns 2/3 against a third of each, so NashConv is 4/3 there."""


def tiny() -> Game:
    experiment = resolve("psro/rock_paper_scissors")
    learners = {name: dataclasses.replace(learner, algorithm=TINY) for name, learner in experiment.learners.items()}
    sizes = {"num_envs": 32, "num_steps": 2, "total_env_steps": 32 * 2 * 6}
    return Game(dataclasses.replace(experiment, learners=learners, **sizes))


def heavy_rock():
    """What responses learn from: fresh networks play almost uniformly, to which rock is the best response."""
    payoffs = [table.tolist() for table in (HEAVY, -HEAVY)]
    experiment = resolve("psro/rock_paper_scissors")
    return dataclasses.replace(experiment, env="matrix/game", env_options={"payoffs": payoffs})


def test_mixtures_by_hand():
    np.testing.assert_allclose(minimax_mixture(-HEAVY), [0.2, 0.6, 0.2], atol=0.02)  # x A = 0
    assert worst_case(-HEAVY, minimax_mixture(-HEAVY)) == pytest.approx(0.0, abs=0.02)
    assert worst_case(-HEAVY, np.array([0.5, 0.5])) == pytest.approx(0.5)  # rock and paper: paper earns 1 and 0
    # the first policy holds both to 1, whatever part of the second lets the other earn more
    np.testing.assert_allclose(minimax_mixture([[1.0, 1.0], [0.0, 3.0]]), [1.0, 0.0], atol=0.02)
    np.testing.assert_allclose(minimax_mixture([[1.0, 0.0], [0.0, 3.0]]), [0.75, 0.25], atol=0.02)
    assert minimax_mixture([[2.0]]).tolist() == [1.0]
    with pytest.raises(OptionError, match="play what is missing"):
        minimax_mixture([[np.nan]])


def test_the_last_quarter_stands_still():
    assert split_updates(32, 8) == [3] * 8 + [8]
    assert split_updates(7, 4) == [1, 2, 1, 2, 1]
    assert split_updates(3, 8) == [1, 1, 1]
    assert split_updates(1, 8) == [1]


def by_hand(found: list[float], before: list[float], payoffs: np.ndarray) -> PSROState:
    """A population of four after its third iteration, with payoffs of player 0."""
    members = [Member(str(i)) for i in range(3)]
    bank = PolicyBank(np.zeros((4, 1)), (*members, Member("3", info={"mixture": found})))
    both, ones = np.stack([payoffs, -payoffs]), np.ones_like(payoffs)
    table = PayoffTable(ones, both, both**2)
    return PSROState({"player_0": bank, "player_1": bank}, table, (np.array(before),) * 2, 3)


def test_the_mixture_before_is_kept_if_less_is_earned_against_it():
    oracle, even = AnytimeOracle(tiny()), [1 / 3, 1 / 3, 1 / 3]
    payoffs = np.zeros((4, 4))
    payoffs[:3, :3] = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])
    rock = by_hand([1.0, 0.0, 0.0], even, payoffs)
    np.testing.assert_allclose(oracle.mix(rock), [[*even, 0.0]] * 2)
    np.testing.assert_allclose(oracle.mix(by_hand(even, [1.0, 0.0], payoffs)), [[*even, 0.0]] * 2)
    payoffs[:, 3] = [0.5, -1, -1, 0]  # the new policy of player 1 loses to rock only
    rock = by_hand([1.0, 0.0, 0.0], even, payoffs)
    np.testing.assert_allclose(oracle.mix(rock)[0], [*even, 0.0])  # it earns 1/2 there, paper 1 against rock
    mixed = by_hand([2 / 3, 1 / 6, 1 / 6], even, payoffs)
    assert oracle.mix(mixed)[0].tolist() == pytest.approx([2 / 3, 1 / 6, 1 / 6, 0])  # 0 and 1/2: equal, the newer one


def test_it_is_for_two_and_says_what_it_does_not_know():
    with pytest.raises(OptionError, match=r"solver_options must be rounds and episodes, got \['round'\]"):
        AnytimeOracle(tiny(), options={"round": 3})
    with pytest.raises(OptionError, match="rounds must be greater than 0"):
        AnytimeOracle(tiny(), options={"rounds": 0})
    with pytest.raises(OptionError, match="levels must be 1 for anytime"):
        PopulationConfig(tiny().experiment, PSRO("anytime"), levels=2)


@pytest.mark.slow
def test_resume_to_the_bit_with_nothing_compiled_twice(tmp_path):
    plan = PSRO("anytime", iterations=2, episodes=64, solver_options={"rounds": 2})
    settings = PopulationConfig(tiny().experiment, plan)
    oracle = oracle_of(settings, devices=1)
    assert isinstance(oracle, AnytimeOracle)

    def grow(state):
        return list(psro(state, plan, oracle.respond, oracle.evaluate, oracle.measure, oracle.mix))

    _, part, whole = grow(begin_population(oracle.first(), plan.room_for()))
    create(tmp_path / "run", settings)
    save(tmp_path / "run", part)
    oracle._plans.clear()
    [again] = grow(load(tmp_path / "run", settings, oracle))
    for player, bank in whole.banks.items():
        jax.tree.map(np.testing.assert_array_equal, bank.policies, again.banks[player].policies)
        assert bank.members == again.banks[player].members
    np.testing.assert_array_equal(whole.mixtures, again.mixtures)
    np.testing.assert_array_equal(whole.table.total, again.table.total)
    assert [mixture[-1] for mixture in whole.mixtures] == [0.0, 0.0]  # nobody has responded to the newest ones yet
    trainer = oracle._trainer(plan.room_for())
    assert trainer.begin._cache_size() == trainer.advance._cache_size() == 1
    assert oracle.matches.program._cache_size() == 1


def curve(state: PSROState) -> list[float]:
    return [line["nash_conv"] for line in state.history]


@pytest.mark.slow
def test_exploitability_does_not_rise_where_that_of_psro_does():
    config = PopulationConfig(heavy_rock(), PSRO("anytime", iterations=10))
    anytime = curve(run(config, on=Local(devices=1)).standing["state"])
    assert anytime[0] == pytest.approx(4 / 3, abs=0.05)
    assert all(after <= before + 0.05 for before, after in itertools.pairwise(anytime))
    assert anytime[-1] < 0.1
    nash = curve(run(PopulationConfig(heavy_rock(), PSRO("nash", iterations=2)), on=Local(devices=1)).standing["state"])
    assert nash[1] == pytest.approx(2.0, abs=0.1)  # rock alone, which beats what was there; paper earns 1 against it


@pytest.mark.slow
def test_kuhn_ends_near_equilibrium():
    state = run(PopulationConfig(resolve("psro/kuhn"), PSRO("anytime", iterations=10)), on=Local(devices=1)).standing[
        "state"
    ]
    assert all(after <= before + 0.05 for before, after in itertools.pairwise(curve(state)))
    assert curve(state)[-1] < 0.1
    assert state.values[0] == pytest.approx(-1 / 18, abs=0.05)
    measured = [line["nash_conv_at_least"] for line in state.history]
    assert all(least < exact + 0.15 for least, exact in zip(measured, curve(state), strict=True))
