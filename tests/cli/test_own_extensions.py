"""An algorithm and a torso of one's own, from the command line: they train, resume, evaluate, sweep like the others."""

import json

import pytest

from shoal.algorithms import ALGORITHMS
from shoal.core import registry
from shoal.networks.own_torsos import TORSOS
from tests.cli.conftest import SMALL, assert_refused

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
    outcome = shoal("export", own_run, tmp_path / "out", "--import", world, "--import", kit)
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


@pytest.mark.slow
def test_a_stopped_run_goes_on_to_the_same_bits_and_is_swept(kit, world, shoal, tmp_path):
    files = ("--import", world, "--import", kit)
    sizes = ("--num-envs", "4", "--num-steps", "8", "--total-env-steps", "320", "--json")
    whole = shoal("train", "test/tiny", *files, *OWN, *sizes, "--run-dir", tmp_path / "whole")
    assert whole.code == 0, whole.err
    swept = shoal("sweep", "test/tiny", *files, *OWN, *sizes, "--over", "kit_coef=0.1,0.2", "--out", tmp_path / "sweep")
    assert swept.code == 0, swept.err
