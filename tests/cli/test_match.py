"""`shoal match` and `shoal tournament`: what they say, and what they refuse in one line."""

import json
import shutil

import numpy as np
import pytest

from shoal.cli.commands.match import parse_players

from .conftest import assert_refused


def test_a_match_by_group_and_by_seat(shoal, trained, world):
    outcome = shoal("match", f"hunter={trained}", "prey=random", "--import", world, "--episodes", "8", "--json")
    assert outcome.code == 0, outcome.err
    found = outcome.json
    assert found["env"] == "test/tiny"
    assert found["sides"]["hunter"]["seats"] == ["hunter[0]", "hunter[1]"]
    assert found["sides"]["prey"]["mean_return"] == 8.0, "four steps of 2"
    assert found["sides"]["prey"]["name"] == "random"
    assert found["sides"]["hunter"]["name"] == str(trained)
    assert found["seats"]["prey[0]"] == {"mean_return": 8.0, "standard_error": 0.0}
    assert found["win_rate"] is None
    assert found["episodes"] == 8
    said = shoal("match", trained, "random", "--import", world, "--episodes", "8")
    assert "hunter[1]: mean return" in said.out, "the players of the world, in their order"


@pytest.mark.parametrize(
    ("players", "words"),
    [
        (["hunter=RUN"], "nobody plays prey[0]"),
        (["hunter=RUN", "hunter=random", "prey=RUN"], "'hunter' is given twice"),
        (["hunter=RUN", "hunter[0]=random", "prey=RUN"], "both play hunter[0]"),
        (["hunter=RUN", "wolf=random"], "unknown policy, player or seat 'wolf'"),
        (["hunter=RUN", "random"], "say what everybody plays, or nobody"),
        (["hunter=", "prey=RUN"], "say what everybody plays, or nobody"),
        (["RUN"], "1 were named without saying what they play, but the world has 2"),
        (["hunter=RUN", "prey=RUN", "--episodes", "0"], "episodes must be greater than 0"),
        (["hunter=RUN", "prey=RUN@best"], "has no best checkpoint"),
        (["hunter=RUN", "prey=RUN:4"], "must be between 0 and 0, got 4"),
        (["hunter=RUN", "prey=RUN", "--seed-index", "some"], "--seed-index must be a whole number, or all"),
        (["hunter=random", "prey=random"], "everybody plays at random"),
        (["hunter=RUN", "prey=nowhere"], "no such folder"),
    ],
)
def test_matches_that_are_refused(shoal, trained, world, players, words):
    typed = [word.replace("RUN", str(trained)) for word in players]
    assert_refused(shoal("match", *typed, "--import", world), words)


def test_a_folder_with_an_equals_sign_is_a_folder(tmp_path, monkeypatch):
    (tmp_path / "lr=3").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse_players([str(tmp_path / "lr=3"), "random"]) == [str(tmp_path / "lr=3"), "random"]


def test_a_run_without_a_checkpoint_and_a_folder_that_is_no_run(shoal, run, world):
    shutil.rmtree(run / "checkpoints")
    for command in ("match", "tournament"):
        assert_refused(shoal(command, run, "random", "--import", world), "has no checkpoint yet", "Resume it with")
    assert_refused(shoal("tournament", run.parent, "random", "--import", world), "it has no config.json")


def test_a_tournament_writes_a_page_and_json(shoal, trained, world, tmp_path):
    twice = [trained, f"{trained}:0", "random"]
    outcome = shoal(
        "tournament",
        *twice,
        "--import",
        world,
        "--episodes",
        "8",
        "--out",
        tmp_path / "cup",
        "--json",
        "--devices",
        "1",
    )
    assert outcome.code == 0, outcome.err
    found = outcome.json
    assert found["relation"] == "general"
    assert found["elo"] is None
    assert found["programs"] == 1
    assert [one["name"] for one in found["entrants"]] == [str(one) for one in twice]
    assert found["by_side"]["prey"]["mean"] == [[8.0] * 3] * 3
    mean = np.array(found["matrix"]["mean"])
    np.testing.assert_array_equal(mean[0], mean[1])
    written = json.loads((tmp_path / "cup" / "tournament.json").read_text())
    assert written == {name: value for name, value in found.items() if name != "files"}
    assert "8 greedy episodes of each line-up" in outcome.err
    assert (tmp_path / "cup" / "tournament.html").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["RUN"], "there is one entrant"),
        ([], "who takes part?"),
        (["RUN", "random", "--episodes", "0"], "episodes must be greater than 0"),
        (["RUN", "random", "--exploit", "0"], "exploit must be greater than 0"),
        (["RUN", "random", "--side", "one"], "--side must be NAME=SEATS"),
        (["RUN", "random", "--side", "one=hunter"], "sides must be a mapping of two or more names to seats"),
        (["RUN", "random", "--seeds", "some"], "some"),
        (["RUN", "random", "--devices", "0"], "devices must be greater than 0"),
    ],
)
def test_tournaments_that_are_refused(shoal, trained, world, words, said):
    typed = [str(trained) if word == "RUN" else word for word in words]
    assert_refused(shoal("tournament", *typed, "--import", world), said)
