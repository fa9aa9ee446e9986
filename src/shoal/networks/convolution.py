"""3×3 convolutions that are fast for small images on CPUs too.

On a CPU, inside a loop, the gradient of XLA's own convolution takes many times as long as its value. A small image is
therefore convolved row by row there: an output row is the product of three input rows, laid side by side, with a banded
matrix that contains the kernel once per output column. Most of that matrix is 0, but its gradients are plain products
too: value and gradient of 12×12×3 images through 16 and 32 filters took 50 µs of a core each instead of 450 µs, and 30
µs instead of 200 µs through 16 and 16.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

KERNEL = 3
WIDEST = 32
"""Wider images use XLA's convolution everywhere: the share of zeros grows with the width."""


class Conv(nn.Module):
    """A 3×3 convolution over images `[..., H, W, C]`, edges padded with zeros, to `ceil(H / stride)` rows."""

    features: int
    stride: int
    kernel_init: nn.initializers.Initializer
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.param("kernel", self.kernel_init, (KERNEL, KERNEL, x.shape[-1], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        by_rows = jax.default_backend() == "cpu" and x.shape[-2] <= WIDEST
        convolve = convolve_rows if by_rows else convolve_whole
        return convolve(x.astype(self.dtype), kernel.astype(self.dtype), self.stride) + bias.astype(self.dtype)


def convolve_whole(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """Images `[..., H, W, C]` by XLA's convolution."""
    images = x.reshape(-1, *x.shape[-3:])
    layout = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(images, kernel, (stride, stride), "SAME", dimension_numbers=layout)
    return y.reshape(*x.shape[:-3], *y.shape[1:])


def convolve_rows(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """Images `[..., H, W, C]` by products of rows with a banded matrix."""
    *leading, height, width, channels = x.shape
    features = kernel.shape[-1]
    rows, above, below = _extent(height, stride)
    columns = _extent(width, stride)[0]
    taps = jnp.asarray(_taps(width, stride), x.dtype)
    band = jnp.einsum("ijcf,jxo->ixcof", kernel, taps).reshape(KERNEL * width * channels, columns * features)
    flat = x.reshape(*leading, height, width * channels)
    padded = jnp.pad(flat, [(0, 0)] * len(leading) + [(above, below), (0, 0)])
    span = (rows - 1) * stride + 1
    beside = [padded[..., i : i + span : stride, :] for i in range(KERNEL)]
    return (jnp.concatenate(beside, axis=-1) @ band).reshape(*leading, rows, columns, features)


def _extent(size: int, stride: int) -> tuple[int, int, int]:
    """The number of kernel positions along a side, and the padding before and after it."""
    places = -(-size // stride)
    padding = max((places - 1) * stride + KERNEL - size, 0)
    return places, padding // 2, padding - padding // 2


def _taps(width: int, stride: int) -> np.ndarray:
    """`[3, width, columns]`: 1 where output column o multiplies column x of the image by column j of the kernel."""
    columns, before, _ = _extent(width, stride)
    j, x, o = np.ogrid[:KERNEL, :width, :columns]
    return (x == o * stride + j - before).astype(np.float32)
