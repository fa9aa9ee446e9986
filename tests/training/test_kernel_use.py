"""Runs say which way their networks go, kernels or plain XLA, and why; a GPU is stood in for, and nothing compiled."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from shoal import presets
from shoal.networks import Network
from shoal.ops import mlp
from shoal.ops.kernels import trust
from shoal.ops.kernels.choices import record_choices, report
from shoal.populations.pbt.plan import PBT, Range
from shoal.populations.population import PopulationConfig
from shoal.training import bench, liveness
from shoal.training.fused import make_fused_program
from shoal.training.kernel_use import describe_kernels


@pytest.fixture
def gpu(monkeypatch):
    """Programs are traced as on a GPU whose kernels are trusted."""
    monkeypatch.setattr(liveness, "platform_name", lambda: "cuda")
    monkeypatch.setattr(trust, "find_problem", lambda trial: None)


def told(preset="mpe/simple_spread", **network):
    experiment = dataclasses.replace(presets.get(preset), num_envs=16, num_steps=4)
    learners = dict(experiment.learners)
    for name, learner in learners.items():
        algorithm = dataclasses.replace(learner.algorithm, network=Network(**network))
        learners[name] = dataclasses.replace(learner, algorithm=algorithm)
    return make_fused_program(experiment.replace(learners=learners), 1).kernels


@pytest.mark.parametrize(
    ("network", "way"),
    [
        ({}, "fused kernel"),
        ({"hidden": (32,)}, "fused kernel"),
        ({"hidden": (256, 256)}, "plain XLA (256 units: the kernel holds up to 64)"),
        ({"hidden": (64, 64, 64)}, "plain XLA (3 hidden layers: the kernel holds 1 or 2)"),
        ({"dtype": "bfloat16"}, "fused kernel in bfloat16"),
        ({"dtype": "bfloat16", "hidden": (65,)}, "plain XLA (65 units: the kernel holds up to 64)"),
        ({"recurrent": "gru"}, "plain XLA (recurrent: gru)"),
        ({"layer_norm": True}, "plain XLA (layer normalisation)"),
    ],
)
def test_the_reason_is_that_of_the_network(gpu, network, way):
    assert told(**network) == f"networks: {way}"


def test_the_same_program_says_the_same_again(gpu):
    """Nothing of what is traced is remembered from the first time."""
    assert told() == told() == "networks: fused kernel"
    wide = {"hidden": (65,)}
    assert told(**wide) == told(**wide) == "networks: plain XLA (65 units: the kernel holds up to 64)"


def test_some_networks_may_go_another_way(gpu):
    assert told("maddpg/simple_adversary") == "networks: fused kernel, others plain XLA (critics of actions)"


def test_kernels_that_are_not_trusted(gpu, monkeypatch):
    monkeypatch.setattr(trust, "find_problem", lambda trial: "it disagrees with the plain form by 1.0e-01")
    assert told() == "networks: plain XLA (it disagrees with the plain form by 1.0e-01)"


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="needs a machine without a GPU")
@pytest.mark.parametrize("hidden", [(64, 64), (256,)])
def test_without_a_gpu_that_is_the_reason(hidden):
    assert told(hidden=hidden) == "networks: plain XLA (no CUDA device)"


def test_the_search_for_neighbours_is_said_too(gpu):
    experiment = dataclasses.replace(presets.get("reference/tag_continuous_a2c"), num_envs=2, num_steps=3)
    both = "networks: plain XLA (71 inputs: the kernel holds up to 64); neighbour search: kernel"
    assert make_fused_program(experiment, 1).kernels == both


def test_a_world_alone_has_no_networks():
    small = {"num_envs": 2, "num_steps": 2, "seconds": 0.01}
    assert bench.bench_env("tag/grid", **small)["kernels"] == ""
    if jax.default_backend() == "cpu":
        searched = bench.bench_env(
            "tag/continuous", {"num_runners": 3, "num_taggers": 2, "num_neighbours": 3}, **small
        )["kernels"]
        assert searched == "neighbour search: plain XLA (no CUDA device)"


def test_what_is_compiled_counts_not_what_was_chosen(gpu, monkeypatch):
    layers = [(jnp.ones((3, 4)), jnp.ones(4)), (jnp.ones((4, 2)), jnp.ones(2))]
    with record_choices() as choices:
        jaxpr = jax.make_jaxpr(lambda x: mlp.fuse([(x, layers)], "tanh"))(jnp.ones(3))
    assert choices == {"networks": {None}}
    assert describe_kernels(jaxpr, choices) == "networks: fused kernel"
    monkeypatch.setattr(mlp, "takes_kernel", lambda equation: False)
    assert describe_kernels(jaxpr, choices) == "networks: plain XLA"


def test_nobody_has_to_listen():
    report("networks", "unheard")
    with record_choices() as choices:
        pass
    report("networks", "too late")
    assert choices == {}


def test_populations_and_members_say_it_too(gpu):
    small = {"num_envs": 16, "num_steps": 4}
    members = PBT(dataclasses.replace(presets.get("control/cartpole"), **small), {"learning_rate": Range(1e-3, 1e-2)})
    assert dataclasses.replace(members, members=2).program(1).kernels == "networks: fused kernel"
    responses = PopulationConfig(dataclasses.replace(presets.resolve("psro/kuhn"), **small))
    assert responses.program(1).kernels == "networks: fused kernel"
    assert dataclasses.replace(responses, oracle="exact").program(1).kernels == ""
