"""An algorithm and a torso of one's own, from the command line: they train, resume, evaluate, sweep like the others."""

import dataclasses
import json

import pytest

from shoal.algorithms import A2C, ALGORITHMS
from shoal.cli.run_options import TrainOptions
from shoal.cli.targets import parse_target
from shoal.core import registry
from shoal.networks.own_torsos import TORSOS
from tests.cli.conftest import SMALL, assert_refused
from tests.docs.guides import Guide

KIT = '''
import dataclasses
import flax.linen as nn
import jax.numpy as jnp
import shoal


@shoal.register_algorithm("kit_a2c")
@dataclasses.dataclass(frozen=True)
class KitA2C(shoal.A2C):
    """A2C of a kit."""

    kit_coef: float = 0.5  # how much of it


@shoal.register_torso("kit_torso")
class KitTorso(nn.Module):
    """A layer."""

    width: int = 8

    @nn.compact
    def __call__(self, seen):
        return nn.tanh(nn.Dense(self.width)(seen.reshape(-1)))
'''
OWN = ("--algo", "kit_a2c", "--algo.network.torso", "kit_torso", "--algo.network.torso-options", "width=4")


def forget():
    for one in (ALGORITHMS, TORSOS):
        for name in [name for name in one.table if name.startswith("kit_")]:
            del one.table[name]


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    path = tmp_path_factory.mktemp("kit") / "kit.py"
    path.write_text(KIT)
    return path


@pytest.fixture(scope="module")
def own_run(tmp_path_factory, kit, world):
    from shoal.cli import main

    path = tmp_path_factory.mktemp("runs") / "own"
    before = dict(registry.WORLDS.table)
    files = ("--import", str(world), "--import", str(kit))
    assert main(["train", "test/tiny", *files, "--run-dir", str(path), *SMALL, *OWN, "--algo.kit-coef", "0.25"]) == 0
    registry.WORLDS.table.clear()
    registry.WORLDS.table.update(before)
    forget()
    return path


def test_a_run_holds_them_by_name_and_is_evaluated(own_run, kit, world, shoal):
    config = json.loads((own_run / "config.json").read_text())
    learner = next(iter(config["experiment"]["learners"].values()))
    assert learner["algorithm"]["name"] == "kit_a2c"
    assert learner["algorithm"]["kit_coef"] == 0.25
    assert learner["algorithm"]["network"]["torso"] == "kit_torso"
    assert learner["algorithm"]["network"]["torso_options"] == {"width": 4}
    assert config["sources"]["algorithm kit_a2c"] == str(kit)
    outcome = shoal("eval", own_run, "--import", world, "--import", kit, "--episodes", "4", "--json")
    assert outcome.code == 0, outcome.err


@pytest.mark.parametrize("command", ["eval", "resume", "watch", "train", "sweep"])
def test_without_the_file_every_command_says_which_it_needs(command, own_run, kit, world, shoal):
    more = ("--over", "learning_rate=1e-4:1e-2:2") if command == "sweep" else ()
    outcome = shoal(command, own_run, "--import", world, *more)
    assert_refused(outcome, "unknown algorithm 'kit_a2c'", f"--import {kit}")


def test_plain_numpy_cannot_hold_the_torso(own_run, kit, world, shoal, tmp_path):
    outcome = shoal("export", own_run, "--out", tmp_path / "out", "--import", world, "--import", kit)
    assert_refused(outcome, "has the torso 'kit_torso', which is not one of Shoal's")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--algo.network.torso", "kit_torsso"), "unknown torso 'kit_torsso'. Did you mean 'kit_torso'?"),
        (("--algo.network.torso-options", "widht=4"), "unknown option 'widht'. Did you mean 'width'?"),
        (("--algo.network.torso-options", "width=a"), "width must be a whole number, got 'a'"),
        (("--algo.network.torso-options", "width"), "'width' is not NAME=VALUE, such as heads=4"),
    ],
)
def test_what_is_wrong_on_the_command_line_is_refused(options, why, kit, world, shoal):
    assert_refused(shoal("train", "test/tiny", "--import", world, "--import", kit, *OWN, *options), why)


def test_they_are_listed(kit, shoal):
    outcome = shoal("algos", "kit", "--import", kit)
    assert outcome.code == 0
    assert "KitA2C" in outcome.out
    assert "--algo.network.torso kit_torso --algo.network.torso-options width=8: A layer." in outcome.out
    listed = shoal("algos", "kit", "--import", kit, "--json").json
    assert [entry["use"] for entry in listed["algorithms"]] == ["A2C of a kit."]
    assert listed["torsos"]["kit_torso"]["options"] == {"width": 8}
    assert listed["broken"] == []


def test_a_file_that_takes_a_name_is_refused(tmp_path, shoal):
    file = tmp_path / "taken.py"
    file.write_text(KIT.replace('"kit_a2c"', '"ppo"'))
    why = "the algorithm name 'ppo' is already taken by shoal.algorithms.ppo:PPO: choose another one"
    assert_refused(shoal("algos", "--import", file), why)


def chosen(*args):
    """The algorithm that a command line makes of its target."""
    parsed = parse_target(TrainOptions, [str(arg) for arg in args], "shoal train")
    return next(iter(parsed.experiment.learners.values())).algorithm


def test_a_subclass_begins_with_what_the_preset_says_of_its_parent(kit):
    own = chosen("a2c/cartpole", "--import", kit, "--algo", "kit_a2c", "--algo.kit-coef", "0.75")
    parent = chosen("a2c/cartpole")
    assert parent != A2C(), "the preset has options of its own"
    options = {field.name: getattr(parent, field.name) for field in dataclasses.fields(parent)}
    assert own == ALGORITHMS["kit_a2c"](**options, kit_coef=0.75)


def test_a_parents_name_does_not_stand_for_a_child(own_run, kit, world):
    files = ("--import", world, "--import", kit)
    assert type(chosen(own_run, *files)) is ALGORITHMS["kit_a2c"]
    assert type(chosen(own_run, *files, "--algo", "a2c")) is A2C


def test_an_algorithm_may_do_without_a_network(tmp_path):
    guide = Guide("your-own-algorithm.md")
    file = tmp_path / "reinforce.py"
    file.write_text(guide.block("class Reinforce("))
    own = chosen("cards/kuhn", "--import", file, "--algo", "reinforce", "--algo.learning-rate", "0.5")
    assert own == ALGORITHMS["reinforce"](learning_rate=0.5, gamma=chosen("cards/kuhn").gamma)


@pytest.mark.parametrize(
    ("option", "kind"), [(("--algo", "kid_a2c"), "algorithm"), (("--algo.network.torso", "kid_torso"), "torso")]
)
def test_an_unknown_name_may_be_of_a_file_that_was_not_named(option, kind, shoal):
    outcome = shoal("train", "control/cartpole", *option)
    assert_refused(outcome, f"unknown {kind} 'kid_", f"{kind} of your own, name the file that registers it: --import")


BROKEN = """
import dataclasses
import shoal


@shoal.register_algorithm("kit_broken")
@dataclasses.dataclass(frozen=True)
class Broken(shoal.A2C):
    {}
"""


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("def __post_init__(self): {}['no such']", "algorithm 'kit_broken': building it (broken.py, line 9: "),
        ("def loss(self, new, batch): return new.log_prob, {}", "loss: the loss has the shape [8, 4, 2]. Take a mean"),
        ("def loss(self, new, batch): return batch.mean_active(new.value)", "Return the loss and a dict of metrics"),
        ("def value(self, params, observation, memory): return observation.view", "Return one number, a float scalar"),
        ("def update(self, state, experience, key, axis=None): return state", "Return the state and a dict of metrics"),
    ],
)
def test_what_breaks_the_contract_is_told_in_a_line(code, why, world, tmp_path, shoal):
    file = tmp_path / "broken.py"
    file.write_text(BROKEN.format(code))
    run = ("--algo", "kit_broken", "--run-dir", tmp_path / "run")
    outcome = shoal("train", "test/tiny", "--import", world, "--import", file, *SMALL, *run)
    assert_refused(outcome, why)
    assert not (tmp_path / "run").exists()


def test_a_torso_that_has_changed_since_is_not_mistaken_for_other_views(own_run, world, tmp_path, shoal):
    file = tmp_path / "kit.py"
    file.write_text(KIT.replace("nn.Dense(self.width)", "nn.Dense(self.width + 1)"))
    outcome = shoal("eval", own_run, "--import", world, "--import", file)
    assert_refused(outcome, "the torso (its options, its code): not the same in config.json and in the checkpoint")


def test_they_are_swept(kit, world, shoal, tmp_path):
    files = ("--import", world, "--import", kit)
    out = ("--over", "kit_coef=0.1,0.2", "--run-dir", tmp_path / "sweep", "--json")
    swept = shoal("sweep", "test/tiny", *files, *SMALL, *OWN, *out)
    assert swept.code == 0, swept.err
    assert [point["values"] for point in swept.json["points"]] == [{"kit_coef": 0.1}, {"kit_coef": 0.2}]


@pytest.mark.slow
def test_processes_of_a_cluster_import_the_file(kit, world, shoal, tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'shoal-rl[cluster]'")
    files = ("--import", world, "--import", kit)
    there = ("--cluster", "auto", "--actors", "2", "--run-dir", tmp_path / "run")
    outcome = shoal("train", "test/tiny", *files, *SMALL, *OWN, *there)
    assert outcome.code == 0, outcome.err
    assert "3/3" in outcome.out
