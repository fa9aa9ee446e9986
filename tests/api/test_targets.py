"""Names and overrides become the experiment that the command line would make of them; what is wrong is said."""

import dataclasses

import gymnasium
import jax.numpy as jnp
import pettingzoo
import pytest

import shoal
from shoal import presets
from shoal.api.targets import Changes, make_experiment
from shoal.cli.run_options import TrainOptions
from shoal.cli.targets import parse_target
from shoal.core.errors import OptionError, RunError, UnknownNameError
from shoal.envs.wrappers import FrameStack, TimeLimit


def made(target, **changes):
    fields = {field.name for field in dataclasses.fields(Changes)}
    own = {name: changes.pop(name) for name in list(changes) if name in fields}
    return make_experiment(target, Changes(**own, options=changes), "shoal.train", ["callbacks"])


@pytest.mark.parametrize(
    ("target", "changes", "typed"),
    [
        ("mpe/simple_spread", {}, ""),
        ("mpe/simple_spread", {"total_env_steps": 2e6, "seed": 7}, "--total-env-steps 2e6 --seed 7"),
        (
            "mpe/simple_spread",
            {"learning_rate": 3e-4, "hidden": (8, 8)},
            "--algo.learning-rate 3e-4 --algo.network.hidden 8 8",
        ),
        ("mpe/simple_spread", {"network.recurrent": "gru"}, "--algo.network.recurrent gru"),
        ("mpe/simple_spread", {"env": {"num_agents": 5}}, "--env.num-agents 5"),
        ("mpe/simple_spread", {"algorithm": "QMIX"}, "--algo QMIX"),
        ("mpe/simple_speaker_listener", {"algorithm": "vdn"}, "--algo vdn"),
        ("mpe/simple_tag", {"adversary.gamma": 0.5}, "--learners.adversary.algorithm.gamma 0.5"),
        ("mpe/simple_tag", {"sharing": "none", "num_envs": 64.0}, "--sharing none --num-envs 64"),
        ("mpe/simple_tag", {"freeze": ["agent"]}, "--freeze agent"),
        ("mpe/simple_spread", {"wrappers": [FrameStack(count=2)]}, "--wrap frame_stack:count=2"),
    ],
)
def test_it_is_what_the_command_line_makes_of_the_same(target, changes, typed):
    experiment = made(target, **changes)
    assert experiment.to_dict() == parse_target(TrainOptions, [target, *typed.split()], "shoal train")[0].to_dict()


def test_an_algorithm_may_be_given_as_it_is():
    experiment = made("mpe/simple_tag", algorithm=shoal.PPO(epochs=7), clip_eps=0.3)
    assert {learner.algorithm.epochs for learner in experiment.learners.values()} == {7}
    assert {learner.algorithm.clip_eps for learner in experiment.learners.values()} == {0.3}
    assert made("mpe/simple_spread", algorithm=shoal.SAC).num_envs == 64  # as --algo sac: it learns little by little


def test_a_world_may_be_given_as_it_is():
    env = FrameStack(TimeLimit(shoal.make("mpe/simple_spread", num_agents=2), max_steps=9), count=2)
    experiment = made(env)
    assert experiment.world == env
    assert experiment.learners == presets.get("mpe/simple_spread").learners
    assert made(type(shoal.make("tag/grid"))).env == "tag/grid"


@dataclasses.dataclass(frozen=True)
class Mine(shoal.Env):
    @property
    def groups(self):
        return {"agent": shoal.Group(1, shoal.Discrete(2))}

    def reset(self, key, params):
        return jnp.zeros(())

    def step(self, key, state, actions, params):
        return state, shoal.Outcome({"agent": jnp.ones(1)}, jnp.array(True), jnp.array(False))

    def observe(self, state, params):
        return {"agent": shoal.Observation(jnp.ones((1, 1)))}


def test_a_world_of_ones_own_must_be_registered():
    with pytest.raises(OptionError, match=r"Mine is not registered.*@shoal.register\('my/world'\) above"):
        made(Mine)
    shoal.register("api/mine", Mine)
    assert made(Mine()).env == "api/mine"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learning_rat": 1e-3}, "shoal.train: unknown option 'learning_rat'. Did you mean 'learning_rate'"),
        ({"lr": 1e-3}, "unknown option 'lr'. Did you mean 'learning_rate'"),
        ({"hidden_sizes": (8,)}, "Did you mean 'hidden'"),
        ({"callback": ()}, "Did you mean 'callbacks'"),
        ({"num_agents": 5}, r"num_agents is an option of mpe/simple_spread.*write env={'num_agents': 5}"),
        ({"env": {"num_agent": 5}}, "unknown option 'num_agent'. Did you mean 'num_agents'"),
        ({"num_envs": 2.5}, "num_envs must be a whole number, got 2.5"),
        ({"learning_rate": "fast"}, "learning_rate must be a number, got 'fast'"),
        ({"algorithm": "mapo"}, "unknown algorithm 'mapo'. Did you mean 'mappo'"),
        ({"algorithm": 3}, "algorithm must be a name such as 'mappo'"),
        ({"sharing": "some"}, "sharing must be 'group', 'all' or 'none'"),
        ({"freeze": ["agnet"]}, "freeze: unknown learner 'agnet'. Did you mean 'agent'"),
        ({"freeze": "agent"}, "every learner is frozen"),
        ({"weights": {"agnet": "runs/x"}}, "weights: unknown learner 'agnet'"),
        ({"torso": "mine"}, "mine"),
    ],
)
def test_what_is_wrong_is_said(changes, words):
    with pytest.raises((OptionError, UnknownNameError), match=words):
        made("mpe/simple_spread", **changes)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("mpe/simple_spred", "unknown world or preset 'mpe/simple_spred'. Did you mean 'mpe/simple_spread'"),
        (3, "target must be the name of a preset or a world"),
        (shoal.PPO(), "target must be the name of a preset or a world"),
    ],
)
def test_targets_that_are_none(target, words):
    with pytest.raises((OptionError, UnknownNameError), match=words):
        made(target)


class Meet(pettingzoo.ParallelEnv):
    pass


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (
            lambda: gymnasium.make("CartPole-v1"),
            r"a \w+ of gymnasium: .* shoal.train\('gymnasium:CartPole-v1', env=",
        ),
        (lambda: gymnasium.Env, r"the class Env of gymnasium: .* shoal.train\('gymnasium:my.module:ID', env="),
        (Meet, r"a Meet of pettingzoo: .* shoal.train\('pettingzoo:tests.api.test_targets:Meet', env="),
        (lambda: Meet, r"the class Meet of pettingzoo: .* shoal.train\('pettingzoo:tests.api.test_targets:Meet', env="),
        (dict, r"@shoal.register\('my/world'\) .* got {}\. Environments of other libraries .* 'gymnasium:CartPole-v1'"),
    ],
)
def test_an_environment_of_another_library_is_told_its_name(target, words):
    with pytest.raises(OptionError, match=words):
        made(target())


def test_folders_that_are_no_runs(tmp_path, monkeypatch):
    """Whoever names a folder is not told of unknown worlds."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "empty").mkdir(parents=True)
    for target in ("runs/nope", "./nope", "mine/nope", str(tmp_path / "nope"), tmp_path / "nope"):
        with pytest.raises(RunError, match=r"nope is no run folder: nothing is there, .*`shoal envs`, `shoal presets`"):
            made(target)
    with pytest.raises(RunError, match="mine/empty is a folder, but not of a run, and no world or preset has that"):
        made("mine/empty")
    (tmp_path / "mpe").mkdir()
    with pytest.raises(UnknownNameError, match="Did you mean 'mpe/simple_spread'"):
        made("mpe/simple_spred")
