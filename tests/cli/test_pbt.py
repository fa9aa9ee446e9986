"""`shoal pbt`: a run like any other, gone on with to the bit; and mistakes that are explained."""

import json
import shutil

import matplotlib.image
import numpy as np
import pytest

from shoal.cli.commands.pbt import parse_plan
from shoal.populations.pbt.plan import Range
from shoal.training import checkpoint

from .conftest import SMALL, assert_refused

POPULATION = ["--total-env-steps", "192", "--over", "learning-rate=1e-4:1e-2:log", "--members", "3", "--interval", "2"]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, world):
    """A finished run that must not be changed."""
    from shoal.cli import main
    from shoal.core import registry

    path = tmp_path_factory.mktemp("tuned") / "run"
    before = dict(registry.WORLDS.table)
    args = ["--run-dir", str(path), "--measure", "return/hunter", "--checkpoint-minutes", "1e-9"]
    assert main(["pbt", "test/tiny", "--import", str(world), *SMALL, *POPULATION, *args]) == 0
    registry.WORLDS.table.clear()
    registry.WORLDS.table.update(before)
    return path


def test_a_run_that_can_be_evaluated_and_watched(shoal, world, tuned):
    config = json.loads((tuned / "config.json").read_text())
    assert config["pbt"]["over"] == {"learning-rate": {"start": 1e-4, "stop": 1e-2, "count": None, "log": True}}
    rows = [json.loads(line) for line in (tuned / "metrics.jsonl").read_text().splitlines()]
    assert [row["update"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert all(len(row["pbt/learning-rate"]) == len(row["pbt/score"]) == 3 for row in rows)
    assert [row["update"] for row in rows if row["pbt/source"] != [0, 1, 2]] == [2, 4]
    assert rows[-1]["return/prey"] == [8.0] * 3
    assert matplotlib.image.imread(tuned / "curves.png").shape[0] > 100
    assert (tuned / "replay.html").exists()
    outcome = shoal("eval", tuned, "--import", world, "--episodes", "16", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["updates"] == 6
    assert outcome.json["mean_return"]["prey"] == 8.0
    assert isinstance(outcome.json["weights_sha256"], str)  # of one member


@pytest.mark.slow
def test_going_on_gives_the_same_bits(shoal, world, tuned, tmp_path):
    """By `shoal resume` and, when nothing is left to do, by `shoal pbt`: they are the same."""
    path = shutil.copytree(tuned, tmp_path / "run")
    newest = checkpoint.latest(path / "checkpoints")
    wanted = checkpoint.read_arrays(newest)
    newest.unlink()
    outcome = shoal("resume", path, "--import", world, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["updates"] == 6
    best = outcome.json["best"]
    returns = [member["return"] for member in outcome.json["members"]]
    assert best["return"] == max(returns) == returns[best["member"]]
    assert 1e-4 <= best["values"]["learning-rate"] <= 1e-2
    again = checkpoint.read_arrays(checkpoint.latest(path / "checkpoints"))
    assert set(wanted) == set(again)
    assert all(np.array_equal(wanted[name], again[name], equal_nan=True) for name in wanted)
    finished = shoal("pbt", path, "--import", world, "--json")
    assert finished.code == 0
    assert "finished already" in finished.err
    assert finished.json["best"] == best


def test_plans():
    args = ["control/cartpole", "--over", "clip-eps=0.1:0.3", "--fraction", "0.25", "--factor", "1.5"]
    plan, _ = parse_plan([*args, "--resample", "0.1", "--members", "8", "--interval", "3"])
    assert plan.over == {"clip-eps": Range(0.1, 0.3)}
    assert (plan.fraction, plan.factor, plan.resample, plan.members, plan.interval) == (0.25, 1.5, 0.1, 8, 3)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "over what? Give --over OPTION=START:STOP"),
        (["--over", "gamma=0.9,0.99"], "--over gamma=0.9,0.99: members move within a range"),
        (["--over", "gama=0.9:0.99"], "pbt: unknown option 'gama'. Did you mean 'gamma'"),
        (["--over", "gamma=0.9:0.99", "--members", "1"], "members must be a whole number, 2 or more, got 1"),
        (["--over", "gamma=0.9:0.99", "--interval", "1e6"], "less than the updates of the run"),
        (["--over", "gamma=0.9:0.99", "--fraction", "0.6"], "fraction must be greater than 0 and at most 0.5, got 0.6"),
        (["--over", "gamma=0.9:0.99", "--num-seeds", "2"], "has no --num-seeds: each member has its own seed"),
        (["--over", "gamma=0.9:0.99", "--measure", "retrn"], "pbt: unknown measure 'retrn'"),
        (["--over", "gamma=0.9:0.99", "--mebers", "4"], "Did you mean --members"),
        (["--over", "gamma=0.9:0.99", "--over", "gamma=0.9:0.95"], "give each option's values once"),
    ],
)
def test_bad_input(shoal, tmp_path, args, words):
    assert_refused(shoal("pbt", "control/cartpole", *args, "--run-dir", tmp_path / "run"), words)
    assert not (tmp_path / "run").exists()


def test_no_target(shoal):
    assert_refused(shoal("pbt"), "which world or preset?")
