"""Who is told how a run goes: callbacks, which may stop it, and loggers, which take its lines of metrics.

    class Stop(shoal.Callback):
        def on_evaluation(self, event):
            if event.mean_return > -30:
                event.stop()

    shoal.train("ippo/simple_spread", callbacks=[Stop()], eval_every=100_000)

Nothing here is in the loop that the device runs: callbacks are called between two calls of the compiled program.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.errors import require
from shoal.core.types import PyTree
from shoal.training.evaluate import Evaluation
from shoal.training.experiment import Experiment
from shoal.training.loggers import Logger


@dataclasses.dataclass
class Progress:
    """How far a run is."""

    update: int
    num_updates: int
    env_steps: int
    seconds: float  # since the loop began, compilation apart
    compile_seconds: float
    line: dict[str, Any] | None = None  # the newest complete line of metrics


Listener = Callable[[Progress], None]


@dataclasses.dataclass
class Event(Progress):
    """What a callback is told. Policies have one more axis in front if there are several seeds.

    stop: ends the run after this, saved as it is; `shoal.resume` can go on with it.
    """

    stop: Callable[[], None] = dataclasses.field(kw_only=True)
    policies: dict[str, PyTree] | None = None  # in on_evaluation and on_checkpoint
    evaluation: Evaluation | None = None  # in on_evaluation: returns of its episodes by group
    checkpoint: Path | None = None  # in on_checkpoint: the folder that it was saved in
    best: bool = False  # in on_checkpoint: whether it is the best so far, and not the newest

    @property
    def mean_return(self) -> float:
        """Summed over groups: of the evaluation, or else of training in the newest line; NaN if there is none yet."""
        found = self.evaluation.total_mean_return if self.evaluation else (self.line or {}).get("return")
        known = [value for value in np.atleast_1d(np.array(found, object)) if value is not None]
        return float(np.mean(known)) if known else math.nan


class Callback:
    """Called while a run goes on. Derive from it, and define what you need."""

    def on_update(self, event: Event) -> None:
        """After some updates: as many as one call of the compiled program makes."""

    def on_evaluation(self, event: Event) -> None:
        """After every greedy evaluation; `eval_every` of the experiment says how often there is one."""

    def on_checkpoint(self, event: Event) -> None:
        """After every checkpoint of a run that has a folder."""


class Observers:
    """All who are told of one run: listeners and callbacks of how far it is, loggers of its lines of metrics."""

    def __init__(
        self,
        listeners: Sequence[Listener] = (),
        callbacks: Sequence[Callback] = (),
        loggers: Sequence[Logger] = (),
    ):
        for callback in callbacks:
            require(isinstance(callback, Callback), "callbacks", "each", callback, "an object of a shoal.Callback")
        self.listeners, self.callbacks, self.loggers = tuple(listeners), tuple(callbacks), tuple(loggers)
        self.stopping = False
        self._opened: list[Logger] = []

    def open(self, experiment: Experiment, folder: Path | None, update: int) -> None:
        """Before the first line. update: lines after it are yet to come, also where they were written once before."""
        self.stopping = False
        for logger in self.loggers:
            logger.open(experiment, folder, update)
            self._opened.append(logger)

    def write(self, line: Mapping[str, Any]) -> None:
        """One more line, for the loggers: without what is not a number, such as the mixtures of a population."""
        if self._opened:
            plain = {name: value for name, value in line.items() if _is_plain(value)}
            for logger in self._opened:
                logger.write(plain)

    def close(self) -> None:
        while self._opened:
            self._opened.pop().close()

    def tell(self, what: str, progress: Progress, **more: Any) -> None:
        """Calls that method of all callbacks, and listeners after updates."""
        if what == "on_update":
            for listener in self.listeners:
                listener(progress)
        if self.callbacks:
            event = Event(**vars(progress), stop=self._stop, **more)
            for callback in self.callbacks:
                getattr(callback, what)(event)

    def _stop(self) -> None:
        self.stopping = True


def _is_plain(value: Any) -> bool:
    """Whether it is a number, a list of numbers, or that there is none."""
    return all(one is None or isinstance(one, int | float) for one in (value if isinstance(value, list) else [value]))
