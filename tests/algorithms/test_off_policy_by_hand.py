"""SAC and DDPG on one window of three agents: one acts, one waits, one has left. Whose data counts where.

The one who acts has three choices, of which some are illegal. All see one number and are paid something.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal import Discrete, Group, Observation
from shoal.algorithms import DDPG, SAC
from shoal.algorithms import replay as stored
from shoal.core.algorithm import LearnerSpec
from shoal.core.spaces import Box
from shoal.networks.torsos import Network
from tests.algorithms.replaying import gradients, same

OPTIONS = {"network": Network(hidden=(8, 8)), "buffer_size": 100, "gamma": 0.5}
ACTS, WAITS, GONE = range(3)
SPEC = LearnerSpec(
    {"a": Group(3, Discrete(3), Box((1,)))},
    jax.ShapeDtypeStruct((2,), jnp.float32),
    1,
    {
        "a": Observation(
            jax.ShapeDtypeStruct((3, 1), jnp.float32),
            legal=jax.ShapeDtypeStruct((3, 3), bool),
            active=jax.ShapeDtypeStruct((3,), bool),
            present=jax.ShapeDtypeStruct((3,), bool),
        )
    },
)


@functools.cache
def fresh(algorithm):
    return jax.jit(lambda key: algorithm.init(key, SPEC))(jax.random.key(0))


def window(algorithm, legal=(True, True, True), **changed):
    """A window of two rows. changed: by what it is, the number of an agent and what it is in both rows."""
    rows = {"view": [0.3, -0.6, 0.9], "action": [1, 2, 0], "reward": [1.0, 2.0, 3.0]}
    for what, (agent, number) in changed.items():
        rows[what][agent] = number
    example = stored.example_step(SPEC, (), algorithm.traits.needs_global_state)
    zeros = jax.tree.map(lambda leaf: jnp.zeros((2, 1, *leaf.shape), leaf.dtype), example)

    def both(row, dtype):
        row = jnp.asarray(row, dtype)
        return jnp.broadcast_to(row, (2, 1, *row.shape))

    seen = Observation(
        both(rows["view"], jnp.float32)[..., None],
        legal=both([legal] * 3, bool),
        active=both([True, False, False], bool),
        present=both([True, True, False], bool),
    )
    return zeros.replace(
        observation={"a": seen},
        final_observation={"a": seen},
        action={"a": both(rows["action"], jnp.int32)},
        reward={"a": both(rows["reward"], jnp.float32)},
    )


LEARNERS = {
    "sac": SAC(**OPTIONS),
    "ddpg": DDPG(**OPTIONS),
    "maddpg": DDPG(critic="global", **OPTIONS),
}


def learnt(name, **changed):
    algorithm = LEARNERS[name]
    return gradients(algorithm, fresh(algorithm), window(algorithm, **changed))


@pytest.mark.parametrize("name", ["sac", "ddpg"])
def test_who_has_left_counts_for_nothing(name):
    base, _ = learnt(name)
    assert same(base, learnt(name, reward=(GONE, 50.0))[0])
    assert same(base, learnt(name, view=(GONE, 50.0))[0])
    assert not same(base, learnt(name, reward=(WAITS, 50.0))[0], 1e-3)


@pytest.mark.parametrize("name", ["sac", "ddpg"])
def test_who_waits_teaches_critics_and_not_actors(name):
    base, _ = learnt(name)
    waits, _ = learnt(name, view=(WAITS, 5.0))
    assert same(base["actor"], waits["actor"])
    assert not same(base["critic"], waits["critic"], 1e-3)
    assert not same(base["actor"], learnt(name, view=(ACTS, 5.0))[0]["actor"], 1e-4)


@pytest.mark.parametrize("name", ["sac", "ddpg", "maddpg"])
def test_what_those_who_wait_did_means_nothing(name):
    base, _ = learnt(name)
    assert same(base, learnt(name, action=(WAITS, 0))[0])
    assert not same(base["critic"], learnt(name, action=(ACTS, 0))[0]["critic"], 1e-3)


def test_illegal_choices_have_no_part_in_a_soft_policy():
    """Nearly fresh actors find all choices alike: of two legal ones the entropy is log 2."""
    algorithm = LEARNERS["sac"]
    state = fresh(algorithm)
    policy = state.params["a"]
    flat = policy.weights | {"actor": jax.tree.map(jnp.zeros_like, policy.weights["actor"])}
    state = state.replace(params={"a": policy.replace(weights=flat)})
    _, metrics = gradients(algorithm, state, window(algorithm, legal=(True, False, True)))
    assert float(metrics["entropy"]) == pytest.approx(math.log(2), abs=1e-5)


@pytest.mark.parametrize("only", range(3))
def test_actors_learn_from_what_is_legal(only):
    """With one legal choice the actor's loss is minus what the critic says of that one."""
    algorithm = LEARNERS["ddpg"]
    choice = np.eye(3, dtype=bool)[only]
    _, metrics = gradients(algorithm, fresh(algorithm), window(algorithm, legal=tuple(choice)))
    vector = jnp.asarray(choice, jnp.float32)
    value = _said(fresh(algorithm), jnp.array([0.3]), vector)
    assert float(metrics["actor_loss"]) == pytest.approx(-value, rel=1e-4)


def _said(state, view, vector):
    """What the first agent's critic, still the same as its slow copy, says of a choice. The others' do not matter."""
    policy, slow = state.params["a"], state.target["critic"]
    trunk, join = jax.tree.map(lambda leaf: leaf[0], (slow["trunk"]["a"], slow["join"]))
    features, _ = policy.critic.apply(trunk, view, ())
    own = {"a": jnp.broadcast_to(vector, (3, 3))}
    return float(state.head.apply(join, {"a": jnp.broadcast_to(features, (3, 8))}, own, own, {"a": None})["a"][0, 0])


def test_with_a_global_critic_actors_learn_from_what_the_others_did():
    """Both may act: what the other did is in the gradient of the first one's actor."""
    algorithm = LEARNERS["maddpg"]
    batch = window(algorithm)
    seen = batch.observation["a"].replace(active=batch.observation["a"].present)
    batch = batch.replace(observation={"a": seen}, final_observation={"a": seen})
    other = batch.replace(action={"a": batch.action["a"].at[..., WAITS].set(0)})
    found = [gradients(algorithm, fresh(algorithm), one)[0]["actor"] for one in (batch, other)]
    assert not same(*found, 1e-6)
