"""The loop that drives every run: it says how many updates to make, reads metrics one call behind, saves checkpoints.

Nothing here is in the loop that the device runs: calls are dispatched ahead, and the table of one call is read while
the next one is being computed.
"""

import contextlib
import dataclasses
import functools
import math
import shlex
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import numpy as np

from shoal.core.errors import NonFiniteError, ShoalError, require_type
from shoal.core.host import HostEnvProxy
from shoal.core.stopping import stop_requested
from shoal.core.types import PyTree
from shoal.training import checkpoint, fused, host, records
from shoal.training.evaluate import Evaluator
from shoal.training.experiment import Experiment, check_storable, make_world
from shoal.training.host import IN_THIS_PROCESS, Stepping, check_stepping
from shoal.training.host_stages import TIMEOUT
from shoal.training.metrics import MetricsLog
from shoal.training.program import Program
from shoal.training.run import RunFolder, create, extend, lock_folder, open_run, rebuild
from shoal.training.run_kinds import check_there

CALL_SECONDS = 0.5
"""How long one call of the program should take: long enough to hide the host, short enough to stop soon."""

C = TypeVar("C")


@dataclasses.dataclass
class Progress:
    """What a listener is told after every call of the program."""

    update: int
    num_updates: int
    env_steps: int
    seconds: float  # since the loop began, compilation apart
    compile_seconds: float
    line: dict[str, Any] | None = None  # the newest complete line of metrics


@dataclasses.dataclass(frozen=True)
class TrainingResult:
    """How a run ended. `interrupted`: stopped early by a signal, after saving."""

    policies: dict[str, PyTree]
    update: int
    lines: list[dict[str, Any]]
    seconds: float
    compile_seconds: float
    interrupted: bool = False


Listener = Callable[[Progress], None]


def train(
    experiment: Experiment,
    run_dir: str | Path | None = None,
    *,
    devices: int | None = None,
    listener: Listener | None = None,
    checkpoint_seconds: float = 60.0,
    env_workers: int = 0,
    env_timeout: float = TIMEOUT,
) -> TrainingResult:
    """Trains an experiment from the start; with a `run_dir`, metrics and checkpoints are kept there.

    Environments of other libraries are stepped in `env_workers` processes (0: in this one), where they may hang or die;
    one that takes longer than `env_timeout` seconds for a step is replaced, or, in this process, told of.
    """
    require_type("train", "experiment", experiment, Experiment, "presets.get(NAME) gives one")
    if run_dir is not None:
        check_storable(experiment)
    program = make_program(experiment, devices, Stepping(env_workers, env_timeout))
    carry = program.begin()  # before the folder is made: weights of other runs may be missing
    run = create(Path(run_dir), experiment) if run_dir is not None else None
    return Loop(program, run, listener, checkpoint_seconds).run(carry, None)[0]


def resume(
    run_dir: str | Path,
    *,
    devices: int | None = None,
    listener: Listener | None = None,
    checkpoint_seconds: float = 60.0,
    env_workers: int = 0,
    env_timeout: float = TIMEOUT,
    total_env_steps: int | None = None,
) -> TrainingResult:
    """Continues a run from its newest checkpoint, to the same bits as if it had never stopped.

    Environments on the host keep their state to themselves: there, episodes begin anew. total_env_steps: a larger total
    than before, to train a run further, also one that is finished; the run keeps it. Schedules stretch to the new end.

    It runs on as many devices as before, if they are there; on another number it agrees to rounding only, and warns.
    """
    run, stepping = open_run(Path(run_dir)), Stepping(env_workers, env_timeout)
    if total_env_steps is not None:
        run = extend(run, total_env_steps)

    def rebuilt(devices: int | None) -> fused.FusedProgram:
        return make_program(run.experiment, devices, stepping)

    return resume_program(run, rebuilt, devices, listener, checkpoint_seconds)[0]


def resume_program(
    run: RunFolder,
    build: Callable[[int | None], Program[C]],
    devices: int | None,
    listener: Listener | None,
    checkpoint_seconds: float,
) -> tuple[TrainingResult, dict[str, Any]]:
    """Goes on with a run of any kind from its newest checkpoint, or from its start; its result and its `standing`."""
    program, newest, meta = rebuild(run, build, devices)
    carry = program.restore(newest, meta) if newest and meta else program.begin()
    return Loop(program, run, listener, checkpoint_seconds).run(carry, meta)


def make_program(
    experiment: Experiment, devices: int | None = None, stepping: Stepping = IN_THIS_PROCESS
) -> fused.FusedProgram:
    """The program of an experiment: fused, or with its environments on the host where they live there."""
    if isinstance(make_world(experiment), HostEnvProxy):
        return host.make_host_program(experiment, devices, stepping)
    check_stepping(experiment, stepping)
    return fused.make_fused_program(experiment, devices)


class Loop(Generic[C]):
    """One run of a program on the host. A class only because the state of a loop is passed around its parts."""

    def __init__(
        self, program: Program[C], run: RunFolder | None, listener: Listener | None, checkpoint_seconds: float
    ):
        self.program = program
        self.folder = run
        self.listener = listener
        self.checkpoint_seconds = checkpoint_seconds
        self.tally = program.tally()
        self.lines: list[dict[str, Any]] = []
        self.compile_seconds = 0.0
        self.evaluated: dict[int, dict[str, Any]] = {}  # by update, until the line of that update is written
        self.best: float | None = None

    def run(self, carry: C, meta: dict[str, Any] | None) -> tuple[TrainingResult, dict[str, Any]]:
        """Makes all updates that are left after the checkpoint that `meta` is of, if any."""
        with (
            lock_folder(self.folder.path) if self.folder else contextlib.nullcontext(),
            contextlib.closing(self.program),
        ):
            return self._run(carry, meta)

    def _run(self, carry: C, meta: dict[str, Any] | None) -> tuple[TrainingResult, dict[str, Any]]:
        program, tally = self.program, self.tally
        self.before = meta["seconds"] if meta else 0.0
        if meta:
            self.best = meta.get("best")
            try:
                tally.restore(meta)
            except ValueError as error:
                assert self.folder
                raise records.forged(self.folder.checkpoints, error) from error
        self.log = MetricsLog(self.folder.path, keep_until=tally.update) if self.folder else None
        began = time.perf_counter()
        advance = program.compiled(carry)
        self.compile_seconds = time.perf_counter() - began
        self.began = time.perf_counter()
        try:
            if self.folder and tally.update == 0:
                self._save(carry)
            with stop_requested() as stopped:
                carry = self._loop(advance, carry, stopped)
        finally:
            if self.log:
                self.log.close()
        interrupted = tally.update < tally.total
        policies, standing = program.policies(carry), program.standing(carry)
        result = TrainingResult(policies, tally.update, self.lines, self._seconds(), self.compile_seconds, interrupted)
        return result, standing

    def _loop(self, advance: Callable[[C, Any], tuple[C, Any]], carry: C, stopped: threading.Event) -> C:
        program, total, between = self.program, self.tally.total, self._eval_updates()
        size, saved, dispatched = 1, time.perf_counter(), self.tally.update
        tables: deque[tuple[int, Any]] = deque()
        while dispatched < total and not stopped.is_set():
            count = min(program.next_count(dispatched) or size, total - dispatched)
            if between:
                count = min(count, between - dispatched % between)
            began = time.perf_counter()
            try:
                carry, table = advance(carry, program.counts[count])
            except (ShoalError, KeyboardInterrupt) as error:  # of environments on the host
                self._fail(carry, tables, error)
            table.copy_to_host_async()
            tables.append((count, table))
            dispatched += count
            if self.folder:
                check_there(self.folder.path)
            if between and (dispatched % between == 0 or dispatched == total):
                better = self._evaluate(carry, dispatched)
                self._drain(tables)
                if better and self.folder:
                    self._save(carry, best=True)
            if len(tables) > 1:  # the device is busy with the newest call: reading an older one does not stall it
                self._read(*tables.popleft())
                if time.perf_counter() - began < CALL_SECONDS / 2:
                    size = min(size * 2, program.most)
                if self.tally.failed:
                    break
            if self.folder and time.perf_counter() - saved >= self.checkpoint_seconds:
                self._drain(tables)
                self._save(carry)
                saved = time.perf_counter()
        self._drain(tables)
        if self.folder:
            self._save(carry)
        else:
            self._check(carry)
        return carry

    def _fail(self, carry: C, tables: deque[tuple[int, Any]], error: BaseException) -> NoReturn:
        """Ends a run whose environments failed: what was learnt before is saved, and the error says how to go on."""
        if self.folder is None or not self.program.survives_errors:
            raise error
        self._drain(tables)
        self._save(carry)
        if not isinstance(error, ShoalError):
            raise error
        update = self.tally.update
        go_on = shlex.join(["shoal", "resume", str(self.folder.path), *self.program.resume_options()])
        done = f"{update} update{'s' * (update != 1)}"
        raise type(error)(f"{error}. What {done} taught is saved; go on with: {go_on}") from error

    def _drain(self, tables: deque[tuple[int, Any]]) -> None:
        while tables:
            self._read(*tables.popleft())

    def _read(self, count: int, table: Any) -> None:
        tally = self.tally
        for line in tally.add(count, table):
            line |= self.evaluated.pop(line["update"], {})
            line |= {"seconds": round(self._seconds(), 3), **self.program.incidents()}
            self.lines.append(line)
            if self.log:
                self.log.write(line)
        if self.listener:
            newest = self.lines[-1] if self.lines else None
            place = (tally.update, tally.total, tally.env_steps)
            self.listener(Progress(*place, self._seconds(), self.compile_seconds, newest))

    def _check(self, carry: C) -> None:
        fault = self.program.fault(carry, self.tally)
        if fault:
            kept = f" The last checkpoint in {self.folder.path} is from before it happened." if self.folder else ""
            raise NonFiniteError(f"{fault}{kept}")

    def _save(self, carry: C, best: bool = False) -> None:
        """Saves a checkpoint, or the best one. Never a carry that holds NaN: faults are looked for first."""
        assert self.folder
        self._check(carry)
        check_there(self.folder.path)
        tree, more = self.program.stored(carry)
        known = {} if self.best is None else {"best": self.best}
        meta = {"devices": self.program.num_devices, "seconds": self._seconds()} | known | more
        folder, keep = self.folder.checkpoints, self.program.experiment.keep_checkpoints
        if best:
            folder, keep = self.folder.best, 1
        checkpoint.save(folder, self.tally.update, tree, self.tally.meta() | meta, keep)
        if not best:
            self.program.saved()

    def _eval_updates(self) -> int:
        """Updates between two evaluations: whole lines of metrics, which say what came of them; 0: none is made."""
        every = self.program.experiment.eval_every
        lines = -(-every // (self.tally.steps_per_update * self.tally.aggregator.every))
        return lines * self.tally.aggregator.every

    @functools.cached_property
    def _evaluator(self) -> Evaluator:
        experiment = self.program.experiment
        return Evaluator(self.program.setup, experiment.eval_episodes, experiment.seed)

    def _evaluate(self, carry: C, update: int) -> bool:
        """Plays greedily; the line of metrics of that update will say how it went. Whether it was the best so far.

        Where players compete, the sum of their returns says nothing: there is no best.
        """
        found = self._evaluator(self.program.policies(carry))
        means = {f"eval/return/{side}": value for side, value in found.mean_return.items()}
        length = np.mean(found.lengths, axis=-1).tolist()
        self.evaluated[update] = means | {"eval/return": found.total_mean_return, "eval/length": length}
        mean = float(np.mean(found.total_mean_return))
        better = math.isfinite(mean) and (self.best is None or mean > self.best)
        if not better or self.program.setup.env.kind == "competitive":
            return False
        self.best = mean
        return True

    def _seconds(self) -> float:
        return self.before + time.perf_counter() - self.began
