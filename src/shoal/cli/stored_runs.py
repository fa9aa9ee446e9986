"""Runs that are there already: opened by commands that look at one, and gone on with, as `shoal resume` does."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from shoal.api.targets import import_files, open_known, open_to_resume
from shoal.cli import run_results
from shoal.cli.arguments import parse
from shoal.cli.run_options import ResumeOptions, StoredRunOptions
from shoal.cli.runs import (
    PolicyRunView,
    check_options,
    follow_and_report,
    following,
    place_of,
    run_and_report,
    stepping_options,
)
from shoal.cli.terminal import console, display_path, emit, fetch_or_resolve_run, resolve_path, say
from shoal.core.errors import OptionError, require
from shoal.training import checkpoint
from shoal.training.devices import prepare_jax
from shoal.training.loop import TrainingResult
from shoal.training.mirror import mirroring
from shoal.training.run import RunFolder, load_policies
from shoal.training.run_kinds import EVOLUTION, KINDS, TRAINING, is_slim

Stored = TypeVar("Stored", bound=StoredRunOptions)


def parse_stored(kind: type[Stored], args: Sequence[str], prog: str) -> Stored:
    """The options of a command that looks at a run, with what it needs imported."""
    prepare_jax()
    options = parse(kind, args, prog)
    import_files(options.imports)
    return options


def open_stored(run: str, prog: str, seed_index: int = 0) -> RunFolder:
    """The run in a folder; its world must be known. seed_index: which of several seeds is asked for."""
    found = open_known(fetch_or_resolve_run(run))
    last = found.experiment.num_seeds - 1
    require(0 <= seed_index <= last, prog, "seed_index", seed_index, f"between 0 and {last}")
    return found


def results_path(run: RunFolder, name: str) -> Path:
    """Where a command writes what it makes of a run, unless told: the run's folder, or the current one if it is slim.

    Slim runs are handed out as they are: nothing is written there.
    """
    return resolve_path(f"{run.path.name}-{name}") if is_slim(run.path) else run.path / name


def resume(args: Sequence[str], prog: str = "shoal resume") -> int:
    """Continues a run of any kind from its newest checkpoint."""
    prepare_jax()
    options = parse(ResumeOptions, args, prog)
    check_options(options, prog)
    import_files(options.imports)
    run = open_to_resume(fetch_or_resolve_run(options.run), options.total_env_steps, options.iterations)
    kind = KINDS[run.config.kind]
    if run.config.kind != TRAINING and stepping_options(options):
        raise OptionError(f"{options.run} is {kind.what}: leave out --env-workers and --env-timeout")
    if run.config.kind == EVOLUTION and options.checkpoint_every is not None:
        raise OptionError(f"{options.run} is {kind.what}, of unequal generations: leave out --checkpoint-every")
    return importlib.import_module(f"shoal.cli.commands.{kind.command}").resume_run(run, options)


def resume_and_report(kind: type[PolicyRunView[Any]], run: RunFolder, options: ResumeOptions) -> int:
    """Carries on a run; of a finished one it says so, and draws what a kill at the very end may have left undrawn."""
    view = kind(run, place_of(run.config, options, "", run.path), options, fresh=False)
    view.total_env_steps = options.total_env_steps
    newest = checkpoint.latest(run.checkpoints)
    if not newest or not run.config.is_finished(run.config.read_meta(newest)):
        if hosts := following(view.on):
            return follow_and_report(run, view.on, hosts, options, resumed=True)
        view.on = view.on.prepare(run.config, run.path)
        return run_and_report(view)
    out = console(view.options.json)
    _, policies, meta = load_policies(run.path, None)
    updates = run.experiment.num_updates
    say(out, f"{display_path(run.path)} is finished already: all of its {updates} {view.done}.", style="bold")
    for line in view.further:
        say(out, line)
    files = {"curves": run.path / "curves.png", "replay": run.path / "replay.html"}
    pictures: dict[str, str | None] = {name: str(file) for name, file in files.items()}
    if not all(file.exists() for file in files.values()):
        pictures = run_results.report_pictures(out, run, policies, meta["update"])
    with mirroring(run.path, options.mirror, resumed=True):
        pass
    if view.options.json:
        standing = meta.get(run.config.kind, {})
        result = TrainingResult(policies, meta["update"], [], meta["seconds"], 0.0, standing=standing)
        emit(view.summary(result) | pictures)
    return 0
