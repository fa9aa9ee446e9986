"""`shoal eval RUN`: the mean return of many episodes."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from rich.table import Table
from tyro.conf import UseAppendAction, arg

from shoal.api.seats import RANDOM, seat_policies
from shoal.api.targets import attributed_to, find_experiment
from shoal.cli.arguments import Checkpoint, Flag, parse_pairs
from shoal.cli.run_options import SteppingOptions, StoredRunOptions
from shoal.cli.runs import stepping_options
from shoal.cli.stored_runs import open_stored, parse_stored
from shoal.cli.terminal import console, emit, format_count, resolve_path, say
from shoal.core.errors import OptionError, shell_command
from shoal.core.types import PyTree
from shoal.presets import targets
from shoal.training.evaluate import Evaluation, evaluate
from shoal.training.experiment import Setup
from shoal.training.run import RunFolder, load_policies, weights_sha256

Opponents = Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="WHO=RUN")]

ALL = "all"
"""In results, the sum over all groups."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalOptions(StoredRunOptions, SteppingOptions):
    """Play episodes with the newest checkpoint of a run, or another, and report the mean return."""

    episodes: int = 1024  # episodes to play
    seed: int = 0  # seed of the episodes
    explore: Flag = False  # sample actions as in training, instead of taking the likeliest
    checkpoint: Checkpoint = None  # of which update, or the best in evaluation; by default the newest
    random: Flag = False  # play at random, for comparison; RUN may be a world or a preset then
    opponent: Opponents = ()
    """who plays otherwise, a policy, a player or seats such as agent[1]: as in another run, or at random: WHO=random"""


def run(args: Sequence[str]) -> int:
    """Evaluates a run."""
    options = parse_stored(EvalOptions, args, "shoal eval")
    if options.run in targets() and not resolve_path(options.run).exists():
        return _play_at_random(options)
    folder = open_stored(options.run, "shoal eval")
    opponents = parse_opponents(options.opponent)
    for option in [name for name, typed in (("opponent", opponents), ("explore", options.explore)) if typed]:
        if options.random:
            raise OptionError(f"--random plays everybody at random: leave out --{option}")
    stepping = stepping_options(options)
    with attributed_to(folder.experiment.env, "evaluation"):
        seeds = range(folder.experiment.num_seeds)
        trained = [load_with(folder, index, opponents, options.checkpoint) for index in seeds]
        results = [
            evaluate(
                setup, None if options.random else policies, options.episodes, options.seed, options.explore, **stepping
            )
            for setup, policies, _ in trained
        ]
    result = _result(folder, options, trained, results)
    if options.json:
        emit(result)
    else:
        _show(folder.experiment.env, result)
    return 0


def _play_at_random(options: EvalOptions) -> int:
    """What random play earns in a world or a preset: there is no run to evaluate."""
    if not options.random:
        hint = f"`{shell_command('eval', options.run, '--random')}` plays at random in it"
        raise OptionError(f"{options.run} is a world or a preset, and eval is for runs; {hint}")
    for name in ("opponent", "explore", "checkpoint"):
        if vars(options)[name]:
            raise OptionError(f"--random plays everybody at random: leave out --{name}")
    experiment = find_experiment(options.run)
    with attributed_to(experiment.env, "evaluation"):
        played = evaluate(experiment.setup, None, options.episodes, options.seed, **stepping_options(options))
    result = {"env": experiment.env} | _played(options, [played])
    if options.json:
        emit(result)
    else:
        _show(experiment.env, result)
    return 0


def parse_opponents(texts: Sequence[str]) -> dict[str, str]:
    """Who plays otherwise, and the run folder that says how."""
    return parse_pairs(texts, "--opponent", "WHO=RUN, a policy, a player or seats, and a run folder")


def load_with(
    run: RunFolder, index: int, opponents: dict[str, str], checkpoint: str | None = None
) -> tuple[Setup, dict[str, PyTree], dict[str, Any]]:
    """The policies of one of the seeds, some of them, or some of their seats, given to others."""
    setup, trained, meta = load_policies(run.path, index, checkpoint)
    return *seat_policies(setup, trained, opponents, "--opponent"), meta


def _result(run: RunFolder, options: EvalOptions, trained: list[Any], results: list[Evaluation]) -> dict[str, Any]:
    hashes = [weights_sha256(policies) for _, policies, _ in trained if policies and not options.random]
    weights = {"weights_sha256": hashes[0] if len(hashes) == 1 else hashes} if hashes else {}  # of those who played
    meta = trained[0][2]
    return {
        "run_dir": str(run.path),
        "env": run.experiment.env,
        **_played(options, results),
        "updates": meta["update"],
        "env_steps": meta["env_steps"],
    } | weights


def _played(options: EvalOptions, results: list[Evaluation]) -> dict[str, Any]:
    means = [_figures(evaluation, np.mean) for evaluation in results]
    errors = [_figures(evaluation, lambda x: np.std(x) / np.sqrt(len(x))) for evaluation in results]
    return {
        "mean_return": _by_seed(means),
        "standard_error": _by_seed(errors),
        "mean_length": _by_seed([{ALL: float(np.mean(evaluation.lengths))} for evaluation in results])[ALL],
        "episodes": results[0].episodes,
        "policy": RANDOM if options.random else "explore" if options.explore else "greedy",
    }


def _figures(evaluation: Evaluation, reduce: Any) -> dict[str, float]:
    every = evaluation.returns | {ALL: np.sum(list(evaluation.returns.values()), axis=0)}
    return {name: float(reduce(values)) for name, values in every.items()}


def _by_seed(results: list[dict[str, float]]) -> dict[str, Any]:
    """Plain numbers for one seed, lists with one entry per seed for several."""
    if len(results) == 1:
        return dict(results[0])
    return {name: [result[name] for result in results] for name in results[0]}


def _show(env: str, result: dict[str, Any]) -> None:
    out = console()
    table = Table(title=f"{env}, {result['episodes']:,} {result['policy']} episodes", title_justify="left")
    table.add_column("group")
    table.add_column("mean return", justify="right")
    table.add_column("standard error", justify="right")
    for name, mean in result["mean_return"].items():
        table.add_row(name, _number(mean), _number(result["standard_error"][name]))
    out.print(table)
    say(out, f"episode length {_number(result['mean_length'])}")
    if "updates" in result:
        say(out, f"after {result['updates']:,} updates, {format_count(result['env_steps'])} env steps")
    hashes = result.get("weights_sha256", [])
    for text in hashes if isinstance(hashes, list) else [hashes]:
        say(out, f"weights sha256 {text}")


def _number(value: float | list[float]) -> str:
    return "  ".join(f"{entry:.3f}" for entry in (value if isinstance(value, list) else [value]))
