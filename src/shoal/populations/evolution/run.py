"""The host's side of evolution: run folders, metrics, checkpoints, going on with a run that was stopped.

A run of an evolution is a run folder like any other, with one more entry in `config.json`, so that `shoal eval` and
`shoal watch` play what has evolved. An update of it is a generation.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shoal.core.errors import NonFiniteError
from shoal.core.types import PyTree
from shoal.populations.evolution.program import Carry, Evolution, Program, build
from shoal.training import checkpoint, records
from shoal.training.loop import Listener, Loop, Progress, Result
from shoal.training.run import Run, create, open_run, rebuild
from shoal.training.run_kinds import EVOLUTION, open_entry

Spread = Callable[[Program], Program]


def evolve(
    plan: Evolution,
    run_dir: str | Path | None = None,
    *,
    devices: int | None = None,
    listener: Listener | None = None,
    checkpoint_seconds: float = 60.0,
    spread: Spread | None = None,
) -> Result:
    """Evolves from the start; with a `run_dir`, metrics and checkpoints are kept there.

    spread: makes of the program one whose generations are bred elsewhere.
    """
    program = build(plan, devices)
    program = spread(program) if spread else program
    run = create(Path(run_dir), plan.played, EVOLUTION, plan.to_dict()) if run_dir is not None else None
    return _Generations(program, run, listener, checkpoint_seconds).run(program.init(), None)  # pyright: ignore[reportArgumentType]


def resume(
    run_dir: str | Path,
    *,
    devices: int | None = None,
    listener: Listener | None = None,
    checkpoint_seconds: float = 60.0,
    spread: Spread | None = None,
) -> Result:
    """Continues a run from its newest checkpoint, to the same bits as if it had never stopped.

    It runs on as many devices as before, if they are there; on another number it agrees to rounding only, and warns.
    """
    run, plan = open_evolution(Path(run_dir))
    begun = checkpoint.latest(run.checkpoints) is not None
    program, newest, meta = rebuild(run, lambda devices: build(plan, devices, begun), devices)
    program = spread(program) if spread else program
    carry = _restore(program, newest, meta) if newest and meta else program.init()
    return _Generations(program, run, listener, checkpoint_seconds).run(carry, meta)  # pyright: ignore[reportArgumentType]


def _restore(program: Program, path: Path, meta: dict[str, Any]) -> Carry:
    """A program's carry as a checkpoint holds it, laid out over the devices."""
    stored = checkpoint.load(path, program.shapes())
    if int(stored.generation) != meta["update"]:
        raise records.forged(path, "its arrays are not from the generation that its meta data name")
    records.check_finite(path, {name: saved.params for name, saved in stored.learners.items()})
    return jax.device_put(stored, program.shardings)


def open_evolution(path: Path) -> tuple[Run, Evolution]:
    """An existing run of an evolution."""
    run = open_run(path)
    return run, open_entry(path, EVOLUTION, lambda data: Evolution.from_dict(run.experiment, data))


class _Generations(Loop):
    """The training loop with generations for updates, whose number of env steps depends on how long episodes last."""

    program: Program  # pyright: ignore[reportIncompatibleVariableOverride]

    def run(self, carry: Any, meta: dict[str, Any] | None) -> Result:
        self.total = self.program.plan.generations
        self.env_steps = meta["env_steps"] if meta else 0
        return super().run(carry, meta)

    def _lanes(self, carry: Any) -> tuple[int, ...]:
        return ()

    def _read(self, count: int, table: jax.Array) -> None:
        rows = np.asarray(jax.device_get(table))[:count]
        column = {name: rows[:, i].astype(np.float64) for i, name in enumerate(self.program.names)}
        before = self.update
        steps = self.env_steps + np.cumsum(column["length"]).astype(np.int64)
        self.update, self.env_steps = before + count, int(steps[-1])
        for line in self.aggregator.add(rows, self.total):
            line |= {"env_steps": int(steps[line["update"] - before - 1]), "seconds": round(self._seconds(), 3)}
            self.lines.append(line)
            if self.log:
                self.log.write(line)
        if self.listener:
            newest = self.lines[-1] if self.lines else None
            progress = Progress(self.update, self.total, self.env_steps, self._seconds(), self.compile_seconds, newest)
            self.listener(progress)
        if column["fault"].any() and not self.fault:
            self.fault, self.faulty = True, before + 1 + int(np.argmax(column["fault"]))

    def _check(self, carry: Any) -> None:
        if not self.fault:
            return
        kept = f" The last checkpoint in {self.folder.path} is from before it happened." if self.folder else ""
        raise NonFiniteError(
            f"the return of a member or the weights became NaN or infinite in generation {self.faulty} of world "
            f"{self.program.experiment.env!r}. Try a smaller step (learning_rate, std), and check the world's rewards "
            f"with shoal.testing.check_env.{kept}"
        )

    def _stored(self, carry: Carry) -> PyTree:  # pyright: ignore[reportIncompatibleMethodOverride]
        return carry

    def _meta(self) -> dict[str, Any]:
        return super()._meta() | {"env_steps": self.env_steps}
