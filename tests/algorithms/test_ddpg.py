"""DDPG, TD3 and MADDPG: targets worked out by hand, options, masks, memory, and worlds with known answers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import Box, Discrete, Group, MultiDiscrete, Observation
from shoal.algorithms import DDPG, algorithm_class
from shoal.algorithms.ddpg import straight_through
from shoal.core.algorithm import LearnerSpec
from shoal.core.errors import OptionError
from shoal.core.registry import register
from shoal.networks.torsos import Network
from shoal.testing.probes import Memory
from shoal.training.evaluate import evaluate
from shoal.training.experiment import Experiment, Learner
from shoal.training.runner import Local, run
from tests.algorithms.playing import played
from tests.algorithms.replaying import (
    Match,
    actor_says,
    biggest,
    forward,
    fresh_replayer,
    gradients,
    same,
    shaken,
    slow_values,
    step,
    target_batch,
    targets,
    warmed,
    window_at,
    windows_of,
)
from tests.worlds.bandit import Target
from tests.worlds.last_card import LastCard
from tests.worlds.messages import Messages
from tests.worlds.two_teams import TwoTeams

TINY = {"network": Network(hidden=(8, 8)), "buffer_size": 1_000, "warm_up": 0}
GAMMA = 0.9


@pytest.fixture(autouse=True)
def _worlds():
    for name, world in {"target": Target, "match": Match, "memory": Memory}.items():
        register(f"ddpg/{name}", world)


def score(world, algorithm, steps, num_envs=16, num_steps=4, **more):
    learners = {"l": Learner(algorithm)}
    sizes = {"num_envs": num_envs, "num_steps": num_steps, "total_env_steps": steps}
    experiment = Experiment(f"ddpg/{world}", learners=learners, **sizes, **more)
    return evaluate(experiment.setup, run(experiment, on=Local(devices=1)).policies, 256).total_mean_return


@pytest.mark.parametrize(("flag", "view"), [(None, 0.8), ("terminated", None), ("truncated", -0.6)])
@pytest.mark.parametrize("twin", [pytest.param(False, marks=pytest.mark.slow), True])
def test_target(flag, view, twin):
    """r + γ Q⁻(s', μ⁻(s')), the lower of two critics; nothing after the end, the final view where it was cut short."""
    algorithm = DDPG(gamma=GAMMA, twin=twin, **TINY)
    state = shaken(fresh_replayer(algorithm, Target()))
    got = targets(algorithm, state, target_batch(flag))["agent"]
    expected = 2.0
    if view is not None:
        view = jnp.array([view])
        numbers = actor_says(state, "agent", state.target["actor"], view)
        values = slow_values(state, "agent", view, jnp.tanh(numbers))
        assert len(values) == (2 if twin else 1)
        expected += GAMMA * float(values.min())
    np.testing.assert_allclose(got, [[[expected]]], rtol=1e-5)


def test_critic_loss_and_its_gradient_step():
    """The loss is the squared error of the action that was taken, and a step makes it smaller."""
    algorithm = DDPG(gamma=GAMMA, **TINY)
    state = fresh_replayer(algorithm, Target())
    batch = target_batch()
    gradient, metrics = gradients(algorithm, state, batch)
    wanted = targets(algorithm, state, batch)["agent"][0, 0, 0]
    said = slow_values(state, "agent", jnp.array([0.5]), jnp.array([0.25]))[0, 0]  # fresh slow networks are the same
    assert float(metrics["critic_loss"]) == pytest.approx(float((said - wanted) ** 2), rel=1e-5)
    assert float(metrics["q"]) == pytest.approx(float(said), rel=1e-5)
    after = gradients(algorithm, step(algorithm, state, gradient), batch)[1]
    assert after["critic_loss"] < metrics["critic_loss"]


def test_actor_climbs_the_critic():
    """The actor loss is -Q(s, μ(s)), and moves the actor only."""
    algorithm = DDPG(**TINY)
    state = fresh_replayer(algorithm, Target())
    batch = target_batch()
    numbers = actor_says(state, "agent", state.target["actor"], jnp.array([0.5]))  # fresh slow networks are the same
    value = slow_values(state, "agent", jnp.array([0.5]), jnp.tanh(numbers))[0, 0]
    gradient, metrics = gradients(algorithm, state, batch)
    assert float(metrics["actor_loss"]) == pytest.approx(-float(value), rel=1e-5)
    # The critic's gradient is that of its own error: the same whatever the actor would do.
    policy = state.params["agent"]
    other = policy.replace(weights=policy.weights | {"actor": jax.tree.map(jnp.sin, policy.weights["actor"])})
    moved = gradients(algorithm, state.replace(params={"agent": other}), batch)[0]
    assert same(gradient["critic"], moved["critic"])
    assert biggest(gradient["actor"]) > 1e-4


def test_target_noise_is_cut_off():
    algorithm = DDPG(target_noise=100.0, target_noise_clip=0.0, **TINY)
    state = shaken(fresh_replayer(algorithm, Target()))
    batch = target_batch()
    still = targets(dataclasses.replace(algorithm, target_noise=0.0), state, batch)
    assert same(targets(algorithm, state, batch), still)
    open_ended = state.replace(hyper=state.hyper | {"target_noise_clip": jnp.float32(0.5)})
    assert not same(targets(algorithm, open_ended, batch), still, 1e-4)


def test_policy_delay():
    algorithm = DDPG(policy_delay=2, **TINY)
    state = fresh_replayer(algorithm, Target())
    gradient, _ = gradients(algorithm, state, target_batch())
    once = step(algorithm, state, gradient)
    twice = step(algorithm, once, gradient)
    first, second, third = (one.params["agent"].weights for one in (state, once, twice))
    assert same(first["actor"], second["actor"], 0.0)
    assert same(state.target, once.target, 0.0)
    assert not same(first["critic"], second["critic"])
    assert not same(second["actor"], third["actor"])
    assert not same(once.target, twice.target)


def test_straight_through():
    logits, direction = jnp.array([0.3, 1.2, -0.5]), jnp.array([1.0, -2.0, 3.0])
    np.testing.assert_allclose(straight_through(logits, jnp.float32(0.5)), [0.0, 1.0, 0.0], atol=1e-6)
    gradient = jax.grad(lambda x: straight_through(x, jnp.float32(0.5)) @ direction)(logits)
    expected = jax.grad(lambda x: jax.nn.softmax(x / 0.5) @ direction)(logits)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("critic", "warm"), [("own", False), ("global", True)])
def test_masks_and_turns(critic, warm):
    """Nobody picks what is illegal; what those who wait "did" means nothing, and the absent are paid nothing."""
    algorithm = DDPG(critic=critic, **TINY)
    state = fresh_replayer(algorithm, LastCard())
    state = warmed(state) if warm else state
    whole = played(algorithm, LastCard(), state.params)
    track = whole.trajectories["player"]
    legal = jnp.take_along_axis(track.observation.legal, track.action[..., None], -1)[..., 0]
    assert bool(jnp.all(legal | ~track.observation.active))
    batch = window_at(algorithm, whole, 3)
    seen = batch.observation["player"]
    gradient, _ = gradients(algorithm, state, batch)
    assert np.isfinite(biggest(gradient))
    assert biggest(gradient["actor"]) > 0.0
    changed = batch.replace(
        action={"player": jnp.where(seen.active, batch.action["player"], 2)},
        reward={"player": jnp.where(seen.present, batch.reward["player"], 50.0)},
    )
    assert same(gradient, gradients(algorithm, state, changed)[0], 1e-5)
    acted = batch.replace(action={"player": jnp.where(seen.active, (batch.action["player"] + 1) % 3, 0)})
    assert not same(gradient, gradients(algorithm, state, acted)[0], 1e-4)


@pytest.mark.slow
def test_global_critic_hears_all_groups():
    """What the other group did is in the critic's error; what it would do is in the target."""
    algorithm = DDPG(critic="global", gamma=GAMMA, **TINY)
    state = shaken(fresh_replayer(algorithm, TwoTeams()))
    batch = windows_of(algorithm, TwoTeams(), state)
    alone = DDPG(critic="own", gamma=GAMMA, **TINY)
    lonely = shaken(fresh_replayer(alone, TwoTeams()))

    def trunk(algorithm, state, batch):
        return gradients(algorithm, state, batch)[0]["critic"]["trunk"]["scout"]

    def actor(algorithm, state, batch):
        return gradients(algorithm, state, batch)[0]["actor"]["scout"]

    def other(batch):
        return batch.replace(action=batch.action | {"carrier": -batch.action["carrier"]})

    unseen = batch.replace(state=None, final_state=None)
    for part in (trunk, actor):
        assert not same(part(algorithm, state, batch), part(algorithm, state, other(batch)), 1e-6)
        assert same(part(alone, lonely, unseen), part(alone, lonely, other(unseen)), 1e-7)
    slow = state.target | {
        "actor": state.target["actor"] | {"carrier": jax.tree.map(jnp.cos, state.target["actor"]["carrier"])}
    }
    before, after = (targets(algorithm, one, batch)["scout"] for one in (state, state.replace(target=slow)))
    assert not same(before, after, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("recurrent", ["gru", "lstm"])
def test_stored_memory_and_burn_in(recurrent):
    """With unchanged weights, actors and critics read a row alike, wherever the window began and whatever was burnt."""
    network = Network(hidden=(8,), recurrent=recurrent, recurrent_size=8)
    options = {"network": network, "buffer_size": 1_000, "critic": "global", "twin": True}
    short = DDPG(sequence=3, **options)
    long = DDPG(sequence=3, burn_in=4, **options)
    state = warmed(fresh_replayer(short, TwoTeams()))
    whole = played(short, TwoTeams(), state.params)
    late = forward(short, state, window_at(short, whole, 7))
    early = forward(long, state, window_at(long, whole, 3))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), late, early)
    forgot = window_at(short, whole, 7)
    forgot = forgot.replace(memory=jax.tree.map(jnp.zeros_like, forgot.memory))
    assert not same(forward(short, state, forgot)[1], late[1], 1e-3)


def test_actions_stay_in_their_box():
    algorithm = DDPG(exploration_noise=3.0, **TINY)
    space = Box((2, 3), -2.0, 5.0)
    seen = Observation(jnp.ones((1, 4)))
    spec = LearnerSpec({"a": Group(1, space, Box((4,)))}, None, 1, {"a": seen}, 8, 24)
    policy = warmed(algorithm.init(jax.random.key(0), spec)).params["a"]
    keys = jax.random.split(jax.random.key(1), 200)
    acts = jax.vmap(lambda key: algorithm.act(policy, Observation(jnp.ones(4)), (), key, True).action)(keys)
    assert acts.shape == (200, 2, 3)
    assert float(acts.min()) == -2.0
    assert float(acts.max()) == 5.0
    greedy = algorithm.act(policy, Observation(jnp.ones(4)), (), keys[0], False).action
    np.testing.assert_allclose(greedy, jnp.full((2, 3), 1.5), atol=0.5)  # a fresh actor is near the middle


@pytest.mark.slow
def test_messages_are_multi_discrete():
    algorithm = DDPG(critic="global", **TINY)
    state = warmed(fresh_replayer(algorithm, Messages()))
    gradient, _ = gradients(algorithm, state, windows_of(algorithm, Messages(), state))
    assert isinstance(state.params["agent"].space, MultiDiscrete)
    assert biggest(gradient["actor"]) > 0.0


def test_what_is_refused():
    with pytest.raises(OptionError, match="DDPG: critic must be 'own' or 'global', got 'attention'"):
        DDPG(critic="attention")  # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionError, match="DDPG: policy_delay must be a whole number, at least 1, got 0"):
        DDPG(policy_delay=0)
    with pytest.raises(OptionError, match="DDPG: exploration_noise must be at least"):
        DDPG(exploration_noise=-1.0)
    group = Group(1, Box((2,)), Box((1,)))
    seen = {"a": Observation(jnp.ones((1, 1)))}
    with pytest.raises(OptionError, match=r"finite bounds.*use PPO, A2C or Impala"):
        DDPG().init(jax.random.key(0), LearnerSpec({"a": group}, None, 1, seen))
    with pytest.raises(OptionError, match=r"DDPG: burn_in must be 0 if the network has no memory .*, got 4"):
        DDPG(burn_in=4)
    noisy, discrete = DDPG(exploration_noise=1.5, network=Network(hidden=(4,))), Group(1, Discrete(2), Box((1,)))
    with pytest.raises(OptionError, match="exploration_noise must be at most 1 for the discrete actions of 'a'"):
        noisy.init(jax.random.key(0), LearnerSpec({"a": discrete}, None, 1, seen))
    bounded = Group(1, Box((2,), -1.0, 1.0), Box((1,)))
    jax.eval_shape(lambda key: noisy.init(key, LearnerSpec({"a": bounded}, None, 1, seen)), jax.random.key(0))
    assert algorithm_class("ddpg") is DDPG


QUICK = {"learning_rate": 5e-3, "actor_learning_rate": 2e-3, "batch_size": 128, "warm_up": 256, "buffer_size": 10_000}
SMALL = Network(hidden=(32,), activation="relu")


@pytest.mark.slow
def test_continuous_target():
    assert score("target", DDPG(network=SMALL, gradient_steps=8, **QUICK), 20_000) > -0.01


@pytest.mark.slow
def test_global_critic_coordinates():
    """The better equilibrium pays 1; who cannot tell the other's choice from chance may settle for 0.4."""
    assert score("match", DDPG(critic="global", logit_penalty=1e-2, network=SMALL, **QUICK), 20_000) == pytest.approx(
        2.0
    )


@pytest.mark.slow
@pytest.mark.parametrize(("recurrent", "low", "high"), [("none", 0.3, 0.65), ("gru", 0.95, 1.0), ("lstm", 0.95, 1.0)])
def test_memory(recurrent, low, high):
    network = dataclasses.replace(SMALL, recurrent=recurrent, recurrent_size=32)
    algorithm = DDPG(network=network, sequence=6, burn_in=2 * (recurrent != "none"), gradient_steps=4, **QUICK)
    assert low <= score("memory", algorithm, 60_000) <= high
