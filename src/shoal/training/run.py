"""A run is a folder: `config.json`, `metrics.jsonl`, `checkpoints/`, TensorBoard events, `curves.png`, `replay.html`.

The folder is all that is needed to resume or reproduce a run, apart from the source of the user's own worlds. Loading a
run never executes code that it names: see `core.origin`. Files are replaced atomically.
"""

import dataclasses
import hashlib
import re
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal.algorithms.names import name_of
from shoal.core.errors import OptionError, RunError, require_positive, shell_command, unknown_name
from shoal.core.files import check_folder
from shoal.core.origin import Origin
from shoal.core.types import PyTree
from shoal.training import checkpoint, records, run_kinds
from shoal.training.experiment import Config, Experiment, Extensible, Setup
from shoal.training.mismatch import differing_options
from shoal.training.run_kinds import TRAINING
from shoal.training.serialise import from_plain, to_plain


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """A run folder. Its path is absolute: an environment may change the working directory at any time."""

    path: Path
    config: Config

    def __post_init__(self):
        object.__setattr__(self, "path", self.path.absolute())

    @property
    def experiment(self) -> Experiment:
        """The experiment whose world its policies play."""
        return self.config.played

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        """The folder of the checkpoint that did best in evaluation."""
        return self.path / "best"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"


def default_path(experiment: Experiment, root: str = "runs", by: str | None = None) -> Path:
    """A new folder's name: world, algorithm (or another method, `by`), time."""
    by = by or "-".join(sorted({name_of(learner.algorithm) for learner in experiment.learners.values()}))
    stem = f"{re.sub(r'[^0-9A-Za-z_.-]+', '-', experiment.env)}_{by}_{time.strftime('%Y%m%d-%H%M%S')}"
    for number in range(1000):
        path = Path(root).absolute() / (stem if number == 0 else f"{stem}-{number}")
        if not path.exists():
            return path
    raise RunError(f"cannot find a free name for a run under {root}; pass --run-dir")


def create(path: Path, config: Config, **more: Any) -> RunFolder:
    """Makes a new run folder; more: further entries of its `config.json`, as plain data."""
    run = RunFolder(path, config.at_home())
    *shared, own = run_kinds.KINDS[config.kind].entries
    plain = to_plain(run.config)
    entries = {name: plain.pop(name) for name in shared}  # what other commands read, too
    run_kinds.create(run.path, config.kind, **entries, **{own: plain}, **more)
    return run


def open_run(path: Path, kind: str | None = TRAINING) -> RunFolder:
    """Opens an existing run as one of a kind; by default a training, whose policies can be played. None: of any kind.

    Code that it names is not imported: see `core.origin`.
    """
    path = path.absolute()
    origin, kind = Origin(str(path)), kind or run_kinds.read_kind(path)
    *shared, own = run_kinds.KINDS[kind].entries
    given = {name: open_run(path).config for name in shared}
    cls = run_kinds.config_class(kind)
    config: Config = run_kinds.open_entry(path, kind, lambda data: from_plain(cls, {**data, **given}, own, origin))
    origin.admit(config.played.env, config.played.env_options)
    return RunFolder(path, config)


def extend(run: RunFolder, **totals: int | None) -> RunFolder:
    """The run with a larger total, which its folder has once it is resumed (`keep_total`); refuses a smaller one.

    totals: `total_env_steps` of a training, or `iterations` of a population; None: as before.
    """
    before = run.config
    for name, total in totals.items():
        if total is None:
            continue
        option = f"--{name.replace('_', '-')}"
        if not isinstance(before, Extensible) or before.extent != name:
            own = f"by --{before.extent.replace('_', '-')}" if isinstance(before, Extensible) else "by nothing yet"
            what = run_kinds.KINDS[before.kind].what
            raise OptionError(f"{run.path} is {what}, which is not continued beyond its end by {option}, but {own}")
        require_positive("run", **{name: total})
        if total < before.total:
            words = name.removeprefix("total_").replace("_", " ")
            raise OptionError(
                f"{run.path} has a total of {before.total:,} {words}, and {total:,} are fewer. To continue it beyond "
                f"its end, give a larger {option}; for a shorter run, start a new one with --run-dir."
            )
        before = before.extended(total)
    return RunFolder(run.path, before)


def keep_total(run: RunFolder) -> None:
    """Writes the total of a run that is trained further to its folder, which this process has locked."""
    config = run.config
    if not isinstance(config, Extensible):
        return
    before = open_run(run.path, config.kind).config
    assert isinstance(before, Extensible)
    if before.total != config.total:
        run_kinds.rewrite(run.path, **{run_kinds.KINDS[config.kind].entries[-1]: to_plain(config.at_home())})


def devices_of(run: RunFolder, devices: int | None = None) -> int | None:
    """The number of devices of a resumed run: `devices`, or else as many as before, if available."""
    newest = checkpoint.latest(run.checkpoints)
    if devices is not None or newest is None:
        return devices
    before = run.config.read_meta(newest).get("devices")
    return before if before is not None and before <= len(jax.local_devices()) else None


def warn_of_devices(run: RunFolder, before: int, now: int) -> None:
    """Warns that on another number of devices results agree only to rounding or, with a replay, differ."""
    if before == now:
        return
    replays = any(learner.algorithm.traits.replay for learner in run.experiment.learners.values())
    differ = (
        "each device draws from its own part of a replay, so its results will differ from an uninterrupted run's"
        if replays
        else "its results will agree with an uninterrupted run to rounding, not to the bit"
    )
    warnings.warn(f"this run used {before} device(s) and continues on {now}: {differ}", stacklevel=4)


def latest_checkpoint(run: RunFolder) -> Path:
    """The newest checkpoint of a run."""
    path = checkpoint.latest(run.checkpoints)
    if path is None:
        raise RunError(
            f"{run.path} has no checkpoint yet: it was stopped before the first one. "
            f"Resume it with `{shell_command('resume', run.path)}`."
        )
    return path


def find_checkpoint(run: RunFolder, which: str | int | None = None) -> Path:
    """A checkpoint of a run: the newest, that of an update, or `best`, the one that did best in evaluation."""
    if which is None:
        return latest_checkpoint(run)
    if which == "best":
        check_folder(run.best)
        found = checkpoint.latest(run.best)
        if found is None:
            raise RunError(
                f"{run.path} has no best checkpoint: runs with evaluations (--eval-every STEPS) keep one, if their "
                "world is cooperative (its kind says so) or has one side: a sum of opposed returns has no best"
            )
        return found
    kept = checkpoint.steps(run.checkpoints)
    if not str(which).isdigit() or int(which) not in kept:
        known = ", ".join(map(str, kept)) or "none"
        raise RunError(f"{run.path} has no checkpoint {which!r}: it keeps those of the updates {known}")
    return kept[int(which)]


def load_policies(
    path: Path, seed_index: int | None = 0, which: str | int | None = None
) -> tuple[Setup, dict[str, PyTree], dict[str, Any]]:
    """A run's setup, its trained policies by name (of one seed), and the meta data of their checkpoint.

    seed_index: None for those of all seeds, stacked as `train` returns them. which: see `find_checkpoint`.
    """
    run = open_run(path)
    setup = run.experiment.setup
    like = {"learners": policy_shapes(setup)}
    newest = find_checkpoint(run, which)
    meta = records.read_progress(newest, run.experiment.num_updates)
    learners = checkpoint.load(newest, like, partial=True)["learners"]
    records.check_finite(newest, learners)
    policies = {name: policy for state in learners.values() for name, policy in state["params"].items()}
    if run.experiment.num_seeds > 1 and seed_index is not None:
        policies = jax.tree.map(lambda leaf: leaf[seed_index], policies)
    return setup, policies, meta


def check_weights(experiment: Experiment) -> None:
    """Refuses weights of other runs that only a run folder names."""
    for name, learner in experiment.learners.items():
        if learner.weights is not None:
            experiment.origin.admit_folder(learner.weights, f"its learner {name!r} starts from the weights of")


def weights_from(path: str, wanted: dict[str, PyTree]) -> dict[str, PyTree]:
    """Policies of another run, for the names and shapes in `wanted`."""
    return fit_weights(load_policies(Path(path))[1], wanted, f"weights from {path}")


def fit_weights(found: Mapping[str, PyTree], wanted: dict[str, PyTree], where: str) -> dict[str, PyTree]:
    """Those of the policies that are wanted; refuses what does not fit. where: prefix of errors."""
    for name, policy in wanted.items():
        if name not in found:
            raise RunError(f"{where}: {unknown_name('policy', name, found)}")
        shapes = [leaf.shape for leaf in jax.tree.leaves(policy)], [leaf.shape for leaf in jax.tree.leaves(found[name])]
        if jax.tree.structure(policy) != jax.tree.structure(found[name]) or shapes[0] != shapes[1]:
            why = differing_options(policy, found[name]) or "its network has another shape"
            raise RunError(
                f"{where}: the policy {name!r} there does not fit: {why}. "
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


def policy_shapes(setup: Setup) -> dict[str, Any]:
    """The part of a checkpoint's `learners` that policies are played from: shapes of their weights."""
    seeds = setup.experiment.num_seeds

    def one(algorithm, spec):
        state = jax.eval_shape(lambda: algorithm.init(jax.random.key(0), spec))
        if seeds == 1:
            return state.params
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((seeds, *leaf.shape), leaf.dtype), state.params)

    return {name: {"params": one(algorithm, spec)} for name, (algorithm, spec) in setup.learners.items()}
