"""`shoal train TARGET`, and how a run of it is resumed."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from shoal.api.settings import settings_toml
from shoal.api.targets import check_world
from shoal.cli import run_results, runs, stored_runs
from shoal.cli.arguments import scan
from shoal.cli.commands.cluster import describe_plan
from shoal.cli.run_options import ResumeOptions, TrainOptions
from shoal.cli.runs import PolicyRunView, describe_experiment
from shoal.cli.targets import parse_target
from shoal.cli.terminal import console, display_path, emit, format_size, pluralise, say
from shoal.cluster.advice import read_status
from shoal.cluster.run import Cluster
from shoal.core.errors import shell_command
from shoal.presets import names
from shoal.training.devices import prepare_jax
from shoal.training.experiment import Experiment
from shoal.training.hosts import HostedProgram, bytes_per_update
from shoal.training.loop import TrainingResult
from shoal.training.memory import checkpoint_bytes, memory_needed
from shoal.training.run import RunFolder, weights_sha256
from shoal.training.run_kinds import TRAINING
from shoal.training.runner import Local

LARGE_CHECKPOINT = 20e6
"""Bytes of a checkpoint that are worth a word."""
FURTHER = {
    "--total-env-steps",
    "--import",
    "--json",
    "--devices",
    "--checkpoint-minutes",
    "--checkpoint-every",
    "--scenes",
    "--mirror",
    "--log",
    "--hosts",
    "--host-index",
    "--coordinator",
}
"""Options of `shoal train RUN` that leave a run as it is, but for how long it is."""


def train(args: Sequence[str]) -> int:
    """Trains a world or a preset in a new run folder; `train RUN --total-env-steps MORE` trains a run further."""
    prepare_jax()
    if _trains_further(args):
        return stored_runs.resume(args, "shoal train")
    experiment, options, _ = parse_target(TrainOptions, args, "shoal train")
    runs.check_options(options, "shoal train")
    on = runs.place_of(experiment, options, "shoal train")
    folder = runs.new_folder(options, experiment)
    check_world(experiment)
    if options.dry_run:
        return _dry_run(experiment, on, folder, options, args)
    if hosts := runs.following(on):
        return runs.follow_and_report(RunFolder(folder, experiment), on, hosts, options)
    if runs.names_run(args, TRAINING):
        more = "To train that run further instead, --total-env-steps must be the only other option."
        say(console(options.json), f"a new run with the options of a run, from its start. {more}", style="yellow")
    ready = on.prepare(experiment)
    size = checkpoint_bytes(ready.program) if isinstance(ready, Local) else None
    for line in (*_about_seed(experiment, args), *_about_checkpoints(experiment, size)):
        say(console(options.json), line)
    return runs.run_and_report(TrainingView(RunFolder(folder, experiment), ready, options))


def _dry_run(
    experiment: Experiment, on: Local | Cluster, folder: Path, options: TrainOptions, args: Sequence[str]
) -> int:
    """Says what would be trained, as settings that can be trained. Nothing is compiled, and nothing is written."""
    ready = on.prepare(experiment) if isinstance(on, Local) else on.with_plan(experiment)
    needs = memory_needed(ready.program) if isinstance(ready, Local) and ready.program else None
    size = checkpoint_bytes(ready.program) if isinstance(ready, Local) and ready.program else None
    devices = ready.program.num_devices if isinstance(ready, Local) and ready.program else None
    if options.json:
        emit(
            {
                "experiment": experiment.to_dict(),
                "updates": experiment.num_updates,
                "env_steps": experiment.num_updates * experiment.num_envs * experiment.num_steps,
                "devices": devices,
                "memory_bytes": needs,
                "checkpoint_bytes": size,
                "run_dir": str(folder),
            }
        )
        return 0
    each, updates = experiment.num_envs * experiment.num_steps, pluralise(experiment.num_updates, "update")
    told = [
        describe_experiment(experiment),
        f"{updates} of {each:,} env steps, {experiment.num_updates * each:,} in all",
        *_about_seed(experiment, args),
    ]
    if isinstance(ready, Cluster):
        assert ready.plan is not None
        told.append(f"on a cluster, {describe_plan(ready.plan)}")
    elif needs is not None:
        told.append(f"memory: about {format_size(needs)} on {pluralise(devices or 1, 'device')}")
    else:
        told.append("memory: that of its environments, which run on the host, cannot be told beforehand")
    told += _about_checkpoints(experiment, size)
    told.append(f"run folder: {display_path(folder)}. This was a dry run: nothing is trained, nothing is written.")
    sys.stdout.write(settings_toml(experiment, told))
    return 0


def _about_checkpoints(experiment: Experiment, size: int | None) -> list[str]:
    """How much room checkpoints take, if that is much, as it is with replays."""
    if size is None or size < LARGE_CHECKPOINT:
        return []
    if any(learner.algorithm.traits.replay for learner in experiment.learners.values()):
        return [f"the newest checkpoint: about {format_size(size)} with its replay, which older ones and the best lose"]
    kept = experiment.keep_checkpoints
    less = "; --keep-checkpoints 1 keeps the newest alone" if kept > 1 else ""
    return [f"checkpoints: about {format_size(size)} each, {kept} are kept{less}"]


def _about_seed(experiment: Experiment, args: Sequence[str]) -> list[str]:
    """Where a seed comes from that nobody typed."""
    if not experiment.seed or scan(args, "--seed") or not any(word in names() for word in args):
        return []
    return [f"seed {experiment.seed} is the preset's own: --seed N takes another"]


def _trains_further(args: Sequence[str]) -> bool:
    """Whether a run is to go on in its own folder: all that is said of it is a total of env steps."""
    asked = bool(scan(args, "--total-env-steps"))
    others = {word.partition("=")[0] for word in args if word.startswith("--")} - FURTHER
    return asked and not others and runs.names_run(args, TRAINING)


def resume_run(run: RunFolder, options: ResumeOptions) -> int:
    """Continues a run from its newest checkpoint."""
    check_world(run.experiment)
    return stored_runs.resume_and_report(TrainingView, run, options)


def _warn(out: Console, run: RunFolder) -> None:
    """Reports workers that had to be restarted: users should know of a world that fails now and then."""
    status = read_status(run.path)
    events = [event for event in status["events"] if event["what"] not in ("added", "removed")]
    times = sum(status["restarts"].values())
    if times and events:
        last = f"{events[-1]['worker']}: {events[-1]['what']}"
        more = f"`{shell_command('cluster', 'status', display_path(run.path))}` shows more"
        say(out, f"workers were restarted {pluralise(times, 'time')}, last {last}; {more}", style="yellow")


class TrainingView(PolicyRunView[Experiment]):
    """How a training is reported."""

    def opening(self) -> tuple[str, str]:
        run, where = self.run, display_path(self.run.path)
        if isinstance(self.on, Local):
            assert self.on.program is not None
            used = pluralise(self.on.program.num_devices, "device")
            if self.on.hosts:
                used += f" of {self.on.hosts.count} hosts"
            return describe_experiment(run.experiment), f"run folder: {where}; compiling for {used} ..."
        assert self.on.plan is not None
        see = shell_command("cluster", "status", where)
        told = f"run folder: {where}; {self.next}, {describe_plan(self.on.plan)}; `{see}` shows how it goes"
        return describe_experiment(run.experiment), told

    @property
    def _each(self) -> int:
        """Env steps of an update."""
        return self.run.experiment.num_envs * self.run.experiment.num_steps

    def report(self, out: Console, result: TrainingResult) -> None:
        run_results.say_speed(out, result.update * self._each, result, self.plan.trainings)
        run_results.say_returns(out, self.run, result)
        if isinstance(self.on, Cluster):
            _warn(out, self.run)

    def summary(self, result: TrainingResult) -> dict[str, Any]:
        told = run_results.summary_of(self.run, result) | {
            "updates": result.update,
            "env_steps": result.update * self._each,
        }
        if isinstance(self.on, Local) and isinstance(self.on.program, HostedProgram):
            told |= {"hosts": self.on.program.num_hosts, "weights_sha256": weights_sha256(result.policies)}
            told |= {"bytes_per_update": bytes_per_update(self.on.program)}
        return told

    @property
    def further(self) -> tuple[str, str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """How to train a finished run further."""
        total = ["--total-env-steps", str(2 * self.run.experiment.total_env_steps)]
        files = [part for file in self.hints.imports for part in ("--import", file)]
        command = shlex.join(["shoal", "train", display_path(self.run.path), *files, *total])
        return "To train it further, give it a larger total:", f"  {command}"
