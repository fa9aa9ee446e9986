"""`shoal train TARGET`, and how a run of it goes on."""

import dataclasses
import shlex
from collections.abc import Sequence
from functools import partial
from typing import Any

from rich.console import Console

from shoal.api.worlds import check_world
from shoal.cli import runs
from shoal.cli.arguments import scan
from shoal.cli.commands.cluster import ClusterOptions, described, plan_from
from shoal.cli.runs import ResumeOptions, TrainOptions
from shoal.cli.site import Site
from shoal.cli.start import imports_of, opened, outline, prepare, stepping_of
from shoal.cli.targets import parse_target
from shoal.cli.terminal import counted, placed, say, shown
from shoal.cluster import training as cluster
from shoal.cluster.advice import read_status
from shoal.cluster.plan import Plan
from shoal.cluster.training import plan_of
from shoal.core.errors import OptionError, shell_command
from shoal.training import loop as trainer
from shoal.training.fused import mesh_of
from shoal.training.loop import Listener, Result
from shoal.training.run import Run, default_path, devices_of, extend
from shoal.training.run_kinds import TRAINING, check_new

FURTHER = {"--total-env-steps", "--import", "--json", "--devices", "--checkpoint-minutes"}
"""Options of `shoal train RUN` that leave a run as it is, but for how long it is."""


def train(args: Sequence[str]) -> int:
    """Trains a world or a preset in a new run folder; `train RUN --total-env-steps MORE` trains a run further."""
    prepare()
    if _trains_further(args):
        return runs.resume(args, "shoal train")
    experiment, options = parse_target(ClusterOptions, args, "shoal train")
    runs.check_options(options, "shoal train")
    plan = plan_from(options, experiment)
    folder = placed(options.run_dir) if options.run_dir else default_path(experiment)
    check_new(folder)
    check_world(experiment)
    if plan is not None:
        return _on_cluster(Run(folder, experiment), plan, options)
    start = partial(trainer.train, experiment, folder, **stepping_of(options.env_workers, options.env_timeout))
    return runs.carry_out(_account(Run(folder, experiment), options), start, options)


def _trains_further(args: Sequence[str]) -> bool:
    """Whether a run is to go on in its own folder: all that is said of it is a total of env steps."""
    asked = bool(scan(args, "--total-env-steps"))
    others = {word.partition("=")[0] for word in args if word.startswith("--")} - FURTHER
    return asked and not others and runs.names_run(args, TRAINING)


def go_on(options: ResumeOptions) -> int:
    """Continues a run from its newest checkpoint."""
    run = opened(options.run)
    check_world(run.experiment)
    plan = plan_of(run.path)
    if options.total_env_steps is not None:
        if plan is not None:
            raise OptionError(f"{run.path} was begun on a cluster, where runs are not trained further yet")
        run = extend(run, options.total_env_steps)
    if plan is not None:
        return _on_cluster(run, plan, options, fresh=False)
    if options.cluster is not None:
        raise OptionError(f"{run.path} was not begun on a cluster: leave out --cluster")
    start = partial(trainer.resume, run.path, **stepping_of(options.env_workers, options.env_timeout))
    return runs.go_on(_account(run, options), start, options)


def _on_cluster(run: Run, plan: Plan, options: ClusterOptions | ResumeOptions, fresh: bool = True) -> int:
    """Trains on a Ray cluster, from the start or from what is committed."""
    if stepping_of(options.env_workers, options.env_timeout):
        raise OptionError("on a cluster actors step environments: leave out --env-workers and --env-timeout")
    cluster.check(run.experiment, plan)
    plain = _account(run, options)

    def report(out: Console, result: Result) -> None:
        plain.report(out, result)
        _warn(out, run)

    site = Site(options.cluster or "auto", cluster.needs(plan), tuple(options.imports))
    account = dataclasses.replace(plain, opening=lambda: _opening(run, plan, site), report=report)

    def start(devices: int | None, listener: Listener | None, checkpoint_seconds: float) -> Result:
        del devices, checkpoint_seconds  # learners have devices of their own, and commit all the time
        if fresh:
            return cluster.train(run.experiment, run.path, plan, site.launcher, listener)
        return cluster.resume(run, site.launcher, listener)

    return (
        runs.go_on(account, start, options)
        if isinstance(options, ResumeOptions)
        else runs.carry_out(account, start, options)
    )


def _warn(out: Console, run: Run) -> None:
    """Tells of workers that had to be begun anew: a world that fails now and then is to be known."""
    status = read_status(run.path)
    events = [event for event in status["events"] if event["what"] not in ("added", "removed")]
    times = sum(status["restarts"].values())
    if times and events:
        last = f"{events[-1]['worker']}: {events[-1]['what']}"
        more = f"`{shell_command('cluster', 'status', shown(run.path))}` shows more"
        say(out, f"workers were begun anew {counted(times, 'time')}, last {last}; {more}", style="yellow")


def _opening(run: Run, plan: Plan, site: Site) -> tuple[str, str]:
    where = shown(run.path)
    see = shell_command("cluster", "status", where)
    return outline(run.experiment), f"run folder: {where}; {site}, {described(plan)}; `{see}` shows how it goes"


def _account(run: Run, options: TrainOptions | ResumeOptions) -> runs.Account:
    experiment = run.experiment
    each = experiment.num_envs * experiment.num_steps

    def opening() -> tuple[str, str]:
        used = mesh_of(experiment, devices_of(run, options.devices)).size
        return outline(experiment), f"run folder: {shown(run.path)}; compiling for {used} device{'s' * (used > 1)} ..."

    def report(out: Console, result: Result) -> None:
        runs.say_speed(out, result.update * each * experiment.num_seeds, result)
        runs.say_returns(out, run, result)

    def told(result: Result) -> dict[str, Any]:
        return runs.summary_of(run, result) | {"updates": result.update, "env_steps": result.update * each}

    further = _further(run, imports_of(experiment, options.imports))
    trainings = experiment.num_seeds
    return runs.Account(run, opening, report, told, experiment.num_updates, further=further, trainings=trainings)


def _further(run: Run, imports: Sequence[str]) -> tuple[str, str]:
    """How to train a finished run further."""
    files = [part for file in imports for part in ("--import", file)]
    total = ["--total-env-steps", str(2 * run.experiment.total_env_steps)]
    command = shlex.join(["shoal", "train", shown(run.path), *files, *total])
    return "To train it further, give it a larger total:", f"  {command}"
