"""`shoal train TARGET`, and how a run of it goes on."""

import dataclasses
import shlex
from collections.abc import Sequence
from functools import partial
from typing import Any

from rich.console import Console

from shoal.cli import runs
from shoal.cli.arguments import scan
from shoal.cli.building import check_world
from shoal.cli.commands.cluster import ClusterOptions, describe_plan, plan_from
from shoal.cli.connection import ClusterConnection
from shoal.cli.runs import ResumeOptions, TrainOptions
from shoal.cli.start import describe_experiment, imports_of, open_known_run, prepare, stepping_options
from shoal.cli.targets import parse_target
from shoal.cli.terminal import display_path, pluralise, resolve_path, say
from shoal.cluster import training as cluster
from shoal.cluster.advice import read_status
from shoal.cluster.plan import ClusterPlan
from shoal.cluster.training import plan_of
from shoal.core.errors import OptionError, shell_command
from shoal.training import loop as trainer
from shoal.training.fused import mesh_of
from shoal.training.loop import Listener, TrainingResult
from shoal.training.run import RunFolder, default_path, devices_of, extend
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
    folder = resolve_path(options.run_dir) if options.run_dir else default_path(experiment)
    check_new(folder)
    check_world(experiment)
    if plan is not None:
        return _on_cluster(RunFolder(folder, experiment), plan, options)
    start = partial(trainer.train, experiment, folder, **stepping_options(options.env_workers, options.env_timeout))
    return runs.run_and_report(_run_view(RunFolder(folder, experiment), options), start, options)


def _trains_further(args: Sequence[str]) -> bool:
    """Whether a run is to go on in its own folder: all that is said of it is a total of env steps."""
    asked = bool(scan(args, "--total-env-steps"))
    others = {word.partition("=")[0] for word in args if word.startswith("--")} - FURTHER
    return asked and not others and runs.names_run(args, TRAINING)


def resume_run(options: ResumeOptions) -> int:
    """Continues a run from its newest checkpoint."""
    run = open_known_run(options.run)
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
    start = partial(trainer.resume, run.path, **stepping_options(options.env_workers, options.env_timeout))
    return runs.resume_and_report(_run_view(run, options), start, options)


def _on_cluster(run: RunFolder, plan: ClusterPlan, options: ClusterOptions | ResumeOptions, fresh: bool = True) -> int:
    """Trains on a Ray cluster, from the start or from what is committed."""
    if stepping_options(options.env_workers, options.env_timeout):
        raise OptionError("on a cluster actors step environments: leave out --env-workers and --env-timeout")
    cluster.check(run.experiment, plan)
    plain = _run_view(run, options)

    def report(out: Console, result: TrainingResult) -> None:
        plain.report(out, result)
        _warn(out, run)

    connection = ClusterConnection(options.cluster or "auto", cluster.needs(plan), tuple(options.imports))
    view = dataclasses.replace(plain, opening=lambda: _opening(run, plan, connection), report=report)

    def start(devices: int | None, listener: Listener | None, checkpoint_seconds: float) -> TrainingResult:
        del devices, checkpoint_seconds  # learners have devices of their own, and commit all the time
        if fresh:
            return cluster.train_on_cluster(run.experiment, run.path, plan, connection.launcher, listener)
        return cluster.resume_on_cluster(run, connection.launcher, listener)

    return (
        runs.resume_and_report(view, start, options)
        if isinstance(options, ResumeOptions)
        else runs.run_and_report(view, start, options)
    )


def _warn(out: Console, run: RunFolder) -> None:
    """Tells of workers that had to be begun anew: a world that fails now and then is to be known."""
    status = read_status(run.path)
    events = [event for event in status["events"] if event["what"] not in ("added", "removed")]
    times = sum(status["restarts"].values())
    if times and events:
        last = f"{events[-1]['worker']}: {events[-1]['what']}"
        more = f"`{shell_command('cluster', 'status', display_path(run.path))}` shows more"
        say(out, f"workers were begun anew {pluralise(times, 'time')}, last {last}; {more}", style="yellow")


def _opening(run: RunFolder, plan: ClusterPlan, connection: ClusterConnection) -> tuple[str, str]:
    where = display_path(run.path)
    see = shell_command("cluster", "status", where)
    return describe_experiment(
        run.experiment
    ), f"run folder: {where}; {connection}, {describe_plan(plan)}; `{see}` shows how it goes"


def _run_view(run: RunFolder, options: TrainOptions | ResumeOptions) -> runs.RunView:
    experiment = run.experiment
    each = experiment.num_envs * experiment.num_steps

    def opening() -> tuple[str, str]:
        used = mesh_of(experiment, devices_of(run, options.devices)).size
        return describe_experiment(
            experiment
        ), f"run folder: {display_path(run.path)}; compiling for {used} device{'s' * (used > 1)} ..."

    def report(out: Console, result: TrainingResult) -> None:
        runs.say_speed(out, result.update * each * experiment.num_seeds, result)
        runs.say_returns(out, run, result)

    def told(result: TrainingResult) -> dict[str, Any]:
        return runs.summary_of(run, result) | {"updates": result.update, "env_steps": result.update * each}

    further = _further(run, imports_of(experiment, options.imports))
    trainings = experiment.num_seeds
    return runs.RunView(run, opening, report, told, experiment.num_updates, further=further, trainings=trainings)


def _further(run: RunFolder, imports: Sequence[str]) -> tuple[str, str]:
    """How to train a finished run further."""
    files = [part for file in imports for part in ("--import", file)]
    total = ["--total-env-steps", str(2 * run.experiment.total_env_steps)]
    command = shlex.join(["shoal", "train", display_path(run.path), *files, *total])
    return "To train it further, give it a larger total:", f"  {command}"
