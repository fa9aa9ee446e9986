"""SAC, MASAC and MAAC: soft targets worked out by hand, temperature, attention, masks, memory, and known answers."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import Box, Discrete, Group, MultiDiscrete, Observation
from shoal.algorithms import SAC, algorithm_class
from shoal.algorithms.sac import entropy, target_entropy
from shoal.core.algorithm import LearnerSpec
from shoal.core.errors import OptionError
from shoal.core.registry import register
from shoal.networks.q_network import expected_value
from shoal.networks.torsos import Network
from shoal.ops.distributions import distribution
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
    one_window,
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
from tests.worlds.bandit import Bandit, Target
from tests.worlds.last_card import LastCard
from tests.worlds.messages import Messages
from tests.worlds.two_teams import TwoTeams

TINY = {"network": Network(hidden=(8, 8)), "buffer_size": 1_000, "warm_up": 0}
GAMMA, ALPHA = 0.9, 0.3
FLAGS = [(None, 0.8), ("terminated", None), ("truncated", -0.6)]


@pytest.fixture(autouse=True)
def _worlds():
    for name, world in {"target": Target, "match": Match, "memory": Memory, "bandit": Bandit}.items():
        register(f"sac/{name}", world)


def score(world, algorithm, steps, num_envs=16, num_steps=4):
    learners = {"l": Learner(algorithm)}
    sizes = {"num_envs": num_envs, "num_steps": num_steps, "total_env_steps": steps}
    experiment = Experiment(f"sac/{world}", learners=learners, **sizes)
    return evaluate(experiment.setup, run(experiment, on=Local(devices=1)).policies, 256).total_mean_return


def policy_weights(state):
    return {name: policy.weights["actor"] for name, policy in state.params.items()}


@pytest.mark.parametrize(("flag", "view"), FLAGS)
@pytest.mark.parametrize("learnt", [pytest.param(False, marks=pytest.mark.slow), True])
def test_continuous_target(flag, view, learnt):
    """r + γ (min Q⁻(s', a') - α log π(a' | s')), a' sampled; nothing after the end, the final view if cut short."""
    algorithm = SAC(gamma=GAMMA, temperature=ALPHA, learn_temperature=learnt, **TINY)
    state = shaken(fresh_replayer(algorithm, Target()))
    got = targets(algorithm, state, target_batch(flag))["agent"]
    expected = 2.0
    if view is not None:
        view = jnp.array([view])
        numbers = actor_says(state, "agent", policy_weights(state), view)
        # The one draw of the one group: the density is found again from the action alone.
        key = jax.random.split(jax.random.fold_in(jax.random.key(0), 0), (1, 1, 1))[0, 0, 0]
        chances = distribution(Box((1,), -1.0, 1.0), numbers)
        action = chances.sample(key)
        lower = slow_values(state, "agent", view, action).min()
        expected += GAMMA * float(lower - ALPHA * chances.log_prob(action))
    np.testing.assert_allclose(got, [[[expected]]], rtol=1e-4)


@pytest.mark.parametrize(("flag", "view"), FLAGS)
def test_discrete_target(flag, view):
    """r + γ Σ π(a) (min Q⁻(a) - α log π(a)), over all choices."""
    algorithm = SAC(gamma=GAMMA, temperature=ALPHA, **TINY)
    state = shaken(fresh_replayer(algorithm, Bandit()))
    batch = one_window(Bandit().groups["agent"], [0.5, 0.8], [-0.6, 0.0], 1, flag)
    got = targets(algorithm, state, batch)["agent"]
    expected = 2.0
    if view is not None:
        chances = np.asarray(jax.nn.softmax(actor_says(state, "agent", policy_weights(state), jnp.array([view]))))
        lower = np.asarray(slow_values(state, "agent", jnp.array([view]), jnp.zeros(3))).min(axis=0)
        expected += GAMMA * float(np.sum(chances * (lower - ALPHA * np.log(chances))))
    np.testing.assert_allclose(got, [[[expected]]], rtol=1e-5)


def test_discrete_losses():
    """The critic's error is that of the choice made; the actor's loss is minus the soft value; both by hand."""
    algorithm = SAC(gamma=GAMMA, temperature=ALPHA, **TINY)
    state = fresh_replayer(algorithm, Bandit())
    batch = one_window(Bandit().groups["agent"], [0.5, 0.8], [0.0, 0.0], 1)
    gradient, metrics = gradients(algorithm, state, batch)
    wanted = float(targets(algorithm, state, batch)["agent"][0, 0, 0])
    said = np.asarray(slow_values(state, "agent", jnp.array([0.5]), jnp.zeros(3)))  # fresh slow ones are the same
    chances = np.asarray(jax.nn.softmax(actor_says(state, "agent", policy_weights(state), jnp.array([0.5]))))
    assert float(metrics["critic_loss"]) == pytest.approx(np.sum((said[:, 1] - wanted) ** 2), rel=1e-4)
    soft = np.sum(chances * (said.min(axis=0) - ALPHA * np.log(chances)))
    assert float(metrics["actor_loss"]) == pytest.approx(-soft, rel=1e-4)
    assert float(metrics["entropy"]) == pytest.approx(-np.sum(chances * np.log(chances)), rel=1e-4)
    after = gradients(algorithm, step(algorithm, state, gradient), batch)[1]
    assert after["critic_loss"] < metrics["critic_loss"]


def test_temperature_follows_the_entropy():
    """A fresh policy of 3 choices has an entropy of log 3: the temperature falls for a share below 1."""
    batch = one_window(Bandit().groups["agent"], [0.5, 0.8], [0.0, 0.0], 1)
    for share, sign in ((0.5, -1.0), (1.5, 1.0)):
        algorithm = SAC(target_entropy_share=share, temperature=ALPHA, **TINY)
        state = fresh_replayer(algorithm, Bandit())
        gradient, metrics = gradients(algorithm, state, batch)
        gap = math.log(3) * (1.0 - share)
        assert float(gradient["extra"]["agent"]) == pytest.approx(gap, abs=1e-3)
        assert float(metrics["temperature"]) == pytest.approx(ALPHA, rel=1e-5)
        moved = step(algorithm, state, gradient).extra["agent"] - state.extra["agent"]
        assert np.sign(moved) == sign


def test_entropies_by_hand():
    pair, legal = MultiDiscrete((2, 3)), jnp.array([True, True, True, False, True])
    share = jnp.float32(0.5)
    assert float(target_entropy(pair, None, share)) == pytest.approx(0.5 * math.log(6))
    assert float(target_entropy(pair, legal, share)) == pytest.approx(0.5 * math.log(4))
    assert float(target_entropy(Box((2,), -3.0, 3.0), None, share)) == pytest.approx(2 * math.log(3) - 1.0)
    log_prob = jnp.log(jnp.array([0.25, 0.75, 0.5, 0.25, 0.25]))
    values = jnp.array([4.0, 8.0, 2.0, 4.0, 8.0])
    assert float(expected_value(pair, values, jnp.exp(log_prob))) == pytest.approx((7.0 + 4.0) / 2)
    by_part = [0.25 * math.log(4) + 0.75 * math.log(4 / 3), 1.5 * math.log(2)]
    assert float(entropy(pair, log_prob)) == pytest.approx(sum(by_part))


@pytest.mark.slow
@pytest.mark.parametrize("critic", ["own", "global", "attention"])
def test_masks_and_turns(critic):
    """Nobody picks what is illegal; what those who wait "did" means nothing, and the absent are paid nothing."""
    algorithm = SAC(critic=critic, **TINY)
    state = warmed(fresh_replayer(algorithm, LastCard()))
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
@pytest.mark.parametrize("critic", ["global", "attention"])
def test_critics_hear_the_other_group(critic):
    algorithm = SAC(critic=critic, **TINY)
    state = fresh_replayer(algorithm, TwoTeams())
    batch = windows_of(algorithm, TwoTeams(), state)
    other = batch.replace(action=batch.action | {"carrier": -batch.action["carrier"]})
    trunks = [gradients(algorithm, state, one)[0]["critic"]["trunk"]["scout"] for one in (batch, other)]
    assert not same(*trunks, 1e-6)


def test_attention_is_to_the_others_who_are_there():
    """Values depend on what the others do, not on one's own slot; nor on those absent, and one alone hears nobody."""
    algorithm = SAC(critic="attention", **TINY)
    state = fresh_replayer(algorithm, LastCard())
    join = jax.tree.map(lambda leaf: leaf[0], state.join)
    features, idle = jax.random.normal(jax.random.key(1), (3, 8)), jnp.zeros((3, 3))

    @jax.jit
    def values(actions, present=jnp.ones(3, bool)):
        named = ({"player": x} for x in (features, idle, actions, present))
        return state.head.apply(join, *named)["player"]

    base, first = values(idle), values(idle.at[0].set(jnp.array([0.0, 5.0, 0.0])))
    np.testing.assert_allclose(first[0], base[0], atol=1e-6)
    assert np.abs(first[1:] - base[1:]).max() > 1e-4
    gone = jnp.array([False, True, True])
    np.testing.assert_allclose(values(idle.at[0].set(5.0), gone)[1:], values(idle, gone)[1:], atol=1e-6)
    alone = jnp.array([True, False, False])
    np.testing.assert_allclose(values(idle + 5.0, alone)[0], values(idle, alone)[0], atol=1e-6)


@pytest.mark.slow
def test_stored_memory_and_burn_in():
    """With unchanged weights, actors and critics read a row alike, wherever the window began and whatever was burnt."""
    network = Network(hidden=(8,), recurrent="gru", recurrent_size=8)
    short = SAC(sequence=3, network=network, buffer_size=1_000, critic="attention")
    long = dataclasses.replace(short, burn_in=4)
    state = warmed(fresh_replayer(short, TwoTeams()))
    whole = played(short, TwoTeams(), state.params)
    late, early = forward(short, state, window_at(short, whole, 7)), forward(long, state, window_at(long, whole, 3))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), late, early)


@pytest.mark.slow
def test_messages_are_multi_discrete():
    algorithm = SAC(critic="attention", n_step=2, **TINY)
    state = warmed(fresh_replayer(algorithm, Messages()))
    gradient, metrics = gradients(algorithm, state, windows_of(algorithm, Messages(), state))
    assert biggest(gradient["actor"]) > 0.0
    assert float(metrics["entropy"]) == pytest.approx(math.log(3) + math.log(4), abs=1e-2)


def test_what_is_refused():
    with pytest.raises(OptionError, match="SAC: critic must be 'own', 'global' or 'attention', got 'team'"):
        SAC(critic="team")  # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionError, match="SAC: temperature must be at least"):
        SAC(temperature=0.0)
    seen = {"a": Observation(jnp.ones((1, 1)))}
    with pytest.raises(OptionError, match=r"SAC: the action space of 'a'.*finite bounds.*use PPO, A2C or Impala"):
        SAC().init(jax.random.key(0), LearnerSpec({"a": Group(1, Box((2,), 0.0), Box((1,)))}, None, 1, seen))
    with pytest.raises(OptionError, match="SAC: buffer_size must be at least"):
        SAC(buffer_size=4).init(
            jax.random.key(0), LearnerSpec({"a": Group(1, Discrete(2), Box((1,)))}, None, 1, seen, 8, 8)
        )
    assert algorithm_class("sac") is SAC


QUICK = {"learning_rate": 5e-3, "actor_learning_rate": 2e-3, "batch_size": 128, "warm_up": 256, "buffer_size": 10_000}
SMALL = Network(hidden=(32,), activation="relu")


@pytest.mark.slow
def test_continuous_target_is_found():
    algorithm = SAC(network=SMALL, gradient_steps=8, target_entropy_share=3.0, **QUICK)
    assert score("target", algorithm, 20_000) > -0.01


@pytest.mark.slow
@pytest.mark.parametrize("critic", ["global", "attention"])
def test_agents_coordinate(critic):
    """The better equilibrium pays each 1; who settles for the other gets 0.4."""
    algorithm = SAC(critic=critic, network=SMALL, target_entropy_share=0.2, **QUICK)
    assert score("match", algorithm, 20_000) == pytest.approx(2.0)
