"""`shoal pbt TARGET --over OPTION=RANGE`: trainings that copy the best of them and vary it. `shoal pbt RUN` goes on."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table
from tyro.conf import DisallowNone, UseAppendAction, arg

from shoal.cli.arguments import Flag, Imports, RunFolder, parse
from shoal.cli.pictures import replay
from shoal.cli.progress import returns, showing
from shoal.cli.start import Devices, Folder, Hints, agents_of, check_devices, opened, outline, pairs, prepare
from shoal.cli.sweep import parse_values
from shoal.cli.targets import parse_target
from shoal.cli.terminal import console, count, duration, emit, say
from shoal.cli.train import INTERRUPTED
from shoal.cli.worlds import blame, check_world, import_files
from shoal.core.errors import OptionError, RunError, require_positive
from shoal.execution import checkpoint
from shoal.execution.experiment import cast
from shoal.execution.logging import read_metrics
from shoal.execution.pbt import ENTRY, PBT, PBTResult, Range, build, is_pbt, open_pbt, pbt, resume
from shoal.execution.pbt_program import SOURCE
from shoal.execution.run import Run, check_new, default_path, load_policies
from shoal.execution.train import Listener
from shoal.viz import MissingMatplotlibError, draw_curves

FORM = "OPTION=START:STOP or OPTION=START:STOP:log, such as learning_rate=1e-4:1e-2:log"
SHOWN = 8
"""Members in the table; the JSON has all."""


@dataclasses.dataclass(frozen=True)
class PbtOptions:
    """Options of `shoal pbt` itself."""

    over: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="OPTION=RANGE")] = ()
    """a float of the algorithm and its range: START:STOP, or START:STOP:log"""
    members: int = 32  # trainings side by side
    interval: int = 20  # updates between two comparisons
    fraction: float = 0.2  # of the members: so many of the worst become copies of so many of the best
    factor: float = 1.2  # by which a copy's values differ; in a linear range, 1 + the share of the range
    resample: float = 0.25  # how often a value is drawn anew instead
    measure: Annotated[DisallowNone[str | None], arg(metavar="NAME")] = None
    """what is compared: return or return/GROUP; by default that of the groups whose learners are tuned"""
    run_dir: Folder = None  # new folder for the run; by default one below runs/
    devices: Devices = None  # use only the first N devices (on a CPU, cores)
    checkpoint_minutes: float = 1.0  # time between two checkpoints
    imports: Imports = ()  # a Python file that registers worlds or presets
    json: Flag = False  # one JSON object on stdout, everything else on stderr


@dataclasses.dataclass(frozen=True)
class GoOnOptions:
    """Go on with a population that was stopped, to the same bits as if it had not been."""

    run: RunFolder  # folder of the run
    devices: Devices = None  # use only the first N devices (on a CPU, cores)
    checkpoint_minutes: float = 1.0  # time between two checkpoints
    imports: Imports = ()  # a Python file that registers worlds or presets
    json: Flag = False  # one JSON object on stdout, everything else on stderr


def run(args: Sequence[str]) -> int:
    """Trains a population on a world or a preset in a new run folder, or goes on with a run."""
    prepare()
    if any(not argument.startswith("-") and is_pbt(Path(argument)) for argument in args):
        return go_on(args)
    plan, options = parse_plan(args)
    check_devices(options.devices)
    require_positive("shoal pbt", checkpoint_minutes=options.checkpoint_minutes)
    folder = Path(options.run_dir) if options.run_dir else default_path(plan.experiment)
    check_new(folder)
    check_world(plan.experiment)
    build(plan, options.devices)  # refuses what does not fit before there is a folder

    def start(listener: Listener) -> PBTResult:
        seconds = 60 * options.checkpoint_minutes
        return pbt(plan, folder, devices=options.devices, listener=listener, checkpoint_seconds=seconds)

    return _run(Run(folder, plan.experiment), plan, start, options, fresh=True)


def go_on(args: Sequence[str]) -> int:
    """Continues a population from its newest checkpoint."""
    options = parse(GoOnOptions, args, "shoal pbt")
    check_devices(options.devices)
    require_positive("shoal pbt", checkpoint_minutes=options.checkpoint_minutes)
    import_files(options.imports)
    opened(options.run)
    run, plan = open_pbt(Path(options.run))
    newest = checkpoint.latest(run.checkpoints)
    if newest and checkpoint.read_meta(newest)["update"] >= plan.experiment.num_updates:
        return _finished(run, plan, options)

    def start(listener: Listener) -> PBTResult:
        seconds = 60 * options.checkpoint_minutes
        return resume(run.path, devices=options.devices, listener=listener, checkpoint_seconds=seconds)

    return _run(run, plan, start, options, fresh=False)


def parse_plan(args: Sequence[str]) -> tuple[PBT, Any]:
    """The plan of a population, and the command's options."""
    experiment, options = parse_target(PbtOptions, args, "shoal pbt")
    if not options.over:
        raise OptionError(f"shoal pbt: over what? Give --over {FORM}.")
    named = pairs(options.over, "--over", FORM)
    if len(named) < len(options.over):
        raise OptionError(f"shoal pbt: give each option's range once, in one --over; got {' '.join(options.over)}")
    over = {name: _range(name, text) for name, text in named.items()}
    fields = {field.name for field in dataclasses.fields(PBT)} - {"experiment", "over"}
    return PBT(experiment, over, **{name: getattr(options, name) for name in fields}), options


def _range(name: str, text: str) -> Range:
    values = parse_values(name, text)
    if not isinstance(values, Range):
        raise OptionError(f"--over {name}={text}: members move within a range. It must be {FORM}.")
    return values


def _finished(run: Run, plan: PBT, options: GoOnOptions) -> int:
    out = console(options.json)
    _, policies, meta = load_policies(run.path)
    say(out, f"{run.path} is finished already: all of its {meta['update']} updates are made.", style="bold")
    result = PBTResult(policies, meta["update"], [], meta["seconds"], 0.0, **meta[ENTRY])
    pictures = {name: str(run.path / file) for name, file in (("curves", "curves.png"), ("replay", "replay.html"))}
    if not all(Path(file).exists() for file in pictures.values()):  # a kill at the very end
        pictures = _pictures(out, run, result)
    if options.json:
        emit(_summary(run, plan, result) | pictures)
    return 0


def _run(run: Run, plan: PBT, start: Callable[[Listener], PBTResult], options: Any, fresh: bool) -> int:
    out, experiment = console(options.json), plan.experiment
    say(out, outline(experiment), style="bold")
    what = f"{plan.members} members tune {', '.join(plan.over)}, compared every {plan.interval} updates"
    say(out, f"{what}; run folder: {run.path}; compiling ...")
    hints = Hints(run.path, options.imports)
    try:
        with showing(out, experiment.env, plan.members, agents_of(experiment), fresh) as listener:
            result = start(listener)
    except KeyboardInterrupt:  # while compiling, or twice: what was saved last is what there is
        if (run.path / "config.json").exists():
            say(out, f"stopped. Go on with: {hints('pbt')}", style="bold yellow")
        raise
    _report(out, plan, result)
    pictures: dict[str, str | None] = {}
    if result.interrupted:
        say(out, f"stopped and saved. Go on with: {hints('pbt')}", style="bold yellow")
    else:
        pictures = _pictures(out, run, result)
        say(out, f"next: {hints('watch', ' --open')}")
        say(out, f"      {hints('eval')}")
    if options.json:
        emit(_summary(run, plan, result) | pictures)
    return INTERRUPTED if result.interrupted else 0


def _report(out: Console, plan: PBT, result: PBTResult) -> None:
    steps = result.update * plan.experiment.num_envs * plan.experiment.num_steps * plan.members
    rate = f", {count(steps / result.seconds)} env steps/s" if result.seconds > 0 else ""
    took = f"{duration(result.seconds)}{rate}; compiled in {result.compile_seconds:.1f} s"
    say(out, f"{count(steps)} env steps in {took}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("member", *plan.over, "return"):
        table.add_column(name, justify="right")
    for member in _ranked(result)[:SHOWN]:
        score = result.scores[member]
        values = [f"{result.values[name][member]:g}" for name in plan.over]
        table.add_row(str(member), *values, "-" if score is None else f"{score:.3f}")
    out.print(table)
    if plan.members > SHOWN:
        say(out, f"... and {plan.members - SHOWN} more. The policies are those of member {result.member}.")


def _ranked(result: PBTResult) -> list[int]:
    """The members, best first; those without a score come last."""
    worth = [-float("inf") if score is None else score for score in result.scores]
    return sorted(range(len(worth)), key=lambda member: -worth[member])


def _pictures(out: Console, run: Run, result: PBTResult) -> dict[str, str | None]:
    """Writes `curves.png` and `replay.html` into the run folder, as far as it can be done, and says so."""
    curves = run.path / "curves.png"
    rows = [{name: value for name, value in line.items() if name != SOURCE} for line in read_metrics(run.metrics)]
    drawn, why = None, ""
    try:
        draw_curves(curves, rows, title=run.experiment.env)
        drawn = str(curves)
    except (MissingMatplotlibError, RunError, OptionError) as error:  # a picture less is no failure
        why = str(error)
    say(out, f"curves: {drawn}" if drawn else f"no curves.png: {why}")
    with blame(run.experiment.env, "scene"):
        page, why = replay(run.path / "replay.html", cast(run.experiment), result.policies, update=result.update)
    say(out, f"replay: {page}" if page else f"no replay.html: {why}")
    return {"curves": drawn, "replay": page and str(page)}


def _summary(run: Run, plan: PBT, result: PBTResult) -> dict[str, Any]:
    lines = read_metrics(run.metrics)
    each = [
        {"return": result.scores[member], "values": {name: result.values[name][member] for name in plan.over}}
        for member in range(plan.members)
    ]
    return {
        "run_dir": str(run.path),
        "interrupted": result.interrupted,
        "updates": result.update,
        "env_steps": result.update * plan.experiment.num_envs * plan.experiment.num_steps,
        "seconds": result.seconds,
        "compile_s": result.compile_seconds,
        "training_return": {
            name.removeprefix("return "): value for name, value in returns(lines[-1] if lines else None).items()
        },
        "best": {"member": result.member} | each[result.member],
        "members": each,
    }
