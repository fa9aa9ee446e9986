"""Environments of other libraries from the command line: trained, evaluated, resumed, exported, refused."""

import json

import numpy as np
import pytest

import shoal
from shoal.bridges.plain_policy import load
from shoal.cli import main
from shoal.cli.targets import split_target
from shoal.core import registry

gymnasium = pytest.importorskip("gymnasium", reason="Gymnasium is not installed: pip install gymnasium")
TINY = ["--num-envs", "4", "--num-steps", "8", "--total-env-steps", "96", "--algo.network.hidden", "8"]


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("foreign") / "run"
    option = ["--env-option", "max_episode_steps=5"]
    assert main(["train", "gymnasium:CartPole-v1", *TINY, *option, "--run-dir", str(folder)]) == 0
    return folder


def test_options_of_the_environment_are_kept(cartpole, capsys):
    config = json.loads((cartpole / "config.json").read_text())
    assert config["experiment"]["env_options"] == {"max_episode_steps": 5}
    assert main(["eval", str(cartpole), "--episodes", "6", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["episodes"] == 6
    assert found["mean_length"] <= 5


def test_resumes(cartpole, capsys):
    assert main(["resume", str(cartpole), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["updates"] == 3


OWN = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

if "ShoalOwn-v0" not in gymnasium.registry:
    gymnasium.register("ShoalOwn-v0", CartPoleEnv, max_episode_steps=5)
"""


@pytest.mark.parametrize("command", ["resume", "eval", "train"])
def test_an_environment_of_the_users_own_needs_its_file(tmp_path, monkeypatch, capsys, command):
    file, folder = tmp_path / "own.py", tmp_path / "run"
    file.write_text(OWN)
    args = ["gymnasium:ShoalOwn-v0", "--import", str(file), *TINY, "--run-dir", str(folder)]
    assert main(["train", *args]) == 0
    monkeypatch.delitem(gymnasium.registry, "ShoalOwn-v0")
    monkeypatch.setattr(registry, "_foreigners", {})  # as in a new process
    capsys.readouterr()
    assert main([command, str(folder)]) == 2
    said = capsys.readouterr().err
    assert "Environment `ShoalOwn` doesn't exist" in said
    assert "name the file that registers it: --import FILE" in said
    extra = ["--run-dir", str(tmp_path / "new")] if command == "train" else []
    assert main([command, str(folder), "--import", str(file), *extra]) == 0


@pytest.mark.parametrize(
    "args",
    [
        ("evolve", "--population", "4", "--generations", "1"),
        ("pbt", "--over", "learning_rate=1e-4:1e-2:log"),
        ("sweep", "--over", "learning_rate=1e-4:1e-2:2:log"),
        ("bench", "train"),
    ],
)
def test_what_is_compiled_as_a_whole_refuses_it(args, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = args[:2] if args[0] == "bench" else args[:1]
    assert main([*command, "gymnasium:CartPole-v1", *args[len(command) :]]) == 2
    assert "gymnasium:CartPole-v1 runs on the host, in Python" in capsys.readouterr().err
    assert not list(tmp_path.rglob("config.json"))


def test_exports(cartpole, tmp_path, capsys):
    assert main(["export", str(cartpole), "--out", str(tmp_path / "out"), "--json"]) == 0
    (file,) = json.loads(capsys.readouterr().out)["files"].values()
    assert load(file)(np.zeros(4, np.float32)).action in (0, 1)
    assert main(["export", str(cartpole), "--out", str(tmp_path / "out")]) == 2
    assert "is there already" in capsys.readouterr().err


def test_exports_onnx(cartpole, tmp_path, capsys):
    pytest.importorskip("onnx", reason="onnx is not installed: pip install onnx")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install onnxruntime")
    assert main(["export", str(cartpole), "--format", "onnx", "--out", str(tmp_path), "--json"]) == 0
    (file,) = json.loads(capsys.readouterr().out)["files"].values()
    given = {"observation": np.zeros((2, 4), np.float32), "legal": np.ones((2, 2), bool)}
    action, _ = runtime.InferenceSession(file, providers=["CPUExecutionProvider"]).run(None, given)
    assert set(action) <= {0, 1}
    assert main(["export", str(cartpole), "--format", "onxx"]) == 2


def test_exports_from_python(cartpole, tmp_path):
    files = shoal.load(cartpole).export(tmp_path / "out")
    assert load(files["agent"])(np.zeros(4, np.float32)).action in (0, 1)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["gym:CartPole-v1"], "unknown library 'gym'. Did you mean 'gymnax' or 'gymnasium'?"),
        (["gymnasium:"], "which environment? For instance gymnasium:CartPole-v1"),
        (["gymnasium:Nope-v0"], "gymnasium:Nope-v0: Environment `Nope` doesn't exist"),
        (["gymnasium:CartPole-v1", "--wrap", "agent_ids"], "runs on the host, where Shoal's wrappers do not apply"),
        (["gymnasium:CartPole-v1", "--env-option", "x"], "--env-option must be NAME=VALUE"),
        (["gymnasium:CartPole-v1", "--num-seeds", "2"], "--num-seeds must be 1, got 2"),
    ],
)
def test_refused(args, said, tmp_path, capsys):
    assert main(["train", *args, "--run-dir", str(tmp_path / "run")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_an_environment_of_another_library_may_follow_options():
    words = ["--num-envs", "8", "gymnasium:CartPole-v1", "--seed", "3"]
    assert split_target(words, ()) == ("gymnasium:CartPole-v1", ["--num-envs", "8", "--seed", "3"])
    assert split_target(["--import", "pettingzoo:my.module:make"], ()) == (
        None,
        ["--import", "pettingzoo:my.module:make"],
    )
    assert split_target(["--log", "csv", "wandb:project=x"], ())[0] is None
