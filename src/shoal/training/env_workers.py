"""Host environments in worker processes, any of which may hang or die without ending the run.

The copies are divided among the processes in order. Actions and timesteps are in shared memory, so that a step is one
short message to each process and one back. Inside, a process steps its copies as the host runner does
(`SeparateEnvs`), with the same seeds: as long as nothing fails, the weights are the same to the bit.

A process that dies, or that takes longer than the time-out, is replaced: the episodes of its copies are truncated at
their last recorded step, the copies restart, and each is counted. An environment that raises is replaced alone.
Repeated failures end the run.

Processes are forked from a server that has imported what they need and has never computed anything (JAX must not be
forked after computing), or spawned on systems without such a server. They make their environments by their id, with the
files that the user named by `--import`.
"""

import contextlib
import dataclasses
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection as pipes
from typing import Any

import jax
import numpy as np

from shoal.core.env import action_shapes
from shoal.core.errors import OptionError, ShoalError, WorldError
from shoal.core.host import HostEnv, HostEnvProxy, HostState, SerialHostBatch
from shoal.core.interrupts import listening
from shoal.core.processes import SAFE, away_from_current_folder
from shoal.core.registry import import_file, imported_files, make
from shoal.core.types import PyTree
from shoal.training.health import Health
from shoal.training.host_stages import SeparateEnvs, tell

DEATHS, FORGIVEN = 3, 0.01
"""Number of deaths of a process that ends the run, and how much of one each step without a death makes up for."""
OPENING = 120.0
"""Seconds that a process may take to open its environments, unless the time-out is longer."""
STEP, CLOSE = b"step", b"close"
"""Requests that a process answers."""
_ALIGNED = 64  # bytes


@dataclasses.dataclass(frozen=True)
class EnvSource:
    """How to make environments in another process: by id and options, after importing files."""

    env: str
    options: Mapping[str, Any]
    files: Sequence[str]

    @staticmethod
    def of(env: str, options: Mapping[str, Any]) -> "EnvSource":
        return EnvSource(env, dict(options), imported_files())


@dataclasses.dataclass(frozen=True)
class WorkerTask:
    """Which environments a process steps: its `rows` of `count` copies, as worker `number`."""

    source: EnvSource
    count: int
    workers: int
    number: int
    rows: slice
    seeds: tuple[int, ...]


class SharedArrays:
    """Arrays `[E, ...]` of all copies' actions and timesteps, in shared memory.

    told: observation, final observation (written where an episode ended) and outcome. out, cut_short `[E]`: as in
    `Stage`. restarts, at `[W]`: of each process, see `SeparateEnvs`.
    """

    def __init__(self, proxy: HostEnvProxy, count: int, workers: int, memory: Any):
        last = proxy.blank()
        actions = jax.tree.map(lambda shape: np.zeros(shape.shape, shape.dtype), action_shapes(proxy.groups))
        rows = jax.tree.map(lambda leaf: ((count, *np.shape(leaf)), np.asarray(leaf).dtype), (last, actions))
        flags, numbers = ((count,), np.dtype(bool)), ((workers,), np.dtype(np.int64))
        self.layout = (*rows, flags, flags, numbers, numbers)
        leaves, structure = jax.tree.flatten(self.layout, is_leaf=_is_slot)
        starts = np.cumsum([0, *(_room(*leaf) for leaf in leaves)]).tolist()
        self.size = starts[-1]
        if memory is not None:
            views = [_view(memory, start, *leaf) for start, leaf in zip(starts, leaves, strict=False)]
            told, self.actions, self.out, self.cut_short, self.restarts, self.at = structure.unflatten(views)
            self.told: HostState = told

    def put(self, told: HostState, rows: slice) -> None:
        """Writes the timesteps of some copies."""
        final = told.final if told.final is not told.observation else None
        for mine, theirs in ((self.told.observation, told.observation), (self.told.outcome, told.outcome)):
            _write(mine, theirs, rows)
        if final is not None:
            _write(self.told.final, final, rows)

    def taken(self) -> HostState:
        """A copy of the timesteps of all environments."""
        observation, outcome = jax.tree.map(np.copy, (self.told.observation, self.told.outcome))
        ended = outcome.terminated | outcome.truncated
        if not ended.any():
            return HostState(observation, observation, outcome)

        def final(now: np.ndarray, last: np.ndarray) -> np.ndarray:
            rows = now.copy()
            rows[ended] = last[ended]
            return rows

        return HostState(observation, jax.tree.map(final, observation, self.told.final), outcome)


@dataclasses.dataclass
class EnvWorker:
    """A process and its copies."""

    number: int
    rows: slice
    process: Any
    pipe: pipes.Connection

    def __str__(self) -> str:
        first, last = self.rows.start, self.rows.stop - 1
        return f"copy {first}" if first == last else f"copies {first} to {last}"


class EnvWorkerGone(Exception):
    """A process has died or hangs; the text says how."""


class WorkerEnvs:
    """Environments in `workers` processes, as a `Stage`."""

    def __init__(self, proxy: HostEnvProxy, source: EnvSource, seeds: Sequence[int], workers: int, timeout: float):
        count = len(seeds)
        self.proxy, self.source, self.seeds, self.timeout = proxy, source, list(seeds), timeout
        self.count = min(workers, count)
        self.context = _context()
        self.memory = self.context.RawArray("b", SharedArrays(proxy, count, self.count, None).size)
        self.shared = SharedArrays(proxy, count, self.count, self.memory)
        self.shared.at[:] = -1
        self.health = Health(self.count, FORGIVEN, DEATHS)  # of the processes
        self.before = 0  # restarts counted by processes that have died
        self.steps = 0
        self.cut_short = np.zeros(count, bool)
        self._last: PyTree = None
        self.workers: list[EnvWorker] = []

    @property
    def num_envs(self) -> int:
        return len(self.seeds)

    @property
    def sound(self) -> np.ndarray:
        return ~self.shared.out

    @property
    def out(self) -> np.ndarray:
        return self.shared.out

    @property
    def restarts(self) -> int:
        return self.health.resets + self.before + int(self.shared.restarts.sum())

    def reset(self) -> HostState:
        ends = np.linspace(0, self.num_envs, self.count + 1).astype(int).tolist()
        for number in range(self.count):
            rows = slice(ends[number], ends[number + 1])
            self.workers.append(self._start(number, rows, self.seeds[rows]))
        for number in range(self.count):
            self._await_or_replace(number, opening=True)
        told = self.shared.taken()
        self._last = told.observation
        return HostState(told.observation, told.observation, told.outcome)

    def step(self, actions: Mapping[str, np.ndarray]) -> HostState:
        self.steps += 1
        for name, action in actions.items():
            self.shared.actions[name][:] = action
        for worker in self.workers:
            with contextlib.suppress(OSError):  # a dead process is detected below
                worker.pipe.send_bytes(STEP)
        for number in range(self.count):
            self._await_or_replace(number)
        self.health.turn(np.ones(self.count, bool))  # deaths have been counted already
        self.cut_short = self.shared.cut_short.copy()
        told = self.shared.taken()
        self._last = told.observation
        return told

    def close(self) -> None:
        """Closes the environments and ends the processes."""
        for worker in self.workers:
            with contextlib.suppress(OSError):
                worker.pipe.send_bytes(CLOSE)
        until = time.monotonic() + min(self.timeout, 5.0)
        for worker in self.workers:
            worker.process.join(max(until - time.monotonic(), 0.0))
            _end(worker)
        self.workers = []

    def _start(self, number: int, rows: slice, seeds: Sequence[int]) -> EnvWorker:
        here, there = self.context.Pipe()
        post = WorkerTask(self.source, self.num_envs, self.count, number, rows, tuple(seeds))
        process = self.context.Process(
            target=serve, args=(there, post, self.memory), name=f"environments {number}", daemon=True
        )
        try:
            with away_from_current_folder():
                process.start()
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise OptionError(
                f"{self.proxy.id}: its options cannot be sent to other processes ({error}): leave out --env-workers"
            ) from error
        there.close()  # otherwise the end of the process would go unnoticed
        return EnvWorker(number, rows, process, here)

    def _await_or_replace(self, number: int, opening: bool = False) -> None:
        """Waits for a process to answer; one that has died is replaced until one answers."""
        lost = False
        while True:
            worker = self.workers[number]
            try:
                self._await_answer(worker, opening or lost)
                break
            except EnvWorkerGone as gone:
                self._replace(worker, str(gone))
                lost = True
        if lost and self.steps:
            self._cut(worker.rows)

    def _await_answer(self, worker: EnvWorker, opening: bool) -> None:
        try:
            self._wait(worker, max(self.timeout, OPENING) if opening else self.timeout)
            error, said = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join(1.0)
            raise EnvWorkerGone(f"the process of {worker} died ({_ending(worker.process.exitcode)})") from None
        for text in said:
            tell(text)
        if error is not None:
            raise WorldError(error)

    def _wait(self, worker: EnvWorker, seconds: float) -> None:
        """Waits until a process answers or a single environment exceeds the time-out, which holds per environment."""
        before = int(self.shared.at[worker.number])
        while not worker.pipe.poll(seconds):
            at, seconds = int(self.shared.at[worker.number]), self.timeout
            if at == before:
                which = f"copy {worker.rows.start + at}" if at >= 0 else str(worker)
                raise EnvWorkerGone(
                    f"{which} did not come back from its {'step' if self.steps else 'reset'} in {seconds:g} s"
                )
            before = at

    def _replace(self, worker: EnvWorker, why: str) -> None:
        """Replaces a process that has died; raises if it keeps happening."""
        _end(worker)
        number, rows = worker.number, worker.rows
        said = f"{self.proxy.id}, step {self.steps}: {why}"
        self.health.fell(np.arange(self.count) == number)
        if self.health.out[number]:
            raise WorldError(f"{said}; it keeps happening")
        tell(f"{said}. It is restarted.")
        self.before += int(self.shared.restarts[number])
        self.shared.restarts[number], self.shared.at[number] = 0, -1
        anew = np.random.SeedSequence((*self.seeds[rows], self.health.resets))
        self.workers[number] = self._start(number, rows, anew.generate_state(rows.stop - rows.start).tolist())

    def _cut(self, rows: slice) -> None:
        """Truncates the episodes of a lost process at their last recorded step."""
        blank = self.proxy.blank().outcome.replace(truncated=np.bool_(True))  # pyright: ignore[reportArgumentType]
        _write(self.shared.told.outcome, jax.tree.map(lambda leaf: np.asarray(leaf)[None], blank), rows)
        _write(self.shared.told.final, jax.tree.map(lambda leaf: leaf[rows], self._last), rows)
        self.shared.cut_short[rows] = True


def serve(pipe: Any, post: WorkerTask, memory: Any) -> None:
    """The main function of a worker process."""
    os.environ.pop(SAFE, None)  # meant for this process, not for scripts that an environment starts
    threading.Thread(target=_end_with_parent, daemon=True).start()
    jax.config.update("jax_platforms", "cpu")  # in case an environment uses JAX: the accelerator belongs to the learner
    with listening():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the training process
        try:
            _serve(pipe, post, memory)
        except (EOFError, OSError):
            return  # the training process has ended
        except BaseException as error:
            pipe.send((str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}", ()))


def _serve(pipe: Any, post: WorkerTask, memory: Any) -> None:
    """Opens the environments, then answers requests one by one."""
    said: list[str] = []
    stage, shared = _open(post, memory, said.append)
    rows, told = post.rows, stage.reset()
    while True:
        shared.put(told, rows)
        shared.out[rows], shared.cut_short[rows] = stage.out, stage.cut_short
        shared.restarts[post.number] = stage.restarts
        pipe.send((None, tuple(said)))
        said.clear()
        if pipe.recv_bytes() == CLOSE:
            break
        told = stage.step({name: action[rows] for name, action in shared.actions.items()})
    stage.close()


def _open(post: WorkerTask, memory: Any, say: Callable[[str], None]) -> tuple[SeparateEnvs, SharedArrays]:
    for file in post.source.files:
        import_file(file)
    proxy = make(post.source.env, **post.source.options)  # the parent process has checked the id's origin
    assert isinstance(proxy, HostEnvProxy)
    shared = SharedArrays(proxy, post.count, post.workers, memory)
    at = shared.at[post.number : post.number + 1]
    envs = _open_separately(proxy, post.rows.stop - post.rows.start)
    return SeparateEnvs(
        proxy, envs, post.seeds, post.rows.start, lambda: _open_separately(proxy, 1)[0], at, say
    ), shared


def _open_separately(proxy: HostEnvProxy, count: int) -> list[HostEnv]:
    """Opens environments; refuses those that step themselves as one batch."""
    batch = proxy.open(count)
    if isinstance(batch, SerialHostBatch):
        return batch.envs
    batch.close()
    raise OptionError(f"{proxy.id} steps its copies by itself, as one batch: leave out --env-workers")


def check_workers(proxy: HostEnvProxy) -> None:
    """Refuses environments that cannot be stepped in separate processes."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise OptionError(
            "worker processes of environments import the script that starts them: put the training code under "
            "`if __name__ == '__main__':`"
        )
    for env in _open_separately(proxy, 1):
        env.close()


def _context() -> Any:
    """Processes are forked from a server where there is one, which imports this module once for all of them."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _end_with_parent() -> None:
    """Ends this process when its parent ends, even while an environment hangs."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        pipes.wait([parent.sentinel])
        os._exit(1)


def _end(worker: EnvWorker) -> None:
    worker.process.kill()
    worker.process.join()
    worker.pipe.close()


def _ending(code: int | None) -> str:
    if code is None:
        return "it closed its pipe"
    if code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"


def _is_slot(leaf: Any) -> bool:
    return isinstance(leaf, tuple) and len(leaf) == 2 and isinstance(leaf[1], np.dtype)


def _room(shape: tuple[int, ...], dtype: np.dtype) -> int:
    size = dtype.itemsize * int(np.prod(shape))
    return -(-size // _ALIGNED) * _ALIGNED


def _view(memory: Any, start: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return np.frombuffer(memory, dtype, int(np.prod(shape)), start).reshape(shape)


def _write(mine: PyTree, theirs: PyTree, rows: slice) -> None:
    for into, leaf in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        into[rows] = leaf
