from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.batching import agents
from shoal.core.errors import OptionError
from shoal.core.spaces import Box, Discrete, MultiDiscrete
from shoal.core.types import Observation
from shoal.networks import Network, init_weights, make_actor_critic
from shoal.networks.actor_critic import evaluate_actions
from shoal.ops.distributions import distribution, num_parameters

STEPS = 12
FIRST = jnp.zeros(STEPS, bool).at[jnp.array([4, 9])].set(True)
ACTIVE = jnp.array([1, 1, 0, 1, 0, 0, 1, 1, 0, 1, 1, 0], bool)
STATE = {"map": jax.ShapeDtypeStruct((2, 2), jnp.float32), "time": jax.ShapeDtypeStruct((), jnp.int32)}


def build(recurrent="none", share_torso=False, uses_state=False, action=Discrete(3), view=Box((5,)), **options):
    config = Network((8,), recurrent=recurrent, recurrent_size=6, filters=(4,), share_torso=share_torso, **options)
    module = make_actor_critic(config, action, uses_state)
    weights = init_weights(module, jax.random.key(0), view, STATE if uses_state else None)
    # The policy head starts out almost flat; heads of like size make comparisons sharp.
    weights["params"]["policy_head"]["kernel"] *= 100
    return module, weights


def sequence(uses_state=False, seed=1):
    keys = jax.random.split(jax.random.key(seed), 3)
    state = {
        "map": jax.random.normal(keys[1], (STEPS, 2, 2)),
        "time": jax.random.randint(keys[2], (STEPS,), 0, 5),
    }
    return jax.random.normal(keys[0], (STEPS, 5)), state if uses_state else None


def somewhere(module, seed=2):
    """A memory that is not the initial one."""
    memory = module.initial_memory()
    return jax.tree.map(lambda x: 0.5 * jax.random.normal(jax.random.key(seed), x.shape), memory)


@partial(jax.jit, static_argnums=0)
def step(module, weights, view, state, memory):
    return module.apply(weights, view, state, memory)


@partial(jax.jit, static_argnums=0)
def unroll(module, weights, view, state, memory, first=FIRST, active=ACTIVE):
    return module.apply(weights, view, state, memory, first, active, method="unroll")


def differs(a, b):
    return np.abs(np.asarray(a) - np.asarray(b)).reshape(len(a), -1).max(1) > 1e-6


@pytest.mark.parametrize(
    ("recurrent", "share_torso", "uses_state"),
    [
        ("none", False, True),
        ("none", True, False),
        ("gru", False, True),
        ("gru", True, False),
        ("lstm", False, False),
        ("lstm", True, False),
        ("min_gru", False, True),
    ],
)
def test_unroll_is_the_loop(recurrent, share_torso, uses_state):
    module, weights = build(recurrent, share_torso, uses_state)
    view, state = sequence(uses_state)
    start = memory = somewhere(module)
    parameters, values = [], []
    for t in range(STEPS):
        memory = module.initial_memory() if FIRST[t] else memory
        p, v, after = step(module, weights, view[t], jax.tree.map(lambda x, t=t: x[t], state), memory)
        parameters.append(p)
        values.append(v)
        memory = after if ACTIVE[t] else memory
    got = unroll(module, weights, view, state, start)
    np.testing.assert_allclose(got[0], jnp.stack(parameters), atol=1e-5)
    np.testing.assert_allclose(got[1], jnp.stack(values), atol=1e-5)
    assert got[0].shape == (STEPS, 3)
    assert got[1].shape == (STEPS,)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got[2], memory)


@pytest.mark.parametrize("recurrent", ["gru", "lstm", "min_gru"])
@pytest.mark.parametrize("share_torso", [False, True])
def test_memory_resets_exactly_where_an_episode_begins(recurrent, share_torso):
    module, weights = build(recurrent, share_torso)
    view, _ = sequence()
    memory, other = somewhere(module), somewhere(module, seed=3)
    first = jnp.zeros(STEPS, bool).at[4].set(True)
    everyone = jnp.ones(STEPS, bool)
    base = unroll(module, weights, view, None, memory, first, everyone)
    for changed in (
        unroll(module, weights, view, None, other, first, everyone),
        unroll(module, weights, view.at[:4].add(1.0), None, memory, first, everyone),
    ):
        for a, b in zip(base[:2], changed[:2], strict=True):
            np.testing.assert_array_equal(a[4:], b[4:])  # nothing of the last episode is left
            assert differs(a, b)[:4].all()  # and within it everything is remembered
    # One step later or never, and the past shows at t=4.
    for late in (jnp.zeros(STEPS, bool).at[5].set(True), jnp.zeros(STEPS, bool)):
        a = unroll(module, weights, view, None, memory, late, everyone)
        b = unroll(module, weights, view, None, other, late, everyone)
        assert differs(a[0], b[0])[4]
        assert differs(a[1], b[1])[4]


def test_a_first_step_at_the_very_start_forgets_the_memory_handed_in():
    module, weights = build("gru")
    view, _ = sequence()
    first = jnp.zeros(STEPS, bool).at[0].set(True)
    a = unroll(module, weights, view, None, somewhere(module), first)
    b = unroll(module, weights, view, None, module.initial_memory(), first)
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("recurrent", ["gru", "lstm"])
def test_memory_stands_still_while_waiting(recurrent):
    module, weights = build(recurrent)
    view, _ = sequence()
    memory = somewhere(module)
    base = unroll(module, weights, view, None, memory)
    changed = unroll(module, weights, jnp.where(ACTIVE[:, None], view, view + 1.0), None, memory)
    for a, b in zip(base[:2], changed[:2], strict=True):
        np.testing.assert_array_equal(a[ACTIVE], b[ACTIVE])  # what was seen while waiting left no trace
        assert differs(a, b)[~ACTIVE].all()  # but it was seen
    jax.tree.map(np.testing.assert_array_equal, base[2], changed[2])


def test_active_none_means_always():
    module, weights = build("gru")
    view, _ = sequence()
    a = unroll(module, weights, view, None, somewhere(module), active=None)
    b = unroll(module, weights, view, None, somewhere(module), active=jnp.ones(STEPS, bool))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), a, b)  # two programs may round differently


@pytest.mark.parametrize("share_torso", [False, True])
@pytest.mark.parametrize("recurrent", ["none", "lstm"])
def test_actor_and_critic_apart_are_the_whole(recurrent, share_torso):
    module, weights = build(recurrent, share_torso)
    view, memory = sequence()[0][0], somewhere(module)
    parameters, value, after = step(module, weights, view, None, memory)
    alone, actor_memory = module.apply(weights, view, memory, method="actor")
    value_alone, critic_memory = module.apply(weights, view, None, memory, method="critic")
    np.testing.assert_allclose(alone, parameters, atol=1e-6)
    np.testing.assert_allclose(value_alone, value, atol=1e-6)
    if recurrent == "none":
        assert after == actor_memory == critic_memory == ()
    elif share_torso:
        assert set(after) == {"shared"}
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), actor_memory, after)
    else:
        assert set(after) == {"actor", "critic"}
        for name, moved, still in (("actor", actor_memory, "critic"), ("critic", critic_memory, "actor")):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), moved[name], after[name])
            jax.tree.map(np.testing.assert_array_equal, moved[still], memory[still])


def test_only_the_critic_sees_the_state():
    module, weights = build(uses_state=True)
    view, state = sequence(uses_state=True)
    now = jax.tree.map(lambda x: x[0], state)
    later = {**now, "map": now["map"].at[1, 1].add(1.0)}
    a, b = (step(module, weights, view[0], s, ()) for s in (now, later))
    np.testing.assert_array_equal(a[0], b[0])
    assert abs(float(a[1] - b[1])) > 1e-4
    c = step(module, weights, view[1], now, ())  # and it sees the own view besides
    assert abs(float(a[1] - c[1])) > 1e-4


def test_a_shared_torso_cannot_see_the_state():
    with pytest.raises(OptionError, match="share_torso must be False"):
        make_actor_critic(Network(share_torso=True), Discrete(2), uses_state=True)


@pytest.mark.parametrize(
    "action", [Discrete(3), MultiDiscrete((2, 4)), Box((2,)), Box((2, 2), -1.0, 1.0), Box((), 0.0, 2.0)]
)
def test_heads_fit_every_action_space(action):
    module, weights = build(action=action)
    view = sequence()[0][0]

    @jax.jit
    def policy_gradient(weights, key):
        def log_prob(weights):
            parameters, value, _ = module.apply(weights, view, None, ())
            action_drawn = jax.lax.stop_gradient(distribution(action, parameters).sample(key))
            return distribution(action, parameters).log_prob(action_drawn), (parameters, value)

        return jax.grad(log_prob, has_aux=True)(weights)

    gradient, (parameters, value) = policy_gradient(weights, jax.random.key(0))
    gradient = gradient["params"]
    assert parameters.shape == (num_parameters(action),)
    assert value.shape == ()
    assert np.abs(gradient["policy_head"]["kernel"]).max() > 0
    if isinstance(action, Box):
        np.testing.assert_array_equal(parameters[parameters.size // 2 :], 0)  # log_std starts at 0
        assert np.abs(gradient["log_std"]).max() > 0


def test_log_std_does_not_depend_on_the_view():
    module, weights = build(action=Box((2,)))
    weights["params"]["log_std"] = jnp.array([-1.0, 0.5])
    view, _ = sequence()
    parameters, _, _ = unroll(module, weights, view, None, ())
    np.testing.assert_array_equal(parameters[:, 2:], jnp.tile(jnp.array([-1.0, 0.5]), (STEPS, 1)))


def test_dicts_with_images_unroll_too():
    view_spec = {"pixels": Box((5, 5, 2), dtype="uint8"), "speed": Box((3,)), "on": Box((), dtype="bool")}
    module, weights = build("gru", view=view_spec)
    random = np.random.default_rng(0)
    view = {
        "pixels": random.integers(0, 256, (STEPS, 5, 5, 2)).astype(np.uint8),
        "speed": random.normal(size=(STEPS, 3)).astype(np.float32),
        "on": random.random(STEPS) < 0.5,
    }
    memory = somewhere(module)
    parameters, values, _ = unroll(module, weights, view, None, memory)
    p, v, _ = step(module, weights, jax.tree.map(lambda x: x[0], view), None, memory)
    np.testing.assert_allclose(parameters[0], p, atol=1e-5)
    np.testing.assert_allclose(values[0], v, atol=1e-5)
    for name in view:  # each part of the view counts
        other = {**view, name: ~view[name] if name == "on" else view[name][::-1].copy()}
        assert differs(parameters, unroll(module, weights, other, None, memory)[0]).any()


@pytest.mark.parametrize("recurrent", ["none", "gru", "lstm"])
def test_bfloat16_computes_close_and_returns_float32(recurrent):
    module, weights = build(recurrent)
    short, _ = build(recurrent, dtype="bfloat16")
    assert jax.tree.structure(short.initial_memory()) == jax.tree.structure(module.initial_memory())
    view, _ = sequence()
    exact = unroll(module, weights, view, None, somewhere(module))
    rounded = unroll(short, weights, view, None, somewhere(short))
    for a, b in zip(jax.tree.leaves(exact), jax.tree.leaves(rounded), strict=True):
        assert b.dtype == jnp.float32
        np.testing.assert_allclose(a, b, atol=0.05)
    assert differs(exact[1], rounded[1]).any()  # it did compute in bfloat16
    fresh = init_weights(short, jax.random.key(0), Box((5,)))
    assert {leaf.dtype for leaf in jax.tree.leaves(fresh)} == {jnp.dtype("float32")}


def test_initial_heads():
    module = make_actor_critic(Network(hidden=(16,)), Discrete(4))
    params = init_weights(module, jax.random.key(0), Box((5,)))["params"]
    policy, value = params["policy_head"]["kernel"], params["value_head"]["kernel"]
    np.testing.assert_allclose(policy.T @ policy, 1e-4 * np.eye(4), atol=1e-8)
    np.testing.assert_allclose(value.T @ value, [[1.0]], atol=1e-5)
    assert not params["policy_head"]["bias"].any()
    assert not params["value_head"]["bias"].any()


def test_modules_are_static_data():
    a, b = (make_actor_critic(Network(hidden=(4,)), Discrete(2)) for _ in range(2))
    assert a == b
    assert hash(a) == hash(b)
    assert a != make_actor_critic(Network(hidden=(5,)), Discrete(2))
    assert a.initial_memory() == ()


def test_a_batch_is_one_matrix_product_per_layer():
    module = make_actor_critic(Network(), Discrete(5))
    weights = init_weights(module, jax.random.key(0), Box((18,)))
    batch = jnp.zeros((32, 18))
    text = jax.jit(jax.vmap(lambda x: module.apply(weights, x, None, ()))).lower(batch).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert len(products) == 6  # two layers and a head each
    assert all("contracting_dims = [1] x [0]" in line and "batching_dims" not in line for line in products)
    assert "transpose" not in text


def test_a_bank_of_policies_is_one_more_axis():
    module, _ = build("gru")
    trees = [init_weights(module, jax.random.key(seed), Box((5,))) for seed in range(3)]
    bank = jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
    view, memory = sequence()[0][0], module.initial_memory()
    values = jax.vmap(lambda w: step(module, w, view, None, memory)[1])(bank)
    assert len(set(np.asarray(values).tolist())) == 3
    np.testing.assert_allclose(values[1], step(module, trees[1], view, None, memory)[1], atol=1e-6)


@pytest.mark.parametrize("uses_state", [False, True])
def test_accelerators_evaluate_the_same(uses_state, monkeypatch):
    """Heads of a shared torso as one product, and samples in whole blocks."""
    module, weights = build(share_torso=not uses_state, uses_state=uses_state, layer_norm=True)
    view = jax.random.normal(jax.random.key(1), (3, 2, 7, 5))
    state = {"map": jax.random.normal(jax.random.key(2), (3, 2, 2, 2)), "time": jnp.ones((3, 2), jnp.int32)}
    action = jax.random.randint(jax.random.key(3), (3, 2, 7), 0, 3)
    seen = Observation(view, state=state if uses_state else None)

    def loss(weights):
        found = evaluate_actions(module, weights, seen, action, (), jnp.zeros((3, 2), bool))
        return jnp.sum(found.log_prob + found.value**2 + found.entropy), found

    plain = jax.grad(loss, has_aux=True)(weights)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(agents, "_MANY_ROWS", 1)
    monkeypatch.setattr(agents, "_BLOCK", 16)
    text = str(jax.make_jaxpr(loss)(weights))
    assert ("f32[16,5]" if uses_state else "f32[48,5]") in text or "f32[16,7,5]" in text
    found = jax.grad(loss, has_aux=True)(weights)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), found, plain)
