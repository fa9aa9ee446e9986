"""DDPG and SAC in the fused runner: images, two devices, beside other learners, and no move while warming up."""

import jax
import numpy as np
import pytest

from shoal.algorithms import DDPG, DQN, SAC
from shoal.networks.torsos import Network
from shoal.training.experiment import Experiment, Learner
from shoal.training.fused import make_fused_program, policies_of
from tests.algorithms.replaying import biggest, same

SMALL = {"network": Network(hidden=(8,), filters=(4,)), "buffer_size": 512, "batch_size": 16, "gradient_steps": 1}


def after(experiment, *updates, devices=1):
    """The learners' policies after each of so many updates, and the metrics of the last."""
    program = make_fused_program(experiment, devices)
    carry, done, policies = program.init(), 0, []
    for count in updates:
        carry, table = program.advance(carry, program.counts[count - done])
        policies.append(jax.device_get(policies_of(carry.learners)))
        metrics = dict(zip(program.names, np.asarray(table[count - done - 1]), strict=True))
        done = count
    return *policies, metrics


def experiment(env, learners, **more):
    sizes = {"num_envs": 8, "num_steps": 4, "total_env_steps": 1_000}
    return Experiment(env, learners=learners, **sizes, **more)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [DDPG, SAC])
def test_images_and_warm_up(algorithm):
    """Nothing moves before `warm_up` steps have been stored; then everything does."""
    learner = Learner(algorithm(warm_up=64, **SMALL), {"both": ("left", "right")})
    pong = experiment("pong", {"l": learner}, env_options={"view": "image"})
    fresh, first, later, metrics = after(pong, 0, 1, 3)
    assert same(fresh["both"].weights, first["both"].weights, 0.0)
    assert not bool(first["both"].warm)
    assert bool(later["both"].warm)
    assert metrics["critic_loss"] > 0.0
    moved = jax.tree.map(lambda a, b: a - b, later["both"].weights, first["both"].weights)
    assert biggest(moved["actor"]) > 0.0
    assert biggest(moved["critic"]) > 0.0


@pytest.mark.slow
def test_two_devices_share_a_learner():
    """Both learn from the copies of both, and warm-up counts them all: 32 steps in an update."""
    learner = {"l": Learner(SAC(critic="attention", warm_up=64, **SMALL))}
    first, second, metrics = after(experiment("mpe/simple_spread", learner), 1, 2, devices=2)
    assert not bool(first["agent"].warm)
    assert bool(second["agent"].warm)
    assert not same(first["agent"].weights, second["agent"].weights)
    assert np.isfinite(metrics["critic_loss"])
    assert metrics["critic_loss"] > 0.0


@pytest.mark.slow
def test_beside_learners_that_see_more():
    """A learner that asks for no global state stores none, even if another one asks for it."""
    learners = {
        "good": Learner(DDPG(critic="global", warm_up=0, **SMALL), {"agent": ("agent",)}),
        "bad": Learner(DQN(warm_up=0, **SMALL), {"adversary": ("adversary",)}),
    }
    _, metrics = after(experiment("mpe/simple_adversary", learners), 2)
    assert metrics["critic_loss"] > 0.0
    assert metrics["loss"] > 0.0
