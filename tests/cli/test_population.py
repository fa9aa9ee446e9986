"""`shoal population`: figures, pictures, replays of line-ups, trained exploiters; and mistakes that are explained."""

import dataclasses
import json
import re
import shutil

import jax
import matplotlib.image
import numpy as np
import pytest

from shoal.algorithms import PPO
from shoal.cli import main
from shoal.games.exploitability import expected
from shoal.games.payoff import PayoffTable
from shoal.human.calls import line_up
from shoal.human.game import Game as PlayedGame
from shoal.networks.torsos import Network
from shoal.populations.bank import Member
from shoal.populations.game import Game
from shoal.populations.inspect_population import load_lineup, read_population_view
from shoal.populations.oracles import LearnedOracle
from shoal.populations.population import PopulationConfig, load, open_population, oracle_of
from shoal.populations.psro import PSRO, begin_population
from shoal.populations.responses import Responses
from shoal.presets import resolve
from shoal.training.run import create
from tests.populations.folders import save

from .conftest import assert_refused

PPO_TINY = PPO(minibatches=2, epochs=1, gamma=1.0, network=Network(hidden=(8,), share_torso=True))
PAYOFFS = np.array([[0.0, 0.5, -1.0], [0.25, 0.0, 0.75], [-0.5, 1.0, 0.0]])


def made(path, table: PayoffTable, **plan):
    """A population of fresh networks, as if it had grown for two iterations."""
    experiment = resolve("psro/kuhn")
    learners = {name: dataclasses.replace(one, algorithm=PPO_TINY) for name, one in experiment.learners.items()}
    sizes = {"num_envs": 32, "num_steps": 4, "total_env_steps": 32 * 4 * 3}
    settings = PopulationConfig(dataclasses.replace(experiment, learners=learners, **sizes), PSRO(iterations=2, **plan))
    responses = Responses(Game(settings.experiment), 1, devices=1)
    state = begin_population(responses.fresh(0), settings.psro.room_for())
    for born in (1, 2):
        new = responses.fresh(10 * born)
        banks = {p: bank.add(new[p], Member(str(born), born - 1, born)) for p, bank in state.banks.items()}
        state = dataclasses.replace(state, banks=banks)
    mixtures = (np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.0, 0.75]))
    line = {"iteration": 2, "population": 3, "nash_conv": 0.5, "exploitability": 0.25, "seconds": 1.5}
    state = dataclasses.replace(state, table=table, mixtures=mixtures, history=(line,), iteration=2)
    create(path, settings)
    save(path, state)
    return path


@pytest.fixture(scope="module")
def exact(tmp_path_factory):
    """Kuhn with exact responses."""
    path = tmp_path_factory.mktemp("exact") / "run"
    assert main(["psro", "cards/kuhn", "--oracle", "exact", "--iterations", "3", "--run-dir", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def learnt(tmp_path_factory):
    """Networks for Kuhn with payoffs made up: 100 episodes an entry, a standard error of 0.1."""
    payoffs = np.stack([PAYOFFS, -PAYOFFS])
    table = PayoffTable(np.full((3, 3), 100.0), payoffs * 100, (payoffs**2 + 99 * 0.1**2) * 100)
    return made(tmp_path_factory.mktemp("learnt") / "run", table)


@pytest.fixture(scope="module")
def unplayed(tmp_path_factory):
    """The same without any payoffs."""
    table = PayoffTable.empty(2).grow((3, 3))
    return made(tmp_path_factory.mktemp("unplayed") / "run", table, meta_solver="uniform", episodes=0)


def test_a_finished_population_says_so(shoal, exact):
    before = (exact / "metrics.jsonl").read_bytes()
    outcome = shoal("resume", exact)
    assert outcome.code == 0
    assert "is finished already" in outcome.out
    assert f"shoal psro {exact} --iterations 6" in outcome.out.replace("\n", "")
    assert (exact / "metrics.jsonl").read_bytes() == before


def test_an_exact_population(shoal, exact):
    outcome = shoal("population", exact, "--json")
    assert outcome.code == 0, outcome.err
    data, view = outcome.json, read_population_view(exact)
    assert data["sizes"] == [4, 4]
    np.testing.assert_array_equal(data["payoffs"], view.table.mean)
    last = json.loads((exact / "metrics.jsonl").read_text().splitlines()[-1])
    assert data["nash_conv"] == last["nash_conv"]
    assert data["value"][0] == pytest.approx(last["value"], abs=1e-12)
    assert data["history"][-1] == last
    for player in data["players"]:
        assert sum(data["mixtures"][player]) == pytest.approx(1.0)
        assert sum(data["alpha_rank"][player]) == pytest.approx(1.0)
        assert len(data["elo"][player]) == 4
    found = data["behaviour"]
    assert not found["sampled"]
    assert found["situations"] == {"player_0": 6, "player_1": 6}
    distances = np.array(found["distances"]["player_1"])
    assert distances.shape == (4, 4)
    assert found["diversity"]["player_1"] == pytest.approx(distances.sum() / 12)
    weights = np.array(data["mixtures"]["player_1"])
    assert found["expected"]["player_1"] == pytest.approx(weights @ distances @ weights)
    assert matplotlib.image.imread(exact / "population.png").shape[0] > 1500  # three rows: behaviour is there
    page = (exact / "population.html").read_text()
    [text] = re.findall(r'<script id="data"[^>]*>(.*?)</script>', page, re.DOTALL)
    shown = json.loads(text)
    np.testing.assert_array_equal(shown["table"]["mean"], view.table.mean)


def test_looking_sees_what_a_restored_population_is(learnt):
    view, settings = read_population_view(learnt), open_population(learnt)
    state = load(learnt, settings, oracle_of(settings))
    assert view.players == state.players
    assert view.members == {player: bank.members for player, bank in state.banks.items()}
    np.testing.assert_array_equal(view.table.total, state.table.total)
    np.testing.assert_array_equal(view.table.standard_error, state.table.standard_error)


def test_text_for_people(shoal, learnt, tmp_path):
    outcome = shoal("population", learnt, "--out", tmp_path / "new")
    assert outcome.code == 0, outcome.err
    for words in ("cards/kuhn: 3 x 3 policies after 2 iterations", "NashConv", "value player_0", "by what they do"):
        assert words in outcome.out
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        "population.html",
        "population.png",
        "population.pdf",
    }
    parents = [member.parent for member in read_population_view(learnt).members["player_0"]]
    assert parents == [None, 0, 1]  # a warm start is a lineage


def test_watching_a_line_up(shoal, learnt, tmp_path):
    outcome = shoal("population", learnt, "--watch", "2,0", "--out", tmp_path, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["replay"] == str(tmp_path / "replay-2-0.html")
    assert "player_0: policy 2, player_1: policy 0" in (tmp_path / "replay-2-0.html").read_text()


def test_watched_policies_are_those_of_the_bank(learnt):
    settings = open_population(learnt)
    state = load(learnt, settings, oracle_of(settings))
    _, policies, explore = load_lineup(learnt, (2, 1))
    assert explore
    for player, number in (("player_0", 2), ("player_1", 1)):
        jax.tree.map(np.testing.assert_array_equal, policies[player], state.banks[player][number])


def test_values_and_errors_by_hand(shoal, learnt, tmp_path):
    data = shoal("population", learnt, "--json", "--out", tmp_path).json
    # weights 1/8, 3/8, 1/8, 3/8 on 0, -1, 1/4, 3/4
    assert data["value"] == pytest.approx([-1 / 16, 1 / 16])
    assert data["value_error"] == pytest.approx([0.1 * np.sqrt(20 / 64)] * 2)
    np.testing.assert_allclose(data["errors"], np.full((2, 3, 3), 0.1))
    assert data["episodes"] == [[100] * 3] * 3
    elo = data["elo"]["player_0"] + data["elo"]["player_1"]
    assert np.mean(elo) == pytest.approx(1500)
    assert data["elo"]["player_0"][1] == max(data["elo"]["player_0"])  # row sums -1/2, 1, 1/2


@pytest.mark.slow
def test_self_play_without_payoffs(shoal, unplayed):
    outcome = shoal("population", unplayed)
    assert outcome.code == 0, outcome.err
    assert "value player_0 unknown" in outcome.out
    data = shoal("population", unplayed, "--json").json
    assert data["elo"] is data["alpha_rank"] is data["effective"] is None
    assert data["payoffs"] == [[[None] * 3] * 3] * 2


@pytest.mark.slow
def test_a_trained_response_gains_at_most_what_a_best_one_does(shoal, unplayed):
    outcome = shoal("population", unplayed, "--exploit", "--devices", "1", "--json")
    assert outcome.code == 0, outcome.err
    found = outcome.json["exploit"]
    settings = open_population(unplayed)
    oracle = oracle_of(settings, 1)
    state = load(unplayed, settings, oracle)
    assert isinstance(oracle, LearnedOracle)
    tables = oracle.game.tables
    assert tables is not None
    value = expected(tables.payoff_table(oracle.plans(tables, state)), state.mixtures)
    for number, gain in enumerate(found["gains"].values()):
        assert 0 < gain["earned_error"] < 0.2
        assert gain["value"] == pytest.approx(value[number], abs=4 * gain["value_error"])
        assert gain["gain"] == pytest.approx(gain["earned"] - gain["value"])
    assert found["nash_conv_at_least"] <= oracle.measure(state)["nash_conv"] + 4 * found["nash_conv_error"]
    text = shoal("population", unplayed, "--exploit", "--devices", "1").out
    assert "so NashConv is at least" in text


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--watch", "3,0"), ("player_0", "between 0 and 2", "3")),
        (("--watch", "0,-1"), ("player_1", "between 0 and 2")),
        (("--watch", "1"), ("2 numbers, one per player",)),
        (("--watch", "a,b"), ("--watch", "'a,b'")),
        (("--wach", "1,2"), ("--watch",)),
        (("--total-env-steps", "10"), ("--exploit",)),
        (("--devices", "1"), ("--devices is for the trainings of --exploit",)),
        (("--seed", "1"), ("--seed is for the episode of --watch",)),
        (("--exploit", "--total-env-steps", "0"), ("--total-env-steps", "greater than 0")),
    ],
)
def test_mistakes(shoal, learnt, tmp_path, args, words):
    assert_refused(shoal("population", learnt, "--out", tmp_path / "out", *args), *words)


@pytest.mark.parametrize(
    ("args", "words"), [(("--watch", "1,2"), "nothing to watch"), (("--exploit",), "nothing to exploit")]
)
def test_exact_policies_are_not_networks(shoal, exact, args, words):
    assert_refused(shoal("population", exact, *args), "exact responses", words)


def test_what_is_not_a_population(shoal, trained, tmp_path, exact):
    assert_refused(shoal("population", trained), "is a run of `shoal train`, not a population")
    assert_refused(shoal("population", tmp_path / "none"), "no such folder")
    assert_refused(shoal("population", tmp_path), "no config.json")
    gone = shutil.copytree(exact, tmp_path / "gone")  # of a world that is registered elsewhere
    (gone / "config.json").write_text((gone / "config.json").read_text().replace("cards/kuhn", "cards/gone"))
    outcome = shoal("population", gone)
    assert outcome.code == 0
    assert "behaviour is not compared" in outcome.out
    stopped = shutil.copytree(exact, tmp_path / "stopped")
    shutil.rmtree(stopped / "checkpoints")
    assert_refused(shoal("population", stopped), "no checkpoint yet", "shoal resume")


def test_a_person_plays_against_the_mixtures(learnt):
    """A policy is drawn for every episode, and only of those with weight; it stays for the episode."""
    lineup = line_up(None, learnt)
    assert lineup.told["iterations"] == 2
    game, drawn = PlayedGame(lineup.setup, lineup.policies, ("player", 0)), []
    for seed in range(24):
        game.begin(seed)
        drawn.append(int(game.view.memory["player_1"].index[0, 0]))
        while not game.over:
            game.step()
            assert int(game.view.memory["player_1"].index[0, 0]) == drawn[-1]
    assert set(drawn) == {0, 2}, "weights are 0.25, 0, 0.75"
    assert drawn.count(2) > drawn.count(0)


def test_playing_a_population_refuses_what_it_does_not_have(shoal, learnt, exact):
    assert_refused(shoal("play", learnt, "--checkpoint", "best"), "checkpoint must be left out: a population plays")
    assert_refused(shoal("play", learnt, "--opponent", "player[1]=random"), "opponent must be left out")
    assert_refused(shoal("play", "pong", "--against", learnt), "was trained in cards/kuhn, not in pong")
    assert_refused(shoal("play", exact), "exact responses")
