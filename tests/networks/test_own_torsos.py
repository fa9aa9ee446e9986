"""Torsos of one's own: as the others, in every network; with a memory, or before a recurrent cell."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.algorithms import DQN, SAC
from shoal.algorithms.on_policy import Policy
from shoal.bridges.numpy_policy import export
from shoal.core.algorithm import LearnerSpec
from shoal.core.contract import contract_problems
from shoal.core.errors import OptionError
from shoal.core.spaces import Box, Discrete
from shoal.core.types import Group, Observation
from shoal.networks import ActorCritic, MemoryTorso, Network, init_weights, register_torso
from shoal.networks.torsos import Torso, initial_carry

T = 5


class Double(nn.Module):
    width: int = 3
    scale: float = 2.0
    shift: tuple[float, ...] = ()

    @nn.compact
    def __call__(self, seen):
        return self.scale * nn.Dense(self.width)(seen["x"])


class Counter(MemoryTorso):
    """Its features are what it has seen so far in the episode, summed up."""

    def __call__(self, seen, memory):
        total = memory + seen["x"]
        return total, total

    def initial_memory(self):
        return jnp.zeros(2)


@pytest.fixture(autouse=True)
def _torsos():
    register_torso("double")(Double)
    register_torso("counter")(Counter)


@pytest.fixture
def seen():
    return {"x": jax.random.normal(jax.random.key(0), (T, 2))}


def made(config, seen):
    torso = Torso(config)
    one = jax.tree.map(lambda leaf: leaf[0], seen)
    weights = torso.init(jax.random.key(1), one, initial_carry(config))
    return torso, weights


@pytest.mark.parametrize("recurrent", ["none", "gru"])
def test_a_sequence_is_what_its_steps_are(seen, recurrent):
    config = Network(torso="double", torso_options={"width": 4}, hidden=(3,), recurrent=recurrent, recurrent_size=3)
    torso, weights = made(config, seen)
    assert weights["params"]["encoder"]["Dense_0"]["kernel"].shape == (2, 4)
    assert weights["params"]["layers_0"]["kernel"].shape == (4, 3)
    carry, singly = initial_carry(config), []
    for t in range(T):
        features, carry = torso.apply(weights, {"x": seen["x"][t]}, carry)
        singly.append(features)
    first = jnp.zeros(T, bool)
    whole, _ = torso.apply(weights, seen, initial_carry(config), first, None, method="unroll")
    np.testing.assert_allclose(whole, jnp.stack(singly), atol=1e-6)


def test_a_memory_of_its_own_is_reset_and_stands_still(seen):
    config = Network(torso="counter", hidden=())
    assert config.has_memory
    torso, weights = made(config, seen)
    first = jnp.array([True, False, False, True, False])
    active = jnp.array([True, True, False, True, True])
    run = functools.partial(torso.apply, weights, seen, jnp.full(2, 9.0), first, active, method="unroll")
    x = np.asarray(seen["x"])
    expected = np.stack([x[0], x[0] + x[1], x[0] + x[1] + x[2], x[3], x[3] + x[4]])
    features, after = run()
    np.testing.assert_allclose(features, expected, atol=1e-6)
    np.testing.assert_allclose(after, expected[-1], atol=1e-6)
    _, carries = run(every=True)
    np.testing.assert_allclose(carries[2], expected[1], atol=1e-6)  # who waits remembers what it did


def test_an_actor_critic_keeps_a_memory_for_each_torso(seen):
    network = ActorCritic(Network(torso="counter"), Discrete(3))
    assert jax.tree.map(jnp.shape, network.initial_memory()) == {"actor": (2,), "critic": (2,)}
    weights = init_weights(network, jax.random.key(0), {"x": seen["x"][0]})
    parameters, value, memory = network.apply(weights, {"x": seen["x"][0]}, None, network.initial_memory())
    assert parameters.shape == (3,)
    assert value.shape == ()
    np.testing.assert_allclose(memory["critic"], seen["x"][0])


@pytest.mark.parametrize("cls", [DQN, SAC])
def test_learners_from_a_replay_keep_a_memory_too(cls):
    algorithm = cls(network=Network(torso="counter", hidden=(3,)), sequence=2, burn_in=1, buffer_size=64)
    seen = Observation({"x": jax.ShapeDtypeStruct((1, 2), jnp.float32)})
    groups = {"agent": Group(1, Discrete(3), {"x": Box((2,))})}
    spec = LearnerSpec(groups, None, observations={"agent": seen}, num_envs=2, num_steps=4)
    assert list(contract_problems(algorithm, spec)) == []
    memory = jax.eval_shape(lambda: algorithm.initial_memory(algorithm.init(jax.random.key(0), spec).params["agent"]))
    assert all(leaf.shape[-1] == 2 for leaf in jax.tree.leaves(memory))
    assert jax.tree.leaves(memory)


def test_actors_and_critics_from_a_replay_keep_a_memory_each():
    """SAC with a torso that counts: after one step, actor and both critics remember what was seen."""
    algorithm = SAC(network=Network(hidden=(4,), torso="counter"), buffer_size=10)
    group = Group(1, Discrete(2), {"x": Box((2,))})
    seen = Observation({"x": jnp.array([[1.0, 2.0]])})
    state = algorithm.init(jax.random.key(0), LearnerSpec({"a": group}, None, 1, {"a": seen}))
    policy, one = state.params["a"], jax.tree.map(lambda leaf: leaf[0], seen)
    out = algorithm.act(policy, one, algorithm.initial_memory(policy), jax.random.key(1), True)
    np.testing.assert_array_equal(out.memory["actor"], [1.0, 2.0])
    np.testing.assert_array_equal(out.memory["critic"], [[1.0, 2.0]] * 2)


class Matrix(nn.Module):
    def __call__(self, seen):
        return jnp.ones((2, 2))


class Raises(nn.Module):
    def __call__(self, seen):
        return seen["y"]


class Statistics(nn.Module):
    @nn.compact
    def __call__(self, seen):
        return nn.BatchNorm(use_running_average=False)(seen["x"])


class Forgets(MemoryTorso):
    def __call__(self, seen, memory):
        return seen["x"]

    def initial_memory(self):
        return jnp.zeros(2)


class Grows(Counter):
    def __call__(self, seen, memory):
        return seen["x"], jnp.append(memory, 1.0)


@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (Matrix, r"it must return one vector of floats \[F\] for one observation, got float32\[2, 2\]"),
        (Raises, r"seeing {'x': 'float32\[2\]'}: KeyError: 'y'"),
        (Statistics, r"variables besides its weights \(batch_stats\)"),
        (Forgets, r"it must return \(features, memory\)"),
        (Grows, r"its memory must keep its structure, .* gives float32\[2\], and after a step it is float32\[3\]"),
    ],
)
def test_what_a_torso_gets_wrong_is_said(cls, why, seen):
    register_torso("wrong")(cls)
    with pytest.raises(OptionError, match=f"torso 'wrong'.*{why}"):
        made(Network(torso="wrong"), seen)


def test_a_torso_that_knows_of_no_global_state_is_told_what_it_saw(seen):
    network = ActorCritic(Network(torso="double"), Discrete(3), uses_state=True)
    why = r"seeing \('float32\[4\]', {'x': 'float32\[2\]'}\) \(the global state, and the view\): TypeError"
    with pytest.raises(OptionError, match=why):
        init_weights(network, jax.random.key(0), {"x": seen["x"][0]}, jnp.zeros(4))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"torso": "double", "torso_options": {"widht": 3}}, "torso 'double': unknown option 'widht'. Did you mean 'w"),
        ({"torso": "double", "torso_options": {"width": "3"}}, "torso 'double': width must be a whole number, got '3'"),
        ({"torso": "double", "torso_options": {"shift": object()}}, "torso 'double': shift must be a tuple"),
        ({"torso_options": {"width": 3}}, "torso_options must be empty for the torso 'mlp'"),
        ({"torso": "double", "width": 3}, r"unknown option 'width'.*go into torso_options={'width': 3}"),
        ({"torso": "counter", "recurrent": "gru"}, "recurrent must be 'none' with the torso 'counter'"),
    ],
)
def test_bad_options_are_named(options, why):
    with pytest.raises(Exception, match=why):
        Network(**options)


def test_options_hash_and_lists_become_tuples():
    one, two = (Network(torso="double", torso_options={"shift": shift}) for shift in ([1.0, 2.0], (1.0, 2.0)))
    assert one == two
    assert hash(one) == hash(two)


def test_plain_numpy_says_what_it_cannot_hold():
    network = ActorCritic(Network(torso="double"), Discrete(3))
    policy = Policy({"params": {"policy_head": {}}}, None, None, network)
    with pytest.raises(OptionError, match="has the torso 'double', which is not one of Shoal's"):
        export(policy, {"x": jnp.zeros(2)})
