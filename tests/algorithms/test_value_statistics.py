"""Values normalised by the statistics of their own targets must mean the same when the statistics move."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algorithms import A2C
from shoal.algorithms.on_policy import LearnerState, Policy
from shoal.algorithms.vdac import TEAM, OwnValues, Team, TeamValue
from shoal.networks.actor_critic import ActorCritic
from shoal.networks.mixers import init_mixer
from shoal.networks.torsos import Network
from shoal.ops import normalisation
from shoal.training.experiment import Experiment, Learner
from shoal.training.runner import Local, run
from tests.algorithms import probes as _probes  # registers the probe worlds

del _probes
HEAD = {"value_head": {"kernel": jnp.array([[2.0], [-1.0]]), "bias": jnp.array([0.5])}}
FEATURES = jnp.array([[1.0, 3.0], [0.2, -0.4]])


def stats(values):
    return normalisation.update(normalisation.init(()), jnp.array(values))


def natural(weights, statistics):
    head = weights["params"]["value_head"]
    return normalisation.denormalise(statistics, (FEATURES @ head["kernel"] + head["bias"])[:, 0])


def learner(own, team=None):
    policy = Policy({"params": HEAD}, None, own, ActorCritic(Network(), None))
    return LearnerState({"agent": policy}, None, {}, jnp.int32(0), team)


def targets(numbers, agents):
    """The part of a batch that statistics are made from."""
    return types.SimpleNamespace(target=jnp.array(numbers), present=None, action=jnp.zeros((1, 1, agents)))


def test_values_mean_the_same_under_new_statistics():
    old = stats([1.0, 3.0, 8.0])
    state = OwnValues().update_stats(learner(old), {"agent": targets([100.0, 250.0, -30.0], 2)}, None)
    before, after, new = {"params": HEAD}, state.params["agent"].weights, state.params["agent"].value_stats
    np.testing.assert_allclose(natural(after, new), natural(before, old), rtol=1e-5)
    assert np.abs(natural(before, new) - natural(before, old)).max() > 10


def test_the_first_statistics_set_the_scale():
    state = OwnValues().update_stats(learner(normalisation.init(())), {"agent": targets([5.0, 7.0], 2)}, None)
    jax.tree.map(np.testing.assert_array_equal, state.params["agent"].weights, {"params": HEAD})
    assert float(state.params["agent"].value_stats.mean) == 6.0


@pytest.mark.parametrize("mixer", ["sum", "monotonic"])
def test_a_teams_value_means_the_same_under_new_statistics(mixer):
    seen = jnp.array([0.3, -2.0])
    team = Team(init_mixer(mixer, jax.random.key(0), 2, seen), stats([1.0, 3.0, 8.0]))
    state = learner(None, team)

    def value(state):
        head = state.params["agent"].weights["params"]["value_head"]
        values = {"agent": (FEATURES @ head["kernel"] + head["bias"])[:, 0]}
        mixed = TeamValue(mixer).mix(state.team.weights, values, {}, seen)
        return normalisation.denormalise(state.team.value_stats, mixed)

    batches = {"agent": targets([], 2), TEAM: targets([100.0, 250.0, -30.0], 0)}
    after = TeamValue(mixer).update_stats(state, batches, None)
    np.testing.assert_allclose(value(after), value(state), rtol=1e-5)
    moved = state.replace(team=team.replace(value_stats=after.team.value_stats))
    assert np.abs(value(moved) - value(state)) > 10


def test_values_of_short_rollouts_do_not_run_away():
    """One reward a step for ever is worth 1 / (1 - γ). Rollouts of 2 steps are nearly all bootstrap."""
    algorithm = A2C(learning_rate=3e-3, gamma=0.95, normalise_values=True, network=Network(hidden=(16,)))
    experiment = Experiment(
        "test/probe_truncation", learners={"l": Learner(algorithm)}, num_envs=8, num_steps=2, total_env_steps=60_000
    )
    policy = run(experiment, on=Local(devices=1)).policies["agent"]
    setup = experiment.setup
    params = setup.env.default_params()
    seen = setup.env.observe(setup.env.reset(jax.random.key(0), params), params)["agent"]
    value = algorithm.value(policy, jax.tree.map(lambda leaf: leaf[0], seen), ())
    np.testing.assert_allclose(value, 20.0, rtol=0.05)
