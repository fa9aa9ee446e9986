"""What is shown while training: a live table in a terminal, a plain line now and then elsewhere."""

import contextlib
import errno
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shoal.api.figures import describe_iteration, format_count, format_duration, format_size
from shoal.api.figures import sparkline as sparkline
from shoal.core.compiling import is_compiling
from shoal.training.callbacks import Listener, Progress
from shoal.training.devices import memory_in_use
from shoal.training.experiment import Config, Experiment, make_world
from shoal.training.run_kinds import PSRO

LINE_SECONDS = 3.0
"""Plain lines are at least this far apart."""
WINDOW_SECONDS = 10.0
"""The rate shown is that of about the last so many seconds."""
KNOWN_SECONDS = 2.0
"""And it is not shown before so many have been seen: the first calls are short, and say little of those to come."""
PIPE_WIDTH = 160
"""Columns of what is not written to a terminal."""


class Reading(NamedTuple):
    """Speeds at one moment, over all seeds; None while they are not known yet."""

    env_rate: float | None
    eta: float | None


class Meter:
    """Speed over the last few seconds. `seeds` trainings run side by side.

    warm_up: env steps of each before it learns. They take much less time than those after them, so they do not count.
    """

    def __init__(self, seeds: int, fresh: bool, warm_up: int = 0):
        self.seeds, self.warm_up = seeds, warm_up
        self.points: deque[tuple[float, int]] = deque([(0.0, 0)] if fresh and not warm_up else [])

    def read(self, progress: Progress) -> Reading:
        if progress.env_steps < self.warm_up:
            return Reading(None, None)
        self.points.append((progress.seconds, progress.env_steps))
        while len(self.points) > 2 and self.points[-1][0] - self.points[1][0] > WINDOW_SECONDS:
            self.points.popleft()
        (before, steps), (now, later) = self.points[0], self.points[-1]
        if now - before < KNOWN_SECONDS or later <= steps:
            return Reading(None, None)
        rate = (later - steps) / (now - before)
        left = (progress.num_updates - progress.update) * progress.env_steps / max(progress.update, 1)
        return Reading(rate * self.seeds, left / rate)


@contextlib.contextmanager
def showing(
    out: Console, title: str, seeds: int, agents: int, fresh: bool = True, warm_up: int = 0
) -> Iterator[Listener]:
    """A listener for `train` that shows how it goes, for as long as the context lasts."""
    meter = Meter(seeds, fresh, warm_up)
    if Console().is_jupyter:
        yield _OneLine(out, meter, agents)
        out.file.write("\n")
        return
    if not out.is_terminal:
        yield _PlainLines(out, meter, agents)
        return
    view = _LiveTable(title, meter, agents)
    with Live(get_renderable=view.render, console=out, refresh_per_second=4, transient=True):
        yield view


def show_progress(config: Config, fresh: bool = True, out: Console | None = None) -> AbstractContextManager[Listener]:
    """A listener that shows how far a run is, for as long as the context lasts: where a notebook looks, or stderr.

    fresh: whether it is at its start.
    """
    out, experiment = out or make_console(), config.played
    if config.kind == PSRO:
        return contextlib.nullcontext(
            lambda progress: out.print(describe_iteration(progress.line or {}), soft_wrap=True)
        )
    return showing(out, experiment.env, config.trainings, num_agents(experiment), fresh, warm_up_of(experiment))


def make_console() -> Console:
    """Where calls from Python show what they do: beside what a program prints."""
    stream = sys.stdout if Console().is_jupyter else sys.stderr
    width = None if stream.isatty() else PIPE_WIDTH
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False, force_jupyter=False)


def num_agents(experiment: Experiment) -> int:
    """How many agents one copy of the world has."""
    return sum(group.size for group in make_world(experiment).groups.values())


def warm_up_of(experiment: Experiment) -> int:
    """The env steps before all that learn have begun to."""
    learning = (learner.algorithm for learner in experiment.learners.values() if not learner.frozen)
    return max((algorithm.traits.warm_up for algorithm in learning), default=0)


class _View:
    """Remembers the newest line of metrics in which an episode ended: in the next ones perhaps none did.

    agents: of one copy of the world.
    """

    line: dict[str, Any] | None = None

    def __init__(self, meter: Meter, agents: int):
        self.meter, self.agents = meter, agents

    def describe_steps(self, progress: Progress) -> str:
        """The env steps of a training, and how many of them there are side by side."""
        each = f" in each of {self.meter.seeds} trainings" if self.meter.seeds > 1 else ""
        return f"{format_count(progress.env_steps)} env steps{each}"

    def describe_rate(self, rate: float) -> str:
        """The rate of all trainings together."""
        together = " in all" if self.meter.seeds > 1 else ""
        return f"{format_count(rate)} env steps/s, {format_count(rate * self.agents)} agent steps/s{together}"

    def ended(self, progress: Progress) -> dict[str, Any] | None:
        if returns(progress.line):
            self.line = progress.line
        return self.line


class _PlainLines(_View):
    """One line of text every few seconds, and one for the last update."""

    seconds: ClassVar[float] = LINE_SECONDS
    longest = 0  # letters of a line that is written over

    def __init__(self, out: Console, meter: Meter, agents: int):
        super().__init__(meter, agents)
        self.out = out
        self.next, self.over = 0.0, False

    def __call__(self, progress: Progress) -> None:
        reading, over = self.meter.read(progress), progress.update >= progress.num_updates
        line = self.ended(progress)
        if told := describe_evaluation(progress):
            self.write(f"{told:<{self.longest}}\n")
        if self.over or (time.monotonic() < self.next and not over):
            return
        self.over = over
        self.next = time.monotonic() + self.seconds
        self.show(progress, self.describe(progress, reading, line))

    def describe(self, progress: Progress, reading: Reading, line: dict[str, Any] | None) -> str:
        over = progress.update >= progress.num_updates
        parts = [f"update {progress.update}/{progress.num_updates}", self.describe_steps(progress)]
        if reading.env_rate is not None:
            parts.append(self.describe_rate(reading.env_rate))
        if reading.eta is not None and not over:
            parts.append(f"{format_duration(reading.eta)} left")
        parts += [f"{name} {text}" for name, text in summary(line).items()]
        return " | ".join([*parts, format_size(memory_in_use())])

    def show(self, progress: Progress, text: str) -> None:
        del progress
        self.write(f"{text}\n")

    def write(self, text: str) -> None:
        try:
            self.out.print(text, soft_wrap=True, end="")
            self.out.file.flush()
        except OSError as error:  # the terminal was closed: the run has been told, and is about to save
            if error.errno != errno.EIO:
                raise


class _OneLine(_PlainLines):
    """A bar and figures in one line that is written again and again: what every notebook can show."""

    seconds: ClassVar[float] = 0.5

    def show(self, progress: Progress, text: str) -> None:
        done = 20 * progress.update // progress.num_updates
        text = f"{'█' * done}{'░' * (20 - done)} {text}"
        self.longest = max(self.longest, len(text))
        self.write(f"{text:<{self.longest}}")

    def write(self, text: str) -> None:
        self.out.file.write(f"\r{text}")
        self.out.file.flush()


class _LiveTable(_View):
    """A table that is redrawn a few times per second."""

    def __init__(self, title: str, meter: Meter, agents: int):
        super().__init__(meter, agents)
        self.title, self.evaluated = title, ""
        self.progress: Progress | None = None
        self.reading = Reading(None, None)
        self.history: dict[str, list[float]] = {}
        self.began = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        self.reading = self.meter.read(progress)
        if progress.line is not None and (self.progress is None or progress.line is not self.progress.line):
            for name, value in returns(progress.line).items():
                self.history.setdefault(name, []).append(value)
        self.evaluated = describe_evaluation(progress) or self.evaluated
        self.progress = progress

    def render(self) -> Panel:
        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", style="dim", no_wrap=True)
        table.add_column(no_wrap=True)
        if self.progress is None:
            doing = "compiling" if is_compiling() else "first updates"
            table.add_row(doing, format_duration(time.monotonic() - self.began))
        else:
            self._fill(table, self.progress)
        return Panel(table, title=Text(self.title, style="bold"), title_align="left", border_style="cyan", expand=False)

    def _fill(self, table: Table, progress: Progress) -> None:
        rate, eta = self.reading
        table.add_row("progress", ProgressBar(progress.num_updates, progress.update, width=40))
        table.add_row("update", f"{progress.update} of {progress.num_updates}")
        table.add_row("steps", self.describe_steps(progress))
        if rate is not None:
            table.add_row("rate", self.describe_rate(rate))
        left = f"   {format_duration(eta)} left" if eta is not None else ""
        table.add_row("time", format_duration(progress.seconds) + left)
        for name, text in summary(self.ended(progress)).items():
            trend = sparkline(self.history.get(name, []))
            table.add_row(name, f"{text:<12}{trend}")
        if self.evaluated:
            table.add_row("evaluation", self.evaluated.removeprefix("evaluation "))
        table.add_row("memory", format_size(memory_in_use()))


def returns(line: dict[str, Any] | None) -> dict[str, float]:
    """Mean return of each group in a line of metrics, over all seeds, where episodes have ended."""
    found = {name.replace("/", " "): value for name, value in (line or {}).items() if name.startswith("return/")}
    means = {name: _mean(value) for name, value in found.items()}
    return {name: mean for name, mean in means.items() if mean is not None}


def describe_evaluation(progress: Progress) -> str:
    """What a greedy evaluation after the newest update found; empty, if there was none."""
    line = progress.line or {}
    if line.get("update") != progress.update:
        return ""
    found = {name.removeprefix("eval/"): value for name, value in line.items() if name.startswith("eval/")}
    figures = " | ".join(f"{name} {text}" for name, text in summary(found).items())
    return figures and f"evaluation after update {progress.update}: {figures}"


def summary(line: dict[str, Any] | None) -> dict[str, str]:
    """The figures of a line of metrics that people look at first."""
    shown = {name: f"{value:.2f}" for name, value in returns(line).items()}
    length, restarts = _mean((line or {}).get("length")), (line or {}).get("env_restarts")
    shown |= {"episode length": f"{length:.1f}"} if length is not None else {}
    return shown | ({"environments restarted": str(restarts)} if restarts else {})


def _mean(value: Any) -> float | None:
    """The mean of a number or of one number per seed; None where no episode has ended."""
    values = [entry for entry in (value if isinstance(value, list) else [value]) if entry is not None]
    return float(np.mean(values)) if values else None
