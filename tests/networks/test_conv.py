"""Convolutions by rows are convolutions."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shoal.networks import convolution
from shoal.networks.convolution import Conv, convolve_rows, convolve_whole


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shape", [(12, 12, 3), (2, 3, 9, 4, 2), (1, 1, 2)])
def test_rows_agree_with_xla(shape, stride):
    """Values, and gradients to images and kernel."""
    keys = jax.random.split(jax.random.key(0), 2)
    x, kernel = jax.random.normal(keys[0], shape), jax.random.normal(keys[1], (3, 3, shape[-1], 5))

    @functools.partial(jax.jit, static_argnums=0)
    def both(convolve, x, kernel):
        y, back = jax.vjp(lambda x, kernel: convolve(x, kernel, stride), x, kernel)
        return y, *back(jnp.sin(y))

    for ours, theirs in zip(both(convolve_rows, x, kernel), both(convolve_whole, x, kernel), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [(6, 6), (4, convolution.WIDEST + 1)])
def test_small_and_wide_images_agree_with_flax(size):
    x = jax.random.normal(jax.random.key(1), (3, *size, 2))
    init = nn.initializers.orthogonal()
    ours, theirs = Conv(4, 2, init), nn.Conv(4, (3, 3), 2, kernel_init=init)
    weights = ours.init(jax.random.key(2), x)
    jax.tree.map(np.testing.assert_array_equal, weights, theirs.init(jax.random.key(2), x))
    np.testing.assert_allclose(ours.apply(weights, x), theirs.apply(weights, x), rtol=1e-5, atol=1e-5)


def test_which_images_go_by_rows(monkeypatch):
    used = []
    monkeypatch.setattr(
        convolution, "convolve_whole", lambda x, *rest: used.append(x.shape) or convolve_whole(x, *rest)
    )
    for width in (convolution.WIDEST, convolution.WIDEST + 1):
        Conv(1, 1, nn.initializers.ones).init(jax.random.key(0), jnp.zeros((3, width, 1)))
    on_cpu = jax.default_backend() == "cpu"
    assert [shape[1] for shape in used] == [convolution.WIDEST + 1] if on_cpu else len(used) == 2


def test_a_batch_is_one_matrix_product():
    x, kernel = jnp.zeros((32, 12, 12, 3)), jnp.zeros((3, 3, 3, 8))
    text = jax.jit(jax.vmap(lambda image: convolve_rows(image, kernel, 2))).lower(x).as_text()
    batched = [line for line in text.splitlines() if "dot_general" in line and "tensor<32x" in line]
    assert len(batched) == 1
    assert "batching_dims" not in batched[0]
    assert "convolution" not in text
