"""Population-based training (Jaderberg et al. 2017) around any algorithm: the host's side, and run folders.

Members learn side by side in one program, in which bad ones become copies of good ones with slightly different
hyper-parameters (see `pbt_program`). A run of it is a run folder like any other, with one more entry in `config.json`;
its checkpoints hold the policies of the best member where other runs hold theirs, so that `shoal eval` and
`shoal watch` play them. From Python:

    from shoal import presets
    from shoal.populations.pbt.run import PBT, Range, pbt

    plan = PBT(presets.get("mpe/simple_spread"), {"learning_rate": Range(1e-4, 1e-2, log=True)}, members=16)
    result = pbt(plan, "runs/mine")
    print(result.member, result.scores[result.member], result.values["learning_rate"][result.member])
"""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal.core.errors import NonFiniteError
from shoal.core.types import PyTree
from shoal.populations.pbt.plan import PBT
from shoal.populations.pbt.program import SOURCE, Program, State, build
from shoal.training import checkpoint, records
from shoal.training import nan_guard as latch
from shoal.training.loop import Listener, Loop, Progress, Result
from shoal.training.run import Run, create, open_run, rebuild
from shoal.training.run_kinds import PBT as ENTRY
from shoal.training.run_kinds import open_entry
from shoal.training.sweep_plan import Range

__all__ = ["PBT", "PBTResult", "Range", "build", "open_pbt", "pbt", "resume"]


@dataclasses.dataclass(frozen=True)
class PBTResult(Result):
    """How it ended. `policies` are those of `member`, the best one; `scores` and `values` are of all members.

    A score is the mean return since the last comparison, None if the member has failed or no episode of it has ended.
    """

    member: int = 0
    scores: tuple[float | None, ...] = ()
    values: dict[str, list[float]] = dataclasses.field(default_factory=dict)


def pbt(
    plan: PBT,
    run_dir: str | Path | None = None,
    *,
    devices: int | None = None,
    listener: Listener | None = None,
    checkpoint_seconds: float = 60.0,
    loop: "Callable[..., _Population] | None" = None,
) -> PBTResult:
    """Trains a population from the start; with a `run_dir`, metrics and checkpoints are kept there.

    loop: another training loop, for updates that are made elsewhere.
    """
    program = build(plan, devices)
    state = program.init()  # before the folder is made: weights of other runs may be missing
    run = create(Path(run_dir), plan.experiment, ENTRY, plan.to_dict()) if run_dir is not None else None
    return (loop or _Population)(program, run, listener, checkpoint_seconds).run(state, None)  # pyright: ignore[reportArgumentType]


def resume(
    run_dir: str | Path,
    *,
    devices: int | None = None,
    listener: Listener | None = None,
    checkpoint_seconds: float = 60.0,
    loop: "Callable[..., _Population] | None" = None,
) -> PBTResult:
    """Continues a run from its newest checkpoint, to the same bits as if it had never stopped.

    It runs on as many devices as before, if they are there; on another number it agrees to rounding only, and warns.
    """
    run, plan = open_pbt(Path(run_dir))
    program, newest, meta = rebuild(run, lambda devices: build(plan, devices), devices)
    state = restore(program, newest, meta) if newest else program.init()
    return (loop or _Population)(program, run, listener, checkpoint_seconds).run(state, meta)  # pyright: ignore[reportArgumentType]


def restore(program: Program, path: Path, meta: dict[str, Any] | None = None) -> State:
    """A program's state as a checkpoint holds it, laid out over the devices. meta: with which it must agree.

    Weights may hold NaN: those of members that have failed do until a good one is copied over them.
    """
    shapes = program.shapes()
    members = shapes.members.replace(latch=latch.as_stored(shapes.members.latch))
    stored = checkpoint.load(path, {"state": shapes.replace(members=members)}, partial=True)["state"]
    sound = latch.is_sound(stored.members.latch, program.cast.spec.groups)
    if not sound or (meta is not None and np.any(np.asarray(stored.members.update) != meta["update"])):
        raise records.forged(path, "its arrays are not from the update that its meta data name")
    faults = latch.spread(stored.members.latch, program.mesh.size)
    return jax.device_put(stored.replace(members=stored.members.replace(latch=faults)), program.shardings)


def open_pbt(path: Path) -> tuple[Run, PBT]:
    """An existing run of population-based training."""
    run = open_run(path)
    return run, open_entry(path, ENTRY, lambda data: PBT.from_dict(run.experiment, data))


class _Population(Loop):
    """The training loop of a population: it goes on for as long as one member has not failed."""

    program: Program  # pyright: ignore[reportIncompatibleVariableOverride]

    def run(self, carry: State, meta: dict[str, Any] | None) -> PBTResult:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.lineage = np.arange(self.program.plan.members)
        result = super().run(carry, meta)  # pyright: ignore[reportArgumentType]
        return PBTResult(**vars(result) | {"policies": self.policies}, **self.standing)

    def _pick_up(self, meta: dict[str, Any], carry: Any) -> None:
        super()._pick_up(meta, carry)
        lineage = meta.get("lineage", self.lineage.tolist())
        if len(lineage) != len(self.lineage) or max(lineage) >= len(lineage):
            assert self.folder
            raise records.forged(self.folder.checkpoints, "meta.lineage must be one member for each member")
        self.lineage = np.array(lineage)
        if isinstance(meta["pending"], list):  # an early version: the lineage is in the rows
            for row in np.array(meta["pending"], np.float32):
                self._descend(row)

    def _lanes(self, carry: Any) -> tuple[int, ...]:
        return (self.program.plan.members,)

    def _descend(self, row: np.ndarray) -> None:
        """Follows the members through one more update: whose place in the line before each one's weights had."""
        self.lineage = self.lineage[row[:, self.program.names.index(SOURCE)].astype(int)]

    def _read(self, count: int, table: jax.Array) -> None:
        rows = np.moveaxis(np.asarray(jax.device_get(table))[:, :count], 1, 0)
        self.update += count
        for row in rows:
            self._descend(row)
            with np.errstate(all="ignore"):  # those that failed
                lines = self.aggregator.add(row[None], self.total)
            for line in lines:
                self._write(line, row)
        if self.listener:
            steps, newest = self.update * self.steps_per_update, self.lines[-1] if self.lines else None
            self.listener(Progress(self.update, self.total, steps, self._seconds(), self.compile_seconds, newest))
        self.fault = bool(rows[-1, :, self.program.names.index("fault")].all())

    def _write(self, line: dict[str, Any], row: np.ndarray) -> None:
        """A line of metrics; what is known of the members is as it was in its last update, not a mean."""
        names = self.program.names
        line |= {name: _plain(row[:, names.index(name)]) for name in names if name.startswith("pbt/")}
        line |= {SOURCE: self.lineage.tolist(), "seconds": round(self._seconds(), 3)}
        self.lineage = np.arange(len(row))
        self.lines.append(line)
        if self.log:
            self.log.write(line)

    def _check(self, carry: State) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Finds the best member; that all have failed is an error."""
        faults = jax.device_get(carry.members.latch)
        failed = faults.kind.any(axis=-1)
        if failed.all():
            error = latch.report(faults, self.program.experiment.env, list(self.program.cast.spec.groups))
            kept = f" The last checkpoint in {self.folder.path} is from before it happened." if self.folder else ""
            raise NonFiniteError(f"all {len(failed)} members have failed. The first: {error}{kept}")
        best = jax.device_get(self.program.best(carry))
        values = jax.device_get(self.program.values(carry.members))
        self.policies = {name: policy for own in best.learners.values() for name, policy in own["params"].items()}
        self.saved_learners = best.learners
        self.standing = {
            "member": int(best.member),
            "scores": tuple(_plain(np.where(failed, np.nan, best.scores))),
            "values": {name: _plain(value) for name, value in values.items()},
        }

    def _stored(self, carry: State) -> PyTree:  # pyright: ignore[reportIncompatibleMethodOverride]
        members = carry.members.replace(latch=latch.first_faults(carry.members.latch))
        return {"learners": self.saved_learners, "state": carry.replace(members=members)}

    def _meta(self) -> dict[str, Any]:
        return super()._meta() | {"lineage": self.lineage.tolist(), ENTRY: self.standing}


def _plain(values: np.ndarray) -> list[float | None]:
    """Six digits of each, which 1e-5 has too; None for what is not finite."""
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in np.asarray(values).tolist()]
