"""V-trace as a learner: A2C on fresh experience, right on stale experience, APPO when clipped."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algorithms import A2C, Impala, algorithm_class
from shoal.core.errors import OptionError
from shoal.core.registry import register
from shoal.networks.torsos import Network
from shoal.testing.probes import Memory
from shoal.training.evaluate import evaluate
from shoal.training.experiment import Experiment, Learner
from shoal.training.fused import make_fused_program
from shoal.training.runner import Local, run
from tests.algorithms.playing import blank, by_hand, experience_by_hand, fresh, played
from tests.worlds.bandit import Bandit, Truncation, TwoStep
from tests.worlds.last_card import LastCard
from tests.worlds.two_teams import TwoTeams

SMALL = Network(hidden=(16,))
WORLDS = {"impala/bandit": Bandit, "impala/memory": Memory, "impala/two_step": TwoStep, "impala/cut": Truncation}


@pytest.fixture(autouse=True)
def _worlds():
    for name, world in WORLDS.items():
        register(name, world)


def gradients(algorithm, state, whole):
    """Gradients and metrics of the first step."""
    return jax.jit(lambda state, whole: algorithm.gradients(*algorithm.prepare(state, whole)))(state, whole)


def close(a, b, atol=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=atol), a, b)


@pytest.mark.parametrize(
    ("env", "recurrent", "normalised"),
    [
        (LastCard(), "none", True),
        pytest.param(TwoTeams(), "gru", False, marks=pytest.mark.slow),
        pytest.param(LastCard(), "gru", False, marks=pytest.mark.slow),
        pytest.param(TwoTeams(), "lstm", True, marks=pytest.mark.slow),
        pytest.param(Memory(), "gru", True, marks=pytest.mark.slow),
    ],
)
def test_fresh_experience_makes_it_a2c(env, recurrent, normalised):
    """Turns and masks, two groups with continuous actions and truncation, memory: one gradient, to 1e-5."""
    network = Network(hidden=(16,), recurrent=recurrent, recurrent_size=8)
    options = {"gae_lambda": 0.9, "gamma": 0.95, "normalise_advantages": normalised, "network": network}
    a2c = A2C(**options, normalise_views=normalised)
    impala = Impala(**options, normalise_views=normalised)
    state = fresh(a2c, env)
    whole = played(a2c, env, state.params)
    expected, logged = gradients(a2c, state, whole)
    got, metrics = gradients(impala, state.replace(hyper=fresh(impala, env).hyper), whole)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(expected)) > 1e-2
    close(got, expected)
    close({name: metrics[name] for name in logged}, logged)


# Two steps, γ = 1/2, V = 1 everywhere, π = 1/2; μ was 1/4, then 4/5: the ratios are 2 and 5/8. Rewards are 1 and 2.
STALE = {"reward": [[[1.0]], [[2.0]]], "log_prob": [[[math.log(0.25)]], [[math.log(0.8)]]]}


@pytest.mark.parametrize(
    ("options", "target", "advantage"),
    [
        # v_1 = 1 + 5/8 (2.5 - 1); v_0 = 1 + (1.5 - 1) + γ (v_1 - 1)
        ({}, (1.96875, 1.9375), (0.96875, 0.9375)),
        # v_0 = 1 + 2 (1.5 - 1) + 2 γ (v_1 - 1); A_0 = 2 (1 + γ v_1 - 1)
        ({"rho_clip": 9.0, "c_clip": 9.0}, (2.9375, 1.9375), (1.9375, 0.9375)),
        # c_0 = 1/2: v_0 = 1 + 0.5 + γ/2 (v_1 - 1)
        ({"c_clip": 0.5}, (1.734375, 1.9375), (0.96875, 0.9375)),
        # λ = 0: v_0 = 1 + (1.5 - 1), A_0 = 1 + γ V - 1
        ({"gae_lambda": 0.0}, (1.5, 1.9375), (0.5, 0.9375)),
    ],
)
def test_stale_experience_by_hand(options, target, advantage):
    algorithm = Impala(gamma=0.5, network=SMALL, **options)
    state = blank(algorithm, {"a": 1}, 1.0)
    _, metrics = gradients(algorithm, state, experience_by_hand(a=by_hand(**STALE)))
    assert float(metrics["policy_loss/a"]) == pytest.approx(math.log(2) * sum(advantage) / 2, abs=1e-5)
    assert float(metrics["value_loss/a"]) == pytest.approx(sum((1 - v) ** 2 for v in target) / 2, abs=1e-5)


def test_clipped_by_hand():
    """APPO: the advantages go without ρ, 0.96875 and 1.5; the ratio 2 is clipped to 1.2, the ratio 5/8 is the worse."""
    algorithm = Impala(gamma=0.5, clipped=True, clip_eps=0.2, network=SMALL)
    state = blank(algorithm, {"a": 1}, 1.0)
    grads, metrics = gradients(algorithm, state, experience_by_hand(a=by_hand(**STALE)))
    assert float(metrics["policy_loss/a"]) == pytest.approx(-(1.2 * 0.96875 + 0.625 * 1.5) / 2, abs=1e-5)
    # Only the unclipped decision pulls: d/d logit_0 of -5/8 · 1.5 / 2 is that times 1 - π; the entropy is at its top.
    bias = grads["a"]["params"]["policy_head"]["bias"]
    np.testing.assert_allclose(bias, np.array([-1.0, 1.0]) * 0.625 * 1.5 / 2 * 0.5, atol=1e-5)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [({}, 1 + 0.5 * 2), ({"terminated": True}, 1.0), ({"truncated": True, "final_value": [[[3.0]]]}, 1 + 0.5 * 3)],
)
def test_what_comes_after(flags, expected):
    """The edge of the rollout is valued by the learning critic (2), a truncation by what was recorded (3)."""
    algorithm = Impala(gamma=0.5, network=SMALL)
    state = blank(algorithm, {"a": 1}, 2.0)
    whole = experience_by_hand(a=by_hand([[[1.0]]], math.log(0.5), **flags))
    _, metrics = gradients(algorithm, state, whole)
    assert float(metrics["value_loss/a"]) == pytest.approx((expected - 2.0) ** 2, abs=1e-5)


@pytest.mark.parametrize(("rho_clip", "value"), [(1.0, 5 / 6), (2.0, 0.9)])
def test_the_value_of_a_policy_that_did_not_act(rho_clip, value):
    """A fair coin acted, π = (0.1, 0.9), only action 1 pays: V-trace is at rest at the value of min(ρ̄ μ, π)."""
    algorithm = Impala(rho_clip=rho_clip, network=SMALL)
    state = blank(algorithm, {"a": 1}, value)
    state.params["a"].weights["params"]["policy_head"]["bias"] += jnp.log(jnp.array([0.1, 0.9]))
    whole = experience_by_hand(a=by_hand([[[0.0], [1.0]]], math.log(0.5), action=[[[0], [1]]], terminated=True))
    grads, _ = gradients(algorithm, state, whole)
    assert float(grads["a"]["params"]["value_head"]["bias"][0]) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("clipped", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_it_learns_from_actors_that_are_eight_updates_behind(clipped):
    env = Bandit()
    algorithm = Impala(learning_rate=2e-2, clipped=clipped, network=SMALL)
    state = fresh(algorithm, env)
    lagging = [state.params] * 8
    update = jax.jit(algorithm.update)
    for i in range(60):
        whole = played(algorithm, env, lagging.pop(0), num_steps=4, num_envs=32, seed=i)
        state, _ = update(state, whole, jax.random.key(i))
        lagging.append(state.params)
    whole = played(algorithm, env, state.params, num_steps=4, num_envs=32)
    assert float(jnp.mean(whole.trajectories["agent"].reward)) > 0.85, "the best arm pays 0.9, the others 0.5 and 0.1"


LEARNERS = {
    "impala": Impala(learning_rate=1e-2, normalise_advantages=True, network=SMALL),
    "appo": Impala(
        learning_rate=5e-3,
        gae_lambda=0.95,
        normalise_advantages=True,
        clipped=True,
        epochs=4,
        minibatches=2,
        network=SMALL,
    ),
}


def scores(world, algorithm, steps, num_envs=64, num_seeds=5):
    """What each of several trainings reaches."""
    learners = {"l": Learner(algorithm)}
    experiment = Experiment(
        world, learners=learners, num_envs=num_envs, num_steps=16, total_env_steps=steps, num_seeds=num_seeds
    )
    policies = run(experiment, on=Local(devices=1)).policies
    one = [jax.tree.map(lambda leaf, i=i: leaf[i], policies) for i in range(num_seeds)]
    return [evaluate(experiment.setup, policy, 256).total_mean_return for policy in one], one


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
def test_delayed_reward(name):
    reached, _ = scores("impala/two_step", LEARNERS[name], 150_000)
    assert min(reached) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNERS)
def test_truncation_is_bootstrapped(name):
    """Reward 1 for ever, γ = 0.8, cut short after 5 steps: the value is 5."""
    algorithm = dataclasses.replace(LEARNERS[name], gamma=0.8)
    _, policies = scores("impala/cut", algorithm, 100_000, num_seeds=3)
    for policy in policies:
        whole = played(algorithm, Truncation(), policy, 1)
        np.testing.assert_allclose(whole.trajectories["agent"].extras["value"], 5.0, rtol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("recurrent", ["none", "lstm", "gru"])
@pytest.mark.parametrize("name", LEARNERS)
def test_memory_needs_a_recurrent_network(name, recurrent):
    network = Network(hidden=(16,), recurrent=recurrent, recurrent_size=16)
    reached, _ = scores("impala/memory", dataclasses.replace(LEARNERS[name], network=network), 150_000, 128)
    if recurrent == "none":
        assert min(reached) > 0.4
        assert max(reached) < 0.6
    else:
        assert min(reached) > 0.95


@pytest.mark.slow
def test_two_devices_agree_with_one():
    algorithm = dataclasses.replace(LEARNERS["appo"], epochs=2)
    experiment = Experiment("mpe/simple_spread", learners={"l": Learner(algorithm)}, num_envs=16, num_steps=10)
    results = []
    for devices in (1, 2):
        program = make_fused_program(experiment, devices)
        carry, _ = program.advance(program.init(), program.counts[3])
        results.append(jax.device_get(carry.learners["l"].params))
    close(*results, atol=1e-6)


def test_bad_options_are_named():
    with pytest.raises(OptionError, match="Impala: rho_clip must be greater than 0, got 0"):
        Impala(rho_clip=0.0)
    with pytest.raises(OptionError, match="Impala: c_clip must be greater than 0 and finite, got inf"):
        Impala(c_clip=float("inf"))
    with pytest.raises(OptionError, match="Impala: minibatches must be greater than 0, got 0"):
        Impala(minibatches=0)
    with pytest.raises(OptionError, match="Impala: gae_lambda must be at least 0 and at most 1, got 2"):
        Impala(gae_lambda=2.0)


def test_it_is_known_by_name():
    assert algorithm_class("impala") is Impala
    experiment = Experiment("mpe/simple_spread", learners={"l": Learner(Impala(clipped=True, rho_clip=1.5))})
    assert Experiment.from_dict(experiment.to_dict()) == experiment
