import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.core.errors import OptionError
from shoal.core.spaces import Box, Discrete, MultiDiscrete
from shoal.ops.distributions import (
    Categorical,
    Gaussian,
    MultiCategorical,
    TanhGaussian,
    _inverse_cdf,
    distribution,
    num_parameters,
)

LOG_2 = math.log(2)
LARGEST = np.nextafter(np.float32(1), np.float32(0))


def draw(dist, count, seed=0):
    keys = jax.random.split(jax.random.key(seed), count)
    return np.asarray(jax.jit(jax.vmap(dist.sample))(keys))


def chi_square(observed, expected):
    assert observed[expected == 0].sum() == 0
    observed, expected = observed[expected > 0], expected[expected > 0]
    return float(np.sum((observed - expected) ** 2 / expected))


def test_categorical_by_hand():
    # Probabilities 1/4, 1/2, 1/4 (the logits are shifted, which must not matter).
    dist = Categorical(jnp.log(jnp.array([1.0, 2.0, 1.0])) + 7)
    np.testing.assert_allclose(dist.probabilities, [0.25, 0.5, 0.25], rtol=1e-6)
    assert dist.log_prob(0) == pytest.approx(-2 * LOG_2, abs=1e-6)
    assert dist.log_prob(1) == pytest.approx(-LOG_2, abs=1e-6)
    assert dist.entropy() == pytest.approx(1.5 * LOG_2, abs=1e-6)
    assert dist.mode() == 1
    assert dist.mode().dtype == dist.sample(jax.random.key(0)).dtype == jnp.int32


def test_masked_actions_do_not_exist():
    # Legal are two equal logits out of four: probability 1/2 each, entropy log 2.
    legal = jnp.array([True, False, True, False])
    logits = jnp.array([3.0, 50.0, 3.0, -2.0])
    dist = distribution(Discrete(4), logits, legal)
    assert isinstance(dist, Categorical)
    np.testing.assert_array_equal(dist.probabilities, [0.5, 0, 0.5, 0])
    assert dist.log_prob(2) == pytest.approx(-LOG_2, abs=1e-6)
    assert dist.entropy() == pytest.approx(LOG_2, abs=1e-6)
    assert set(draw(dist, 1000)) == {0, 2}


@pytest.mark.parametrize("quantity", [lambda d: d.entropy(), lambda d: d.log_prob(0), lambda d: d.log_prob(1)])
def test_gradients_through_a_mask_are_finite(quantity):
    legal = jnp.array([True, False, True, False])
    logits = jnp.array([1.0, 50.0, 3.0, -2.0])
    gradient = jax.grad(lambda x: quantity(distribution(Discrete(4), x, legal)))(logits)
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(np.asarray(gradient)[[1, 3]], 0)


def test_gradient_of_log_prob_by_hand():
    # d log p_a / d logit_i = [i = a] - p_i
    gradient = jax.grad(lambda x: Categorical(x).log_prob(1))(jnp.log(jnp.array([1.0, 2.0, 1.0])))
    np.testing.assert_allclose(gradient, [-0.25, 0.5, -0.25], atol=1e-6)


def test_inverse_cdf_by_hand():
    # Shares of [0, 1): choice 0 to 1/4, choice 2 to 3/4, choice 3 to the end; choices 1 and 4 have none.
    weights = jnp.array([2.0, 0.0, 4.0, 2.0, 0.0])
    for uniform, choice in [(0, 0), (0.2499, 0), (0.25, 2), (0.7499, 2), (0.75, 3), (LARGEST, 3)]:
        assert _inverse_cdf(weights, jnp.float32(uniform)) == choice


@pytest.mark.parametrize("n", [1, 2, 5, 64, 65, 200])
def test_inverse_cdf_never_takes_what_has_no_weight(n):
    random = np.random.default_rng(n)
    weights = (random.random((3000, n)) * (random.random((3000, n)) < 0.3)).astype(np.float32)
    weights *= 10 ** random.uniform(-6, 0, weights.shape).astype(np.float32)
    weights[np.arange(3000), random.integers(0, n, 3000)] += 1e-3
    first, last = (weights > 0).argmax(1), n - 1 - (weights[:, ::-1] > 0).argmax(1)
    sample = jax.jit(jax.vmap(_inverse_cdf, (0, None)))
    np.testing.assert_array_equal(sample(weights, jnp.float32(0)), first)
    for uniform in [*random.random(5).astype(np.float32), LARGEST, np.float32(1)]:
        choice = np.asarray(sample(weights, uniform))
        assert (weights[np.arange(3000), choice] > 0).all()
        assert (choice <= last).all()


def test_frequencies_of_few_choices():
    logits = jnp.array([0.0, 1.0, 9.0, -1.0, 0.5])
    legal = jnp.array([True, True, False, True, True])
    dist = distribution(Discrete(5), logits, legal)
    weights = np.exp(np.array([0.0, 1.0, -np.inf, -1.0, 0.5]))
    observed = np.bincount(draw(dist, 20_000), minlength=5)
    assert chi_square(observed, 20_000 * weights / weights.sum()) < 16.3  # 99.9 %, 3 degrees of freedom


def test_frequencies_of_many_choices():
    logits = jnp.linspace(-1, 1, 80)
    weights = np.exp(np.linspace(-1, 1, 80))
    observed = np.bincount(draw(Categorical(logits), 20_000), minlength=80)
    assert chi_square(observed, 20_000 * weights / weights.sum()) < 124  # 99.9 %, 79 degrees of freedom


def test_multi_categorical_by_hand():
    # Two parts: (1/4, 3/4) and (1/2, 1/4, 1/4).
    space = MultiDiscrete((2, 3))
    dist = distribution(space, jnp.log(jnp.array([1.0, 3.0, 2.0, 1.0, 1.0])))
    assert isinstance(dist, MultiCategorical)
    assert dist.log_prob(jnp.array([1, 2])) == pytest.approx(math.log(3 / 4) + math.log(1 / 4), abs=1e-6)
    first = -math.log(1 / 4) / 4 - 3 * math.log(3 / 4) / 4
    assert dist.entropy() == pytest.approx(first + 1.5 * LOG_2, abs=1e-6)
    np.testing.assert_array_equal(dist.mode(), [1, 0])
    assert num_parameters(space) == 5


def test_multi_categorical_parts_are_independent():
    dist = distribution(MultiDiscrete((2, 3)), jnp.log(jnp.array([1.0, 3.0, 2.0, 1.0, 1.0])))
    actions = draw(dist, 20_000)
    assert actions.dtype == np.int32
    observed = np.bincount(actions[:, 0] * 3 + actions[:, 1], minlength=6)
    expected = 20_000 * np.outer([0.25, 0.75], [0.5, 0.25, 0.25]).ravel()
    assert chi_square(observed, expected) < 20.5  # 99.9 %, 5 degrees of freedom


def test_multi_categorical_masks_each_part():
    legal = jnp.array([False, True, True, False, True])
    dist = distribution(MultiDiscrete((2, 3)), jnp.zeros(5), legal)
    assert dist.entropy() == pytest.approx(LOG_2, abs=1e-6)  # only the second part has a choice, of two
    assert {tuple(action) for action in draw(dist, 200)} == {(1, 0), (1, 2)}


def test_gaussian_by_hand():
    # Means 1, 2 and standard deviations 1, 2; the action lies 0 and 1 standard deviations off.
    dist = distribution(Box((2,)), jnp.array([1.0, 2.0, 0.0, LOG_2]))
    assert isinstance(dist, Gaussian)
    expected = -math.log(2 * math.pi) - LOG_2 - 0.5
    assert dist.log_prob(jnp.array([1.0, 4.0])) == pytest.approx(expected, abs=1e-6)
    assert dist.entropy() == pytest.approx(1 + math.log(2 * math.pi) + LOG_2, abs=1e-6)
    np.testing.assert_array_equal(dist.mode(), [1, 2])


def test_gaussian_samples():
    actions = draw(distribution(Box((2,)), jnp.array([1.0, 2.0, 0.0, LOG_2])), 20_000)
    np.testing.assert_allclose(actions.mean(0), [1, 2], atol=0.05)
    np.testing.assert_allclose(actions.std(0), [1, 2], atol=0.05)
    assert abs(np.corrcoef(actions.T)[0, 1]) < 0.03


def test_tanh_gaussian_by_hand():
    # At the middle of (0, 4) tanh has slope 1, half the width is 2: density N(0; 0, 1) / 2.
    dist = distribution(Box((1,), low=0.0, high=4.0), jnp.zeros(2))
    assert isinstance(dist, TanhGaussian)
    assert dist.log_prob(jnp.array([2.0])) == pytest.approx(-0.5 * math.log(2 * math.pi) - LOG_2, abs=1e-6)
    np.testing.assert_allclose(dist.mode(), [2.0])


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.7, 0.3), (-1.0, 1.2)])
def test_tanh_gaussian_density_and_entropy(mean, std):
    dist = TanhGaussian(jnp.array([mean]), jnp.log(jnp.array([std])), -1.0, 3.0)
    edges = np.linspace(-1, 3, 100_001)
    middles = jnp.asarray((edges[1:] + edges[:-1]) / 2, jnp.float32)[:, None]
    log_density = np.asarray(jax.vmap(dist.log_prob)(middles), np.float64)
    density = np.exp(log_density)
    width = 4 / 100_000
    assert density.sum() * width == pytest.approx(1, abs=1e-3)
    assert dist.entropy() == pytest.approx(-np.sum(density * log_density) * width, abs=0.01)


def test_tanh_gaussian_sample_and_log_prob_agree():
    dist = TanhGaussian(jnp.array([0.3, -0.5]), jnp.array([-0.5, 0.0]), -2.0, 2.0)
    keys = jax.random.split(jax.random.key(1), 500)
    actions, log_probs = jax.jit(jax.vmap(dist.sample_and_log_prob))(keys)
    np.testing.assert_allclose(jax.jit(jax.vmap(dist.log_prob))(actions), log_probs, atol=2e-3)
    np.testing.assert_allclose(draw(dist, 500, seed=1), actions, atol=1e-6)
    assert (np.abs(actions) <= 2).all()


@pytest.mark.parametrize("mean", [-60.0, 60.0])
def test_tanh_gaussian_far_out_is_finite(mean):
    # All the mass lies at a bound. Far out, log(1 - tanh(z)^2) = log 4 - 2 |z|.
    def sampled(mean):
        dist = TanhGaussian(mean, jnp.zeros(1), -0.1, 0.3)
        return dist.sample_and_log_prob(jax.random.key(0))

    (action,), log_prob = sampled(jnp.array([mean]))
    assert np.float32(-0.1) <= action <= np.float32(0.3)
    noise = float(jax.random.normal(jax.random.key(0), (1,))[0])
    density = -0.5 * math.log(2 * math.pi) - noise**2 / 2
    expected = density - (math.log(0.2) + 2 * LOG_2 - 2 * abs(mean + noise))
    assert log_prob == pytest.approx(expected, rel=1e-5)
    assert np.isfinite(jax.grad(lambda m: sampled(m)[1])(jnp.array([mean]))).all()
    dist = TanhGaussian(jnp.array([mean]), jnp.zeros(1), -0.1, 0.3)
    for quantity in (dist.log_prob(jnp.array([-0.1])), dist.log_prob(jnp.array([0.3])), dist.entropy()):
        assert np.isfinite(quantity)


def test_shapes_of_boxes():
    space = Box((2, 3), low=-1.0, high=1.0)
    assert num_parameters(space) == 12
    dist = distribution(space, jnp.arange(12.0))
    assert dist.sample(jax.random.key(0)).shape == dist.mode().shape == (2, 3)
    assert dist.log_prob(jnp.zeros((2, 3))).shape == dist.entropy().shape == ()
    scalar = distribution(Box(()), jnp.zeros(2))
    assert scalar.sample(jax.random.key(0)).shape == ()


@pytest.mark.parametrize("space", [Box((1,), low=0.0), Box((1,), high=0.0), Box((1,), low=1.0, high=1.0)])
def test_half_open_boxes_are_refused(space):
    with pytest.raises(OptionError, match="both finite with low < high, or both infinite"):
        distribution(space, jnp.zeros(2))


def test_boxes_have_no_legal_actions():
    with pytest.raises(OptionError, match="Discrete and MultiDiscrete"):
        distribution(Box((1,)), jnp.zeros(2), jnp.ones(2, bool))


@pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete((2, 4)), Box((2,)), Box((2,), -1.0, 1.0)])
def test_distributions_pass_through_vmap_and_jit(space):
    parameters = jax.random.normal(jax.random.key(0), (7, num_parameters(space)))
    dist = jax.jit(jax.vmap(lambda x: distribution(space, x)))(parameters)
    keys = jax.random.split(jax.random.key(1), 7)
    actions, log_probs = jax.jit(jax.vmap(lambda d, k: d.sample_and_log_prob(k)))(dist, keys)
    one, log_prob = jax.jit(lambda x, key: distribution(space, x).sample_and_log_prob(key))(parameters[3], keys[3])
    np.testing.assert_allclose(actions[3], one, rtol=1e-5)
    np.testing.assert_allclose(log_probs[3], log_prob, rtol=1e-4)


@pytest.mark.parametrize("space", [Discrete(5), MultiDiscrete((3, 3)), MultiDiscrete((2, 4))])
def test_accelerators_draw_the_same(space, monkeypatch):
    parameters = 2.0 * jax.random.normal(jax.random.key(0), (50, num_parameters(space)))
    keys = jax.random.split(jax.random.key(1), 50)

    def play(x, key):
        dist = distribution(space, x)
        action, log_prob = dist.sample_and_log_prob(key)
        return action, dist.sample(key), dist.mode(), log_prob, dist.log_prob(action), dist.entropy()

    plain = jax.vmap(play)(parameters, keys)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for found, expected in zip(jax.vmap(play)(parameters, keys), plain, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
