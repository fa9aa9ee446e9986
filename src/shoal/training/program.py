"""The interface of every kind of run: a `Program` makes a carry and advances it, a `Tally` keeps the host's records.

Training, host environments, sweeps, population-based training, evolution and populations (PSRO, leagues) are programs.
The `Loop` drives any of them through what is defined here alone.
"""

import abc
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shoal.core.types import PyTree
from shoal.training.devices import AXIS, place
from shoal.training.experiment import Experiment, Setup
from shoal.training.metrics import Aggregator, MetricsLog, read_metrics

MAX_UPDATES = 256
"""The most updates of one call: the rows of the metrics table it returns."""
LINES = 200
"""Approximate number of lines of metrics in a whole run."""

C = TypeVar("C")


class Log(Protocol):
    """Where lines of metrics are kept."""

    def write(self, line: dict[str, Any]) -> None: ...

    def saved(self) -> None:
        """Told after every checkpoint but the best."""
        ...

    def close(self) -> None: ...


class Tally:
    """The host's record of a run: takes rows of metrics and returns lines. Programs with more to record subclass it.

    update: number of updates made. failed: whether nothing is left that could learn.
    """

    def __init__(self, program: "Program[Any]"):
        self.names, self.total, self.metric_shape = program.names, program.num_updates, program.metric_shape
        self.steps_per_update = program.experiment.num_envs * program.experiment.num_steps
        self.eval_every = program.experiment.eval_every
        self.aggregator = Aggregator(self.names, max(1, self.total // LINES), self.steps_per_update)
        self.update = 0
        self.failed = False

    @property
    def env_steps(self) -> int:
        return self.update * self.steps_per_update

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        return self.update >= self.total

    def updates_in(self, env_steps: int) -> int:
        """Whole updates that make at least so many env steps; 0 for none."""
        return -(-env_steps // self.steps_per_update)

    @property
    def eval_updates(self) -> int:
        """Updates between two evaluations: whole lines of metrics, which contain their results; 0: no evaluations."""
        return self.aggregator.updates_of(self.eval_every)

    def is_eval_due(self, tables: Iterable[tuple[int, Any]], newest: Mapping[str, Any]) -> bool:
        """Whether to evaluate now that `eval_updates` have passed. newest: the line of the last time that they had.

        tables: what calls have returned since, with their numbers of updates; `add` has yet to take them.
        """
        return True

    def add(self, count: int, table: Any) -> list[dict[str, Any]]:
        """The lines that `count` more updates complete, from the table that they returned."""
        rows = self._rows(count, table)
        self.update += count
        lines = self.aggregator.add(rows, self.total)
        self.failed |= bool(rows[..., self.names.index("fault")].any())
        return lines

    def meta(self, progress: dict[str, Any]) -> dict[str, Any]:
        """The meta data for a checkpoint, including the loop's own `progress`."""
        own = {"update": self.update, "env_steps": self.env_steps, "pending": self.aggregator.pending()}
        return own | progress

    def restore(self, meta: dict[str, Any]) -> None:
        """Continues from a checkpoint's meta data; raises `ValueError` if it does not fit."""
        self.update = meta["update"]
        self.aggregator.restore(self.update, meta["pending"], self.total, self.metric_shape)

    def log(self, folder: Path) -> "Log":
        """Opens the store of lines in a run folder, at this update."""
        return MetricsLog(folder, keep_until=self.update)

    def earlier(self, metrics: Path) -> list[dict[str, Any]]:
        """The lines up to this update, for a run that is resumed."""
        lines = read_metrics(metrics) if metrics.is_file() else []
        return [line for line in lines if line["update"] <= self.update]

    def _rows(self, count: int, table: Any) -> np.ndarray:
        """Rows `[updates, ..., columns]` of a table `[..., updates, columns]`."""
        return np.moveaxis(np.asarray(jax.device_get(table))[..., :count, :], -2, 0)


class SeparateTally(Tally):
    """The tally of trainings side by side, each of which may fail while the others continue."""

    def add(self, count: int, table: Any) -> list[dict[str, Any]]:
        with np.errstate(all="ignore"):  # failed trainings have NaN
            lines = super().add(count, table)
        self.failed = bool(self._rows(count, table)[-1, ..., self.names.index("fault")].all())
        return lines


class Watched(NamedTuple):
    """The policies that a scene shows, on the host. label: whose they are, of several that train side by side."""

    policies: dict[str, PyTree]
    label: str = ""


class Program(abc.ABC, Generic[C]):
    """Driven by the loop: `begin` makes a run's carry, and the function that `compiled` returns advances it."""

    most: ClassVar[int] = MAX_UPDATES
    """The most updates of one call."""
    survives_errors: ClassVar[bool] = False
    """Whether a call that raises leaves the carry as it was, so that it can be saved."""
    saves_every_call: ClassVar[bool] = False
    """Whether a checkpoint is saved after every call. Such calls are long, so Ctrl-C does not wait for their end."""
    watchable: ClassVar[bool] = True
    """Whether scenes can be kept along the run: see `watched`, and `training.scenes`."""

    setup: Setup
    """The experiment's environment and learners."""

    @property
    @abc.abstractmethod
    def experiment(self) -> Experiment: ...

    @property
    @abc.abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of the columns of the metrics table."""

    @property
    def num_updates(self) -> int:
        """The number of updates of a whole run."""
        return self.experiment.num_updates

    @property
    def num_devices(self) -> int:
        return 1

    @property
    def metric_shape(self) -> tuple[int, ...]:
        """The shape of a metric: empty, or the number of trainings side by side."""
        return ()

    @property
    def kernels(self) -> str:
        """One line: which of its parts run as hand-written kernels here (`kernel_use`); empty if none could."""
        return ""

    @abc.abstractmethod
    def begin(self) -> C:
        """The carry before the first update, with the weights of other runs for learners with `weights`."""

    def check(self) -> None:
        """Refuses what can be known to fail before anything is compiled, such as too little memory."""

    @abc.abstractmethod
    def compiled(self, carry: C) -> Callable[[C, Any], tuple[C, Any]]:
        """`advance(carry, counts[n]) -> carry, table of metrics`, compiled: makes `n` updates; donates the carry.

        The table is what the tally's `add` takes; it is read while the next call runs.
        """

    @property
    def counts(self) -> Sequence[Any]:
        """The numbers 0 to `MAX_UPDATES`, as `advance` takes them."""
        return range(MAX_UPDATES + 1)

    def next_count(self, update: int) -> int | None:
        """Number of updates of the next call; None: chosen by the time that calls take."""
        del update
        return None

    def tally(self) -> Tally:
        """The tally of a new run."""
        return Tally(self)

    @abc.abstractmethod
    def policies(self, carry: C) -> dict[str, PyTree]:
        """The trained policies by name, on the host."""

    def watched(self, carry: C, lines: Sequence[dict[str, Any]]) -> Watched:
        """Whose policies a scene shows at this point of the run. lines: its metrics until then."""
        del lines
        return Watched(self.policies(carry))

    @abc.abstractmethod
    def fault(self, carry: C, tally: Tally) -> str | None:
        """The reason why the run cannot continue, if there is one: such a carry is never saved."""

    @abc.abstractmethod
    def stored(self, carry: C) -> tuple[PyTree, dict[str, Any]]:
        """The arrays of a carry that a checkpoint stores, and meta data besides the tally's."""

    @abc.abstractmethod
    def restore(self, path: Path, meta: dict[str, Any]) -> C:
        """Restores the carry from a checkpoint; refuses one whose arrays do not agree with its meta data."""

    def is_over(self, carry: C) -> bool:
        """Whether a restored carry cannot continue, although updates are left."""
        del carry
        return False

    def standing(self, carry: C) -> dict[str, Any]:
        """Final results besides policies and metrics."""
        del carry
        return {}

    def incidents(self) -> dict[str, int]:
        """Counts of failures in the environments that were handled, by name; for the lines of metrics."""
        return {}

    def resume_options(self) -> list[str]:
        """Options that `shoal resume RUN` needs as well."""
        return []

    def saved(self) -> None:
        """Called after every checkpoint."""

    def close(self) -> None:
        """Called when the loop is over, however it ended."""


class CompiledProgram(Program[C]):
    """A program whose updates are one compiled function over a mesh of devices. `metric_shape` lead all its metrics."""

    mesh: jax.sharding.Mesh

    @property
    def num_devices(self) -> int:
        return self.mesh.size

    @abc.abstractmethod
    def init(self) -> C:
        """A fresh carry, laid out over the devices."""

    @abc.abstractmethod
    def shapes(self) -> C:
        """The carry's shapes; nothing is computed."""

    @abc.abstractmethod
    def specs(self) -> C:
        """Which leaves of the carry are split over the devices, and along which axis."""

    @abc.abstractmethod
    def step(self, carry: C, axis: str | None) -> tuple[C, jax.Array]:
        """One update, and its row of metrics `[..., columns]`. axis: the mesh's, if it has several devices."""

    @property
    def axis(self) -> str | None:
        """The name that collectives give the devices, if there are several."""
        return AXIS if self.mesh.size > 1 else None

    def spread(self, function: Callable[..., Any], specs: C, *more: P) -> Callable[..., Any]:
        """`function(carry, *more) -> carry, metrics` as every device calls it, with its share of the carry."""
        given, made = (specs, *more), (specs, P())
        return jax.shard_map(function, mesh=self.mesh, in_specs=given, out_specs=made, check_vma=False)

    @property
    def shardings(self) -> C:
        return jax.tree.map(lambda spec: NamedSharding(self.mesh, spec), self.specs())

    @functools.cached_property
    def counts(self) -> list[jax.Array]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The numbers 0 to `MAX_UPDATES` on the devices, so that no call copies one there."""
        whole = NamedSharding(self.mesh, P())
        if whole.is_fully_addressable:
            return jax.device_put([np.int32(count) for count in range(MAX_UPDATES + 1)], whole)
        return [place(np.int32(count), whole) for count in range(MAX_UPDATES + 1)]

    @functools.cached_property
    def advance(self) -> Any:
        """`advance(carry, count) -> carry, table [..., MAX_UPDATES, columns]`; donates the carry."""
        _ = self.names  # found by tracing a program of its own, which cannot be done within another one
        spread = self.spread(functools.partial(self._advance, axis=self.axis), self.specs(), P())
        # Saying where results lie keeps the second call from looking like another program.
        return jax.jit(spread, donate_argnums=0, out_shardings=(self.shardings, NamedSharding(self.mesh, P())))

    def compiled(self, carry: C) -> Callable[[C, Any], tuple[C, Any]]:
        call = self.advance.lower(carry, self.counts[0]).compile()

        def advance(carry: C, count: Any) -> tuple[C, Any]:
            carry, table = call(carry, count)
            table.copy_to_host_async()
            return carry, table

        return advance

    def _advance(self, carry: C, count: jax.Array, axis: str | None) -> tuple[C, jax.Array]:
        def body(i: jax.Array, held: tuple[C, jax.Array]) -> tuple[C, jax.Array]:
            carry, row = self.step(held[0], axis)
            return carry, held[1].at[..., i, :].set(row)

        return lax.fori_loop(0, count, body, (carry, jnp.zeros((*self.metric_shape, MAX_UPDATES, len(self.names)))))

    def row(self, metrics: dict[str, jax.Array], axis: int = 0) -> jax.Array:
        """Metrics by name as a row of the table."""
        return jnp.stack([jnp.asarray(metrics[name], jnp.float32) for name in self.names], axis=axis)
