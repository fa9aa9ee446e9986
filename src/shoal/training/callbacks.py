"""Observers of a run: callbacks, which may stop it, and loggers, which receive its lines of metrics.

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
from shoal.training.loggers import Logger, Loggers, make_loggers, named_loggers, record_loggers


@dataclasses.dataclass
class Progress:
    """How far a run has got."""

    update: int
    num_updates: int
    env_steps: int
    seconds: float  # since the loop began, without compilation
    compile_seconds: float
    line: dict[str, Any] | None = None  # the newest complete line of metrics


Listener = Callable[[Progress], None]


@dataclasses.dataclass
class Event(Progress):
    """The argument of a callback. Policies have a leading axis of seeds if there are several.

    stop: ends the run here and saves it; `shoal.resume` can continue it.
    """

    stop: Callable[[], None] = dataclasses.field(kw_only=True)
    policies: dict[str, PyTree] | None = None  # in on_evaluation and on_checkpoint
    evaluation: Evaluation | None = None  # in on_evaluation: returns of its episodes, by group
    checkpoint: Path | None = None  # in on_checkpoint: the folder that it was saved in
    best: bool = False  # in on_evaluation: whether it is the best so far; in on_checkpoint: whether that one is saved

    @property
    def mean_return(self) -> float:
        """The sum over groups, of the evaluation or else of the newest training metrics; NaN before the first."""
        found = self.evaluation.total_mean_return if self.evaluation else (self.line or {}).get("return")
        known = [value for value in np.atleast_1d(np.array(found, object)) if value is not None]
        return float(np.mean(known)) if known else math.nan


class Callback:
    """Called during a run. Subclass it and override the methods you need."""

    def on_update(self, event: Event) -> None:
        """After each call of the compiled program, which makes several updates."""

    def on_evaluation(self, event: Event) -> None:
        """After every greedy evaluation; `eval_every` of the experiment sets how often."""

    def on_checkpoint(self, event: Event) -> None:
        """After every checkpoint of a run that has a folder."""


class Observers:
    """All observers of one run: listeners and callbacks get its progress, loggers its lines of metrics."""

    def __init__(
        self,
        listeners: Sequence[Listener] = (),
        callbacks: Callback | Sequence[Callback] = (),
        loggers: Loggers = (),
    ):
        callbacks = [callbacks] if isinstance(callbacks, Callback) else callbacks
        allowed = "an instance of shoal.Callback, or a list of them"
        require(isinstance(callbacks, list | tuple), "shoal", "callbacks", callbacks, allowed)
        for callback in callbacks:
            require(isinstance(callback, Callback), "callbacks", "each", callback, "an instance of shoal.Callback")
        self.listeners, self.callbacks = tuple(listeners), tuple(callbacks)
        self.loggers, self.names = tuple(make_loggers(loggers)), named_loggers(loggers)
        self.stopping = False
        self._opened: list[Logger] = []

    def open(self, experiment: Experiment, folder: Path | None, update: int) -> None:
        """Before the first line. update: lines after it are written, again if a stopped run had written them."""
        self.stopping = False
        for logger in self.loggers:
            logger.open(experiment, folder, update)
            self._opened.append(logger)
        if folder is not None:
            record_loggers(folder, self.names)

    def write(self, line: Mapping[str, Any]) -> None:
        """Passes a line to the loggers, without entries that are not numbers, such as the mixtures of a population."""
        if self._opened:
            plain = {name: value for name, value in line.items() if _is_plain(value)}
            for logger in self._opened:
                logger.write(plain)

    def close(self) -> None:
        while self._opened:
            self._opened.pop().close()

    def tell(self, what: str, progress: Progress, **more: Any) -> None:
        """Calls the method of that name on all callbacks, and the listeners after updates."""
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
    """Whether it is a number, a list of numbers, or None."""
    return all(one is None or isinstance(one, int | float) for one in (value if isinstance(value, list) else [value]))
