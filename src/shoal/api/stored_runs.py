"""The calls of `shoal` about runs that are there already: load one, go on with one, evaluate one."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.api.changes import as_whole, take
from shoal.api.population import Population
from shoal.api.run import Policy, Run, read_lines, weights_of
from shoal.api.targets import Changes, Target, check_known, is_run, make_experiment, open_known, open_to_resume
from shoal.api.words import names_arguments
from shoal.api.work import Work, give_result
from shoal.core.errors import OptionError, require, unknown_name
from shoal.core.types import PyTree
from shoal.populations.population import load as load_population
from shoal.populations.population import open_population, oracle_of
from shoal.populations.psro import finished
from shoal.training import run_kinds, runner
from shoal.training.checkpoint import steps as checkpoint_steps
from shoal.training.devices import prepare_jax
from shoal.training.evaluate import Evaluation, Evaluator
from shoal.training.experiment import Setup
from shoal.training.host_stages import TIMEOUT
from shoal.training.mirror import is_url, locate_run, mirroring
from shoal.training.run import load_policies


@names_arguments
def load(path: str | Path, checkpoint: str | int | None = None) -> Run | Population:
    """A run by its folder; of a population, the `Population`.

    path: also the URL of a run that is mirrored, which is fetched to `runs/`. checkpoint: "best" in evaluation, or the
    one of that update; by default the newest.
    """
    prepare_jax()
    require(isinstance(path, str | Path), "shoal.load", "path", path, "the folder of a run")
    path = locate_run(path)
    if run_kinds.kind_of(path) == run_kinds.PSRO:
        require(checkpoint is None, "shoal.load", "checkpoint", checkpoint, "left out: a population keeps its newest")
        config = open_population(path)
        check_known(path, config.experiment)
        state = load_population(path, config, oracle_of(config))
        return Population(config, state, path, not finished(state.history, config.psro))
    opened = open_known(path)
    _, policies, meta = load_policies(path, None, checkpoint)
    stopped = meta["update"] < opened.experiment.num_updates
    lines, standing = read_lines(path), meta.get(run_kinds.PBT, {})
    return Run(opened.experiment, policies, meta["update"], lines, meta["seconds"], 0.0, stopped, path, standing)


@names_arguments
def resume(
    run: str | Path | Run | Population,
    total_env_steps: float | None = None,
    iterations: int | None = None,
    **options: Any,
) -> Any:
    """Goes on with a run that was stopped, to the same bits as if it had not been; gives what made it gave.

    total_env_steps: a larger total than before, to train a run further, also one that is finished; iterations: the same
    of a population. loggers: by default those that it had by name. Other options: devices, cluster, hosts, callbacks,
    progress, listener, checkpoint_seconds, checkpoint_every, env_workers, env_timeout, scenes, mirror.
    """
    prepare_jax()
    kinds = "a run, a population, or the folder of one"
    require(isinstance(run, str | Path | Run | Population), "shoal.resume", "run", run, kinds)
    path = run if isinstance(run, str | Path) else run.path
    if path is None:
        raise OptionError("shoal.resume: this run is in memory alone. Train it with a run_dir to go on with it later.")
    path = locate_run(path)
    work = Work(**take(Work, options, leave=("run_dir",)))
    for name in options:
        known = [field.name for field in dataclasses.fields(Work) if field.name != "run_dir"]
        known += ["total_env_steps", "iterations"]
        raise OptionError(f"shoal.resume: {unknown_name('option', name, known)}")
    longer = {"total_env_steps": as_whole(int, total_env_steps), "iterations": as_whole(int, iterations)}
    opened = open_to_resume(path, **longer)
    if isinstance(run, Run) and run.update != max(checkpoint_steps(opened.checkpoints), default=run.update):
        raise OptionError(
            f"shoal.resume: this run was loaded as it was after {run.update} updates, but a run goes on from its "
            f"newest checkpoint. To do that, give its folder: shoal.resume({str(path)!r})."
        )
    kept = None if work.hosts and not work.hosts.leads else path
    with mirroring(path, work.mirror if kept else None, resumed=True):
        with work.told(opened.config, fresh=False) as told:
            result = runner.resume(path, on=work.on(opened.config, path), **longer, **told)
        return give_result(opened.config, result, kept)


@names_arguments
def evaluate(
    what: Run | Setup | Target,
    policies: Mapping[str, PyTree | Policy | Run] | None = None,
    episodes: int = 1024,
    seed: int = 0,
    explore: bool = False,
    *,
    checkpoint: str | int | None = None,
    opponents: Mapping[str, str | Path | Run | Policy] | None = None,
    env_workers: int = 0,
    env_timeout: float = TIMEOUT,
) -> Evaluation:
    """Mean returns of many episodes: `shoal.evaluate("runs/x", episodes=1000)`.

    what: a run or its folder, with the policies it has, of all seeds, or others; or whatever `train` takes, with
    `policies` by name, as weights, policies or runs: those left out play at random. checkpoint: of a folder; see
    `load`. opponents: as in `Run.evaluate`.
    """
    prepare_jax()
    episodes, stepping = as_whole(int, episodes), {"env_workers": env_workers, "env_timeout": env_timeout}
    if isinstance(what, str | Path) and (is_url(what) or is_run(what)):
        what, checkpoint = _load_run(what, "shoal.evaluate", checkpoint), None
    if isinstance(what, Run):
        allowed = "left out for a run that is loaded already: see shoal.load(path, checkpoint=...)"
        require(checkpoint is None, "shoal.evaluate", "checkpoint", checkpoint, allowed)
        given = weights_of(policies, what.experiment.setup, "shoal.evaluate")
        run = what if given is None else dataclasses.replace(what, policies=given)
        return run.evaluate(episodes, seed, explore, opponents, **stepping)
    if opponents or checkpoint is not None:
        raise OptionError("shoal.evaluate: opponents and checkpoint are for runs; give the policies of an experiment")
    setup = what if isinstance(what, Setup) else make_experiment(what, Changes(), "shoal.evaluate").setup
    return Evaluator(setup, episodes, seed, explore, **stepping)(weights_of(policies, setup, "shoal.evaluate"))


def _load_run(path: str | Path, owner: str, checkpoint: str | int | None = None) -> Run:
    found = load(path, checkpoint)
    if not isinstance(found, Run):
        raise OptionError(f"{owner}: {path} is a population, whose policies are not played as those of one run")
    return found
