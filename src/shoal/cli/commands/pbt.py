"""`shoal pbt TARGET --over OPTION=RANGE`: trainings that copy the best and vary it. `shoal pbt RUN` resumes one."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from rich.console import Console
from rich.table import Table
from tyro.conf import UseAppendAction, arg

from shoal.api.changes import take
from shoal.cli import run_results, runs, stored_runs
from shoal.cli.arguments import options_from
from shoal.cli.commands.sweep import parse_over, parse_values
from shoal.cli.run_options import PoolOptions, ResumeOptions, SceneOptions, SteppedRunOptions
from shoal.cli.runs import PolicyRunView, describe_experiment
from shoal.cli.targets import parse_target
from shoal.cli.terminal import display_path, say
from shoal.core.errors import OptionError
from shoal.populations.pbt.plan import PBT, Range
from shoal.training.devices import prepare_jax
from shoal.training.loop import TrainingResult
from shoal.training.run import RunFolder
from shoal.training.run_kinds import PBT as KIND

FORM = "OPTION=START:STOP or OPTION=START:STOP:log, such as learning_rate=1e-4:1e-2:log"
SHOWN = 8
"""Members in the table; the JSON has all."""


@dataclasses.dataclass(frozen=True)
@options_from(PBT, leave=("experiment", "over"))
class PbtOptions(SteppedRunOptions, SceneOptions, PoolOptions):
    """Options of `shoal pbt` itself."""

    unused: ClassVar[Mapping[str, str]] = {"num_seeds": "each member has its own seed"}

    over: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="OPTION=RANGE")] = ()
    """a float of the algorithm and its range: START:STOP, or START:STOP:log"""


def run(args: Sequence[str]) -> int:
    """Trains a population on a world or a preset in a new run folder, or resumes a run."""
    prepare_jax()
    if runs.names_run(args, KIND):
        return stored_runs.resume(args, "shoal pbt")
    plan, options = parse_plan(args)
    return runs.start_and_report(PBTView, plan, options, "shoal pbt")


def resume_run(run: RunFolder, options: ResumeOptions) -> int:
    """Continues a population from its newest checkpoint."""
    return stored_runs.resume_and_report(PBTView, run, options)


def parse_plan(args: Sequence[str]) -> tuple[PBT, Any]:
    """The plan of a population, and the command's options."""
    experiment, options, _ = parse_target(PbtOptions, args, "shoal pbt")
    over = {name: _range(name, text) for name, text in parse_over(options.over, "shoal pbt", FORM).items()}
    return PBT(experiment, over, **take(PBT, dict(vars(options)))), options


def _range(name: str, text: str) -> Range:
    values = parse_values(name, text)
    if not isinstance(values, Range):
        raise OptionError(f"--over {name}={text}: members move within a range. It must be {FORM}.")
    return values


class PBTView(PolicyRunView[PBT]):
    """How a population that is tuned is reported."""

    def opening(self) -> tuple[str, str]:
        plan = self.plan
        what = f"{plan.members} members tune {', '.join(plan.over)}, compared every {plan.interval} updates"
        return describe_experiment(plan.experiment), f"{what}; run folder: {display_path(self.run.path)}; {self.next}"

    def report(self, out: Console, result: TrainingResult) -> None:
        plan, found = self.plan, result.standing
        steps = result.update * plan.experiment.num_envs * plan.experiment.num_steps
        run_results.say_speed(out, steps, result, plan.members)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("member", *plan.over, "return"):
            table.add_column(name, justify="right")
        for member in _rank(found["scores"])[:SHOWN]:
            score = found["scores"][member]
            values = [f"{found['values'][name][member]:g}" for name in plan.over]
            table.add_row(str(member), *values, "-" if score is None else f"{score:.3f}")
        out.print(table)
        if None in found["scores"]:
            say(out, "-: it has failed, or no episode of it has ended since the last comparison")
        if plan.members > SHOWN:
            say(out, f"... and {plan.members - SHOWN} more. The policies are those of member {found['member']}.")

    def summary(self, result: TrainingResult) -> dict[str, Any]:
        plan, found = self.plan, result.standing
        each = [
            {"return": found["scores"][member], "values": {name: found["values"][name][member] for name in plan.over}}
            for member in range(plan.members)
        ]
        return run_results.summary_of(self.run, result) | {
            "updates": result.update,
            "env_steps": result.update * plan.experiment.num_envs * plan.experiment.num_steps,
            "best": {"member": found["member"]} | each[found["member"]],
            "members": each,
        }


def _rank(scores: Sequence[float | None]) -> list[int]:
    """The members, best first; those without a score come last."""
    worth = [-math.inf if score is None else score for score in scores]
    return sorted(range(len(worth)), key=lambda member: -worth[member])
