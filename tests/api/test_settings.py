"""Settings as files: every preset comes back from its TOML, files are refused in words, differences are found."""

import dataclasses
import json
from pathlib import Path

import pytest

import shoal
from shoal import presets
from shoal.api.settings import differences, read_experiment, read_settings, settings_data, settings_toml
from shoal.api.targets import find_experiment
from shoal.core.errors import OptionError, RunError
from shoal.envs.wrappers import FrameStack
from shoal.presets.known import known_returns
from shoal.training.experiment import Experiment, Learner
from shoal.training.run import open_run
from tests.api.conftest import SMALL

GOLDEN = Path(__file__).parents[1] / "golden" / "runs"


def test_every_preset_comes_back(tmp_path):
    file = tmp_path / "exp.toml"
    for name in presets.names():
        experiment = presets.get(name)
        file.write_text(settings_toml(experiment, [name, "more"]))
        assert read_experiment(file) == experiment, name


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.iterdir() if path.is_dir()))
def test_every_kind_of_run_comes_back(tmp_path, name):
    config = open_run(GOLDEN / name, None).config
    for suffix, text in ((".toml", settings_toml(config)), (".json", json.dumps(settings_data(config)))):
        file = tmp_path / f"exp{suffix}"
        file.write_text(text)
        assert read_settings(file) == config
    assert read_settings(GOLDEN / name / "config.json") == config


def test_names_and_texts_of_all_kinds_come_back(tmp_path):
    learner = shoal.Learner(shoal.PPO(), policies={"a.b \n": ("agent[0:2]",), 'q"': ("agent[2]",)}, frozen=True)
    experiment = shoal.Experiment(
        "mpe/simple_spread", {"num_agents": 4}, (FrameStack(count=3),), {"a b": learner}, seed=2**32 - 1
    )
    file = tmp_path / "exp.toml"
    file.write_text(settings_toml(experiment))
    assert read_experiment(file) == experiment


def test_what_toml_cannot_express_is_said():
    experiment = shoal.Experiment("gymnasium:CartPole-v1", {"render_mode": None})
    with pytest.raises(OptionError, match="env_options: TOML has no null; JSON has"):
        settings_toml(experiment)


def test_part_of_the_settings(tmp_path):
    file = tmp_path / "exp.toml"
    file.write_text('env = "mpe/simple_spread"\nnum_envs = 64\n[learners.team.algorithm]\nname = "ppo"\nepochs = 2\n')
    experiment = find_experiment(str(file))
    assert (experiment.num_envs, experiment.num_steps) == (64, shoal.Experiment("x").num_steps)
    assert experiment.learners["team"].algorithm == shoal.PPO(epochs=2)


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("a.toml", "env = ", "a.toml is not TOML"),
        ("a.json", "{", "a.json is not JSON"),
        ("a.json", "[1]", "must hold settings by name, and holds a list"),
        ("a.toml", 'env = "mpe/simple_spread"\nnum_env = 3', "unknown entry 'num_env'. Did you mean 'num_envs'"),
        ("a.toml", 'env = "mpe/simple_spread"\nnum_envs = "3"', "num_envs must be a whole number, got '3'"),
        ("a.toml", 'env = "mpe/simple_spread"\nnum_envs = 0', "num_envs must be greater than 0"),
        ("a.toml", "num_envs = 8", "needs at least `env`"),
        ("a.toml", 'env = "mpe/simple_spred"', "Did you mean 'mpe/simple_spread'"),
        ("a.toml", 'kind = "sweeep"', "unknown kind of run 'sweeep'. Did you mean 'sweep'"),
        ("a.toml", 'env = "pettingzoo:my.module:make"', "a run folder does not decide what is run"),
        ("a.toml", 'env = "x"\nx = ' + "[" * 5000, "is not TOML"),
        ("a.toml", b"\xff\xfe", "is not TOML"),
    ],
)
def test_files_that_are_wrong(tmp_path, name, text, error):
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises((OptionError, RunError), match=error):
        find_experiment(str(file))


def test_files_that_are_missing_or_of_another_kind(tmp_path):
    with pytest.raises(OptionError, match=r"nothing\.toml: no such file. `shoal show TARGET > "):
        find_experiment(str(tmp_path / "nothing.toml"))
    with pytest.raises(OptionError, match="holds settings a sweep, for `shoal sweep`, not of one training"):
        find_experiment(str(GOLDEN / "sweep" / "config.json"))


def test_train_takes_a_file(tmp_path):
    file = tmp_path / "exp.toml"
    small = presets.get("matrix/matching_pennies").replace(num_envs=4, num_steps=4, total_env_steps=16, seed=5)
    file.write_text(settings_toml(small))
    run = shoal.train(file, algorithm="a2c", **{key: value for key, value in SMALL.items() if key == "progress"})
    assert run.experiment.seed == 5
    assert run.update == 1


def test_differences():
    first, second = presets.get("ippo/simple_spread"), presets.get("mappo/simple_spread")
    assert differences(first, first) == []
    found = {one.name: (one.first, one.second) for one in differences(first, second.replace(seed=3))}
    assert found["seed"] == (0, 3)
    assert found["learners.team.algorithm.critic"] == ("own", "global")
    alone = first.replace(learners={"me": first.learners["team"]})
    assert [one.name for one in differences(first, alone)] == ["learners.name"]


def test_policies_and_settings_below_a_name_differ_once():
    """One learner plays everybody without saying so, the other names them; one world has options, the other none."""
    first = Experiment("mpe/simple_spread", env_options={"num_agents": 2})
    second = Experiment("mpe/simple_spread").replace(learners={"agent": Learner(policies={"agent": ("agent",)})})
    found = [one.name for one in differences(first, second)]
    assert [name for name in found if "policies" in name] == ["learners.*.policies"]
    assert [name for name in found if "env_options" in name] == ["env_options.num_agents"]


def test_what_presets_reach():
    """The table that ships is what the results of the benchmarks give; `shoal show` says it."""
    from benchmarks import known_returns as script

    assert json.loads(script.FILE.read_text()) == script.collect()
    known = known_returns("mappo/simple_spread")
    assert known["random"]["agent"] < known["returns"]["agent"]["low"] < known["returns"]["agent"]["mean"] < -40
    assert known_returns("nothing") is None
    assert len(script.collect()) > 90


def test_origin_does_not_make_configs_differ(tmp_path):
    """What is in a file equals what was shown, wherever it comes from."""
    file = tmp_path / "exp.json"
    experiment = presets.get("demo")
    file.write_text(json.dumps(settings_data(experiment)))
    found = read_experiment(file)
    assert found == experiment
    assert dataclasses.asdict(found.origin) != dataclasses.asdict(experiment.origin)
