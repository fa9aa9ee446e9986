"""Wrappers on the command line: read, refused, stored with the run and put around its world by every command."""

import json

import pytest

from shoal.cli.run_options import TrainOptions
from shoal.cli.targets import parse_target
from shoal.core.env import describe
from shoal.envs.wrappers import AgentIds, FrameStack, Pad, TimeLimit
from shoal.training.experiment import Experiment, make_world

from .conftest import SMALL, assert_refused


def parse(*args):
    return parse_target(TrainOptions, args, "shoal train").experiment


def test_wrappers_are_read_in_order():
    assert parse("mpe/simple_tag").wrappers == ()
    experiment = parse("mpe/simple_tag", "--wrap", "pad", "--wrap=time_limit:max-steps=1e2", "--sharing", "all")
    assert experiment.wrappers == (Pad(), TimeLimit(max_steps=100))
    assert describe(experiment.setup.env).groups["shared"].size == 4  # which they could not share without padding


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("framestack", "unknown wrapper 'framestack'. Did you mean 'frame_stack'?"),
        ("frame_stack:4", "--wrap must be NAME or NAME:OPTION=VALUE,OPTION=VALUE, got 'frame_stack:4'"),
        ("frame_stack:cout=4", "--wrap frame_stack: unknown entry 'cout'. Did you mean 'count'?"),
        ("frame_stack:count=0.5", "--wrap frame_stack: count must be a whole number, got 0.5"),
        ("time_limit:max_steps=many", "--wrap time_limit: max_steps must be a whole number, got 'many'"),
        ("time_limit:max_steps=0", "time_limit: max_steps must be a whole number, at least 1, got 0"),
        ("observation_noise:scale=-1", "observation_noise: scale must be at least 0, got -1"),
        ("reward_scale:scale=x", "--wrap reward_scale: scale must be a number, got 'x'"),
        ("reward_scale:scale=0", "reward_scale: scale must be other than 0"),
        ("pad:env=3", "--wrap pad: unknown entry 'env'"),
    ],
)
def test_bad_wrappers(shoal, text, words):
    assert_refused(shoal("train", "demo", "--wrap", text), words)


@pytest.mark.slow
def test_every_command_puts_them_around_the_world(shoal, world, tmp_path):
    run = tmp_path / "run"
    plans = ["--wrap", "time_limit:max_steps=3", "--wrap", "agent_ids", "--wrap", "frame_stack:count=2"]
    trained = shoal("train", "test/tiny", "--import", world, *SMALL, *plans, "--run-dir", run)
    assert trained.code == 0, trained.err
    assert "test/tiny (time_limit, agent_ids, frame_stack): " in trained.out
    stored = json.loads((run / "config.json").read_text())["experiment"]
    assert stored["wrappers"] == [
        {"name": "time_limit", "max_steps": 3},
        {"name": "agent_ids"},
        {"name": "frame_stack", "count": 2},
    ]
    evaluated = shoal("eval", run, "--import", world, "--episodes", "4", "--json").json
    assert evaluated["mean_length"] == 3  # 4 without the wrapper; and its network is as wide as it was in training
    assert shoal("watch", run, "--import", world, "--json").code == 0


def test_bench(shoal, world):
    plans = ["--wrap", "time_limit:max_steps=2", "--wrap", "reward_scale:scale=1e-6"]
    small = ["--num-envs", "2", "--num-steps", "8", "--seconds", "0.01", "--devices", "1"]
    result = shoal("bench", "env", "test/tiny", "--import", world, *small, *plans, "--json").json
    assert result["wrappers"] == [{"name": "time_limit", "max_steps": 2}, {"name": "reward_scale", "scale": 1e-6}]
    assert result["checksum"]["ends"] == 8
    assert 0 < abs(result["checksum"]["rewards"]) < 1e-3  # without the wrapper it is about 20


def test_listed(shoal):
    assert "time_limit, frame_stack" in shoal("envs").out
    listed = shoal("envs", "--json").json
    actions = {world["id"]: [group["action"] for group in world["groups"].values()] for world in listed["envs"]}
    assert actions["control/pendulum"] == ["1 number in [-2, 2]"]
    assert actions["swarm/delivery"] == ["2 numbers in [-1, 1]"]
    assert listed["wrappers"]["pad"].startswith("Brings the views and the actions of all groups to one size")


def test_experiments_keep_them_exactly():
    plans = (TimeLimit(max_steps=7), AgentIds(), FrameStack(count=2))
    experiment = Experiment(env="mpe/simple_spread", wrappers=plans)
    stored = json.loads(json.dumps(experiment.to_dict()))
    assert Experiment.from_dict(stored) == experiment
    assert make_world(experiment) == FrameStack(AgentIds(TimeLimit(make_world(Experiment("mpe/simple_spread")), 7)), 2)
    without = {name: entry for name, entry in stored.items() if name != "wrappers"}
    assert Experiment.from_dict(without).wrappers == ()  # as runs from before there were any


@pytest.mark.parametrize("wrapper", [FrameStack(make_world(Experiment("mpe/simple_spread"))), "agent_ids", FrameStack])
def test_experiments_take_plans_only(wrapper):
    with pytest.raises(ValueError, match="experiment: wrappers must be known wrappers that are around no world yet"):
        Experiment(env="mpe/simple_spread", wrappers=(wrapper,))


@pytest.mark.parametrize("wrappers", [None, FrameStack(count=2), "pad"])
def test_experiments_take_several_wrappers(wrappers):
    with pytest.raises(ValueError, match=r"experiment: wrappers must be a tuple of wrappers, such as .* got"):
        Experiment(env="mpe/simple_spread", wrappers=wrappers)
