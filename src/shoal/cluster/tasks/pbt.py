"""Population-based training on a cluster: members learn elsewhere from one comparison to the next.

    driver    compares the members, copies, changes values (population.pbt); metrics and checkpoints
       |  some members, so many updates                     ^  the same members, and their metrics
    workers   make the updates

The loop, the run folder and the checkpoints are those of one machine (`execution.pbt`), and so are the results, to
rounding. Members travel as a whole, with their worlds and replays: what suits members that learn from small buffers.
"""

import functools
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shoal.cluster.tasks.board import Task
from shoal.cluster.tasks.evolution import num_slices
from shoal.cluster.tasks.pool import Crew, Team
from shoal.cluster.tasks.populations import bared, digest, unbared
from shoal.cluster.transport.launcher import Fabric, Handle, Store
from shoal.core.types import PyTree
from shoal.populations.pbt import run as one_machine
from shoal.populations.pbt.plan import PBT
from shoal.populations.pbt.program import State, Window, build
from shoal.populations.pbt.run import PBTResult, _Population  # pyright: ignore[reportPrivateUsage]
from shoal.training.experiment import Experiment
from shoal.training.fused import MAX_UPDATES, Carry
from shoal.training.loop import Listener


def pbt(
    plan: PBT,
    run_dir: str | Path,
    team: Team,
    fabric: Fabric,
    listener: Listener | None = None,
    checkpoint_seconds: float = 60.0,
) -> PBTResult:
    """Trains a population from the start on a cluster; ends what the fabric has started."""
    start = functools.partial(one_machine.pbt, plan, run_dir)
    return _elsewhere(start, team, fabric, listener=listener, checkpoint_seconds=checkpoint_seconds)


def resume(
    run_dir: str | Path,
    team: Team,
    fabric: Fabric,
    listener: Listener | None = None,
    checkpoint_seconds: float = 60.0,
) -> PBTResult:
    """Goes on with a population, wherever it was begun."""
    start = functools.partial(one_machine.resume, run_dir)
    return _elsewhere(start, team, fabric, listener=listener, checkpoint_seconds=checkpoint_seconds)


def _elsewhere(start: Any, team: Team, fabric: Fabric, **more: Any) -> PBTResult:
    """What `start` does on one machine, its updates made by others."""
    try:
        return start(devices=1, loop=functools.partial(Stretches, team=team, fabric=fabric), **more)
    finally:
        fabric.stop()


class Stretches(_Population):
    """The loop of one machine, in stretches from one comparison to the next."""

    def __init__(self, *args: Any, team: Team, fabric: Fabric):
        super().__init__(*args)
        self.team, self.fabric = team, fabric

    def _loop(self, advance: Any, carry: Any, stopped: Any) -> Any:
        del advance  # workers make the updates
        assert self.folder
        plan = self.program.plan
        made = (plan.experiment.to_dict(), plan.to_dict(), self.fabric.store)
        self.crew = Crew(self.folder.path, self.fabric, self.team, Carrier, *made)
        self._done: list[str] = []
        saved = time.perf_counter()
        try:
            while self.update < self.total and not stopped.is_set() and not self.fault:
                left = plan.interval - self.update % plan.interval
                count = min(left, self.total - self.update, MAX_UPDATES)
                carry, table = self._stretch(carry, count)
                self._read(count, table)
                if time.perf_counter() - saved >= self.checkpoint_seconds:
                    self._save(carry)
                    saved = time.perf_counter()
            self._save(carry)
        finally:
            self.crew.close()
        return carry

    def _save(self, carry: State) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super()._save(carry)  # pyright: ignore[reportArgumentType]
        if hasattr(self, "crew"):
            self.crew.forget(self._done)
            self.crew.tell()
            self._done = []

    def _stretch(self, state: State, count: int) -> tuple[State, jax.Array]:
        """So many updates of all members, by tasks; then a comparison, if it is due."""
        leaves, size = bared(state.members), self._size
        tasks = []
        for first in range(0, self.program.plan.members, size):
            own = [leaf[first : first + size] for leaf in leaves]
            payload = {"count": count, "members": self.fabric.store.put(own)}
            tasks.append(Task(f"members/{self.update}/{first}/{digest([count, *own])}", "members", payload))
        self._done += [task.id for task in tasks]
        results = self.crew.carry_out(tasks)
        parts = [result.leaves for result in results if result.leaves is not None]
        *joined, rows = (np.concatenate(each) for each in zip(*parts, strict=True))
        members = unbared(joined, self.program.shapes().members)
        return self._settled(state, jax.device_put(members, self.program.shardings.members), rows)

    def _settled(self, before: State, members: Carry, rows: np.ndarray) -> tuple[State, jax.Array]:
        """The state after updates whose metrics are `rows` `[M, count, columns]`, and the whole table of metrics."""
        program, record, count = self.program, before.record, rows.shape[1]
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
        return State(members, record), jnp.asarray(table)

    @functools.cached_property
    def _compare(self):
        return jax.jit(self.program._compared)  # pyright: ignore[reportPrivateUsage]

    @property
    def _size(self) -> int:
        """Members of one task."""
        members = self.program.plan.members
        return members // num_slices(members)


class Carrier:
    """Makes updates of members where a worker lives."""

    def __init__(self, experiment: dict[str, Any], plan: dict[str, Any], store: Store):
        self.inner = build(PBT.from_dict(Experiment.from_dict(experiment), plan), 1).inner
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

    def carry_out(self, task: Task, board: Handle) -> tuple[dict[str, Any], list[np.ndarray]]:
        """The members after so many updates, and their metrics `[m, count, columns]`."""
        del board
        count = task.payload["count"]
        members, table = self._advance(unbared(self.store.get(task.payload["members"]), self.like), jnp.int32(count))
        return {}, [*bared(members), np.asarray(table)[:, :count]]
