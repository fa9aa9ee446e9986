"""The meta data of checkpoints: declared for every kind of run, and checked wherever one is read.

A run folder may come from anyone, and anyone can compute a seal. So all code that resumes or shows a run reads its
figures through here: of known types, within their ranges, and consistent with each other.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.core.errors import RunError, shell_command
from shoal.core.files import check_folder, open_file
from shoal.core.schema import Maybe, Whole, check
from shoal.core.types import PyTree
from shoal.training import checkpoint

PROGRESS = {
    "update": Whole(),
    "env_steps": Whole(),
    "devices": Whole(1, 1 << 20),
    "seconds": float,
    "best?": float,
    "lineage?": [Whole()],
    "pbt?": {"member": Whole(), "scores": [Maybe(float)], "values": {str: [Maybe(float)]}},
}
"""Of a training, an evolution and population-based training; `metrics.Aggregator` checks unwritten metrics."""
LONGEST = 1e12
"""The longest duration of a run, in seconds, that is accepted."""


def read_progress(path: Path, num_updates: int) -> dict[str, Any]:
    """The meta data of a checkpoint of a run with this number of updates (of an evolution: generations)."""
    meta = checkpoint.read_meta(path)
    try:
        check(meta, PROGRESS | {"update": Whole(0, num_updates)}, "meta")
        require_fact(0 <= meta["seconds"] <= LONGEST, "meta.seconds must be a time")
        require_fact(isinstance(meta.get("pending"), list | dict), "meta.pending must be unwritten metrics")
        if "pbt" in meta:
            members = len(meta["pbt"]["scores"])
            require_fact(meta["pbt"]["member"] < members, "meta.pbt.member must be one of the members")
            lengths = {len(values) for values in meta["pbt"]["values"].values()}
            require_fact(lengths <= {members}, "meta.pbt.values must hold one value for each member")
    except ValueError as error:
        raise forged(path, error) from error
    return meta


def check_finite(path: Path, tree: PyTree, what: str = "weights") -> None:
    """Refuses weights with NaN or infinity: no run saves any, so they come from elsewhere."""
    for keys, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.asarray(leaf)
        if not jnp.issubdtype(array.dtype, jnp.inexact):
            continue
        plain = array if array.dtype.isbuiltin == 1 else array.astype(np.float32)
        if not np.isfinite(plain).all():
            name = jax.tree_util.keystr(keys, simple=True, separator="/")
            raise RunError(
                f"{path} contains NaN or infinity in its {what} ({name}). No run saves these: it is not used."
            )


def check_begun(folder: Path) -> None:
    """Refuses a run without a checkpoint that has recorded metrics, which would be lost if it restarted."""
    metrics = folder / "metrics.jsonl"
    if not metrics.exists() and not metrics.is_symlink():
        return
    with open_file(metrics, "rb") as file:
        recorded = bool(file.read(1))
    if recorded:
        raise RunError(
            f"{folder} has metrics of earlier updates, but no checkpoint to resume from: its checkpoints were "
            f"removed. Put them back, or start a new run with its options: `{shell_command('train', folder)}`."
        )


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint of a run folder; None if it has not started yet. A run that lost all of them is refused."""
    check_folder(folder / "checkpoints")
    newest = checkpoint.latest(folder / "checkpoints")
    if newest is None:
        check_begun(folder)
    return newest


def forged(path: Path, why: object) -> RunError:
    """The error for a checkpoint with a valid seal whose figures no run writes."""
    return RunError(f"{path} is not a checkpoint of this run: {why}")


def require_fact(condition: bool, what: str) -> None:
    """Raises `ValueError` with this text unless the condition holds."""
    if not condition:
        raise ValueError(what)
