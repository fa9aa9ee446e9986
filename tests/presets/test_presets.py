import dataclasses

import pytest

from shoal import presets
from shoal.algorithms import A2C, PPO
from shoal.core import registry
from shoal.core.errors import OptionError, UnknownNameError
from shoal.training.experiment import Experiment, Learner


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_can_be_cast_and_written_down(name):
    experiment = presets.get(name)
    assert Experiment.from_dict(experiment.to_dict()) == experiment
    setup = experiment.setup
    assert sum(group.size for group in setup.spec.groups.values()) > 0
    for learner in experiment.learners.values():
        assert experiment.num_envs % getattr(learner.algorithm, "minibatches", 1) == 0
    assert presets.describe(name)
    assert len(presets.describe(name)) < 100


def test_a_preset_named_like_a_world_trains_that_world():
    for name in set(presets.names()) & set(registry.ids()):
        assert presets.resolve(name).env == name


def test_every_world_has_a_default():
    for world in registry.ids():
        assert presets.resolve(world).env == world
        default = presets.default_experiment(world)
        assert list(default.learners) == list(registry.make(world).groups)


def test_unknown_names_are_looked_for_among_worlds_and_presets():
    with pytest.raises(UnknownNameError, match="Did you mean 'tag/continuous'"):
        presets.resolve("tag/continous")
    with pytest.raises(UnknownNameError, match="Did you mean 'demo'"):
        presets.resolve("demos")
    with pytest.raises(UnknownNameError, match="unknown preset"):
        presets.get("tag/continous")


def test_preset_names_are_checked_and_taken_once():
    with pytest.raises(OptionError, match="lower-case"):
        presets.preset("Not Good", "")
    with pytest.raises(OptionError, match="already taken"):
        presets.preset("demo", "")(lambda: Experiment(env="tag/grid"))


def test_the_ippo_reference():
    experiment = presets.get("reference/simple_spread_ippo")
    algorithm = experiment.learners["agent"].algorithm
    assert isinstance(algorithm, PPO)
    assert (algorithm.network.hidden, algorithm.network.activation) == ((64, 64), "tanh")
    assert (experiment.num_envs, experiment.num_steps) == (1024, 128)
    assert (algorithm.epochs, algorithm.minibatches, algorithm.learning_rate) == (4, 4, 2.5e-4)
    assert list(experiment.setup.spec.groups) == ["agent"]


def test_the_tag_references():
    grid = presets.get("reference/tag_grid_a2c")
    algorithm = grid.learners["shared"].algorithm
    assert isinstance(algorithm, A2C)
    assert (grid.num_envs, grid.num_steps, algorithm.network.hidden) == (2000, 100, (32, 32))
    assert (algorithm.learning_rate, algorithm.gamma, algorithm.max_grad_norm) == (1e-3, 0.98, 3.0)
    assert grid.setup.spec.groups["shared"].size == 5
    continuous = presets.get("reference/tag_continuous_a2c")
    assert (continuous.num_envs, continuous.num_steps) == (100, 250)
    tagger, runner = (continuous.learners[role].algorithm for role in ("tagger", "runner"))
    assert (tagger.learning_rate, runner.learning_rate) == (1e-3, 5e-3)
    assert dataclasses.replace(tagger, learning_rate=5e-3) == runner
    assert (tagger.network.hidden, tagger.network.activation) == ((256, 256), "relu")
    assert (tagger.gamma, tagger.entropy_coef, tagger.max_grad_norm) == (0.98, 0.05, 0.5)
    assert 0.5 * tagger.value_coef == 1.0  # the loss halves it


def test_sharing_moves_seats_and_keeps_what_belongs_to_a_group():
    fast, slow = PPO(learning_rate=1.0), PPO(learning_rate=0.5)
    start = Experiment(
        env="mpe/simple_tag",
        learners={
            "a": Learner(fast, {"lead": ("adversary[0]",), "rest": ("adversary[1:3]",)}, frozen=True),
            "b": Learner(slow, {"agent": ("agent",)}, weights="elsewhere"),
        },
    )
    by_group = presets.share(start, "group").learners
    assert by_group["adversary"] == Learner(fast, {"adversary": ("adversary",)}, frozen=True)
    assert by_group["agent"] == Learner(slow, {"agent": ("agent",)}, weights="elsewhere")
    alone = presets.share(start, "none").learners
    assert alone["adversary"].policies == {f"adversary_{i}": (f"adversary[{i}]",) for i in range(3)}
    assert alone["agent"].policies == {"agent": ("agent",)}
    assert presets.share(start, "all").learners == {
        "shared": Learner(fast, {"shared": ("adversary", "agent")}, frozen=True)
    }
    assert presets.share(presets.share(start, "none"), "group").learners == by_group
    with pytest.raises(OptionError, match="sharing must be"):
        presets.share(start, "some")
