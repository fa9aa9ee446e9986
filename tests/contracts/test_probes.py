"""Worlds with answers known on paper: each algorithm must reach them."""

import jax
import numpy as np
import pytest

from shoal.algorithms import A2C, PPO
from shoal.core.registry import register
from shoal.execution.evaluate import evaluate
from shoal.execution.experiment import Experiment, Learner, cast
from shoal.execution.train import train
from shoal.networks.torsos import Network
from tests.worlds.bandit import Bandit, Target, Truncation, TwoStep
from tests.worlds.memory import Memory
from tests.worlds.messages import Messages

for name, world in {"bandit": Bandit, "target": Target, "truncation": Truncation, "two_step": TwoStep}.items():
    register(f"test/{name}", world)
register("test/memory", Memory)
register("test/messages", Messages)

SMALL = Network(hidden=(32,))


def trained(world, algorithm, steps, num_envs=64, num_steps=16, seed=0):
    learners = {"l": Learner(algorithm)}
    experiment = Experiment(
        world, learners=learners, num_envs=num_envs, num_steps=num_steps, total_env_steps=steps, seed=seed
    )
    result = train(experiment, devices=1)
    return cast(experiment), result.policies


def score(world, algorithm, steps, **kwargs):
    roles, policies = trained(world, algorithm, steps, **kwargs)
    return evaluate(roles, policies, 512).total_mean_return


ALGORITHMS = {
    "ppo": PPO(learning_rate=5e-3, minibatches=2, network=SMALL),
    "a2c": A2C(learning_rate=1e-2, normalise_advantages=True, network=SMALL),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_bandit(name):
    roles, policies = trained("test/bandit", ALGORITHMS[name], 100_000)
    best = evaluate(roles, policies, 64).total_mean_return
    assert best == pytest.approx(best_of_bandit(roles.env), abs=0.05)


def best_of_bandit(env):
    state = env.reset(jax.random.key(0), env.default_params())
    action = {"agent": np.full(next(iter(env.groups.values())).size, env.best)}
    name = next(iter(env.groups))
    _, outcome = env.step(jax.random.key(0), state, {name: action["agent"]}, env.default_params())
    return float(outcome.reward[name].sum())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_continuous_target(name):
    assert score("test/target", ALGORITHMS[name], 400_000, num_envs=256) > -0.02


@pytest.mark.parametrize("name", ALGORITHMS)
def test_delayed_reward(name):
    assert score("test/two_step", ALGORITHMS[name], 150_000) > 0.95


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("normalised", [False, True])
def test_truncation_is_bootstrapped(name, normalised):
    """Reward 1 for ever, cut short now and then: the value is 1 / (1 - γ), not what one episode pays."""
    algorithm = ALGORITHMS[name]
    algorithm = type(algorithm)(
        learning_rate=1e-2, gamma=0.8, network=SMALL, normalise_values=normalised, normalise_views=normalised
    )
    roles, policies = trained("test/truncation", algorithm, 200_000)
    params = roles.env.default_params()
    obs = roles.env.observe(roles.env.reset(jax.random.key(0), params), params)
    group = next(iter(obs))
    value = jax.vmap(lambda view: algorithm.value(policies[group], obs[group].replace(view=view), ()))(obs[group].view)
    np.testing.assert_allclose(value, 5.0, rtol=0.05)


def test_messages_are_learnt():
    algorithm = PPO(learning_rate=3e-3, gamma=0.9, entropy_coef=0.02, network=Network(hidden=(64,)))
    env = Messages()
    reached = score("test/messages", algorithm, 1_000_000, num_envs=256)
    without_words = 2 * (env.length - 1) / env.num_goals
    assert reached > 1.5 * without_words


@pytest.mark.parametrize("recurrent", ["none", "gru", pytest.param("lstm", marks=pytest.mark.slow)])
def test_memory_needs_a_recurrent_network(recurrent):
    network = Network(hidden=(16,), recurrent=recurrent, recurrent_size=16)
    algorithm = PPO(learning_rate=5e-3, minibatches=2, network=network)
    reached = score("test/memory", algorithm, 150_000, num_envs=128)
    if recurrent == "none":
        assert 0.4 < reached < 0.6
    else:
        assert reached > 0.95
