"""`shoal league --exploit-every`: which roles are in the bank, what is refused, and leagues from before it."""

import json

import pytest

from shoal.populations.inspect_population import read_population_view
from shoal.populations.league_oracle import LeagueOracle
from shoal.populations.population import PopulationConfig, open_population, oracle_of
from shoal.populations.psro import PSRO
from shoal.presets import resolve
from shoal.training.run import create

from .conftest import assert_refused

TINY = [
    *("--num-envs", "16", "--num-steps", "4", "--total-env-steps", "64", "--episodes", "16", "--devices", "1"),
    *("--algo", "a2c", "--algo.network.hidden", "4"),
]


@pytest.mark.slow
def test_roles_of_every_second_iteration(shoal, tmp_path):
    args = ("league", "cards/kuhn", *TINY, "--exploit-every", "2", "--run-dir", tmp_path / "run")
    outcome = shoal(*args, "--iterations", "1")
    assert outcome.code == 0, outcome.err
    assert "exploiters train once in 2 iterations, and there are 1: lower --exploit-every" in outcome.out
    config = tmp_path / "run" / "config.json"
    assert json.loads(config.read_text())["psro"]["psro"]["solver_options"] == {"exploit_every": 2}
    config.write_text(config.read_text().replace('"iterations": 1', '"iterations": 3'))
    assert shoal("resume", tmp_path / "run", "--devices", "1").code == 0
    for members in read_population_view(tmp_path / "run").members.values():
        roles = [member.info.get("role") for member in members]
        assert roles == [None, "main", "main", "main_exploiter", "league_exploiter", "main"]
        assert [member.parent for member in members] == [None, 0, 1, 0, 0, 2]
        assert [member.born for member in members] == [0, 1, 2, 2, 2, 3]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("0", "league: --exploit-every must be a whole number, at least 1, got 0"),
        ("-2", "league: --exploit-every must be a whole number, at least 1, got -2"),
        ("1.5", "--exploit-every"),
        ("often", "--exploit-every"),
    ],
)
def test_senseless_values(shoal, tmp_path, value, words):
    outcome = shoal("league", "cards/kuhn", *TINY, "--exploit-every", value, "--run-dir", tmp_path / "run")
    assert outcome.code == 2
    assert words in outcome.err
    assert "Traceback" not in outcome.err
    assert not (tmp_path / "run").exists()


def test_other_populations_have_no_exploiters(shoal):
    assert_refused(shoal("psro", "cards/kuhn", "--exploit-every", "2"), "unknown option --exploit-every")


@pytest.mark.parametrize(("options", "every"), [({}, 1), ({"exploit_every": 3}, 3)])
def test_a_folder_goes_on_as_it_was_made(tmp_path, options, every):
    """One without the option is from before there was one: all roles were trained in each iteration."""
    create(tmp_path / "run", PopulationConfig(resolve("psro/kuhn"), PSRO("league", options)))
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["psro"]["psro"]
    assert stored["solver_options"] == options
    oracle = oracle_of(open_population(tmp_path / "run"))
    assert isinstance(oracle, LeagueOracle)
    assert oracle.exploit_every == every
