"""Replays in checkpoints: only the newest checkpoint of a run has them, because only resuming needs them.

A replay is most of a checkpoint, often hundreds of megabytes. The best checkpoint is saved without it, and older ones
lose theirs once a newer one is on disk: they are for playing, exporting and comparing. A run that is resumed from one
of these all the same, because the newest was lost, begins with an empty replay, and a warning says so.
"""

import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal.core.types import PyTree
from shoal.ops.replay import is_replay
from shoal.training import checkpoint


def without_replays(tree: PyTree) -> PyTree:
    """The tree with None in place of replays."""
    return jax.tree.map(lambda leaf: None if is_replay(leaf) else leaf, tree, is_leaf=is_replay)


def replay_names(tree: PyTree) -> set[str]:
    """The paths of all leaves of replays, as a checkpoint names them."""
    return checkpoint.leaf_names(tree) - checkpoint.leaf_names(without_replays(tree))


def load_with_replays(path: Path, like: PyTree, partial: bool = False) -> PyTree:
    """What `checkpoint.load` returns; with empty replays, and a warning, if the checkpoint has none."""
    names = replay_names(like)
    if not names or names & checkpoint.stored_names(path):
        return checkpoint.load(path, like, partial)
    loaded = checkpoint.load(path, without_replays(like), partial)
    warnings.warn(
        f"{path} has no replay: only the newest checkpoint of a run keeps it. The run continues with its weights and "
        "an empty replay, and learns again once warm_up steps are stored; its results will differ from an "
        "uninterrupted run's.",
        stacklevel=2,
    )
    return jax.tree.map(_loaded_or_empty, like, loaded, is_leaf=is_replay)


def _loaded_or_empty(shape: Any, loaded: Any) -> Any:
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shape) if is_replay(shape) else loaded
