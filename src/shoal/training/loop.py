"""The host's side of training: it says how many updates to make, reads metrics one call behind, saves checkpoints.

Nothing here is in the loop that the device runs: calls are dispatched ahead, and the table of one call is read while
the next one is being computed.
"""

import contextlib
import dataclasses
import shlex
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np

from shoal.core.errors import NonFiniteError, ShoalError, require_type
from shoal.core.host import StandIn
from shoal.core.origin import claimed
from shoal.core.registry import imported_files
from shoal.core.stopping import stop_requested
from shoal.core.types import PyTree
from shoal.training import checkpoint, fused, host, records
from shoal.training import nan_guard as latch
from shoal.training.experiment import Experiment, check_storable, make_world
from shoal.training.fused import Carry, Program, policies_of
from shoal.training.host import IN_THIS_PROCESS, Stepping, check_stepping
from shoal.training.host_stages import TIMEOUT
from shoal.training.metrics import Aggregator, MetricsLog
from shoal.training.run import Run, check_weights, create, held, open_run, rebuild, weights_from
from shoal.training.run_kinds import check_there

CALL_SECONDS = 0.5
"""How long one call of the program should take: long enough to hide the host, short enough to stop soon."""
LINES = 200
"""Lines of metrics in a whole run, about."""


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
class Result:
    """How training ended. `interrupted`: stopped early by a signal, after saving."""

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
) -> Result:
    """Trains an experiment from the start; with a `run_dir`, metrics and checkpoints are kept there.

    Environments of other libraries are stepped in `env_workers` processes (0: in this one), where they may hang or die;
    one that takes longer than `env_timeout` seconds for a step is replaced, or, in this process, told of.
    """
    require_type("train", "experiment", experiment, Experiment, "presets.get(NAME) gives one")
    if run_dir is not None:
        check_storable(experiment)
    program = build(experiment, devices, Stepping(env_workers, env_timeout))
    carry = with_weights(program, program.init())  # before the folder is made: the weights may be missing
    run = create(Path(run_dir), experiment) if run_dir is not None else None
    return Loop(program, run, listener, checkpoint_seconds).run(carry, None)


def resume(
    run_dir: str | Path,
    *,
    devices: int | None = None,
    listener: Listener | None = None,
    checkpoint_seconds: float = 60.0,
    env_workers: int = 0,
    env_timeout: float = TIMEOUT,
) -> Result:
    """Continues a run from its newest checkpoint, to the same bits as if it had never stopped.

    Environments on the host keep their state to themselves: there, episodes begin anew.

    It runs on as many devices as before, if they are there; on another number it agrees to rounding only, and warns.
    """
    run, stepping = open_run(Path(run_dir)), Stepping(env_workers, env_timeout)
    program, newest, meta = rebuild(run, lambda devices: build(run.experiment, devices, stepping), devices)
    carry = restore(program, newest, meta) if newest else with_weights(program, program.init())
    return Loop(program, run, listener, checkpoint_seconds).run(carry, meta)


def restore(program: Program, path: Path, meta: dict[str, Any] | None = None) -> Carry:
    """A program's carry as a checkpoint holds it, laid out over the devices. meta: with which it must agree."""
    shapes = program.shapes()
    stored = checkpoint.load(path, shapes.replace(latch=None))
    if meta is not None and np.any(np.asarray(stored.update) != meta["update"]):
        raise records.forged(path, "its arrays are not from the update that its meta data name")
    records.check_finite(path, {name: learner.params for name, learner in stored.learners.items()})
    untripped = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes.latch)
    return jax.device_put(stored.replace(latch=untripped), program.shardings)


def build(experiment: Experiment, devices: int | None = None, stepping: Stepping = IN_THIS_PROCESS) -> Program:
    """The program of an experiment: fused, or with its environments on the host where they live there."""
    if isinstance(make_world(experiment), StandIn):
        return host.build(experiment, devices, stepping)
    check_stepping(experiment, stepping)
    return fused.build(experiment, devices)


class Loop:
    """One training on the host. A class only because the state of a loop is passed around its parts."""

    def __init__(self, program: Program, run: Run | None, listener: Listener | None, checkpoint_seconds: float):
        self.program = program
        self.folder = run
        self.listener = listener
        self.checkpoint_seconds = checkpoint_seconds
        self.total = program.experiment.num_updates
        self.steps_per_update = program.experiment.num_envs * program.experiment.num_steps
        self.lines: list[dict[str, Any]] = []
        self.compile_seconds = 0.0
        self.fault = False

    def run(self, carry: Carry, meta: dict[str, Any] | None) -> Result:
        program = self.program
        hosted = contextlib.closing(program) if isinstance(program, host.HostProgram) else contextlib.nullcontext()
        with held(self.folder.path) if self.folder else contextlib.nullcontext(), hosted:
            return self._run(carry, meta)

    def _run(self, carry: Carry, meta: dict[str, Any] | None) -> Result:
        self.aggregator = Aggregator(self.program.names, max(1, self.total // LINES), self.steps_per_update)
        self.update, self.before = (meta["update"], meta["seconds"]) if meta else (0, 0.0)
        if meta:
            self._pick_up(meta, carry)
        self.log = MetricsLog(self.folder.path, keep_until=self.update) if self.folder else None
        began = time.perf_counter()
        advance = self.program.compiled(carry)
        self.compile_seconds = time.perf_counter() - began
        self.began = time.perf_counter()
        try:
            if self.folder and self.update == 0:
                self._save(carry)
            with stop_requested() as stopped:
                carry = self._loop(advance, carry, stopped)
        finally:
            if self.log:
                self.log.close()
        policies = jax.device_get(policies_of(carry.learners))
        interrupted = self.update < self.total
        return Result(policies, self.update, self.lines, self._seconds(), self.compile_seconds, interrupted)

    def _pick_up(self, meta: dict[str, Any], carry: Carry) -> None:
        """Goes on with metrics of which no line was made when the checkpoint was."""
        try:
            self.aggregator.restore(self.update, meta["pending"], self.total, self._lanes(carry))
        except ValueError as error:
            assert self.folder
            raise records.forged(self.folder.checkpoints, error) from error

    def _lanes(self, carry: Any) -> tuple[int, ...]:
        """How many trainings there are side by side, as the shape that a metric has."""
        return np.shape(carry.update)

    def _loop(self, advance: Callable, carry: Carry, stopped: threading.Event) -> Carry:
        counts = self.program.counts
        size, saved, dispatched = 1, time.perf_counter(), self.update
        tables: deque[tuple[int, jax.Array]] = deque()
        while dispatched < self.total and not stopped.is_set():
            count = min(size, self.total - dispatched)
            began = time.perf_counter()
            try:
                carry, table = advance(carry, counts[count])
            except (ShoalError, KeyboardInterrupt) as error:  # of environments on the host: the carry is as it was
                self._fail(carry, tables, error)
            table.copy_to_host_async()
            tables.append((count, table))
            dispatched += count
            if self.folder:
                check_there(self.folder.path)
            if len(tables) > 1:  # the device is busy with the newest call: reading an older one does not stall it
                self._read(*tables.popleft())
                if time.perf_counter() - began < CALL_SECONDS / 2:
                    size = min(size * 2, self.program.most)
                if self.fault:
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

    def _fail(self, carry: Carry, tables: deque[tuple[int, jax.Array]], error: BaseException) -> NoReturn:
        """Ends a run whose environments failed: what was learnt before is saved, and the error says how to go on."""
        program = self.program
        if self.folder is None or not isinstance(program, host.HostProgram):
            raise error
        self._drain(tables)
        self._save(carry)
        if not isinstance(error, ShoalError):
            raise error
        experiment = program.experiment
        claim = claimed(experiment.env, experiment.env_options)  # what a folder may not name by itself
        named = [*imported_files(), *([claim] if claim else [])]
        options = [part for name in named for part in ("--import", name)]
        options += ["--env-workers", str(program.stepping.workers)] if program.stepping.workers else []
        go_on = shlex.join(["shoal", "resume", str(self.folder.path), *options])
        done = f"{self.update} update{'s' * (self.update != 1)}"
        raise type(error)(f"{error}. What {done} taught is saved; go on with: {go_on}") from error

    def _drain(self, tables: deque[tuple[int, jax.Array]]) -> None:
        while tables:
            self._read(*tables.popleft())

    def _read(self, count: int, table: jax.Array) -> None:
        rows = np.asarray(jax.device_get(table))[..., :count, :]
        rows = np.moveaxis(rows, -2, 0)  # seeds, if any, come after updates
        self.update += count
        new = self.aggregator.add(rows, self.total)
        for line in new:
            line |= {"seconds": round(self._seconds(), 3), **self.program.incidents()}
            self.lines.append(line)
            if self.log:
                self.log.write(line)
        if self.listener:
            steps = self.update * self.steps_per_update
            newest = self.lines[-1] if self.lines else None
            self.listener(Progress(self.update, self.total, steps, self._seconds(), self.compile_seconds, newest))
        self.fault |= bool(rows[..., self.program.names.index("fault")].any())

    def _check(self, carry: Carry) -> None:
        experiment = self.program.experiment
        error = latch.report(jax.device_get(carry.latch), experiment.env, list(self.program.cast.spec.groups))
        if error and self.folder:
            raise NonFiniteError(f"{error} The last checkpoint in {self.folder.path} is from before it happened.")
        if error:
            raise error

    def _save(self, carry: Carry) -> None:
        """Never saves a carry that holds NaN: the latch is read first."""
        assert self.folder
        self._check(carry)
        check_there(self.folder.path)
        checkpoint.save(self.folder.checkpoints, self.update, self._stored(carry), self._meta())

    def _stored(self, carry: Carry) -> PyTree:
        """What a checkpoint holds of a carry."""
        return carry.replace(latch=None)

    def _meta(self) -> dict[str, Any]:
        """Where the run stands."""
        return {
            "update": self.update,
            "env_steps": self.update * self.steps_per_update,
            "devices": self.program.mesh.size,
            "seconds": self._seconds(),
            "pending": self.aggregator.pending(),
        }

    def _seconds(self) -> float:
        return self.before + time.perf_counter() - self.began


def with_weights(program: Program, carry: Carry) -> Carry:
    """Replaces fresh policies by those of other runs, for the learners that say so."""
    check_weights(program.experiment)
    learners = dict(carry.learners)
    for name, learner in program.experiment.learners.items():
        if learner.weights is None:
            continue
        fresh = learners[name].params
        one = jax.tree.map(lambda leaf: leaf[0], fresh) if program.stacked else fresh
        found = weights_from(learner.weights, one)
        params = jax.tree.map(
            lambda leaf, old: jax.device_put(np.broadcast_to(leaf, old.shape), old.sharding), found, fresh
        )
        learners[name] = learners[name].replace(params=params)
    return carry.replace(learners=learners)
