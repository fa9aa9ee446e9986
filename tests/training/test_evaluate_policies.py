"""`shoal.evaluate`: a name that is not there is refused, policies of several seeds are played one after the other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.algorithms import A2C
from shoal.core.errors import OptionError, UnknownNameError
from shoal.networks.torsos import Network
from shoal.training.evaluate import evaluate, record
from shoal.training.runner import run

EXPERIMENT = shoal.Experiment(
    "matrix/matching_pennies",
    learners={"both": shoal.Learner(A2C(network=Network(hidden=(4,))), {"agent": ("player_0", "player_1")})},
    num_envs=2,
    num_steps=2,
)


@pytest.fixture(scope="module")
def setup():
    return EXPERIMENT.setup


@pytest.fixture(scope="module")
def seeds(setup):
    """The policies of three seeds, which play differently."""
    algorithm, spec = setup.learners["both"]

    def trained(seed):
        params = algorithm.init(jax.random.key(seed), spec).params
        return jax.tree.map(lambda leaf: leaf + 3 * jax.random.normal(jax.random.key(seed), leaf.shape), params)

    return [trained(seed) for seed in range(3)]


def test_a_mistyped_name_is_refused(setup, seeds):
    with pytest.raises(UnknownNameError, match=r"unknown policy 'agnet'. Did you mean 'agent'\?"):
        shoal.evaluate(setup, {"agnet": seeds[0]["agent"]}, episodes=4)
    with pytest.raises(UnknownNameError, match="unknown policy 'agnet'"):
        record(setup, {"agnet": seeds[0]["agent"]})


def test_policies_of_several_seeds_are_played_each(setup, seeds):
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *seeds)
    together = shoal.evaluate(setup, stacked, episodes=16, explore=True)
    alone = [shoal.evaluate(setup, one, episodes=16, explore=True) for one in seeds]
    assert together.episodes == 16
    for name, returns in together.returns.items():
        assert returns.shape == (3, 16)
        np.testing.assert_array_equal(returns, [one.returns[name] for one in alone])
        assert together.mean_return[name] == [one.mean_return[name] for one in alone]
        assert together.standard_error[name] == [one.standard_error[name] for one in alone]
    assert together.total_mean_return == [one.total_mean_return for one in alone]
    assert isinstance(alone[0].total_mean_return, float)
    assert len({one.returns["player_0"].tobytes() for one in alone}) > 1


def test_one_seed_is_to_be_chosen_for_a_recording(setup, seeds):
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *seeds)
    with pytest.raises(OptionError, match=r"the policies of 3 seeds.*leaf\[0\]"):
        record(setup, stacked)


def test_policies_of_different_numbers_of_seeds(setup, seeds):
    two = shoal.Experiment("mpe/simple_tag", learners={"both": shoal.Learner(A2C())}).setup
    algorithm, spec = two.learners["both"]
    params = algorithm.init(jax.random.key(0), spec).params
    params["agent"] = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), params["agent"])
    with pytest.raises(OptionError, match="adversary of one, agent of 2"):
        shoal.evaluate(two, params, episodes=1)


def test_a_policy_of_another_world_does_not_fit(setup):
    other = shoal.Experiment("mpe/simple_spread", learners={"one": shoal.Learner(A2C())}).setup
    algorithm, spec = other.learners["one"]
    with pytest.raises(OptionError, match="a policy does not fit 'matrix/matching_pennies'"):
        shoal.evaluate(setup, algorithm.init(jax.random.key(0), spec).params, episodes=1)


def test_a_name_is_no_experiment():
    with pytest.raises(OptionError, match=r"run: config must be of the type Config .*got 'mpe/simple_spread'"):
        run("mpe/simple_spread")  # pyright: ignore[reportArgumentType]
    with pytest.raises(OptionError, match="evaluate: setup must be of the type Setup"):
        evaluate("mpe/simple_spread", {})
