"""A grid or a random search over float hyper-parameters, as one compiled program.

Every point, with every seed, is one more entry of a leading axis of the fused program: one compilation, one donated
carry, and on an accelerator much less time than one training after the other. A point ends as a training of its own
with those values would. From Python:

    from shoal import presets
    from shoal.training.runner import run
    from shoal.training.sweep import Range, Sweep, summarise

    spread = presets.get("mpe/simple_spread")
    plan = Sweep(spread, {"learning_rate": Range(1e-4, 1e-2, 8, log=True), "clip_eps": (0.1, 0.2)})
    result = summarise(plan, run(plan, "sweeps/mine"))
    print(result.best.values, result.best.mean)

A sweep with a folder is a run like any other: `resume("sweeps/mine")` continues it, to the same bits.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal.batching.regroup import Regrouped, return_groups
from shoal.core.env import Env
from shoal.core.errors import OptionError, RunError, unknown_name
from shoal.core.types import PyTree, Seat
from shoal.training import nan_guard, records
from shoal.training.bench import versions
from shoal.training.fused import Carry, FusedProgram, make_fused_program
from shoal.training.loop import TrainingResult
from shoal.training.program import SeparateTally, Tally, Watched
from shoal.training.serialise import to_plain
from shoal.training.stored_replays import load_with_replays
from shoal.training.sweep_plan import Range, Sweep
from shoal.training.sweep_points import TAIL

__all__ = ["Point", "Range", "Sweep", "SweepProgram", "SweepResult", "build_sweep", "summarise"]

NO_EPISODE = "no episode ended; raise total_env_steps"
"""Why a training has no return, although nothing went wrong."""


@dataclasses.dataclass(frozen=True, repr=False)
class Point:
    """How one point ended. By seed: `returns`, None where there is none; `failures`, why; `curves`, of the return."""

    values: dict[str, float]
    returns: tuple[float | None, ...]
    failures: tuple[str | None, ...]
    curves: tuple[list[float | None], ...]

    @property
    def mean(self) -> float | None:
        """Over the seeds; None if one of them has none."""
        return _mean(self.returns)

    @property
    def fault(self) -> str | None:
        """The first failure; a seed without a finished episode does not count as one."""
        return next((why for why in self.failures if why not in (None, NO_EPISODE)), None)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value:.4g}" for name, value in self.values.items())
        missing = next((why for why in self.failures if why is not None), None)
        return f"Point({values}: {missing if self.mean is None else f'{self.mean:.4g}'})"


@dataclasses.dataclass(frozen=True, repr=False)
class SweepResult:
    """All points in the order of the sweep, and its cost. env_steps: x values of the curves."""

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
        return sorted(self.points, key=lambda point: _worth(point.mean), reverse=True)

    @property
    def best(self) -> Point | None:
        """None if no point has a return."""
        first = self.ranked[0]
        return None if first.mean is None else first

    def __repr__(self) -> str:
        parts = [self.sweep.experiment.env, f"{len(self.points)} points", f"best: {self.best!r}"]
        return f"SweepResult({'; '.join(parts + ['stopped early'] * self.interrupted)})"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data; what failed is null."""
        points = [dataclasses.asdict(point) | {"mean": point.mean} for point in self.points]
        return {
            **to_plain(self.sweep),
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


class SweepTally(SeparateTally):
    """The tally of a sweep, whose returns are computed from its lines of metrics: it is not resumed without them."""

    def earlier(self, metrics: Path) -> list[dict[str, Any]]:
        lines = super().earlier(metrics)
        every = self.aggregator.every
        expected = -(-self.update // every) if self.finished else self.update // every
        counted = [name for name in self.names if name == "episodes" or name.startswith("return/")]
        whole = all(
            isinstance(line.get(name), list) and (len(line[name]),) == self.metric_shape
            for line in lines
            for name in counted
        )
        if len(lines) < expected or not whole:
            raise RunError(
                f"{metrics} is damaged or cut short: the returns of this sweep are computed from its lines, and some "
                f"of those up to update {self.update} are missing. Start a new sweep."
            )
        return lines


@dataclasses.dataclass(frozen=True)
class SweepProgram(FusedProgram):
    """All points of a sweep side by side. A point that becomes NaN fails alone; the others continue.

    measure: the columns whose sum is the return that counts. points: the value of each swept option, for every point.
    """

    measure: tuple[str, ...] = ()
    points: tuple[Mapping[str, float], ...] = ()

    def tally(self) -> Tally:
        return SweepTally(self)

    def watched(self, carry: Carry, lines: Sequence[dict[str, Any]]) -> Watched:
        """The point that is best by then, with the first of its seeds."""
        failed = jax.device_get(carry.latch).kind.any(axis=-1)
        scores = _scores(_tail(lines, lines), self.measure, failed)
        seeds = self.experiment.num_seeds
        means = [_mean(scores[first : first + seeds]) for first in range(0, len(scores), seeds)]
        best = max(range(len(means)), key=lambda point: _worth(means[point]))
        values = ", ".join(f"{name}={value:.4g}" for name, value in self.points[best].items())
        label = f"point {best}{'' if means[best] is None else ' (best)'}: {values}"
        return Watched(self.policies_of_one(carry, best * seeds), label)

    def fault(self, carry: Carry, tally: Tally) -> str | None:
        return None  # see `standing`

    def stored(self, carry: Carry) -> tuple[PyTree, dict[str, Any]]:
        return carry.replace(latch=nan_guard.first_faults(carry.latch)), {}

    def restore(self, path: Path, meta: dict[str, Any]) -> Carry:
        """Weights may contain NaN: those of failed points do."""
        shapes = self.shapes()
        stored = load_with_replays(path, shapes.replace(latch=nan_guard.as_stored(shapes.latch)))
        known = nan_guard.is_sound(stored.latch, self.setup.spec.groups)
        if np.any(np.asarray(stored.update) != meta["update"]) or not known:
            raise records.forged(path, "its arrays are not from the update that its meta data gives")
        faults = nan_guard.spread(stored.latch, self.mesh.size)
        return jax.device_put(stored.replace(latch=faults), self.shardings)

    def is_over(self, carry: Carry) -> bool:
        return all(self.standing(carry)["failures"])

    def standing(self, carry: Carry) -> dict[str, Any]:
        """`failures`: why each training failed, or None. `measure`, and the `device` that it was on."""
        host = jax.device_get(carry.latch)
        each = (jax.tree.map(lambda leaf, i=i: leaf[i], host) for i in range(len(host.kind)))
        groups = list(self.setup.spec.groups)
        errors = (nan_guard.report(one, self.experiment.env, groups) for one in each)
        device = self.mesh.devices.flat[0]
        return {
            "failures": [error and str(error) for error in errors],
            "measure": self.measure,
            "device": f"{self.mesh.size} x {device.platform}: {device.device_kind}",
        }


def build_sweep(plan: Sweep, devices: int | None = None, kind: type[SweepProgram] = SweepProgram) -> SweepProgram:
    """The program of a sweep; refuses what can be refused before anything is compiled."""
    program = make_fused_program(plan.experiment, devices, plan.overrides, kind)
    return dataclasses.replace(program, measure=_measure(plan, program), points=plan.points)


def summarise(plan: Sweep, result: TrainingResult) -> SweepResult:
    """The results of all points, from the lines of metrics and the reasons of failures."""
    columns, failures = result.standing["measure"], result.standing["failures"]
    scores = _scores(result.lines, columns, failures)
    why = [failure or (NO_EPISODE if score is None else None) for failure, score in zip(failures, scores, strict=True)]
    curves = [[_value(line, columns, lane) for line in result.lines] for lane in range(len(scores))]
    seeds, points = plan.experiment.num_seeds, []
    for i, values in enumerate(plan.points):
        own = slice(i * seeds, (i + 1) * seeds)
        points.append(Point(values, tuple(scores[own]), tuple(why[own]), tuple(curves[own])))
    return SweepResult(
        sweep=plan,
        points=tuple(points),
        measure=columns,
        env_steps=[line["env_steps"] for line in result.lines],
        updates=result.update,
        seconds=result.seconds,
        compile_seconds=result.compile_seconds,
        device=result.standing["device"],
        interrupted=result.interrupted and not all(failures),
    )


def _measure(plan: Sweep, program: FusedProgram) -> tuple[str, ...]:
    """The columns whose sum is the return that counts."""
    env, learners = program.setup.env, program.setup.learners
    paid = return_groups(env)
    known = tuple(f"return/{group}" for group in paid)
    if plan.measure is None:
        swept = {
            seat for name in program.overrides for policy in learners[name][1].groups for seat in _seats(env, policy)
        }
        return tuple(f"return/{group}" for group, own in paid.items() if swept & set(own))
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


def _mean(returns: Sequence[float | None]) -> float | None:
    """Of the seeds of a point; None if one of them has none."""
    got = [value for value in returns if value is not None]
    return float(np.mean(got)) if len(got) == len(returns) else None


def _worth(mean: float | None) -> float:
    """For an order in which points without a return come last."""
    return -math.inf if mean is None else mean


def _scores(lines: Sequence[dict[str, Any]], columns: Sequence[str], failed: Sequence[Any]) -> list[float | None]:
    """The return of each training; None if it has failed, or no episode has ended."""
    return [None if fault else _score(lines, columns, lane) for lane, fault in enumerate(failed)]


def _tail(lines: Sequence[dict[str, Any]], whole: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those lines that are of the last part of the whole run so far."""
    return [line for line in lines if line["update"] > (1 - TAIL) * whole[-1]["update"]]


def _score(lines: Sequence[dict[str, Any]], columns: Sequence[str], lane: int) -> float | None:
    """The mean return of the episodes that ended in the last tenth or, if none did, when the last ones ended."""
    ended = [line for line in lines if _value(line, columns, lane) is not None]
    if not ended:
        return None
    tail = _tail(ended, lines) or ended[-1:]
    total = sum((_value(line, columns, lane) or 0.0) * line["episodes"][lane] for line in tail)
    return total / sum(line["episodes"][lane] for line in tail)
