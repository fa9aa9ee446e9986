"""A grid or a random search over float hyper-parameters, as one compiled program.

Every point, with every seed, is one more entry of a leading axis of the fused program: one compilation, one donated
carry, and on an accelerator much less time than one training after the other. A point ends as a training of its own
with those values would. From Python:

    from shoal import presets
    from shoal.training.sweep import Range, Sweep, sweep

    spread = presets.get("mpe/simple_spread")
    plan = Sweep(spread, {"learning_rate": Range(1e-4, 1e-2, 8, log=True), "clip_eps": (0.1, 0.2)})
    result = sweep(plan, "sweeps/mine")
    print(result.best.values, result.best.mean)

A sweep with a folder is a run like any other: `resume("sweeps/mine")` goes on with it, to the same bits.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal.batching.regroup import Regrouped, return_groups
from shoal.core.env import Env
from shoal.core.errors import OptionError, RunError, unknown_name
from shoal.core.origin import Origin
from shoal.core.types import PyTree, Seat
from shoal.training import checkpoint, nan_guard, records, run_kinds
from shoal.training.bench import versions
from shoal.training.fused import Carry, FusedProgram, make_fused_program
from shoal.training.loop import Listener, Loop, TrainingResult
from shoal.training.metrics import read_metrics
from shoal.training.program import LINES, SeparateTally, Tally
from shoal.training.run import RunFolder, rebuild, with_absolute_paths
from shoal.training.sweep_plan import Range, Sweep

__all__ = [
    "Point",
    "Range",
    "Sweep",
    "SweepProgram",
    "SweepResult",
    "open_sweep",
    "prepare",
    "resume_sweep",
    "run_sweep",
    "sweep",
]

TAIL = 0.1
"""The part of a run, at its end, whose returns count."""
NO_EPISODE = "no episode ended; raise total_env_steps"
"""Why a training has no return, although nothing went wrong."""


@dataclasses.dataclass(frozen=True)
class Point:
    """How one point ended. By seed: `returns`, None where there is none; `failures`, why; `curves`, of the return."""

    values: dict[str, float]
    returns: tuple[float | None, ...]
    failures: tuple[str | None, ...]
    curves: tuple[list[float | None], ...]

    @property
    def mean(self) -> float | None:
        """Over the seeds; None if one of them has none."""
        got = [value for value in self.returns if value is not None]
        return float(np.mean(got)) if len(got) == len(self.returns) else None

    @property
    def fault(self) -> str | None:
        """The first thing that went wrong; that no episode ended is nothing of the kind."""
        return next((why for why in self.failures if why not in (None, NO_EPISODE)), None)


@dataclasses.dataclass(frozen=True)
class SweepResult:
    """All points, in the order of the sweep, and what it took. `env_steps` are the places of the curves' values."""

    sweep: Sweep
    points: tuple[Point, ...]
    measure: tuple[str, ...]
    env_steps: list[int]
    updates: int
    seconds: float
    compile_seconds: float
    device: str
    interrupted: bool = False

    @property
    def ranked(self) -> list[Point]:
        """Best first; those without a return come last."""
        return sorted(self.points, key=lambda point: -math.inf if point.mean is None else point.mean, reverse=True)

    @property
    def best(self) -> Point | None:
        """None if no point has a return."""
        first = self.ranked[0]
        return None if first.mean is None else first

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data; what failed is null."""
        points = [dataclasses.asdict(point) | {"mean": point.mean} for point in self.points]
        return {
            **self.sweep.to_dict(),
            "measure": list(self.measure),
            "points": points,
            "best": self.best and {"values": self.best.values, "mean": self.best.mean},
            "env_steps": self.env_steps,
            "updates": self.updates,
            "interrupted": self.interrupted,
            "compile_s": round(self.compile_seconds, 3),
            "wall_s": round(self.seconds, 3),
            "device": self.device,
            "versions": versions(),
        }


def sweep(
    plan: Sweep,
    run_dir: str | Path | None = None,
    *,
    devices: int | None = None,
    listener: Listener | None = None,
    checkpoint_seconds: float = 60.0,
) -> SweepResult:
    """Trains all points side by side. A point that becomes NaN fails by itself; the others go on.

    With a `run_dir`, metrics and checkpoints are kept there.
    """
    return run_sweep(prepare(plan, devices), run_dir, listener=listener, checkpoint_seconds=checkpoint_seconds)


def resume_sweep(
    run_dir: str | Path,
    *,
    devices: int | None = None,
    listener: Listener | None = None,
    checkpoint_seconds: float = 60.0,
) -> SweepResult:
    """Continues a sweep from its newest checkpoint, to the same bits as if it had never stopped.

    It runs on as many devices as before, if they are there; on another number it agrees to rounding only, and warns.
    """
    plan = open_sweep(Path(run_dir))
    folder = RunFolder(Path(run_dir), plan.experiment)
    program, newest, meta = rebuild(folder, lambda devices: prepare(plan, devices), devices)
    if not newest or not meta:
        return _summarise(program, Loop(program, folder, listener, checkpoint_seconds).run(program.begin(), None))
    lines = _earlier_lines(program, folder, meta["update"])
    carry = program.restore(newest, meta)
    failures = program.standing(carry)["failures"]
    if all(failures) or meta["update"] >= program.num_updates:  # there is nothing left to do
        over = TrainingResult({}, meta["update"], lines, meta["seconds"], 0.0, meta["update"] < program.num_updates)
        return _summarise(program, (over, {"failures": failures}))
    result, standing = Loop(program, folder, listener, checkpoint_seconds).run(carry, meta)
    return _summarise(program, (dataclasses.replace(result, lines=lines + result.lines), standing))


def open_sweep(path: Path) -> Sweep:
    """What an existing folder is a sweep over."""
    plan = run_kinds.open_entry(path, run_kinds.SWEEP, Sweep.from_dict)
    experiment = dataclasses.replace(plan.experiment, origin=Origin(str(path)))
    experiment.origin.admit(experiment.env, experiment.env_options)
    return dataclasses.replace(plan, experiment=experiment)


@dataclasses.dataclass(frozen=True)
class SweepProgram(FusedProgram):
    """All points of a sweep side by side. A point that becomes NaN fails by itself; the others go on.

    sweep: what it is the program of. measure: the columns whose sum is the return that counts.
    """

    sweep: Sweep | None = None
    measure: tuple[str, ...] = ()

    def tally(self) -> Tally:
        return SeparateTally(self)

    def fault(self, carry: Carry, tally: Tally) -> str | None:
        return None  # see `standing`

    def stored(self, carry: Carry) -> tuple[PyTree, dict[str, Any]]:
        return carry.replace(latch=nan_guard.first_faults(carry.latch)), {}

    def restore(self, path: Path, meta: dict[str, Any]) -> Carry:
        """Weights may hold NaN: those of points that have failed do."""
        shapes = self.shapes()
        stored = checkpoint.load(path, shapes.replace(latch=nan_guard.as_stored(shapes.latch)))
        known = nan_guard.is_sound(stored.latch, self.setup.spec.groups)
        if np.any(np.asarray(stored.update) != meta["update"]) or not known:
            raise records.forged(path, "its arrays are not from the update that its meta data name")
        faults = nan_guard.spread(stored.latch, self.mesh.size)
        return jax.device_put(stored.replace(latch=faults), self.shardings)

    def standing(self, carry: Carry) -> dict[str, Any]:
        """`failures`: why each training failed, or None."""
        host = jax.device_get(carry.latch)
        each = (jax.tree.map(lambda leaf, i=i: leaf[i], host) for i in range(len(host.kind)))
        groups = list(self.setup.spec.groups)
        errors = (nan_guard.report(one, self.experiment.env, groups) for one in each)
        return {"failures": [error and str(error) for error in errors]}


def prepare(plan: Sweep, devices: int | None = None, kind: type[SweepProgram] = SweepProgram) -> SweepProgram:
    """The first half of `sweep`: refuses what can be refused before anything is compiled."""
    program = make_fused_program(plan.experiment, devices, plan.overrides, kind)
    return dataclasses.replace(program, sweep=plan, measure=_measure(plan, program))


def run_sweep(
    program: SweepProgram,
    run_dir: str | Path | None = None,
    *,
    listener: Listener | None = None,
    checkpoint_seconds: float = 60.0,
) -> SweepResult:
    """The second half: compiles and trains."""
    plan, carry = _plan_of(program), program.begin()  # before the folder is made: weights may be missing
    folder = RunFolder(Path(run_dir), plan.experiment) if run_dir is not None else None
    if folder:
        kept = dataclasses.replace(plan, experiment=with_absolute_paths(plan.experiment))
        run_kinds.create(folder.path, run_kinds.SWEEP, sweep=kept.to_dict())
    return _summarise(program, Loop(program, folder, listener, checkpoint_seconds).run(carry, None))


def _plan_of(program: SweepProgram) -> Sweep:
    assert program.sweep is not None
    return program.sweep


def _summarise(program: SweepProgram, ended: tuple[TrainingResult, dict[str, Any]]) -> SweepResult:
    """What came of the points, from the lines of metrics and from why some of them failed."""
    plan, columns = _plan_of(program), program.measure
    result, failures = ended[0], ended[1]["failures"]
    scores = [None if failure else _score(result.lines, columns, lane) for lane, failure in enumerate(failures)]
    why = [failure or (NO_EPISODE if score is None else None) for failure, score in zip(failures, scores, strict=True)]
    curves = [[_value(line, columns, lane) for line in result.lines] for lane in range(len(scores))]
    seeds, points = plan.experiment.num_seeds, []
    for i, values in enumerate(plan.points):
        own = slice(i * seeds, (i + 1) * seeds)
        points.append(Point(values, tuple(scores[own]), tuple(why[own]), tuple(curves[own])))
    device = program.mesh.devices.flat[0]
    return SweepResult(
        sweep=plan,
        points=tuple(points),
        measure=columns,
        env_steps=[line["env_steps"] for line in result.lines],
        updates=result.update,
        seconds=result.seconds,
        compile_seconds=result.compile_seconds,
        device=f"{program.mesh.size} x {device.platform}: {device.device_kind}",
        interrupted=result.interrupted and not all(failures),
    )


def _earlier_lines(program: SweepProgram, folder: RunFolder, update: int) -> list[dict[str, Any]]:
    """The lines of metrics up to an update, which the returns are made of; refused where some are missing."""
    lines = read_metrics(folder.metrics) if folder.metrics.is_file() else []
    lines = [line for line in lines if line["update"] <= update]
    total, num_trainings = program.num_updates, program.trainings
    every = max(1, total // LINES)
    expected = -(-update // every) if update == total else update // every
    counted = [name for name in program.names if name == "episodes" or name.startswith("return/")]
    whole = all(
        isinstance(line.get(name), list) and len(line[name]) == num_trainings for line in lines for name in counted
    )
    if len(lines) < expected or not whole:
        raise RunError(
            f"{folder.metrics} is damaged or cut short: the returns of this sweep are made of its lines, and some "
            f"of those up to update {update} are missing. Sweep anew."
        )
    return lines


def _measure(plan: Sweep, program: FusedProgram) -> tuple[str, ...]:
    """The columns whose sum is the return that counts."""
    env, learners = program.setup.env, program.setup.learners
    all_sides = return_groups(env)
    known = tuple(f"return/{side}" for side in all_sides)
    if plan.measure is None:
        swept = {
            seat for name in program.overrides for policy in learners[name][1].groups for seat in _seats(env, policy)
        }
        return tuple(f"return/{side}" for side, own in all_sides.items() if swept & set(own))
    if plan.measure not in ("return", *known):
        raise OptionError(f"sweep: {unknown_name('measure', plan.measure, ['return', *known])}")
    return known if plan.measure == "return" else (plan.measure,)


def _seats(env: Env, policy: str) -> set[Seat]:
    """The seats of the world that a policy plays."""
    if not isinstance(env, Regrouped):
        return {(policy, i) for i in range(env.groups[policy].size)}
    return {(part.group, i) for part in dict(env.plan)[policy] for i in range(part.start, part.stop)}


def _value(line: dict[str, Any], columns: Sequence[str], lane: int) -> float | None:
    """The return in one line of metrics; None where no episode ended, or where it is not finite."""
    parts = [line[name][lane] for name in columns]
    return None if None in parts else round(sum(parts), 6)


def _score(lines: list[dict[str, Any]], columns: Sequence[str], lane: int) -> float | None:
    """The mean return of the episodes that ended in the last tenth or, if none did, when the last ones ended."""
    ended = [line for line in lines if _value(line, columns, lane) is not None]
    if not ended:
        return None
    tail = [line for line in ended if line["update"] > (1 - TAIL) * lines[-1]["update"]] or ended[-1:]
    total = sum((_value(line, columns, lane) or 0.0) * line["episodes"][lane] for line in tail)
    return total / sum(line["episodes"][lane] for line in tail)
