"""Our environments and policies for PyTorch, without copies where memory allows."""

from shoal.bridges.torch.env import TorchWorlds, to_jax, to_torch
from shoal.bridges.torch.match import play_match

__all__ = ["TorchWorlds", "play_match", "to_jax", "to_torch"]
