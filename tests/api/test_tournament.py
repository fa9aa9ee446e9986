"""`shoal.match` and `shoal.tournament` on small runs: who is meant, what they earn, what is refused and written."""

import contextlib
import dataclasses
import json
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import shoal
from shoal.api.entrants import difference, find_entrant
from shoal.cli import main
from shoal.core.errors import OptionError, RunError
from shoal.games.cross_table import CrossTable
from shoal.populations.exploiters import Exploit

PAGE = (Path(__file__).parents[2] / "docs" / "match.md").read_text()


@pytest.fixture(scope="module")
def cup(pennies):
    """A run, the same again, and random play."""
    return shoal.tournament(
        {"one": pennies[0], "two": pennies[0].path, "chance": "random"}, 64, explore=True, devices=1
    )


def test_a_tournament_of_one_network_is_one_program(cup):
    assert cup.programs == 1
    assert cup.names == ["one", "two", "chance"]
    assert cup.table.relation == "zero-sum"
    np.testing.assert_allclose(cup.matrix, -cup.matrix.T, atol=1e-12)
    np.testing.assert_array_equal(cup.matrix[0], cup.matrix[1])  # the same policies in the same episodes
    assert cup.elo["rating"][0] == pytest.approx(cup.elo["rating"][1])
    assert (cup.elo["low"] <= cup.elo["rating"]).all()
    assert "3 entrants, 64 episodes of each line-up" in repr(cup)


def test_what_is_written_is_what_was_found_and_the_same_every_time(cup, pennies, tmp_path):
    files = cup.save(tmp_path / "cup")
    assert {path.name for path in files.values()} == {"tournament.json", "tournament.html", "tournament.png"}
    written = json.loads(files["json"].read_text())
    assert written == json.loads(json.dumps(cup.to_dict()))
    assert written["matrix"]["mean"] == cup.matrix.tolist()
    assert written["entrants"][0]["run"] == str(pennies[0].path)
    assert written["entrants"][2] == {"name": "chance", "kind": "random"}
    again = shoal.tournament(
        {"one": pennies[0], "two": pennies[0].path, "chance": "random"}, 64, explore=True, devices=1
    )
    assert json.dumps(again.to_dict()) == json.dumps(cup.to_dict())


def test_errors_that_are_not_known_are_left_out(cup, tmp_path):
    """Of a single episode; JSON has no infinity."""
    gains = {"player_0": {"value": 0.0, "earned": 1.0, "gain": 1.0, "error": np.inf}}
    table = CrossTable(cup.table.returns[:, :1], cup.table.place, "team")
    once = dataclasses.replace(cup, table=table, exploits=(Exploit(gains, 1.0, np.inf), None, None), exploit_steps=10)
    written = json.loads(once.save(tmp_path)["json"].read_text())
    assert written["matrix"]["error"] == [[None] * 3] * 3
    assert written["cross_play"]["gap_error"] is None
    assert written["exploit"]["entrants"][0]["gains"]["player_0"]["error"] is None


def test_a_match_says_what_every_seat_and_side_earns(spread):
    found = shoal.match({"agent[0]": spread, "agent[1:]": (spread, 1)}, episodes=16)
    assert list(found.seats) == ["agent[0]", "agent[1]", "agent[2]"]
    assert found.sides == {"agent[0]": ("agent[0]",), "agent[1:]": ("agent[1]", "agent[2]")}
    total = found.by_side.returns["agent[0]"] + found.by_side.returns["agent[1:]"]
    np.testing.assert_allclose(total, found.returns["agent"], rtol=1e-5)
    assert not found.zero_sum
    assert found.win_rate is None
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["sides"]["agent[1:]"]["seeds"] == [4], "seed 3, and one more"
    assert plain["seats"]["agent[1]"]["standard_error"] > 0


def test_all_seeds_one_by_one(spread):
    alone = [shoal.match({"agent": f"{spread.path}:{i}"}, episodes=8) for i in range(2)]
    found = shoal.match([spread], episodes=8, seed_index="all")
    assert found.seeds == 2
    assert found.mean_return["agent"] == [one.mean_return["agent"] for one in alone]
    np.testing.assert_array_equal(found.returns["agent"], spread.evaluate(episodes=8).returns["agent"])
    with pytest.raises(OptionError, match="seed_index must be less than 2, the seeds of agent, got 2"):
        shoal.match([spread], seed_index=2)
    lone = dataclasses.replace(spread, experiment=dataclasses.replace(spread.experiment, num_seeds=3))
    with pytest.raises(OptionError, match=r"equally many of them: agent\[0\] has 2, agent\[1:\] has 3"):
        shoal.match({"agent[0]": spread, "agent[1:]": lone}, seed_index="all")


def test_wins_draws_and_losses(pennies):
    found = shoal.match([pennies[0].path, "random"], episodes=50)
    shares = found.win_rate
    assert found.zero_sum
    assert (
        shares["player_0"]["won"] == shares["player_1"]["lost"] == pytest.approx(np.mean(found.returns["player_0"] > 0))
    )
    assert shares["player_0"]["drawn"] == pytest.approx(0)


def test_checkpoints_and_numbers_are_part_of_a_name(pennies, spread, tmp_path):
    newest = find_entrant("test", "it", f"{pennies[0].path}@10")
    assert newest.to_dict()["checkpoint"] == "10"
    best = find_entrant("test", "it", f"{spread.path}@best:1")
    assert best.checkpoint == "best"
    assert best.to_dict()["seeds"] == [4]
    odd = shutil.copytree(pennies[0].path, tmp_path / "odd@best:1")
    assert find_entrant("test", "it", str(odd)).number is None, "a folder that is there is meant"
    with pytest.raises(RunError, match="has no checkpoint '7'"):
        find_entrant("test", "it", f"{pennies[0].path}@7")
    with pytest.raises(RunError, match="no such folder"):
        find_entrant("test", "it", "nowhere@best")
    with pytest.raises(OptionError, match="the seed of it must be between 0 and 1, got 2"):
        find_entrant("test", "it", f"{spread.path}:2")


def test_seeds_are_entrants_or_take_turns(spread):
    found = shoal.tournament([spread], 8, devices=1)
    assert found.names == ["spread:0", "spread:1"], "one run alone: its seeds are compared"
    assert found.seeds == "each"
    assert found.sides == {"first": (("agent", 0), ("agent", 1)), "rest": (("agent", 2),)}
    assert found.table.relation == "team"
    assert found.elo is None
    alone = shoal.match({"agent": (spread, 1)}, episodes=8).mean_return["agent"]
    np.testing.assert_allclose(found.matrix[1, 1], alone, rtol=1e-4)
    cross = shoal.match({"agent[0:2]": (spread, 0), "agent[2]": (spread, 1)}, episodes=8)
    np.testing.assert_allclose(found.table.by_side[0][0, 0, 1], cross.mean_return["agent"], rtol=1e-4)
    mean = shoal.tournament(
        [spread, "random"], 8, sides={"one": "agent[0]", "rest": ["agent[1]", "agent[2]"]}, seeds="mean", devices=1
    )
    assert mean.names == ["spread", "random"]
    assert mean.seeds == "mean"
    own = [shoal.match({"agent": (spread, i)}, episodes=8).returns["agent"] for i in range(2)]
    np.testing.assert_allclose(mean.table.earned(0, 0, 0), np.where(np.arange(8) % 2, own[1], own[0]), rtol=1e-4)


def test_tournaments_that_cannot_be(pennies, spread):
    first = pennies[0]
    shorter = spread.experiment.replace(env_options={"max_steps": 9, "num_agents": 3})
    assert difference(spread.experiment, shorter) == "max_steps is 9, not 5", "3 agents are the default"
    broken = jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), first.policies)
    for entrants, options, words in [
        ([first, spread], {}, "spread was trained in another world than a: 'mpe/simple_spread', not"),
        ([spread, dataclasses.replace(spread, experiment=shorter)], {}, "max_steps is 9, not 5"),
        ([first], {}, "there is one entrant. Name another run, or 'random'"),
        (["random", "random"], {}, "everybody plays at random"),
        ([first, "random"], {"episodes": 0}, "episodes must be greater than 0, got 0"),
        ([first, "random"], {"seeds": "some"}, "seeds must be 'each' or 'mean'"),
        (
            [first, "random"],
            {"sides": {"one": "player_0", "two": "player_7"}},
            "unknown policy, player or seat 'player_7'",
        ),
        ([first, "random"], {"sides": {"one": "player_0", "two": "player_0"}}, "played by exactly one side"),
        ([first, "random"], {"exploit_steps": -1}, "exploit_steps must be at least 0"),
        (
            [spread, "random"],
            {"exploit_steps": 100, "episodes": 2},
            "exploiters are trained for the players",
        ),
        ("runs/a", {}, "entrants must be a list of runs"),
        ([dataclasses.replace(first, policies={}), "random"], {}, "has no policies to play with"),
        ([dataclasses.replace(first, policies=broken), "random"], {}, "contains NaN or infinity in its weights"),
    ]:
        with pytest.raises((OptionError, RunError), match=words):
            shoal.tournament(entrants, **options)


@pytest.mark.slow
def test_a_population_plays_its_mixture_or_one_policy(tmp_path):
    small = {"num_envs": 8, "num_steps": 5, "total_env_steps": 80, "hidden": (4,), "devices": 1, "progress": False}
    grown = shoal.psro("matrix/matching_pennies", iterations=1, episodes=16, algorithm="a2c", **small)
    found = shoal.tournament({"mixture": grown, "newest": (grown, -1), "first": (grown, 0)}, 32, devices=1)
    assert found.programs == 1
    assert found.to_dict()["entrants"][1]["policy"] == -1
    np.testing.assert_allclose(found.matrix, -found.matrix.T, atol=1e-12)
    with pytest.raises(OptionError, match="the policy of it must be between -2 and 1, got 5"):
        find_entrant("test", "it", (grown, 5))
    exact = shoal.psro("matrix/matching_pennies", tmp_path / "exact", iterations=1, oracle="exact", progress=False)
    with pytest.raises(OptionError, match="this population has exact responses"):
        shoal.tournament([exact, "random"])
    with pytest.raises(OptionError, match="checkpoint must be left out: a population keeps its newest"):
        shoal.match([f"{exact.path}@best", "random"])


@pytest.mark.slow
def test_a_match_says_who_has_no_probabilities_to_draw_by(pennies):
    """PQN explores by the share of random actions that it trained with."""
    sides = {"player_0": pennies[0], "player_1": pennies[1]}
    with pytest.warns(UserWarning, match=r"'player_1' \(PQN\) play their best action, but for the noise") as told:
        shoal.match(sides, episodes=4, explore=True)
    assert [str(one.message).partition(":")[0] for one in told] == ["b"], "A2C has them"
    shoal.match(sides, episodes=4)


def test_an_exploiter_finds_what_there_is_to_find(pennies):
    """Greedy play of pennies is a pure strategy: one player has won already, the other one gains 2 by changing."""
    found = shoal.tournament([pennies[0], "random"], 64, exploit_steps=20_000, devices=1)
    first, chance = found.exploits
    assert chance is None
    assert first.nash_conv_at_least == pytest.approx(2.0)
    assert sorted(gain["gain"] for gain in first.gains.values()) == pytest.approx([0.0, 2.0])


def commands():
    return re.findall(r"^\$ shoal ((?:match|tournament) .*)$", PAGE, re.MULTILINE)


@pytest.mark.slow
def test_the_commands_of_the_page_run(pennies, spread, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name, run in {"a": pennies[0], "b": pennies[1], "spread": spread}.items():
        shutil.copytree(run.path, tmp_path / "runs" / name)
    assert len(commands()) >= 8
    for line in commands():
        words = [word.strip("'") for word in line.partition("  #")[0].split()]
        told = pytest.warns(UserWarning, match="runs/b: .* play their best action")  # PQN has no probabilities
        with told if "--explore" in words and "runs/b" in line else contextlib.nullcontext():
            assert main(words) == 0, (line, capsys.readouterr().err)
    assert (tmp_path / "cup" / "tournament.html").is_file()
    [block] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(block, "match.md", "exec"), {})
