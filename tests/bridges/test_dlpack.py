"""Observations can be handed to PyTorch without a copy: what the torch bridge will stand on."""

import jax
import pytest

import shoal
from shoal.batching.vectorise import Vectorised

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")


def test_a_view_becomes_a_tensor_at_the_same_address():
    worlds = Vectorised(shoal.make("mpe/simple_spread"), 16).reset(jax.random.key(0))
    view = jax.device_put(worlds.observation["agent"].view, jax.local_devices()[0])
    tensor = torch.from_dlpack(view)
    assert tensor.data_ptr() == view.unsafe_buffer_pointer()
    assert tuple(tensor.shape) == view.shape
    assert jax.numpy.from_dlpack(tensor).unsafe_buffer_pointer() == view.unsafe_buffer_pointer()
