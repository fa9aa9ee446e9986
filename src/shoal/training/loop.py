"""The loop that drives every run: it decides how many updates to make, reads metrics one call behind, saves
checkpoints.

Nothing here is in the loop that the device runs: calls are dispatched ahead, and the table of one call is read while
the next one is being computed.
"""

import contextlib
import dataclasses
import functools
import shlex
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar

from shoal.core.errors import NonFiniteError, ShoalError, require
from shoal.core.stopping import stop_requested
from shoal.core.types import PyTree
from shoal.training import checkpoint, records
from shoal.training.callbacks import Observers, Progress
from shoal.training.evaluate import Evaluator
from shoal.training.outcome import work_in
from shoal.training.program import Log, Program
from shoal.training.run import RunFolder, keep_total
from shoal.training.run_kinds import check_there
from shoal.training.scene_files import read_plan
from shoal.training.scenes import POINTS, SceneSampler
from shoal.training.stored_replays import replay_names, without_replays

CALL_SECONDS = 0.5
"""How long one call of the program should take: long enough to hide the host, short enough to stop soon."""

C = TypeVar("C")


@dataclasses.dataclass(frozen=True, repr=False)
class TrainingResult:
    """How a run ended. `interrupted`: stopped early by a signal, after saving.

    lines: the metrics of the whole run. standing: results specific to its kind of run, see `Program.standing`.
    """

    policies: dict[str, PyTree]
    update: int
    lines: list[dict[str, Any]]
    seconds: float
    compile_seconds: float
    interrupted: bool = False
    standing: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        stopped = ", stopped early" * self.interrupted
        return f"TrainingResult({', '.join(self.policies)}: {self.update} updates in {self.seconds:.1f} s{stopped})"


@dataclasses.dataclass(frozen=True)
class Saving:
    """When checkpoints are saved, besides the first and the last; a population is saved after every iteration."""

    seconds: float = 60.0  # time between two of them
    every: int = 0  # and env steps between two of them, rounded up to whole updates; 0: by time alone

    def __post_init__(self):
        whole = type(self.every) is int and self.every >= 0
        require(whole, "run", "checkpoint_every", self.every, "0 (by time alone) or more")


class Loop(Generic[C]):
    """One run of a program on the host. A class only because the state of a loop is passed around its parts."""

    def __init__(
        self,
        program: Program[C],
        run: RunFolder | None,
        observers: Observers,
        saving: Saving,
        scenes: int | None = None,
    ):
        self.program = program
        self.folder = run
        self.observers = observers
        self.saving = saving
        self.scenes = scenes
        self.sampler: SceneSampler | None = None
        self.tally = program.tally()
        self.lines: list[dict[str, Any]] = []
        self.log: Log | None = None
        self.compile_seconds = 0.0
        self.before, self.began = 0.0, None  # seconds until the last checkpoint, and when this loop began
        self.evaluated: dict[int, dict[str, Any]] = {}  # by update, until the line of that update is written
        self.best: float | None = None

    def run(self, carry: C, meta: dict[str, Any] | None) -> TrainingResult:
        """Makes all remaining updates; meta: of the checkpoint to continue from, if any."""
        program, tally = self.program, self.tally
        with work_in(self.folder.path) if self.folder else contextlib.nullcontext(), contextlib.closing(program):
            self._stand(meta)
            try:
                if not meta or not (tally.finished or program.is_over(carry)):
                    folder = self.folder.path if self.folder else None
                    self.observers.open(program.experiment, folder, tally.update)
                    if self.folder:
                        keep_total(self.folder)  # not before: what is refused leaves the folder as it was
                    self.sampler = self._watch(meta)
                    carry = self._advance(carry, meta)
            finally:
                seconds = self._seconds()  # without episodes that are played afterwards
                if self.sampler:
                    self.sampler.close()
                self.observers.close()
                if self.log:
                    self.log.close()
            policies, standing = program.policies(carry), program.standing(carry)
        interrupted = not tally.finished
        return TrainingResult(policies, tally.update, self.lines, seconds, self.compile_seconds, interrupted, standing)

    def _stand(self, meta: dict[str, Any] | None) -> None:
        """Returns to a checkpoint; records of later updates in the folder are about to be written again."""
        self.before = meta["seconds"] if meta else 0.0
        if meta and self.folder:
            self.best = meta.get("best")
            try:
                self.tally.restore(meta)
            except ValueError as error:
                raise records.forged(self.folder.checkpoints, error) from error
            self.lines = self.tally.earlier(self.folder.metrics)
        self.log = self.tally.log(self.folder.path) if self.folder else None

    def _advance(self, carry: C, meta: dict[str, Any] | None) -> C:
        began = time.perf_counter()
        advance = self.program.compiled(carry)
        self.compile_seconds = time.perf_counter() - began
        self.began = time.perf_counter()
        if self.folder and not meta and self.tally.update == 0:
            self._save(carry)
        if self.sampler:
            self.sampler.begin(self.compile_seconds)
        self._sample(carry, self.tally.update, deque())
        at_once = self.program.saves_every_call
        with contextlib.nullcontext(threading.Event()) if at_once else stop_requested() as stopped:
            return self._loop(advance, carry, stopped)

    def _loop(self, advance: Callable[[C, Any], tuple[C, Any]], carry: C, stopped: threading.Event) -> C:
        program, total, between = self.program, self.tally.total, self.tally.eval_updates
        every = self.tally.updates_in(self.saving.every) if self.saving.every and self.folder else 0
        size, saved, dispatched = 1, time.perf_counter(), self.tally.update
        tables: deque[tuple[int, Any]] = deque()
        while dispatched < total and not (stopped.is_set() or self.observers.stopping):
            count = self._until_next(dispatched, min(program.next_count(dispatched) or size, total - dispatched), every)
            began = time.perf_counter()
            try:
                carry, table = advance(carry, program.counts[count])
            except (ShoalError, KeyboardInterrupt) as error:  # raised by environments on the host
                self._fail(carry, tables, error)
            tables.append((count, table))
            dispatched += count
            if self.folder:
                check_there(self.folder.path)
            if between and (dispatched % between == 0 or dispatched == total):
                self._evaluate_if_due(carry, dispatched, tables)
            self._sample(carry, dispatched, tables)
            if len(tables) > 1:  # the device is busy with the newest call: reading an older one does not stall it
                self._read(*tables.popleft())
                if time.perf_counter() - began < CALL_SECONDS / 2:
                    size = min(size * 2, program.most)
            if self.tally.failed:
                break
            reached = every and dispatched % every == 0 and dispatched < total
            late = self.folder and time.perf_counter() - saved >= self.saving.seconds
            if reached or late or program.saves_every_call:
                self._drain(tables)
                if self.folder:
                    self._save(carry)
                saved = time.perf_counter()
            if self.tally.finished:
                break
        self._drain(tables)
        if self.folder and not program.saves_every_call:
            self._save(carry)
        else:
            self._check(carry)
        return carry

    def _until_next(self, update: int, count: int, every: int) -> int:
        """At most `count` updates: no further than to the next evaluation, checkpoint or scene."""
        for stride in filter(None, (self.tally.eval_updates, every)):
            count = min(count, stride - update % stride)
        return min(count, (self.sampler and self.sampler.until_next(update)) or count)

    def _evaluate_if_due(self, carry: C, update: int, tables: deque[tuple[int, Any]]) -> None:
        """Evaluates the policies, unless too little has changed since the last time; keeps the best."""
        newest = self.lines[-1] if self.lines else {}
        due = update == self.tally.total or self.tally.is_eval_due(tables, newest)
        found = self._evaluate(carry, update) if due else None
        self._drain(tables)
        if found:
            self.observers.tell("on_evaluation", self._progress(), **found)
        if found and found["best"] and self.folder:
            self._save(carry, best=True)

    def _watch(self, meta: dict[str, Any] | None) -> SceneSampler | None:
        """Who plays the policies at points along the run, if it has a folder and its program can be watched."""
        if self.folder is None or not self.program.watchable:
            return None
        asked = read_plan(self.folder.path) if self.scenes is None else self.scenes
        number, begun = POINTS if asked is None else asked, self.tally.update if meta else -1
        return SceneSampler(self.program.setup, self.folder.path, self.tally.total, number, asked is not None, begun)

    def _sample(self, carry: C, update: int, tables: deque[tuple[int, Any]]) -> None:
        """Hands over the policies of a point. They are those of the newest call, so reading its table waits no more."""
        if self.sampler and self.sampler.is_due(update):
            self._drain(tables)
            self.sampler.take(update, self.tally.env_steps, *self.program.watched(carry, self.lines))

    def _fail(self, carry: C, tables: deque[tuple[int, Any]], error: BaseException) -> NoReturn:
        """Ends a run whose environments failed: saves it as it was before, and tells in the error how to resume."""
        if self.folder is None or not self.program.survives_errors:
            raise error
        self._drain(tables)
        self._save(carry)
        if not isinstance(error, ShoalError):
            raise error
        update = self.tally.update
        go_on = shlex.join(["shoal", "resume", str(self.folder.path), *self.program.resume_options()])
        done = f"{update} update{'s' * (update != 1)}"
        raise type(error)(f"{error}. The run is saved after {done}; resume with: {go_on}") from error

    def _drain(self, tables: deque[tuple[int, Any]]) -> None:
        while tables:
            self._read(*tables.popleft())

    def _read(self, count: int, table: Any) -> None:
        tally = self.tally
        for line in tally.add(count, table):
            line |= self.evaluated.pop(line.get("update", 0), {})
            line.setdefault("seconds", round(self._seconds(), 3))
            line |= self.program.incidents()
            self.lines.append(line)
            if self.log:
                self.log.write(line)
            self.observers.write(self._with_position(line))
        self.observers.tell("on_update", self._progress())

    def _progress(self) -> Progress:
        tally, newest = self.tally, self._with_position(self.lines[-1]) if self.lines else None
        return Progress(tally.update, tally.total, tally.env_steps, self._seconds(), self.compile_seconds, newest)

    def _with_position(self, line: dict[str, Any]) -> dict[str, Any]:
        """The line with the run's position, also for a population, whose lines have iterations instead of updates."""
        return line if "update" in line else {"update": self.tally.update, "env_steps": self.tally.env_steps} | line

    def _check(self, carry: C) -> None:
        fault = self.program.fault(carry, self.tally)
        if fault:
            kept = f" The last checkpoint in {self.folder.path} is from before that." if self.folder else ""
            raise NonFiniteError(f"{fault}{kept}")

    def _save(self, carry: C, best: bool = False) -> None:
        """Saves a checkpoint, or the best one. Never saves a carry with NaN: faults are looked for first."""
        assert self.folder
        self._check(carry)
        check_there(self.folder.path)
        tree, more = self.program.stored(carry)
        known = {} if self.best is None else {"best": self.best}
        meta = self.tally.meta({"devices": self.program.num_devices, "seconds": self._seconds()} | known) | more
        folder = self.folder.best if best else self.folder.checkpoints
        if best:
            checkpoint.save(folder, self.tally.update, without_replays(tree), meta, keep=1)
        else:
            keep = self.program.experiment.keep_checkpoints
            checkpoint.save(folder, self.tally.update, tree, meta, keep, replay_names(tree))
            self.program.saved()
            assert self.log
            self.log.saved()
        if self.observers.callbacks:
            told = {"policies": self.program.policies(carry), "checkpoint": folder, "best": best}
            self.observers.tell("on_checkpoint", self._progress(), **told)

    @functools.cached_property
    def _evaluator(self) -> Evaluator:
        experiment = self.program.experiment
        return Evaluator(self.program.setup, experiment.eval_episodes, experiment.seed)

    def _evaluate(self, carry: C, update: int) -> dict[str, Any]:
        """Evaluates greedily; the results go into the line of metrics of that update.

        Returns what callbacks are told, also whether it was the best so far.
        """
        policies = self.program.policies(carry)
        found = self._evaluator(policies)
        self.evaluated[update] = found.metrics()
        better = found.better_return(self.best, self.program.setup.env)
        if better is not None:
            self.best = better
        return {"policies": policies, "evaluation": found, "best": better is not None}

    def _seconds(self) -> float:
        return self.before if self.began is None else self.before + time.perf_counter() - self.began
