"""Population-based training on a cluster: workers train the members from one comparison to the next.

    driver    compares the members, copies, changes values (`populations.pbt.select`); metrics and checkpoints
       |  some members, `count` updates                     ^  the same members, and their metrics
    workers   make the updates

The loop, the run folder and the checkpoints are those of one machine (`populations.pbt`), and so are the results, to
rounding. Members are sent as a whole, with their worlds and replays, which suits small replays.
"""

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shoal.cluster.tasks.board import Task, TaskBoard
from shoal.cluster.tasks.evolution import num_slices
from shoal.cluster.tasks.pool import LazyPool
from shoal.cluster.tasks.populations import digest, from_arrays, to_arrays
from shoal.cluster.transport.service import Service, Store
from shoal.core.types import PyTree
from shoal.populations.pbt.plan import PBT
from shoal.populations.pbt.program import PBTProgram, PBTState, Window
from shoal.training.fused import Carry
from shoal.training.program import MAX_UPDATES
from shoal.training.serialise import from_plain, to_plain


def check(config: PBT) -> None:
    """Every plan can run on a cluster."""


def make_program(config: PBT, workers: LazyPool) -> "ClusterPBTProgram":
    """The program of a population whose members learn on workers."""
    program = config.program(1)
    program.check()
    return ClusterPBTProgram(program.plan, program.inner, program.measure, workers)


@dataclasses.dataclass(frozen=True)
class ClusterPBTProgram(PBTProgram):
    """A program whose updates are made by workers, in stretches from one comparison to the next."""

    watchable: ClassVar[bool] = False  # points would cut the stretches, which are sent to workers as a whole
    workers: LazyPool

    def next_count(self, update: int) -> int:
        return min(self.plan.interval - update % self.plan.interval, MAX_UPDATES)

    def compiled(self, carry: Any) -> Any:
        del carry
        return lambda carry, count: self._stretch(carry, int(count))

    def saved(self) -> None:
        self.workers.saved()

    def close(self) -> None:
        self.workers.close()

    def _stretch(self, state: PBTState, count: int) -> tuple[PBTState, jax.Array]:
        """Makes `count` updates of all members by tasks; then a comparison, if it is due."""
        leaves, size, store = to_arrays(state.members), self._size, self.workers.launcher.store
        update, tasks = int(state.members.update[0]), []
        for first in range(0, self.plan.members, size):
            own = [leaf[first : first + size] for leaf in leaves]
            payload = {"count": count, "members": store.put(own)}
            tasks.append(Task(f"members/{update}/{first}/{digest([count, *own])}", "members", payload))
        self.workers.start(PBTHandler, to_plain(self.plan), store)
        results = self.workers.run(tasks)
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
    """Makes updates of members in a worker process."""

    def __init__(self, config: dict[str, Any], store: Store):
        self.inner = from_plain(PBT, config, "pbt").program(1).inner
        self.store, self.like = store, self.inner.shapes()

    @functools.cached_property
    def _advance(self):
        def some(members: PyTree, count: jax.Array) -> tuple[PyTree, jax.Array]:
            size = members.update.shape[0]

            def body(i: jax.Array, held: tuple[PyTree, jax.Array]) -> tuple[PyTree, jax.Array]:
                update = functools.partial(self.inner.update, axis=None)
                members, metrics = jax.vmap(update)(held[0])
                row = jnp.stack([jnp.asarray(metrics[name], jnp.float32) for name in self.inner.names], axis=-1)
                return members, held[1].at[:, i].set(row)

            table = jnp.zeros((size, MAX_UPDATES, len(self.inner.names)))
            return lax.fori_loop(0, count, body, (members, table))

        return jax.jit(some)

    def run(self, task: Task, board: Service[TaskBoard]) -> tuple[dict[str, Any], list[np.ndarray]]:
        """The members after `count` updates, and their metrics `[m, count, columns]`."""
        del board
        count = task.payload["count"]
        members, table = self._advance(
            from_arrays(self.store.get(task.payload["members"]), self.like), jnp.int32(count)
        )
        return {}, [*to_arrays(members), np.asarray(table)[:, :count]]
