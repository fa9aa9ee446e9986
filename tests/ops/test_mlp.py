"""Fused networks against their plain twin.

On a CPU the primitive is lowered to the twin, and its rules are tested; the kernels are tested on a GPU
(`JAX_PLATFORMS=cuda,cpu pytest tests/ops/test_mlp.py`).
"""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.spaces import Box, Discrete, MultiDiscrete
from shoal.networks import Network, init_weights, make_actor_critic
from shoal.networks.actors import ActorNetwork
from shoal.networks.q_network import QNetwork
from shoal.ops import kernels, mlp
from shoal.ops.kernels import build, trust

RTOL = 1e-5 if jax.default_backend() == "cpu" else 5e-3
BF16_RTOL = 2e-2
"""Of layers in bfloat16, however they are computed, beside float32."""


def make_layers(seed, widths):
    keys = jax.random.split(jax.random.key(seed), 2 * len(widths))
    return [
        (jax.random.normal(keys[2 * i], (a, b)) / a**0.5, 0.1 * jax.random.normal(keys[2 * i + 1], (b,)))
        for i, (a, b) in enumerate(itertools.pairwise(widths))
    ]


def assert_close(found, expected, rtol=RTOL):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        error = np.linalg.norm(np.asarray(a - b)) / max(np.linalg.norm(np.asarray(b)), 1e-6)
        assert error < rtol, error


def fused(inputs, towers, activation="tanh", dtype="float32"):
    return jnp.concatenate(mlp.mlp(inputs, towers, activation, dtype))


def plain(inputs, towers, activation="tanh"):
    with jax.default_matmul_precision("highest"):
        return jnp.concatenate([mlp.plain_mlp(x, own, activation) for x, own in zip(inputs, towers, strict=True)])


def test_by_hand():
    """relu(x W + b) = (3, 0) for x = (1, 2), W = ((1, 0), (1, -1)), b = (0, 1); times (2, 5) plus 1 is 7."""
    first = jnp.array([[1.0, 0.0], [1.0, -1.0]]), jnp.array([0.0, 1.0])
    head = jnp.array([[2.0], [5.0]]), jnp.array([1.0])
    (y,) = mlp.mlp([jnp.array([1.0, 2.0])], [[first, head]], "relu")
    np.testing.assert_array_equal(y, [7.0])


@pytest.mark.parametrize("activation", list(mlp.ACTIVATIONS))
@pytest.mark.parametrize(
    ("rows", "dtype", "rtol"), [*((rows, "float32", RTOL) for rows in (1, 63, 200)), (63, "bfloat16", BF16_RTOL)]
)
@pytest.mark.parametrize("widths", [((18, 64, 64, 5), (18, 64, 64, 1)), ((33, 40, 3), (60, 64, 17)), ((7, 8, 16, 32),)])
def test_outputs_and_gradients_are_those_of_the_plain_form(activation, rows, widths, dtype, rtol):
    towers = [make_layers(i, sizes) for i, sizes in enumerate(widths)]
    inputs = [jax.random.normal(jax.random.key(9 + i), (rows, sizes[0])) for i, sizes in enumerate(widths)]
    if activation == "relu":  # exact in TF32: else rounding would carry some numbers over the kink
        towers, inputs = jax.tree.map(lambda leaf: jnp.round(4 * leaf) / 4, (towers, inputs))
    weight = jax.random.normal(jax.random.key(5), (rows, sum(sizes[-1] for sizes in widths)))

    def loss(compute, towers, inputs):
        return jnp.sum(jax.vmap(lambda *x: compute(x, towers, activation))(*inputs) * weight)

    for wrt in ((0,), (1,), (0, 1)):
        found, expected = (
            jax.jit(jax.value_and_grad(functools.partial(loss, compute), wrt))(towers, inputs)
            for compute in (functools.partial(fused, dtype=dtype), plain)
        )
        assert_close(found[1], expected[1], rtol)
        assert abs(found[0] - expected[0]) < 10 * rtol * (1 + abs(expected[0]))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a GPU has a kernel for it")
def test_the_plain_form_in_bfloat16_is_that_of_layers(monkeypatch):
    """Hidden layers as `flax` computes them in bfloat16, and a head in float32."""
    monkeypatch.setattr(trust, "find_problem", lambda trial: "tested without")
    module = ActorNetwork(Network(hidden=(16, 8), dtype="bfloat16"), 3)
    x = jax.random.normal(jax.random.key(1), (10, 6))
    weights = module.init(jax.random.key(0), x[0], ())
    parts = weights["params"]["torso"]["layers_0"], weights["params"]["torso"]["layers_1"], weights["params"]["head"]
    layers = [(part["kernel"], part["bias"]) for part in parts]
    expected, _ = jax.vmap(lambda x: module.apply(weights, x, ()))(x)
    found = jax.vmap(lambda x: fused([x], [layers], "tanh", "bfloat16"))(x)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_weights_of_heads_have_more_bits_than_bfloat16():
    """On a GPU too: a weight of 1 + 2^-12 is 1 in bfloat16."""
    eye = jnp.eye(4), jnp.zeros(4)
    head = jnp.full((4, 1), 1 + 2.0**-12), jnp.zeros(1)
    y = jax.jit(jax.vmap(lambda x: fused([x], [[eye, head]], "relu", "bfloat16")))(jnp.ones((1, 4)))
    np.testing.assert_allclose(y[0, 0], 4 * (1 + 2.0**-12), rtol=2.0**-14)


def test_mapped_weights_become_groups_and_mapped_samples_rows():
    towers = [make_layers(i, (6, 16, 16, 3)) for i in range(2)]
    bank = jax.tree.map(lambda leaf: jnp.stack([leaf, 1.3 * leaf, -leaf]), towers)
    x = jax.random.normal(jax.random.key(0), (4, 5, 6))

    def gradient(compute, towers):
        def loss(towers):
            y = jax.vmap(jax.vmap(lambda x: compute([x, x], towers)))(x)
            return jnp.sum(jnp.sin(y)), y

        return jax.grad(loss, has_aux=True)(towers)

    found = jax.jit(jax.vmap(functools.partial(gradient, fused)))(bank)
    assert_close(found, jax.vmap(functools.partial(gradient, plain))(bank))
    text = str(jax.make_jaxpr(functools.partial(gradient, fused))(towers))
    assert text.count("mlp[") == 1
    assert "f32[1,20,6]" in text  # 4 x 5 samples of one network: rows of one group
    several = str(jax.make_jaxpr(jax.vmap(functools.partial(gradient, fused)))(bank))
    assert "f32[3,20,6]" in several  # three networks: groups


def test_every_sample_has_its_own_gradient_if_asked_for():
    towers, x = [make_layers(0, (6, 16, 3))], jax.random.normal(jax.random.key(0), (4, 6))

    def each(compute):
        return jax.vmap(jax.grad(lambda towers, x: jnp.sum(compute([x], towers))), (None, 0))(towers, x)

    assert_close(each(fused), each(plain))


def test_second_derivatives():
    towers, x = [make_layers(0, (6, 16, 3))], jax.random.normal(jax.random.key(0), (6,))
    found, expected = (jax.hessian(lambda x, c=c: jnp.sum(jnp.sin(c([x], towers))))(x) for c in (fused, plain))
    assert_close(found, expected)


@pytest.mark.parametrize("dtype", mlp.SOURCES)
def test_nan_is_not_hidden(dtype):
    towers = [make_layers(0, (6, 16, 3))]
    x = jnp.zeros((70, 6)).at[3, 2].set(jnp.nan)
    for activation in mlp.ACTIVATIONS:
        y = jax.jit(jax.vmap(lambda x, kind=activation: fused([x], towers, kind, dtype)))(x)
        assert jnp.isnan(y[3]).all()
        assert jnp.isfinite(jnp.delete(y, 3, axis=0)).all()


@pytest.mark.parametrize(
    ("towers", "fits"),
    [
        ([(18, 64, 64, 5)], True),
        ([(64, 64, 32), (3, 5, 7, 1)], True),
        ([], False),
        ([(18, 64, 64, 64, 5)], False),
        ([(18, 5)], False),
        ([(65, 64, 5)], False),
        ([(18, 65, 5)], False),
        ([(18, 64, 33)], False),
        ([(18, 64, 5)] * 3, False),
    ],
)
def test_what_the_kernels_take(towers, fits):
    assert (mlp.find_misfit(towers) is None) == fits


@pytest.mark.parametrize(
    ("config", "rtol"),
    [
        (Network(), RTOL),
        (Network(hidden=(32,), share_torso=True, activation="relu"), RTOL),
        (Network(dtype="bfloat16"), BF16_RTOL),
    ],
)
@pytest.mark.parametrize("action", [Discrete(5), Box((2,), -1.0, 1.0)])
def test_networks_give_the_same_either_way(monkeypatch, config, rtol, action):
    module = make_actor_critic(config, action)
    view = jax.random.normal(jax.random.key(1), (10, 18))
    weights = init_weights(module, jax.random.key(0), view[0])

    def compute(method):
        return jax.vmap(lambda v: module.apply(weights, v, *([()] if method == "actor" else [None, ()]), method=method))

    for method in (None, "actor", "critic"):
        monkeypatch.setattr(trust, "find_problem", lambda trial: "tested without")
        expected = compute(method)(view)
        monkeypatch.setattr(trust, "find_problem", lambda trial: None)
        assert "mlp[" in str(jax.make_jaxpr(compute(method))(view))
        assert_close(jax.jit(compute(method))(view), expected, rtol)


@pytest.mark.parametrize(
    "module",
    [
        QNetwork(Network(), MultiDiscrete((3, 2))),
        QNetwork(Network(), Discrete(4), dueling=True),
        ActorNetwork(Network(), 3),
    ],
)
def test_action_values_and_actors_are_the_same_either_way(monkeypatch, module):
    view = jax.random.normal(jax.random.key(1), (10, 18))
    weights = module.init(jax.random.key(0), view[0], ())

    def compute():
        return jax.vmap(lambda v: module.apply(weights, v, ())[0])

    monkeypatch.setattr(trust, "find_problem", lambda trial: "tested without")
    expected = compute()(view)
    monkeypatch.setattr(trust, "find_problem", lambda trial: None)
    assert "mlp[" in str(jax.make_jaxpr(compute())(view))
    assert_close(jax.jit(compute())(view), expected)


@pytest.mark.parametrize("config", [Network(layer_norm=True), Network(recurrent="gru"), Network(hidden=(128,))])
def test_other_networks_go_the_plain_way(monkeypatch, config):
    monkeypatch.setattr(trust, "find_problem", lambda trial: None)
    module = make_actor_critic(config, Discrete(5))
    weights = init_weights(module, jax.random.key(0), jnp.zeros(18))
    text = str(jax.make_jaxpr(lambda v: module.apply(weights, v, None, module.initial_memory()))(jnp.zeros(18)))
    assert "mlp[" not in text


def test_cuda_gets_kernels_and_a_cpu_the_plain_form():
    towers, x = [make_layers(0, (6, 16, 3))], jnp.zeros((8, 6))
    traced = jax.jit(jax.grad(lambda t: jnp.sum(jnp.sin(jax.vmap(lambda x: fused([x], t))(x))))).trace(towers)
    assert traced.lower(lowering_platforms=("cuda",)).as_text().count("__gpu$xla.gpu.ptx") == 2
    assert "__gpu$xla.gpu.ptx" not in traced.lower(lowering_platforms=("cpu",)).as_text()


@pytest.mark.parametrize(
    ("groups", "rows", "kernels_used"), [(3, 5, 2), (65_535, 1, 2), (65_536, 1, 0), (0, 5, 0), (3, 0, 0)]
)
def test_what_a_grid_cannot_hold_is_plain(groups, rows, kernels_used):
    towers = [make_layers(0, (6, 16, 3))]
    bank = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((groups, *leaf.shape), jnp.float32), towers)
    x = jax.ShapeDtypeStruct((groups, rows, 6), jnp.float32)

    def loss(towers, x):
        return jnp.sum(jnp.sin(jax.vmap(lambda x: fused([x], towers))(x)))

    traced = jax.jit(jax.vmap(jax.grad(loss))).trace(bank, x)
    assert mlp.fits_grid(groups, rows) == bool(kernels_used)
    assert sum(map(mlp.takes_kernel, traced.jaxpr.eqns)) == kernels_used
    assert traced.lower(lowering_platforms=("cuda",)).as_text().count("__gpu$xla.gpu.ptx") == kernels_used


@pytest.mark.parametrize("name", [name for name in build.kernels() if "_mlp_" in name])
def test_built_kernels_are_those_of_the_source(name):
    """If this fails, run `python -m shoal.ops.kernels.build` where CUDA's compiler is."""
    text, source = kernels.ptx(name), "mlp_bf16" if "_bf16_" in name else "mlp"
    assert text.startswith(f"// built from {kernels.fingerprint(source)}\n")
    assert f".entry {name}(" in text


def test_what_a_source_includes_changes_its_fingerprint(monkeypatch, tmp_path):
    monkeypatch.setattr(kernels, "_FOLDER", tmp_path)
    (tmp_path / "a.cu").write_text('#include "b.cuh"\n#include <cstdint>\n')
    (tmp_path / "b.cuh").write_text("1")
    before = kernels.fingerprint("a")
    (tmp_path / "b.cuh").write_text("2")
    assert kernels.fingerprint("a") != before


@pytest.mark.parametrize(("dtype", "source"), [("float32", "mlp"), ("bfloat16", "mlp_bf16")])
@pytest.mark.parametrize(("widths", "size"), [((18, 64, 64, 5), "32_16"), ((40, 64, 20), "64_32")])
def test_a_trial_runs_all_kernels_of_its_size(widths, size, dtype, source):
    trial = mlp.make_trial([widths], "relu", dtype)
    assert trial.source == source
    assert trial.name == "{} inputs, {} outputs, relu".format(*size.split("_"))
    drawn = mlp._draw_trial(*map(int, size.split("_")))
    compute = functools.partial(mlp.mlp, dtype=dtype)
    text = jax.jit(functools.partial(mlp._try_all, compute, "relu")).trace(*drawn).lower(lowering_platforms=("cuda",))
    found = set(re.findall(r'name = "shoal_(\w+)"', text.as_text()))
    assert found == {f"{source}_{form}_{size}" for form in ("forward1", "forward2", "backward", "backward_inputs")}


if jax.default_backend() != "cpu":  # elsewhere both sides of a trial are the plain form

    @pytest.mark.parametrize("activation", list(mlp.ACTIVATIONS))
    @pytest.mark.parametrize("dtype", mlp.SOURCES)
    def test_kernels_pass_their_trials(dtype, activation):
        trial = mlp.make_trial([(18, 64, 64, 5)], activation, dtype)
        assert trial.measure() <= trial.tolerance


def test_a_trial_sees_a_wrong_kernel(monkeypatch):
    trial, right = mlp.make_trial([(6, 16, 3)], "relu"), mlp.mlp
    assert trial.measure() < trial.tolerance
    monkeypatch.setattr(mlp, "mlp", lambda *args: [1.02 * y for y in right(*args)])
    assert trial.measure() == pytest.approx(0.02, rel=0.01)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="needs a machine without a GPU")
def test_a_cpu_has_none():
    assert trust.find_problem(mlp.make_trial([(6, 16, 3)], "tanh")) == "no CUDA device"
