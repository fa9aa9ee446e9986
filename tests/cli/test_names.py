"""Names and what they stand for: files are written where they are meant to be, ids are what they say."""

import dataclasses
import json
from pathlib import Path
from typing import ClassVar

import jax
import numpy as np
import pytest

import shoal as package
from shoal import presets
from shoal.algorithms import PPO
from shoal.api.targets import import_files
from shoal.bridges.plain_policy import load
from shoal.core import origin, registry
from shoal.core.errors import OptionError, RunError
from shoal.core.files import file_stem
from shoal.envs.wrappers import FrameStack
from shoal.networks.torsos import Network
from shoal.populations.population import PopulationConfig
from shoal.presets import _registry
from shoal.training import checkpoint
from shoal.training.experiment import Experiment, Learner
from shoal.training.run import create, open_run
from shoal.training.runner import resume
from tests.cli.conftest import assert_refused

NAMES = ["../../out", "/tmp/shoal_out", "..", "red/left", "a\\b", "%2F", "a b", ".hidden", "", "\ud800", "x\x00y\n"]


@pytest.fixture(autouse=True)
def nothing_trusted(monkeypatch):
    monkeypatch.setattr(origin, "_trusted", set())


def test_names_that_become_files_stay_in_their_folder(tmp_path):
    stems = [file_stem(name) for name in NAMES]
    assert len(set(stems)) == len(NAMES)
    for stem in stems:
        file = tmp_path / f"{stem}.npz"
        file.write_text("")
        assert file.resolve().parent == tmp_path
    assert file_stem("player_0") == "player_0"
    assert file_stem("agent[1:3]") == "agent[1%3A3]"
    assert file_stem("red/left") == "red%2Fleft"


def stored(folder: Path, learners: dict[str, Learner]) -> Path:
    """A run of `test/tiny` that was begun and has weights of zeros."""
    run = create(folder, Experiment("test/tiny", learners=learners, num_envs=4, num_steps=2, total_env_steps=8))
    begun = {
        name: {"params": jax.eval_shape(lambda a=algorithm, s=spec: a.init(jax.random.key(0), s)).params}
        for name, (algorithm, spec) in run.experiment.setup.learners.items()
    }
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), begun)
    meta = {"update": 0, "env_steps": 0, "devices": 1, "seconds": 0.0, "pending": []}
    checkpoint.save(run.checkpoints, 0, {"learners": zeros}, meta)
    return folder


def test_exports_policies_of_any_name_into_the_folder(tmp_path, world, shoal):
    import_files([str(world)])
    policies = {"../../escaped": ("hunter",), "red/left": ("prey",)}
    run = stored(tmp_path / "runs" / "run", {"learner": Learner(PPO(network=Network(hidden=(4,))), policies)})
    before = set(tmp_path.rglob("*"))
    files = shoal("export", run, "--out", tmp_path / "deep" / "er" / "out", "--import", world, "--json").json["files"]
    assert files.keys() == policies.keys()
    new = {path for path in tmp_path.rglob("*") if path not in before and path.is_file()}
    assert new == {Path(file) for file in files.values()}
    assert {file.name for file in new} == {"%2E./../escaped.npz".replace("/", "%2F"), "red%2Fleft.npz"}
    assert {file.parent for file in new} == {tmp_path / "deep" / "er" / "out"}
    assert load(files["red/left"])(np.zeros(2, np.float32)).action in (0, 1, 2)


@pytest.fixture
def elsewhere(tmp_path, world):
    """A run to take weights from, and a folder that names it."""
    import_files([str(world)])
    learner = Learner(PPO(network=Network(hidden=(4,)), minibatches=1))
    other = stored(tmp_path / "other", {"learner": learner})
    run = stored(tmp_path / "run", {"learner": dataclasses.replace(learner, weights=str(other))})
    return run, other


@pytest.mark.parametrize("command", ["train", "sweep", "resume"])
def test_a_folder_does_not_decide_which_other_run_is_read(command, elsewhere, world, shoal, monkeypatch):
    run, other = elsewhere
    if command == "resume":
        next((run / "checkpoints").iterdir()).unlink()
    monkeypatch.setattr("shoal.training.fused.weights_from", lambda *args: pytest.fail("it was read"))
    over = ["--over", "learning_rate=1e-4,1e-3"] if command == "sweep" else []
    outcome = shoal(command, run, "--import", world, *over)
    assert outcome.code == 2
    assert "Traceback" not in outcome.err
    if command == "resume" and "no checkpoint" in outcome.err:
        return  # refused for that already
    assert_refused(outcome, f"{run}: its learner 'learner' starts from the weights of '{other}'", f"--import {other}")


def test_weights_are_read_if_the_user_names_them(elsewhere, tmp_path):
    run, other = elsewhere
    experiment = open_run(run).experiment
    with pytest.raises(RunError, match="does not decide what else is read"):
        package.train(experiment)
    registry.import_named(str(other))
    experiment.origin.admit_folder(str(other), "")


def test_policies_that_a_population_begins_with_are_named_by_the_user(tmp_path):
    settings = PopulationConfig(presets.get("psro/kuhn"), imports=(str(tmp_path / "other"),))
    create(tmp_path / "run", settings)
    with pytest.raises(RunError, match=r"run: it begins with the policies of .*other"):
        resume(tmp_path / "run")


OWN_PONG = """
from shoal import register
from shoal.envs.pong.pong import Pong

class Own(Pong):
    pass

register("my/pong", Own)
"""


def test_a_population_grows_in_the_world_that_was_named(tmp_path, shoal, monkeypatch):
    assert presets.response_preset("pong") == "psro/pong"
    assert presets.response_preset("cards/leduc") == "psro/leduc"
    assert presets.response_preset("leduc") == "psro/leduc"
    file = tmp_path / "own.py"
    file.write_text(OWN_PONG)
    import_files([str(file)])
    assert presets.response_preset("my/pong") is None
    settings = []
    monkeypatch.setattr("shoal.cli.commands.psro._start", lambda found, *rest: settings.append(found) or 0)
    for command in ("psro", "league"):
        assert_refused(shoal(command, "foo/pong"), "unknown world or preset 'foo/pong'", "--import FILE")
        assert shoal(command, "my/pong", "--import", file).code == 0
        assert shoal(command, "pong").code == 0
    assert [found.experiment.env for found in settings] == ["my/pong", "pong"] * 2


@pytest.mark.parametrize("command", ["train", "sweep", "psro", "bench train", "bench env"])
def test_an_unknown_world_says_how_its_file_is_named(command, shoal):
    said = "name the file that registers it: --import FILE"
    assert_refused(shoal(*command.split(), "my/world"), "'my/world'", said)


class Mine(PPO):
    pass


class Named(PPO):
    name: ClassVar[str] = "mine"


class Wide(Network):
    pass


class Stack(FrameStack):
    pass


OTHERS = {
    "subclass": {"learners": {"learner": Learner(Mine())}},
    "name of its own": {"learners": {"learner": Learner(Named())}},
    "network": {"learners": {"learner": Learner(PPO(network=Wide()))}},
    "wrapper": {"wrappers": (Stack(count=2),)},
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_a_folder_cannot_give_back_is_refused_when_a_run_begins(what, tmp_path, monkeypatch):
    experiment = Experiment("pong", **OTHERS[what])
    monkeypatch.setattr(Experiment, "program", lambda *args: pytest.fail("it was begun"))
    with pytest.raises(
        OptionError,
        match=r"is of the class (Mine|Named|Wide|Stack), which (a run folder cannot name|is not registered)",
    ):
        package.train(experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(OptionError, match=r"cannot name|not registered"):
        create(tmp_path / "run", experiment)
    with pytest.raises(OptionError, match=r"cannot name|not registered"):
        create(tmp_path / "run", PopulationConfig(experiment))
    assert not (tmp_path / "run").exists()


def test_shoals_own_classes_are_given_back(tmp_path):
    experiment = Experiment("pong", learners={"learner": Learner(PPO())}, wrappers=(FrameStack(count=2),))
    assert open_run(create(tmp_path / "run", experiment).path).experiment == experiment
    assert (
        json.loads((tmp_path / "run" / "config.json").read_text())["experiment"]["wrappers"][0]["name"] == "frame_stack"
    )


PRESET = """
from shoal import Experiment, Learner, PPO
from shoal.presets import preset

class Mine(PPO):
    pass

@preset("own/mine", "an algorithm of one's own")
def mine():
    return Experiment("pong", learners={"learner": Learner(Mine())})
"""


@pytest.mark.parametrize("command", ["train", "sweep", "pbt", "evolve", "bench train"])
def test_commands_refuse_a_preset_with_an_algorithm_of_its_own(command, tmp_path, shoal, monkeypatch):
    monkeypatch.setattr(_registry, "_presets", dict(_registry._presets))
    file = tmp_path / "own.py"
    file.write_text(PRESET)
    outcome = shoal(*command.split(), "own/mine", "--import", file)
    assert_refused(outcome, "is of the class Mine, which is not registered and inherits the name 'ppo' of PPO")
