"""A run is a folder: `config.json`, `metrics.jsonl`, `checkpoints/`, TensorBoard events, `curves.png`, `replay.html`.

Nothing else is needed to resume or reproduce it, but the world's own code when it is the user's. Loading a run never
executes code. Files are replaced atomically.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal.core.errors import RunError, ShoalError, unknown_name
from shoal.core.files import write_atomically
from shoal.core.types import PyTree
from shoal.execution import checkpoint
from shoal.execution.experiment import Cast, Experiment, cast

try:
    import fcntl
except ImportError:  # not on this system: then nothing is held
    fcntl = None

FORMAT = 1


@dataclasses.dataclass(frozen=True)
class Run:
    """A run folder."""

    path: Path
    experiment: Experiment

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"


def default_path(experiment: Experiment, root: str = "runs") -> Path:
    """A new folder's name: world, algorithm, time."""
    algorithms = "-".join(sorted({learner.algorithm.name for learner in experiment.learners.values()}))
    stem = f"{experiment.env.replace('/', '-')}_{algorithms}_{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1000):
        path = Path(root) / (stem if number == 0 else f"{stem}-{number}")
        if not path.exists():
            return path
    raise RunError(f"cannot find a free name for a run under {root}; pass --run-dir")


def check_new(path: Path) -> None:
    """Refuses a folder that exists and is not empty: nothing is ever overwritten."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(
            f"{path} already exists. Continue it with `shoal resume {path}`, or choose another folder with --run-dir."
        )


def create(path: Path, experiment: Experiment, version: str) -> Run:
    """Makes a new run folder."""
    path = Path(path)
    try:
        check_new(path)
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        config = {"format": FORMAT, "shoal": version, "experiment": experiment.to_dict()}
        write_atomically(path / "config.json", json.dumps(config, indent=2) + "\n")
    except OSError as error:
        raise RunError(
            f"cannot create the run folder {path}: {error.strerror or error}. Choose another --run-dir."
        ) from error
    return Run(path, experiment)


def open_run(path: Path) -> Run:
    """An existing run."""
    path = Path(path)
    config = path / "config.json"
    if not path.is_dir():
        raise RunError(f"{path} is not a run folder: no such folder")
    if not config.is_file():
        raise RunError(f"{path} is not a run folder: it has no config.json")
    try:
        data = json.loads(config.read_text())
        found = data["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{config} is damaged or cut short ({type(error).__name__}: {error})") from error
    if not isinstance(found, int) or found > FORMAT:
        raise RunError(
            f"{path} was made by a newer version of shoal ({data.get('shoal')}, format {found}; this one reads up to "
            f"format {FORMAT}). Upgrade with `pip install -U shoal`."
        )
    if data.get("kind") == "psro":
        raise RunError(f"{path} is a population, not a training: go on with `shoal resume {path}`")
    try:
        return Run(path, Experiment.from_dict(data["experiment"]))
    except KeyError as error:
        raise RunError(f"{config} is damaged or cut short: it has no entry 'experiment'") from error
    except ShoalError as error:
        raise RunError(f"{config}: {error}") from error


@contextlib.contextmanager
def held(run: Run) -> Iterator[None]:
    """Keeps other processes from training in the same folder; let go when the process ends, however it ends."""
    if fcntl is None:
        yield
        return
    folder = os.open(run.path, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise RunError(f"another process is training in {run.path}: wait for it, or stop it first") from error
    finally:
        os.close(folder)


def latest_checkpoint(run: Run) -> Path:
    """The newest checkpoint of a run."""
    path = checkpoint.latest(run.checkpoints)
    if path is None:
        raise RunError(f"{run.path} has no checkpoint yet: it was stopped before the first one. Start it anew.")
    return path


def load_policies(path: Path, seed_index: int = 0) -> tuple[Cast, dict[str, PyTree], dict[str, Any]]:
    """A run's world and roles, its trained policies by name (of one seed), and its newest checkpoint's meta data."""
    run = open_run(path)
    roles = cast(run.experiment)
    like = {"learners": _policy_shapes(roles)}
    newest = latest_checkpoint(run)
    tree = checkpoint.load(newest, like, partial=True)
    learners = tree["learners"]
    policies = {name: policy for state in learners.values() for name, policy in state["params"].items()}
    if run.experiment.num_seeds > 1:
        policies = jax.tree.map(lambda leaf: leaf[seed_index], policies)
    return roles, policies, checkpoint.read_meta(newest)


def weights_from(path: str, wanted: dict[str, PyTree]) -> dict[str, PyTree]:
    """Policies of another run, for the names and shapes in `wanted`."""
    _, found, _ = load_policies(Path(path))
    for name, policy in wanted.items():
        if name not in found:
            raise RunError(f"weights from {path}: {unknown_name('policy', name, found)}")
        shapes = [leaf.shape for leaf in jax.tree.leaves(policy)], [leaf.shape for leaf in jax.tree.leaves(found[name])]
        if jax.tree.structure(policy) != jax.tree.structure(found[name]) or shapes[0] != shapes[1]:
            raise RunError(
                f"weights from {path}: the policy {name!r} there has another network shape. "
                "Use the same network, world and algorithm options as that run."
            )
    return {name: found[name] for name in wanted}


def weights_sha256(policies: dict[str, PyTree]) -> str:
    """A hash of all leaves of the policies, to compare two runs to the bit."""
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(policies):
        value = np.ascontiguousarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)} {value.dtype} {value.shape}".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def _policy_shapes(roles: Cast) -> dict[str, Any]:
    seeds = roles.experiment.num_seeds

    def one(algorithm, spec):
        state = jax.eval_shape(lambda: algorithm.init(jax.random.key(0), spec))
        if seeds == 1:
            return state.params
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((seeds, *leaf.shape), leaf.dtype), state.params)

    return {name: {"params": one(algorithm, spec)} for name, (algorithm, spec) in roles.learners.items()}
