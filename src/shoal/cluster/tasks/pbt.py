"""Population-based training on a cluster: members learn elsewhere from one comparison to the next.

    driver    compares the members, copies, changes values (`populations.pbt.select`); metrics and checkpoints
       |  some members, so many updates                     ^  the same members, and their metrics
    workers   make the updates

The loop, the run folder and the checkpoints are those of one machine (`populations.pbt`), and so are the results, to
rounding. Members travel as a whole, with their worlds and replays: what suits members that learn from small buffers.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shoal.cluster.tasks.board import Task, TaskBoard
from shoal.cluster.tasks.evolution import num_slices
from shoal.cluster.tasks.pool import PoolConfig, WorkerPool
from shoal.cluster.tasks.populations import digest, from_arrays, to_arrays
from shoal.cluster.transport.launcher import Launcher
from shoal.cluster.transport.service import Service, Store
from shoal.core.types import PyTree
from shoal.populations.pbt import run as one_machine
from shoal.populations.pbt.plan import PBT
from shoal.populations.pbt.program import PBTProgram, PBTState, Window, make_pbt_program
from shoal.populations.pbt.run import PBTResult
from shoal.training.experiment import Experiment
from shoal.training.fused import Carry
from shoal.training.loop import Listener
from shoal.training.program import MAX_UPDATES


def pbt_on_cluster(
    plan: PBT,
    run_dir: str | Path,
    config: PoolConfig,
    launcher: Launcher,
    listener: Listener | None = None,
    checkpoint_seconds: float = 60.0,
) -> PBTResult:
    """Trains a population from the start on a cluster; ends what the launcher has started."""
    start = functools.partial(one_machine.pbt, plan, run_dir)
    return _elsewhere(start, run_dir, config, launcher, listener=listener, checkpoint_seconds=checkpoint_seconds)


def resume_pbt_on_cluster(
    run_dir: str | Path,
    config: PoolConfig,
    launcher: Launcher,
    listener: Listener | None = None,
    checkpoint_seconds: float = 60.0,
) -> PBTResult:
    """Goes on with a population, wherever it was begun."""
    start = functools.partial(one_machine.resume_pbt, run_dir)
    return _elsewhere(start, run_dir, config, launcher, listener=listener, checkpoint_seconds=checkpoint_seconds)


def _elsewhere(start: Any, run_dir: str | Path, config: PoolConfig, launcher: Launcher, **more: Any) -> PBTResult:
    """What `start` does on one machine, its updates made by others."""
    spread = functools.partial(ClusterPBTProgram.of, config=config, launcher=launcher, folder=Path(run_dir).absolute())
    try:
        return start(devices=1, spread=spread, **more)
    finally:
        launcher.stop()


@dataclasses.dataclass(frozen=True)
class ClusterPBTProgram(PBTProgram):
    """A program whose updates are made by a pool, in stretches from one comparison to the next."""

    config: PoolConfig | None = None
    launcher: Launcher | None = None
    folder: Path | None = None

    @staticmethod
    def of(program: PBTProgram, config: PoolConfig, launcher: Launcher, folder: Path) -> "ClusterPBTProgram":
        return ClusterPBTProgram(program.plan, program.inner, program.measure, config, launcher, folder)

    def next_count(self, update: int) -> int:
        return min(self.plan.interval - update % self.plan.interval, MAX_UPDATES)

    def compiled(self, carry: Any) -> Any:
        del carry
        return lambda carry, count: self._stretch(carry, int(count))

    @functools.cached_property
    def pool(self) -> WorkerPool:
        """Started when the first update is to be made: the folder is there then."""
        assert self.config is not None
        assert self.launcher is not None
        assert self.folder is not None
        made = (self.plan.experiment.to_dict(), self.plan.to_dict(), self.launcher.store)
        return WorkerPool(self.folder, self.launcher, self.config, PBTHandler, *made)

    @functools.cached_property
    def _done(self) -> list[str]:
        """Tasks whose results no checkpoint holds yet."""
        return []

    def saved(self) -> None:
        if "pool" in self.__dict__:
            self.pool.forget(self._done)
            self.pool.write_status()
            self._done.clear()

    def close(self) -> None:
        if "pool" in self.__dict__:
            self.pool.close()

    def _stretch(self, state: PBTState, count: int) -> tuple[PBTState, jax.Array]:
        """So many updates of all members, by tasks; then a comparison, if it is due."""
        assert self.launcher
        leaves, size = to_arrays(state.members), self._size
        update, tasks = int(state.members.update[0]), []
        for first in range(0, self.plan.members, size):
            own = [leaf[first : first + size] for leaf in leaves]
            payload = {"count": count, "members": self.launcher.store.put(own)}
            tasks.append(Task(f"members/{update}/{first}/{digest([count, *own])}", "members", payload))
        self._done.extend(task.id for task in tasks)
        results = self.pool.run(tasks)
        parts = [result.leaves for result in results if result.leaves is not None]
        *joined, rows = (np.concatenate(each) for each in zip(*parts, strict=True))
        members = from_arrays(joined, self.shapes().members)
        return self._follow_up(state, jax.device_put(members, self.shardings.members), rows)

    def _follow_up(self, before: PBTState, members: Carry, rows: np.ndarray) -> tuple[PBTState, jax.Array]:
        """The state after updates whose metrics are `rows` `[M, count, columns]`, and the whole table of metrics."""
        program, record, count = self, before.record, rows.shape[1]
        columns = dict(zip(program.inner.names, np.moveaxis(rows, -1, 0), strict=True))
        values = list(program.values(before.members).values())
        source = jnp.arange(program.plan.members, dtype=jnp.int32)
        table = np.zeros((len(rows), MAX_UPDATES, len(program.names)), np.float32)
        for i in range(count):
            gained = sum((columns[name][:, i] for name in program.measure), np.zeros(len(rows), np.float32))
            now = Window(record.now.total + gained, record.now.episodes + columns["episodes"][:, i])
            failed = jnp.asarray(columns["fault"][:, i] > 0)
            record = record.replace(now=now)
            score = jnp.where(failed, jnp.nan, now.mean(record.score))
            if i == count - 1:
                members, record, source = self._compare(members, record, failed)
            more = np.stack(jax.device_get([score, *values, source.astype(jnp.float32)]), axis=-1)
            table[:, i] = np.concatenate([rows[:, i], more], axis=-1)
        return PBTState(members, record), jnp.asarray(table)

    @functools.cached_property
    def _compare(self):
        return jax.jit(self._compared)

    @property
    def _size(self) -> int:
        """Members of one task."""
        members = self.plan.members
        return members // num_slices(members)


class PBTHandler:
    """Makes updates of members where a worker lives."""

    def __init__(self, experiment: dict[str, Any], plan: dict[str, Any], store: Store):
        self.inner = make_pbt_program(PBT.from_dict(Experiment.from_dict(experiment), plan), 1).inner
        self.store, self.like = store, self.inner.shapes()

    @functools.cached_property
    def _advance(self):
        def some(members: PyTree, count: jax.Array) -> tuple[PyTree, jax.Array]:
            size = members.update.shape[0]

            def body(i: jax.Array, held: tuple[PyTree, jax.Array]) -> tuple[PyTree, jax.Array]:
                update = functools.partial(self.inner._update, axis=None)  # pyright: ignore[reportPrivateUsage]
                members, metrics = jax.vmap(update)(held[0])
                row = jnp.stack([jnp.asarray(metrics[name], jnp.float32) for name in self.inner.names], axis=-1)
                return members, held[1].at[:, i].set(row)

            table = jnp.zeros((size, MAX_UPDATES, len(self.inner.names)))
            return lax.fori_loop(0, count, body, (members, table))

        return jax.jit(some)

    def run(self, task: Task, board: Service[TaskBoard]) -> tuple[dict[str, Any], list[np.ndarray]]:
        """The members after so many updates, and their metrics `[m, count, columns]`."""
        del board
        count = task.payload["count"]
        members, table = self._advance(
            from_arrays(self.store.get(task.payload["members"]), self.like), jnp.int32(count)
        )
        return {}, [*to_arrays(members), np.asarray(table)[:, :count]]
