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

from shoal.batching.regroup import Regrouped, sides
from shoal.core.env import Env
from shoal.core.errors import OptionError, RunError, unknown_name
from shoal.core.origin import Origin
from shoal.core.types import PyTree, Seat
from shoal.training import checkpoint, records, run_kinds
from shoal.training import nan_guard as latch
from shoal.training.bench import versions
from shoal.training.fused import Carry, Program, build
from shoal.training.loop import LINES, Listener, Loop, Result, with_weights
from shoal.training.metrics import read_metrics
from shoal.training.run import Run, at_home, rebuild
from shoal.training.sweep_plan import Range, Sweep

__all__ = ["Point", "Prepared", "Range", "Sweep", "SweepResult", "open_sweep", "prepare", "resume", "run", "sweep"]

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
    return run(prepare(plan, devices), run_dir, listener=listener, checkpoint_seconds=checkpoint_seconds)


def resume(
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
    folder = Run(Path(run_dir), plan.experiment)
    prepared, newest, meta = rebuild(folder, lambda devices: prepare(plan, devices), devices)
    program = prepared.program
    carry = restore(program, newest, meta) if newest and meta else with_weights(program, program.init())
    return _trained(prepared, carry, meta, folder, listener, checkpoint_seconds)


def open_sweep(path: Path) -> Sweep:
    """What an existing folder is a sweep over."""
    plan = run_kinds.open_entry(path, run_kinds.SWEEP, Sweep.from_dict)
    experiment = dataclasses.replace(plan.experiment, origin=Origin(str(path)))
    experiment.origin.admit(experiment.env, experiment.env_options)
    return dataclasses.replace(plan, experiment=experiment)


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A sweep that can be run: its program, not compiled yet, and the columns whose sum is the return that counts."""

    sweep: Sweep
    program: Program
    measure: tuple[str, ...]

    @property
    def mesh(self) -> jax.sharding.Mesh:
        return self.program.mesh


def prepare(plan: Sweep, devices: int | None = None, kind: type[Program] = Program) -> Prepared:
    """The first half of `sweep`: refuses what can be refused before anything is compiled."""
    program = build(plan.experiment, devices, plan.overrides, kind)
    columns = _measured(plan, program)
    return Prepared(plan, program, columns)


def run(
    prepared: Prepared,
    run_dir: str | Path | None = None,
    *,
    listener: Listener | None = None,
    checkpoint_seconds: float = 60.0,
) -> SweepResult:
    """The second half: compiles and trains."""
    plan, program = prepared.sweep, prepared.program
    carry = with_weights(program, program.init())  # before the folder is made: the weights may be missing
    folder = Run(Path(run_dir), plan.experiment) if run_dir is not None else None
    if folder:
        kept = dataclasses.replace(plan, experiment=at_home(plan.experiment))
        run_kinds.create(folder.path, run_kinds.SWEEP, sweep=kept.to_dict())
    return _trained(prepared, carry, None, folder, listener, checkpoint_seconds)


def restore(program: Program, path: Path, meta: dict[str, Any]) -> Carry:
    """A program's carry as a checkpoint holds it, laid out over the devices. It knows which points have failed.

    Weights may hold NaN: those of points that have failed do. meta: with which the arrays must agree.
    """
    shapes = program.shapes()
    stored = checkpoint.load(path, shapes.replace(latch=latch.as_stored(shapes.latch)))
    if np.any(np.asarray(stored.update) != meta["update"]) or not latch.is_sound(
        stored.latch, program.cast.spec.groups
    ):
        raise records.forged(path, "its arrays are not from the update that its meta data name")
    faults = latch.spread(stored.latch, program.mesh.size)
    return jax.device_put(stored.replace(latch=faults), program.shardings)


def _trained(
    prepared: Prepared,
    carry: Carry,
    meta: dict[str, Any] | None,
    folder: Run | None,
    listener: Listener | None,
    checkpoint_seconds: float,
) -> SweepResult:
    plan, program, columns = prepared.sweep, prepared.program, prepared.measure
    loop = _SideBySide(program, folder, listener, checkpoint_seconds)
    result = loop.run(carry, meta)
    failures = loop.failures
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
        interrupted=result.interrupted and not loop.fault,  # or they have all failed
    )


class _SideBySide(Loop):
    """The training loop of independent trainings: it goes on for as long as one of them has not failed."""

    failures: list[str | None]

    def run(self, carry: Carry, meta: dict[str, Any] | None) -> Result:
        """Goes on with the lines of before, which the returns are made of; unless there is nothing left to do."""
        if meta and self.folder:
            self.lines = self._earlier(self.folder, meta["update"], len(carry.update))
            self._check(carry)
            self.fault = all(self.failures)
            if self.fault or meta["update"] >= self.total:
                return Result({}, meta["update"], self.lines, meta["seconds"], 0.0, meta["update"] < self.total)
        return super().run(carry, meta)

    def _earlier(self, folder: Run, update: int, lanes: int) -> list[dict[str, Any]]:
        lines = read_metrics(folder.metrics) if folder.metrics.is_file() else []
        lines = [line for line in lines if line["update"] <= update]
        every = max(1, self.total // LINES)
        expected = -(-update // every) if update == self.total else update // every
        counted = [name for name in self.program.names if name == "episodes" or name.startswith("return/")]
        whole = all(isinstance(line.get(name), list) and len(line[name]) == lanes for line in lines for name in counted)
        if len(lines) < expected or not whole:
            raise RunError(
                f"{folder.metrics} is damaged or cut short: the returns of this sweep are made of its lines, and some "
                f"of those up to update {update} are missing. Sweep anew."
            )
        return lines

    def _read(self, count: int, table: jax.Array) -> None:
        with np.errstate(all="ignore"):  # those that failed
            super()._read(count, table)
        faults = np.asarray(table)[:, count - 1, self.program.names.index("fault")]
        self.fault = bool(faults.all())

    def _check(self, carry: Carry) -> None:
        host = jax.device_get(carry.latch)
        world, groups = self.program.experiment.env, list(self.program.cast.spec.groups)
        each = (jax.tree.map(lambda leaf, i=i: leaf[i], host) for i in range(len(host.kind)))
        errors = (latch.report(one, world, groups) for one in each)
        self.failures = [error and str(error) for error in errors]

    def _stored(self, carry: Carry) -> PyTree:
        return carry.replace(latch=latch.first_faults(carry.latch))


def _measured(plan: Sweep, program: Program) -> tuple[str, ...]:
    """The columns whose sum is the return that counts."""
    env, learners = program.cast.env, program.cast.learners
    all_sides = sides(env)
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
