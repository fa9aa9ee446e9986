import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.errors import OptionError, ShoalError
from shoal.networks.torsos import GRU, LSTM, Encoder, MinGRU, Network, Torso, initial_carry


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": (64, 0)}, r"Network: hidden must be .* at least 1, got \(64, 0\)"),
        ({"hidden": (1,) * 65}, "Network: hidden must be at most 64 whole numbers, got .{,200}$"),
        ({"filters": (1,) * 65}, "Network: filters must be at most 64 whole numbers"),
        ({"hidden": 64}, "Network: hidden must be a tuple"),
        ({"filters": (1.5,)}, "Network: filters must be"),
        ({"recurrent_size": 0}, "Network: recurrent_size must be at least 1, got 0"),
        ({"activation": "thanh"}, "Network: activation must be 'tanh', 'relu', 'gelu' or 'silu', got 'thanh'"),
        ({"recurrent": "rnn"}, "Network: recurrent must be 'none', 'gru', 'lstm' or 'min_gru', got 'rnn'"),
        ({"dtype": "float64"}, "Network: dtype must be 'float32' or 'bfloat16', got 'float64'"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(OptionError, match=message) as caught:
        Network(**options)
    assert isinstance(caught.value, ShoalError)


def test_lists_become_tuples_so_that_configs_hash():
    config = Network(hidden=[32, 16], filters=[])  # pyright: ignore[reportArgumentType]
    assert config == Network(hidden=(32, 16), filters=())
    assert hash(config) == hash(Network(hidden=(32, 16), filters=()))


def gates(numbers, axes):
    """One array a gate, each of a single unit."""
    return [jnp.full((1,) * axes, number) for number in numbers]


def test_gru_by_hand():
    # One unit. Input gates come in as they are: reset 0, update 1, new 0.5; carry 2.
    weights = gates([1.0, -1.0, 0.5], 2), jnp.array([0.25])
    y, carry = GRU.step(gates([0.0, 1.0, 0.5], 1), weights, jnp.array([2.0]))
    reset, update = sigmoid(0 + 2), sigmoid(1 - 2)
    new = np.tanh(0.5 + reset * (1 + 0.25))
    expected = (1 - update) * new + update * 2
    np.testing.assert_allclose(y, [expected], rtol=1e-6)
    np.testing.assert_allclose(carry, [expected], rtol=1e-6)


def test_lstm_by_hand():
    # One unit, carry c = 3, h = 0.5: gates are the input's plus h times the weights.
    x, weights = gates([0.0, 1.0, 0.5, -1.0], 1), gates([2.0, -2.0, 1.0, 4.0], 2)
    y, (c, h) = LSTM.step(x, weights, (jnp.array([3.0]), jnp.array([0.5])))
    expected_c = sigmoid(1 - 1) * 3 + sigmoid(0 + 1) * np.tanh(0.5 + 0.5)
    expected_h = sigmoid(-1 + 2) * np.tanh(expected_c)
    np.testing.assert_allclose(c, [expected_c], rtol=1e-6)
    np.testing.assert_allclose([y, h], [[expected_h]] * 2, rtol=1e-6)


def test_min_gru_by_hand():
    # One unit, carry 2: the input alone opens the gate, here to σ(1), and gives the candidate, -0.5.
    y, carry = MinGRU.step(gates([1.0, -0.5], 1), (), jnp.array([2.0]))
    expected = (1 - sigmoid(1)) * 2 + sigmoid(1) * -0.5
    np.testing.assert_allclose(y, [expected], rtol=1e-6)
    np.testing.assert_allclose(carry, [expected], rtol=1e-6)


@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("length", [1, 2, 7, 26])
def test_min_gru_of_a_sequence_is_step_after_step(length, waiting):
    """Values and gradients of the pairwise form are those of a loop, across episodes and over those who wait."""
    keys = jax.random.split(jax.random.key(length), 6)
    x = [3 * jax.random.normal(key, (length, 4)) for key in keys[:2]]
    carry, aim = jax.random.normal(keys[2], (4,)), jax.random.normal(keys[3], (2, length, 4))
    first = jax.random.bernoulli(keys[4], 0.3, (length,))
    active = jax.random.bernoulli(keys[5], 0.5, (length,)) if waiting else None

    def at_once(x, carry):
        return jnp.stack(MinGRU.unroll(x, carry, first, active))

    def step_by_step(x, carry):
        outputs, carries = [], []
        for t in range(length):
            carry = jnp.where(first[t], 0.0, carry)
            y, after = MinGRU.step([part[t] for part in x], (), carry)
            carry = after if active is None else jnp.where(active[t], after, carry)
            outputs.append(y)
            carries.append(carry)
        return jnp.stack([jnp.stack(outputs), jnp.stack(carries)])

    np.testing.assert_allclose(jax.jit(at_once)(x, carry), jax.jit(step_by_step)(x, carry), atol=1e-5)
    slopes = [
        jax.jit(jax.grad(lambda x, carry, form=form: jnp.sum(form(x, carry) * aim), (0, 1)))(x, carry)
        for form in (at_once, step_by_step)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), *slopes)


def test_min_gru_of_half_precision_keeps_its_memory_whole():
    torso = Torso(Network(hidden=(4,), recurrent="min_gru", recurrent_size=3, dtype="bfloat16"))
    weights = jax.jit(torso.init)(jax.random.key(0), jnp.zeros(2), initial_carry(torso.config))
    views, first = jnp.ones((5, 2)), jnp.zeros(5, bool)
    y, carry = torso.apply(weights, views, initial_carry(torso.config), first, None, method="unroll")
    assert y.dtype == carry.dtype == jnp.float32
    assert jax.tree.map(jnp.shape, weights["params"]["cell"]) == {"inputs": {"kernel": (4, 6), "bias": (6,)}}


def test_mlp_by_hand():
    torso = Torso(Network(hidden=(1,)))
    weights = {"params": {"layers_0": {"kernel": jnp.array([[0.5], [0.25]]), "bias": jnp.array([-1.0])}}}
    y, carry = torso.apply(weights, jnp.array([2.0, 4.0]), ())
    np.testing.assert_allclose(y, [np.tanh(1 + 1 - 1)], rtol=1e-6)
    assert carry == ()


@pytest.mark.parametrize("cell", [GRU, LSTM])
def test_gates_are_parts_of_joint_matrices(cell):
    """Each gate has its own columns: those of the joint product, in order."""
    module, count = cell(3, jnp.float32), {GRU: 3, LSTM: 4}[cell]
    x = jax.random.normal(jax.random.key(1), (5,))
    weights = jax.jit(functools.partial(module.init, method="project"))(jax.random.key(0), x)
    weights["params"]["inputs"]["bias"] = jnp.arange(3.0 * count)
    projected = module.apply(weights, x, method="project")
    inputs = weights["params"]["inputs"]
    assert [gate.shape for gate in projected] == [(3,)] * count
    np.testing.assert_allclose(jnp.concatenate(projected), x @ inputs["kernel"] + inputs["bias"], rtol=1e-5)
    made = module.apply(weights, method="weights")
    kernels = made[0] if cell is GRU else made
    np.testing.assert_array_equal(jnp.concatenate(kernels, axis=1), weights["params"]["kernel"])


def test_layer_norm_by_hand():
    """Layers that put out 1 and 3, then 2 and 6: normalised to -1 and 1, scaled, shifted, and only then activated."""
    torso = Torso(Network(hidden=(2,), activation="relu", layer_norm=True))
    layer = {"kernel": jnp.eye(2), "bias": jnp.zeros(2)}
    norm = {"scale": jnp.array([2.0, 4.0]), "bias": jnp.array([5.0, 0.5])}
    weights = {"params": {"layers_0": layer, "norms_0": norm}}
    for view in ([1.0, 3.0], [2.0, 6.0]):  # the scale of what comes in does not matter
        np.testing.assert_allclose(torso.apply(weights, jnp.array(view), ())[0], [3.0, 4.5], rtol=1e-5)
    np.testing.assert_allclose(torso.apply(weights, jnp.array([3.0, 1.0]), ())[0], [7.0, 0.0], rtol=1e-5)


def test_every_layer_is_normalised_if_asked_for():
    view = jnp.array([1.0, -2.0, 3.0])
    for layer_norm in (False, True):
        torso = Torso(Network(hidden=(4, 6), layer_norm=layer_norm))
        params = jax.jit(torso.init)(jax.random.key(0), view, ())["params"]
        assert ("norms_0" in params) == ("norms_1" in params) == layer_norm
    apply = jax.jit(torso.apply)
    once, twice = (apply({"params": params}, scale * view, ())[0] for scale in (1.0, 2.0))
    np.testing.assert_allclose(once, twice, atol=1e-4)
    views = jnp.stack([view, 5 - view])  # and over each view by itself
    many, _ = torso.apply({"params": params}, views, (), jnp.zeros(2, bool), None, method="unroll")
    np.testing.assert_allclose(many[0], once, atol=1e-6)


def test_initial_weights_are_orthogonal_and_biases_zero():
    torso = Torso(Network(hidden=(16, 8), recurrent="gru", recurrent_size=8))
    carry = initial_carry(torso.config)
    params = jax.jit(torso.init)(jax.random.key(0), jnp.zeros(4), carry)["params"]
    wide, square = params["layers_0"]["kernel"], params["layers_1"]["kernel"]
    np.testing.assert_allclose(wide @ wide.T, 2 * np.eye(4), atol=1e-5)
    np.testing.assert_allclose(square.T @ square, 2 * np.eye(8), atol=1e-5)
    for gate in jnp.split(params["cell"]["kernel"], 3, axis=1):
        np.testing.assert_allclose(gate @ gate.T, np.eye(8), atol=1e-5)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        assert "kernel" in str(path[-1]) or not leaf.any()


def encode(config, seen):
    encoder = Encoder(config)
    weights = jax.jit(encoder.init, static_argnums=2)(jax.random.key(0), seen, 0)
    return encoder.apply(weights, seen, 0), encoder, weights


def test_leaves_are_flattened_cast_and_joined_by_name():
    seen = {"b": jnp.array([[1, 2], [3, 4]]), "a": jnp.array(True), "c": jnp.array([7.0])}
    out, *_ = encode(Network(), seen)
    np.testing.assert_array_equal(out, [1, 1, 2, 3, 4, 7])
    assert out.dtype == jnp.float32


def test_images_of_bytes_are_scaled():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 5, 3)).astype(np.uint8)
    out, encoder, weights = encode(Network(filters=(4, 6)), jnp.asarray(pixels))
    assert out.shape == (5 * 5 * 6,)  # small images keep their resolution
    np.testing.assert_allclose(encoder.apply(weights, jnp.float32(pixels / 255), 0), out, rtol=1e-5, atol=1e-6)
    vector = jnp.asarray(pixels[0, 0])  # only images are scaled
    np.testing.assert_array_equal(encode(Network(), vector)[0], vector)


def test_large_images_shrink():
    out, *_ = encode(Network(filters=(2, 3)), jnp.zeros((20, 12, 1)))
    assert out.shape == (10 * 6 * 3,)  # halved once; a side of 6 is small


def test_convolution_by_hand():
    # A kernel of ones over an image of ones counts the neighbours that are inside.
    encoder = Encoder(Network(filters=(1,), activation="relu"))
    weights = {"params": {"Conv_0": {"kernel": jnp.ones((3, 3, 1, 1)), "bias": jnp.zeros(1)}}}
    out = encoder.apply(weights, jnp.ones((3, 3, 1)), 0)
    np.testing.assert_allclose(out, [4, 6, 4, 6, 9, 6, 4, 6, 4])
