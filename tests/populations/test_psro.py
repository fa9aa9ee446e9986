"""PSRO with exact responses, where the answers are known."""

import dataclasses
import itertools

import numpy as np
import pytest

from shoal.core.errors import OptionError
from shoal.populations.population import PopulationConfig, oracle_of
from shoal.populations.psro import PSRO, PSROState, Response, begin_population, finished, mix_with_uniform, psro
from shoal.presets import resolve
from shoal.training.runner import run


def grown(game, **plan) -> PSROState:
    return run(PopulationConfig(resolve(game), PSRO(**plan), "exact")).standing["state"]


def test_double_oracle_solves_rock_paper_scissors():
    """From uniform play, every action is a best response; the equilibrium of the whole game is uniform play itself."""
    state = grown("psro/rock_paper_scissors", meta_solver="nash", iterations=4)
    assert state.history[-1]["nash_conv"] == pytest.approx(0.0, abs=1e-9)
    assert state.values == pytest.approx([0.0, 0.0], abs=1e-9)


def test_what_is_known_of_a_replaced_policy_is_forgotten():
    """Policies are numbers, and each player earns its own less the other's; the first player's 0 becomes a 3."""

    def evaluate(state, lineups):
        numbers = np.array([[state.banks["a"][i][0], state.banks["b"][j][0]] for i, j in lineups])
        earned = numbers - numbers[:, ::-1]
        return earned, earned**2, 1

    def respond(state):
        return {"a": [Response(np.array([3.0]), {}, replaces=0)], "b": [Response(np.array([1.0]), {})]}

    state = begin_population({"a": np.array([0.0]), "b": np.array([0.0])})
    plan = PSRO(meta_solver="uniform", iterations=1, episodes=1)
    before, after = psro(state, plan, respond, evaluate, lambda state: {})
    assert before.table.mean[0].tolist() == [[0.0]]
    assert after.table.mean[0].tolist() == [[3.0, 2.0]]


def test_patience_is_with_as_many_iterations_as_it_says():
    plan = PSRO(patience=2, iterations=9)
    lines = [{"iteration": number, "gain": [gain, 0.0]} for number, gain in enumerate([0.5, 0.5, 0.0, 0.0])]
    assert not finished(lines[:3], plan)
    assert finished(lines, plan)
    broad = [*lines[:3], lines[3] | {"uniform_share": 0.4}]  # a response to something else tells nothing
    assert not finished(broad, plan)


def test_kuhn_reaches_its_value():
    state = grown("psro/kuhn", meta_solver="nash", iterations=20, target_nash_conv=1e-9)
    assert state.history[-1]["nash_conv"] < 1e-9
    assert state.values[0] == pytest.approx(-1 / 18, abs=1e-9)


@pytest.mark.parametrize(
    ("solver", "goal", "at_most"), [("fictitious_play", 0.5, 52), ("nash", 0.5, 68), ("alpha_rank", 0.7, 24)]
)
def test_leduc_as_fast_as_published(solver, goal, at_most):
    plan = {"meta_solver": solver, "iterations": at_most - 1, "target_nash_conv": goal}
    plain = grown("psro/leduc", **plan, uniform_share=0.0).history[-1]
    assert plain["nash_conv"] <= goal
    broad = grown("psro/leduc", **plan).history[-1]
    assert broad["nash_conv"] <= goal
    assert broad["population"] < plain["population"], "broader responses were to need fewer policies"


def test_what_responses_meet():
    mixtures = (np.array([1.0, 0.0]), np.array([0.5, 0.5]))
    met = mix_with_uniform(mixtures, 0.2)
    np.testing.assert_allclose(met[0], [0.9, 0.1])
    np.testing.assert_allclose(met[1], [0.5, 0.5])
    assert (
        PSRO().uniform_share_after(),
        PSRO(uniform_share=0.2).uniform_share_after(),
        PSRO(meta_solver="last").uniform_share_after(),
    ) == (
        0.4,
        0.2,
        0.0,
    )
    assert PSRO().uniform_share_after([{"gain": [0.0, -0.1], "uniform_share": 0.4}]) == 0.0
    assert PSRO().uniform_share_after([{"gain": [0.0, 0.1], "uniform_share": 0.0}]) == 0.4
    with pytest.raises(OptionError, match=r"uniform_share must be a share from 0 to 1, got 1\.5"):
        PSRO(uniform_share=1.5)


def test_gains_by_hand():
    """Rock-paper-scissors from uniform play: the first responses gain nothing, and say so."""
    state = grown("psro/rock_paper_scissors", meta_solver="nash", iterations=1)
    assert state.history[-1]["gain"] == pytest.approx([0.0, 0.0], abs=1e-9)
    leduc = grown("psro/leduc", meta_solver="nash", iterations=1)
    assert sum(leduc.history[-1]["gain"]) == pytest.approx(leduc.history[0]["nash_conv"], abs=1e-4)


def test_nothing_known_is_played_again():
    settings = PopulationConfig(resolve("psro/kuhn"), PSRO(iterations=3, meta_solver="uniform"), "exact")
    oracle, played = oracle_of(settings), []

    def evaluate(state, lineups):
        played.extend(map(tuple, lineups.tolist()))
        return oracle.evaluate(state, lineups)

    *_, last = psro(begin_population(oracle.first()), settings.psro, oracle.respond, evaluate, oracle.measure)
    assert last.table.sizes == (4, 4)
    assert sorted(played) == [(i, j) for i in range(4) for j in range(4)]


def test_stops_when_nothing_is_gained():
    plan = PSRO(meta_solver="nash", iterations=30, patience=1, improvement=1e-9)
    state = run(PopulationConfig(resolve("psro/kuhn"), plan, "exact")).standing["state"]
    assert state.iteration < 30
    assert max(state.history[-1]["gain"]) <= 1e-9


def test_broad_responses_end_in_equilibrium_too():
    """Where those to broad mixtures gain nothing, responses to the mixtures themselves are tried before it stops."""
    plan = PSRO(meta_solver="nash", iterations=30, patience=1)
    state = run(PopulationConfig(resolve("psro/kuhn"), plan, "exact")).standing["state"]
    assert state.iteration < 30
    assert state.history[-1]["nash_conv"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"target_nash_conv": float("nan")},
        {"target_nash_conv": -1.0},
        {"target_error": float("nan")},
        {"patience": 0},
        {"improvement": float("nan")},
    ],
)
def test_numbers_without_sense_are_refused(wrong):
    with pytest.raises(OptionError, match=next(iter(wrong))):
        PSRO(**wrong)


def test_a_goal_that_cannot_be_measured_is_refused():
    with pytest.raises(OptionError, match="'pong' has no exact tables"):
        run(PopulationConfig(resolve("psro/pong"), PSRO(target_nash_conv=1.0)))


def test_values_of_mixtures_by_hand():
    state = grown("psro/rock_paper_scissors", meta_solver="uniform", iterations=2)
    mixed = dataclasses.replace(state, mixtures=(np.array([0, 1.0, 0]), np.array([0.5, 0, 0.5])))
    wanted = 0.5 * state.table.mean[:, 1, 0] + 0.5 * state.table.mean[:, 1, 2]
    np.testing.assert_allclose(mixed.values, wanted)


def test_what_is_refused():
    with pytest.raises(OptionError, match=r"meta_solver must be .*'nash'.* got 'nahs'"):
        PSRO(meta_solver="nahs")
    with pytest.raises(OptionError, match="world 'pong' cannot be tabulated"):
        run(PopulationConfig(resolve("pong"), PSRO(), "exact"))
    with pytest.raises(OptionError, match="has one player"):
        run(PopulationConfig(resolve("control/cartpole"), PSRO()))


def test_anytime_never_becomes_more_exploitable():
    state = grown("psro/leduc", meta_solver="anytime", iterations=12)
    curve = [line["nash_conv"] for line in state.history]
    assert all(after <= before + 1e-7 for before, after in itertools.pairwise(curve))
    nash = grown("psro/leduc", meta_solver="nash", uniform_share=0.0, iterations=12)
    assert curve[-1] < nash.history[-1]["nash_conv"]
    rising = [line["nash_conv"] for line in nash.history]
    assert any(after > before + 0.1 for before, after in itertools.pairwise(rising))


def test_self_play_goes_in_circles_where_fictitious_self_play_does_not():
    games, last = resolve("psro/rock_paper_scissors"), PSRO("last", iterations=12, episodes=0)
    latest = run(PopulationConfig(games, last, "exact")).standing["state"]
    assert min(line["nash_conv"] for line in latest.history[1:]) >= 1.0
    average = run(PopulationConfig(games, PSRO("uniform", iterations=30, episodes=0), "exact")).standing["state"]
    assert average.history[-1]["nash_conv"] < 0.3
    with pytest.raises(OptionError, match=r"episodes must be at least 1; only uniform, last, recent need no payoffs"):
        PSRO("nash", episodes=0)
