"""`shoal train TARGET` and `shoal resume RUN`."""

import dataclasses
import importlib
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from shoal.cli.arguments import Flag, Imports, RunFolder, parse
from shoal.cli.pictures import draw, replay
from shoal.cli.progress import returns, showing, summary
from shoal.cli.start import Devices, Folder, Hints, agents_of, check_devices, opened, outline, prepare
from shoal.cli.targets import parse_target
from shoal.cli.terminal import console, count, duration, emit, say
from shoal.cli.worlds import blame, check_world, import_files
from shoal.core.errors import require_positive
from shoal.core.types import PyTree
from shoal.execution import checkpoint
from shoal.execution import train as trainer
from shoal.execution.evolve import is_evolution
from shoal.execution.experiment import Experiment, cast
from shoal.execution.fused import mesh_of
from shoal.execution.logging import read_metrics
from shoal.execution.pbt import is_pbt
from shoal.execution.psro_run import is_population
from shoal.execution.run import Run, check_new, default_path, load_policies
from shoal.execution.train import Listener, Result

INTERRUPTED = 130
"""Exit code of a run that was stopped and can be resumed."""


@dataclasses.dataclass(frozen=True)
class TrainOptions:
    """Options of `shoal train` itself."""

    run_dir: Folder = None  # new folder for the run; by default one below runs/
    devices: Devices = None  # use only the first N devices (on a CPU, cores)
    checkpoint_minutes: float = 1.0  # time between two checkpoints
    imports: Imports = ()  # a Python file that registers worlds or presets
    json: Flag = False  # one JSON object on stdout, everything else on stderr


@dataclasses.dataclass(frozen=True)
class ResumeOptions:
    """Go on with a run that was stopped, to the same bits as if it had not been."""

    run: RunFolder  # folder of the run
    devices: Devices = None  # use only the first N devices (on a CPU, cores)
    checkpoint_minutes: float = 1.0  # time between two checkpoints
    imports: Imports = ()  # a Python file that registers worlds or presets
    json: Flag = False  # one JSON object on stdout, everything else on stderr


def train(args: Sequence[str]) -> int:
    """Trains a world or a preset in a new run folder."""
    prepare()
    experiment, options = parse_target(TrainOptions, args, "shoal train")
    check_devices(options.devices)
    require_positive("shoal train", checkpoint_minutes=options.checkpoint_minutes)
    folder = Path(options.run_dir) if options.run_dir else default_path(experiment)
    check_new(folder)
    check_world(experiment)

    def start(listener: Listener) -> Result:
        return trainer.train(
            experiment,
            folder,
            devices=options.devices,
            listener=listener,
            checkpoint_seconds=60 * options.checkpoint_minutes,
        )

    return _run(Run(folder, experiment), start, options, options.devices)


def resume(args: Sequence[str]) -> int:
    """Continues a run from its newest checkpoint."""
    prepare()
    options = parse(ResumeOptions, args, "shoal resume")
    check_devices(options.devices)
    require_positive("shoal resume", checkpoint_minutes=options.checkpoint_minutes)
    import_files(options.imports)
    if is_evolution(Path(options.run)):
        return importlib.import_module("shoal.cli.evolve").go_on(args)  # it imports this module
    if is_pbt(Path(options.run)):
        return importlib.import_module("shoal.cli.pbt").go_on(args)
    if is_population(Path(options.run)):
        return importlib.import_module("shoal.cli.psro").go_on(args)
    run = opened(options.run)
    check_world(run.experiment)
    newest = checkpoint.latest(run.checkpoints)
    if newest and checkpoint.read_meta(newest)["update"] >= run.experiment.num_updates:
        return _finished(run, options)
    devices = options.devices
    if devices is None and newest:  # as many as before, if they are there
        before = checkpoint.read_meta(newest)["devices"]
        devices = before if before <= len(jax.local_devices()) else None

    def start(listener: Listener) -> Result:
        return trainer.resume(
            run.path, devices=devices, listener=listener, checkpoint_seconds=60 * options.checkpoint_minutes
        )

    return _run(run, start, options, devices, fresh=False)


def _finished(run: Run, options: ResumeOptions) -> int:
    """There is nothing left to do but to say so, and to draw what a kill at the very end may have left undrawn."""
    out, experiment = console(options.json), run.experiment
    _, policies, meta = load_policies(run.path)
    say(out, f"{run.path} is finished already: all of its {experiment.num_updates} updates are made.", style="bold")
    files = [part for file in options.imports for part in ("--import", file)]
    weights = [part for name in experiment.learners for part in ("--weights", f"{name}={run.path}")]
    total = ["--total-env-steps", str(experiment.total_env_steps)]
    say(out, "To train further, start a new run with its options and from its weights:")
    say(out, f"  {shlex.join(['shoal', 'train', str(run.path), *files, *weights, *total])}")
    pictures = {name: str(run.path / file) for name, file in (("curves", "curves.png"), ("replay", "replay.html"))}
    if not all(Path(file).exists() for file in pictures.values()):
        pictures = _pictures(out, run, policies, meta["update"])
    if options.json:
        result = Result(policies, meta["update"], [], meta["seconds"], 0.0)
        emit(_summary(run, result, _last_line(run)) | pictures)
    return 0


def _run(run: Run, start: Callable[[Listener], Result], options: Any, devices: int | None, fresh: bool = True) -> int:
    out, experiment = console(options.json), run.experiment
    used = mesh_of(experiment, devices).size
    say(out, outline(experiment), style="bold")
    say(out, f"run folder: {run.path}; compiling for {used} device{'s' * (used > 1)} ...")
    hints = Hints(run.path, options.imports)
    try:
        with showing(out, experiment.env, experiment.num_seeds, agents_of(experiment), fresh) as listener:
            result = start(listener)
    except KeyboardInterrupt:  # while compiling, or twice: what was saved last is what there is
        if (run.path / "config.json").exists():
            say(out, f"stopped. Go on with: {hints('resume')}", style="bold yellow")
        raise
    last = _last_line(run)
    _report(out, experiment, result, last)
    if result.interrupted:
        say(out, f"stopped and saved. Go on with: {hints('resume')}", style="bold yellow")
        pictures: dict[str, str | None] = {}
    else:
        policies = result.policies
        if experiment.num_seeds > 1:
            policies = jax.tree.map(lambda leaf: leaf[0], policies)
        pictures = _pictures(out, run, policies, result.update)
        say(out, f"next: {hints('watch', ' --open')}")
        say(out, f"      {hints('eval')}")
    if options.json:
        emit(_summary(run, result, last) | pictures)
    return INTERRUPTED if result.interrupted else 0


def _last_line(run: Run) -> dict[str, Any] | None:
    """The newest metrics of the whole run, also of what was done before it was resumed."""
    lines = read_metrics(run.metrics)
    return lines[-1] if lines else None


def _report(out: Console, experiment: Experiment, result: Result, last: dict[str, Any] | None) -> None:
    steps = result.update * experiment.num_envs * experiment.num_steps * experiment.num_seeds
    rate = f", {count(steps / result.seconds)} env steps/s" if result.seconds > 0 else ""
    say(
        out, f"{count(steps)} env steps in {duration(result.seconds)}{rate}; compiled in {result.compile_seconds:.1f} s"
    )
    figures = [f"{name} {text}" for name, text in summary(last).items()]
    if figures:
        say(out, "last: " + " | ".join(figures))


def _pictures(out: Console, run: Run, policies: dict[str, PyTree], update: int) -> dict[str, str | None]:
    """Writes `curves.png` and `replay.html` into the run folder, as far as it can be done, and says so."""
    curves, why = draw(run)
    say(out, f"curves: {curves}" if curves else f"no curves.png: {why}")
    with blame(run.experiment.env, "scene"):
        page, why = replay(run.path / "replay.html", cast(run.experiment), policies, update=update)
    say(out, f"replay: {page}" if page else f"no replay.html: {why}")
    return {"curves": curves and str(curves), "replay": page and str(page)}


def _summary(run: Run, result: Result, last: dict[str, Any] | None) -> dict[str, Any]:
    experiment = run.experiment
    return {
        "run_dir": str(run.path),
        "interrupted": result.interrupted,
        "updates": result.update,
        "env_steps": result.update * experiment.num_envs * experiment.num_steps,
        "seconds": result.seconds,
        "compile_s": result.compile_seconds,
        "training_return": {name.removeprefix("return "): value for name, value in returns(last).items()},
    }
