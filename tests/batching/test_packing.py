"""Packed records: the same as those that are stored one by one."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shoal.algorithms import A2C
from shoal.batching import packing, step_loop
from shoal.batching.packing import Packer
from shoal.batching.policies import Policies, random_policies
from shoal.batching.rollout import rollout
from shoal.batching.vectorise import Vectorised, vectorise
from shoal.core.algorithm import LearnerSpec
from shoal.core.env import describe
from shoal.core.registry import make
from shoal.networks import Network

RECORD = {
    "view": jnp.arange(24.0).reshape(3, 4, 2),
    "action": jnp.array([-1, 2, 3], jnp.int32),
    "done": jnp.array([True, False, True]),
    "pixels": jnp.arange(6, dtype=jnp.uint8).reshape(3, 2),
    "nan": jnp.array([jnp.nan, -0.0, jnp.inf]),
    "none": None,
}


def test_nothing_is_lost():
    packer = Packer()
    _, packed = lax.scan(lambda carry, scale: (carry, packer.pack(RECORD)), 0, jnp.arange(5))
    assert packed["words"].shape == (5, 3, 8 + 1 + 1 + 1)
    assert "flags" not in packed
    found = packer.unpack(packed)
    assert found.keys() == RECORD.keys()
    for name, leaf in RECORD.items():
        if leaf is not None:
            assert found[name].dtype == leaf.dtype
            np.testing.assert_array_equal(found[name], jnp.broadcast_to(leaf, (5, *leaf.shape)))


def test_large_leaves_stay_by_themselves(monkeypatch):
    monkeypatch.setattr(packing, "_LARGE", 24 * 4)
    packer = Packer()
    packed = packer.pack(RECORD)
    assert packed["words"].shape == (3, 1 + 1 + 1)
    np.testing.assert_array_equal(packed["rest"][-1], RECORD["view"])
    jax.tree.map(np.testing.assert_array_equal, packer.unpack(packed), RECORD)


def test_many_flags_are_an_array_of_their_own():
    flags = jax.random.bernoulli(jax.random.key(0), shape=(3, 5, 7))
    record = {"legal": flags, "done": flags[:, 0, 0], "reward": jnp.arange(3.0)}
    packer = Packer()
    packed = packer.pack(record)
    assert packed["flags"].shape == (3, 36)
    jax.tree.map(np.testing.assert_array_equal, packer.unpack(packed), record)


def test_flags_are_bits_of_a_word():
    flags = jax.random.bernoulli(jax.random.key(0), shape=(50, 32))
    packer = Packer()
    packed = packer.pack({"flags": flags})
    assert packed["words"].shape == (50, 1)
    np.testing.assert_array_equal(packer.unpack(packed)["flags"], flags)


@pytest.mark.parametrize(
    ("keys_of_step", "keys"),
    [(1 << 17, 1 << 22), (1 << 17, 400), (0, 0)],
    ids=["keys derived at once", "in blocks", "step by step"],
)
def test_a_lean_rollout_is_the_plain_one(monkeypatch, keys_of_step, keys):
    """Also where episodes begin, sums over episodes, and the values of final observations, which it finds later."""
    monkeypatch.setattr(step_loop, "MOST_KEYS_OF_STEP", keys_of_step)
    monkeypatch.setattr(step_loop, "MOST_KEYS", keys)
    check_lean_rollout(monkeypatch, "states")


@pytest.mark.parametrize("later", ["observations", None])
def test_final_observations_have_the_same_values_however_they_are_kept(monkeypatch, later):
    plan = importlib.import_module("shoal.batching.rollout")
    monkeypatch.setattr(plan, "worth_branching", lambda *args: later is None)
    monkeypatch.setattr(plan, "_num_bytes", lambda tree: 1)
    check_lean_rollout(monkeypatch, later)


def check_lean_rollout(monkeypatch, later):
    env = make("mpe/simple_spread", max_steps=7)
    copies = vectorise(env, 6)
    algorithm = A2C(network=Network(hidden=(4,)))
    spec = LearnerSpec(describe(env).groups, None)
    params = algorithm.init(jax.random.key(1), spec).params
    actor = Policies({"agent": algorithm}, env.groups)
    empty = {"agent": ()}

    def play():
        return jax.jit(lambda: rollout(copies, actor, params, copies.reset(jax.random.key(3)), empty, 60))()

    worlds, _, steps = play()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    begun = copies.reset(jax.random.key(3))
    assert importlib.import_module("shoal.batching.rollout")._plan_finals(copies, actor, params, begun, empty) == later
    packed_worlds, _, packed = play()
    assert float(jnp.abs(steps.final_value["agent"]).max()) > 0.01

    def compare(a, b):  # other programs round otherwise
        assert a.dtype == b.dtype
        if a.dtype == jnp.float32:
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
        else:
            assert (a == b).all()

    jax.tree.map(compare, worlds, packed_worlds)
    assert int(steps.first.sum()) > 6
    totals, packed_totals = (jax.tree.map(jnp.sum, s.episodes) for s in (steps, packed))
    jax.tree.map(compare, totals, packed_totals)
    jax.tree.map(compare, steps.replace(episodes=None), packed.replace(episodes=None))


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_results_are_added_up(monkeypatch, backend):
    copies = vectorise("tag/grid", 5)
    groups = copies.env.groups
    actor, empty = random_policies(groups), dict.fromkeys(groups, ())
    worlds = copies.reset(jax.random.key(3))

    def play(**options):
        return jax.jit(lambda: rollout(copies, actor, empty, worlds, empty, 8, lambda s: s.reward, **options))()[2]

    stacked = play()
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b.sum(0), rtol=1e-5), play(add=True), stacked)


def test_worlds_that_never_truncate_are_known():
    def may_truncate(id):
        env = make(id)
        copies = Vectorised(env, 2)
        worlds = jax.eval_shape(copies.reset, jax.random.key(0))
        actor, empty = random_policies(env.groups), dict.fromkeys(env.groups, ())
        return copies.may_truncate(worlds, jax.eval_shape(actor.act, empty, empty, worlds).action)

    assert not may_truncate("tag/grid")
    assert not may_truncate("tag/continuous")
    assert may_truncate("mpe/simple_spread")
