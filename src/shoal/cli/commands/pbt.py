"""`shoal pbt TARGET --over OPTION=RANGE`: trainings that copy the best of them and vary it. `shoal pbt RUN` goes on."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table
from tyro.conf import DisallowNone, UseAppendAction, arg

from shoal.cli import runs
from shoal.cli.building import check_world
from shoal.cli.commands.sweep import parse_values
from shoal.cli.runs import ResumeOptions, TrainOptions
from shoal.cli.start import describe_experiment, open_known_run, parse_pairs, prepare
from shoal.cli.targets import parse_target
from shoal.cli.terminal import display_path, resolve_path, say
from shoal.cli.worker_pool import PoolConnection, PoolOptions, connect_pool, pool_from_options, pool_of_run
from shoal.cluster.tasks import pbt as cluster
from shoal.core.errors import OptionError
from shoal.core.types import PyTree
from shoal.populations.pbt import run as tuner
from shoal.populations.pbt.run import PBT, PBTResult, Range
from shoal.training.run import RunFolder, default_path
from shoal.training.run_kinds import PBT as KIND
from shoal.training.run_kinds import check_new

FORM = "OPTION=START:STOP or OPTION=START:STOP:log, such as learning_rate=1e-4:1e-2:log"
SHOWN = 8
"""Members in the table; the JSON has all."""


@dataclasses.dataclass(frozen=True)
class PbtOptions(TrainOptions, PoolOptions):
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


def run(args: Sequence[str]) -> int:
    """Trains a population on a world or a preset in a new run folder, or goes on with a run."""
    prepare()
    if runs.names_run(args, KIND):
        return runs.resume(args, "shoal pbt")
    plan, options = parse_plan(args)
    runs.check_options(options, "shoal pbt")
    folder = resolve_path(options.run_dir) if options.run_dir else default_path(plan.experiment)
    check_new(folder)
    check_world(plan.experiment)
    others = connect_pool(pool_from_options(options, "shoal pbt"), options)
    view = _run_view(RunFolder(folder, plan.experiment), plan, options.devices, others)
    start = others.by(partial(cluster.pbt_on_cluster, plan, folder)) if others else partial(tuner.pbt, plan, folder)
    return runs.run_and_report(view, start, options)


def resume_run(options: ResumeOptions) -> int:
    """Continues a population from its newest checkpoint."""
    open_known_run(options.run)
    run, plan = tuner.open_pbt(resolve_path(options.run))
    others = connect_pool(pool_of_run(run.path, options), options)
    start = (
        others.by(partial(cluster.resume_pbt_on_cluster, run.path)) if others else partial(tuner.resume_pbt, run.path)
    )
    return runs.resume_and_report(_run_view(run, plan, options.devices, others), start, options)


def parse_plan(args: Sequence[str]) -> tuple[PBT, Any]:
    """The plan of a population, and the command's options."""
    experiment, options = parse_target(PbtOptions, args, "shoal pbt")
    if not options.over:
        raise OptionError(f"shoal pbt: over what? Give --over {FORM}.")
    named = parse_pairs(options.over, "--over", FORM)
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


def _run_view(run: RunFolder, plan: PBT, devices: int | None, others: PoolConnection | None) -> runs.RunView:
    def opening() -> tuple[str, str]:
        tuner.make_pbt_program(plan, devices)  # refuses what does not fit before there is a folder
        what = f"{plan.members} members tune {', '.join(plan.over)}, compared every {plan.interval} updates"
        return describe_experiment(
            plan.experiment
        ), f"{what}; run folder: {display_path(run.path)}; {others or 'compiling ...'}"

    def stored(policies: dict[str, PyTree], meta: dict[str, Any]) -> PBTResult:
        return PBTResult(policies, meta["update"], [], meta["seconds"], 0.0, **meta[KIND])

    return runs.RunView(
        run,
        opening,
        lambda out, result: _report(out, plan, result),
        lambda result: _summary(run, plan, result),
        plan.experiment.num_updates,
        trainings=plan.members,
        each="members",
        log=[f"pbt/{name}" for name, values in plan.over.items() if values.log],
        stored=stored,
    )


def _report(out: Console, plan: PBT, result: PBTResult) -> None:
    steps = result.update * plan.experiment.num_envs * plan.experiment.num_steps * plan.members
    runs.say_speed(out, steps, result)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("member", *plan.over, "return"):
        table.add_column(name, justify="right")
    for member in _rank(result)[:SHOWN]:
        score = result.scores[member]
        values = [f"{result.values[name][member]:g}" for name in plan.over]
        table.add_row(str(member), *values, "-" if score is None else f"{score:.3f}")
    out.print(table)
    if None in result.scores:
        say(out, "-: it has failed, or no episode of it has ended since the last comparison")
    if plan.members > SHOWN:
        say(out, f"... and {plan.members - SHOWN} more. The policies are those of member {result.member}.")


def _rank(result: PBTResult) -> list[int]:
    """The members, best first; those without a score come last."""
    worth = [-float("inf") if score is None else score for score in result.scores]
    return sorted(range(len(worth)), key=lambda member: -worth[member])


def _summary(run: RunFolder, plan: PBT, result: PBTResult) -> dict[str, Any]:
    each = [
        {"return": result.scores[member], "values": {name: result.values[name][member] for name in plan.over}}
        for member in range(plan.members)
    ]
    return runs.summary_of(run, result) | {
        "updates": result.update,
        "env_steps": result.update * plan.experiment.num_envs * plan.experiment.num_steps,
        "best": {"member": result.member} | each[result.member],
        "members": each,
    }
