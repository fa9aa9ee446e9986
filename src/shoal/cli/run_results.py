"""What is told of a run that has ended: its speed, its returns, its best checkpoint, its pictures."""

from typing import Any

from rich.console import Console

from shoal.api.pictures import keep_pictures
from shoal.api.progress import returns, summary
from shoal.cli.terminal import display_path, format_count, format_duration, pluralise, say
from shoal.core.types import PyTree
from shoal.training import checkpoint
from shoal.training.loop import TrainingResult
from shoal.training.metrics import read_metrics
from shoal.training.run import RunFolder


def report_pictures(out: Console, run: RunFolder, policies: dict[str, PyTree], update: int) -> dict[str, str | None]:
    """Writes `curves.png` and `replay.html` into the run folder, as far as it can be done, and says so."""
    found = keep_pictures(run, policies, update)
    for (name, (path, why)), file in zip(found.items(), ("curves.png", "replay.html"), strict=True):
        say(out, f"{name}: {display_path(path)}" if path else f"no {file}: {why}")
    return {name: path and str(path) for name, (path, _) in found.items()}


def best_checkpoint(run: RunFolder) -> dict[str, Any] | None:
    """The update and the return of the checkpoint that did best in evaluation, if there is one."""
    path = checkpoint.latest(run.best)
    meta = run.config.read_meta(path) if path else None
    return {"update": meta["update"], "return": meta["best"]} if meta else None


def last_line(run: RunFolder) -> dict[str, Any]:
    """The newest metrics of the whole run, also of what was done before it was resumed."""
    lines = read_metrics(run.metrics)
    return lines[-1] if lines else {}


def ended_line(run: RunFolder) -> dict[str, Any]:
    """The newest metrics in which an episode ended, wherever between episodes the run has; empty if none has."""
    return next((line for line in reversed(read_metrics(run.metrics)) if returns(line)), {})


def say_returns(out: Console, run: RunFolder, result: TrainingResult) -> None:
    """One line: the newest returns that there are, or why there are none."""
    line = ended_line(run)
    if not line:
        played = pluralise(result.update * run.experiment.num_steps, "step")
        say(out, f"no return yet: each copy has played {played}, and no episode has ended. Raise --total-env-steps.")
        return
    figures = " | ".join(f"{name} {text}" for name, text in summary(line).items())
    since = "" if line["update"] == result.update else f" (until update {line['update']}: no episode has ended since)"
    say(out, f"last: {figures}{since}")


def say_speed(out: Console, steps: int, result: TrainingResult, trainings: int = 1) -> None:
    """One line: how much in how long. steps: of each of so many trainings."""
    each, together = (f" in each of {trainings} trainings", " in all") if trainings > 1 else ("", "")
    rate = f", {format_count(steps * trainings / result.seconds)} env steps/s{together}" if result.seconds > 0 else ""
    took = format_duration(result.seconds)
    compiled = f"; compiled in {result.compile_seconds:.1f} s" if result.compile_seconds else ""  # or others did
    say(out, f"{format_count(steps)} env steps{each} in {took}{rate}{compiled}")


def summary_of(run: RunFolder, result: TrainingResult) -> dict[str, Any]:
    """The part of a summary that all kinds of runs have."""
    line = ended_line(run)
    return {
        "run_dir": str(run.path),
        "interrupted": result.interrupted,
        "seconds": result.seconds,
        "compile_s": result.compile_seconds,
        "training_return": {name.removeprefix("return "): mean for name, mean in returns(line).items()},
        "training_return_update": line.get("update"),
        "best_checkpoint": best_checkpoint(run),
    }
