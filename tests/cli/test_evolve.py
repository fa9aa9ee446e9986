"""`shoal evolve`: a run like any other, gone on with to the bit; strategies by name; mistakes that are explained."""

import json
import shutil
import sys

import matplotlib.image
import pytest

from shoal.cli.commands.evolve import parse_plan
from shoal.populations.evolution.strategies import ARS, ERL, Evosax, OpenES, SeedChainGA
from shoal.training import checkpoint

from .conftest import assert_refused

SMALL = ["--algo.network.hidden", "4", "--population", "8", "--generations", "4", "--episodes", "2"]


@pytest.fixture(scope="module")
def evolved(tmp_path_factory, world):
    """A finished evolution that must not be changed."""
    from shoal.cli import main
    from shoal.core import registry

    path = tmp_path_factory.mktemp("evolved") / "run"
    before = dict(registry.WORLDS.table)
    args = ["--run-dir", str(path), "--evolve", "hunter", "--std", "0.2", "--checkpoint-minutes", "1e-9"]
    assert main(["evolve", "test/tiny", "--import", str(world), *SMALL, *args]) == 0
    registry.WORLDS.table.clear()
    registry.WORLDS.table.update(before)
    return path


def test_a_run_that_can_be_evaluated_and_watched(shoal, world, evolved):
    config = json.loads((evolved / "config.json").read_text())
    assert config["evolution"]["strategy"] == {
        "name": "open_es",
        "learning_rate": 0.2,
        "std": 0.2,
        "weight_decay": 0.0,
        "ranks": True,
    }
    assert config["evolution"]["evolve"] == ["hunter"]
    rows = [json.loads(line) for line in (evolved / "metrics.jsonl").read_text().splitlines()]
    assert [row["update"] for row in rows] == [1, 2, 3, 4]
    assert [row["env_steps"] for row in rows] == [64, 128, 192, 256]  # 8 members x 2 episodes x 4 steps
    assert rows[-1]["return/prey"] == 8.0
    assert matplotlib.image.imread(evolved / "curves.png").shape[0] > 100
    assert (evolved / "replay.html").exists()
    outcome = shoal("eval", evolved, "--import", world, "--episodes", "16", "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["updates"] == 4
    assert outcome.json["env_steps"] == 256
    assert outcome.json["mean_return"]["prey"] == 8.0


def test_going_on_gives_the_same_bits(shoal, world, evolved, tmp_path):
    """From the checkpoint before the last: what comes after it is bred again."""
    path = shutil.copytree(evolved, tmp_path / "run")
    newest = checkpoint.latest(path / "checkpoints")
    wanted = checkpoint.read_arrays(newest)
    newest.unlink()
    assert checkpoint.read_meta(checkpoint.latest(path / "checkpoints"))["update"] < 4
    outcome = shoal("evolve", path, "--import", world, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["generations"] == 4
    assert outcome.json["env_steps"] == 256
    assert set(outcome.json["fitness"]) == {"best", "mean", "std", "policy"}
    again = checkpoint.read_arrays(checkpoint.latest(path / "checkpoints"))
    assert all((wanted[name] == again[name]).all() for name in wanted)
    assert len(wanted) == len(again)
    finished = shoal("evolve", path, "--import", world, "--json")
    assert finished.code == 0
    assert "finished already" in finished.err
    assert finished.json["generations"] == 4


def test_plans():
    def strategy(*args):
        return parse_plan(["control/cartpole", *args])[0].strategy

    def hidden(*args):
        learners = parse_plan(["control/cartpole", *args])[0].experiment.learners
        return [learner.algorithm.network.hidden for learner in learners.values()]

    assert strategy() == OpenES()
    assert hidden() == [(16,)]
    assert hidden("--algo.network.hidden", "8", "8") == [(8, 8)]
    assert hidden("--strategy", "erl") == [(64, 64)]
    assert strategy("--strategy", "ars", "--elite-share", "0.1") == ARS(elite_share=0.1)
    assert strategy("--strategy=ga", "--parents", "3") == SeedChainGA(parents=3)
    assert strategy("--strategy", "erl", "--period", "2", "--population", "9") == ERL(period=2)
    plan, _ = parse_plan(
        ["control/pendulum", "--strategy", "erl", "--no-common-starts", "--no-normalise-views", "--seed", "5"]
    )
    assert [learner.algorithm.name for learner in plan.experiment.learners.values()] == ["ddpg"]
    assert (plan.common_starts, plan.normalise_views, plan.experiment.seed) == (False, False, 5)
    plan, _ = parse_plan(["control/pendulum", "--strategy", "erl", "--algo", "sac"])
    assert [learner.algorithm.name for learner in plan.experiment.learners.values()] == ["sac"]


def test_a_strategy_of_evosax_by_name():
    pytest.importorskip("evosax", reason="evosax is not installed")
    plan, _ = parse_plan(["control/cartpole", "--strategy", "cma_es", "--option", "std=0.5", "--population", "9"])
    assert plan.strategy == Evosax("cma_es", {"std": 0.5})


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--population", "1"], "population must be a whole number, at least 2, got 1"),
        (["--population", "5"], "population must be even"),
        (["--strategy", "open_ess"], "unknown strategy 'open_ess'. Did you mean 'open_es'"),
        (["--evolve", "agnt"], "unknown policy to evolve 'agnt'. Did you mean 'agent'"),
        (["--std", "0"], "OpenES: --std must be at least"),
        (["--num-envs", "64"], "shoal evolve has no --num-envs"),
        (["--strategy", "erl", "--algo", "ppo"], "'ppo', which has no replay"),
        (["--strategy", "snes", "--option", "std"], "--option must be NAME=VALUE"),
        (["--strategy", "snes", "--option", "sdt=1"], "unknown option 'sdt'. Did you mean 'std'"),
        (["--generations", "0"], "generations must be greater than 0"),
        (["--populaton", "8"], "Did you mean --population"),
        (["--devices", "0"], "devices must be greater than 0"),
        (["--freeze", "agent"], "every learner is frozen"),
    ],
)
def test_bad_input(shoal, tmp_path, args, words):
    pytest.importorskip("evosax", reason="evosax is not installed")
    assert_refused(shoal("evolve", "control/cartpole", *args, "--run-dir", tmp_path / "run"), words)
    assert not (tmp_path / "run").exists()


def test_no_target(shoal):
    assert_refused(shoal("evolve"), "which world or preset?")
    assert_refused(shoal("evolve", "control/cartpol"), "Did you mean 'control/cartpole'")


def test_without_evosax_it_says_what_to_install(shoal, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "evosax", None)
    monkeypatch.setitem(sys.modules, "evosax.algorithms", None)
    outcome = shoal("evolve", "control/cartpole", "--strategy", "cma_es", "--run-dir", tmp_path / "run")
    assert_refused(outcome, "pip install 'shoal-rl[evolution]'")
