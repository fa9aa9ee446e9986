"""`shoal eval RUN`: the mean return of many episodes."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.table import Table
from tyro.conf import UseAppendAction, arg

from shoal.cli.arguments import Flag, Imports, RunFolder, parse
from shoal.cli.start import opened, pairs, prepare
from shoal.cli.terminal import console, count, emit, say
from shoal.cli.worlds import blame, import_files
from shoal.core.errors import OptionError, unknown_name
from shoal.core.host import StandIn
from shoal.core.regroup import original
from shoal.core.types import PyTree
from shoal.execution import evaluate, host
from shoal.execution.evaluate import Evaluation
from shoal.execution.experiment import Cast
from shoal.execution.run import Run, load_policies, weights_from, weights_sha256

Opponents = Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="POLICY=RUN")]

ALL = "all"
"""In results, the sum over all groups."""


@dataclasses.dataclass(frozen=True)
class EvalOptions:
    """Play episodes with the newest checkpoint of a run and report the mean return."""

    run: RunFolder  # folder of the run
    episodes: int = 1024  # episodes to play
    seed: int = 0  # of the episodes
    explore: Flag = False  # sample actions as in training, instead of taking the likeliest
    random: Flag = False  # play at random, for comparison
    opponent: Opponents = ()  # take a policy from another run, or let it play at random: POLICY=random
    imports: Imports = ()  # a Python file that registers worlds
    json: Flag = False  # one JSON object on stdout


def run(args: Sequence[str]) -> int:
    """Evaluates a run."""
    prepare()
    options = parse(EvalOptions, args, "shoal eval")
    import_files(options.imports)
    folder = opened(options.run)
    opponents = pairs(options.opponent, "--opponent", "POLICY=RUN, a policy's name and a run folder")
    if options.random and opponents:
        raise OptionError("--random plays everybody at random: leave out --opponent")
    with blame(folder.experiment.env, "evaluation"):
        trained = [_load(folder, index, opponents) for index in range(folder.experiment.num_seeds)]
        results = [
            player(roles).evaluate(
                roles, None if options.random else policies, options.episodes, options.seed, options.explore
            )
            for roles, policies, _ in trained
        ]
    result = _result(folder, options, trained, results)
    if options.json:
        emit(result)
    else:
        _show(folder, result)
    return 0


def player(roles: Cast) -> Any:
    """The module that plays these worlds: compiled, or on the host."""
    return host if isinstance(original(roles.env), StandIn) else evaluate


def _load(run: Run, index: int, opponents: dict[str, str]) -> tuple[Cast, dict[str, PyTree], dict[str, Any]]:
    """The policies of one of the seeds, some of them replaced by those of other runs."""
    roles, policies, meta = load_policies(run.path, index)
    for name, other in opponents.items():
        if name not in policies:
            raise OptionError(f"--opponent: {unknown_name('policy', name, policies)}")
        if other == "random":
            del policies[name]
            continue
        policies |= weights_from(str(Path(other)), {name: policies[name]})
    return roles, policies, meta


def _result(run: Run, options: EvalOptions, trained: list[Any], results: list[Evaluation]) -> dict[str, Any]:
    means = [_figures(evaluation, np.mean) for evaluation in results]
    errors = [_figures(evaluation, lambda x: np.std(x) / np.sqrt(len(x))) for evaluation in results]
    hashes = [weights_sha256(policies) for _, policies, _ in trained]
    meta = trained[0][2]
    return {
        "run_dir": str(run.path),
        "env": run.experiment.env,
        "mean_return": _by_seed(means),
        "standard_error": _by_seed(errors),
        "mean_length": _by_seed([{ALL: float(np.mean(evaluation.lengths))} for evaluation in results])[ALL],
        "episodes": results[0].episodes,
        "policy": "random" if options.random else "explore" if options.explore else "greedy",
        "updates": meta["update"],
        "env_steps": meta["env_steps"],
        "weights_sha256": hashes[0] if len(hashes) == 1 else hashes,
    }


def _figures(evaluation: Evaluation, reduce: Any) -> dict[str, float]:
    every = evaluation.returns | {ALL: np.sum(list(evaluation.returns.values()), axis=0)}
    return {name: float(reduce(values)) for name, values in every.items()}


def _by_seed(results: list[dict[str, float]]) -> dict[str, Any]:
    """Plain numbers for one seed, lists with one entry a seed for several."""
    if len(results) == 1:
        return dict(results[0])
    return {name: [result[name] for result in results] for name in results[0]}


def _show(run: Run, result: dict[str, Any]) -> None:
    out = console()
    table = Table(
        title=f"{run.experiment.env}, {result['episodes']:,} {result['policy']} episodes", title_justify="left"
    )
    table.add_column("group")
    table.add_column("mean return", justify="right")
    table.add_column("standard error", justify="right")
    for name, mean in result["mean_return"].items():
        table.add_row(name, _number(mean), _number(result["standard_error"][name]))
    out.print(table)
    say(out, f"episode length {_number(result['mean_length'])}")
    say(out, f"after {result['updates']:,} updates, {count(result['env_steps'])} env steps")
    hashes = result["weights_sha256"]
    for text in hashes if isinstance(hashes, list) else [hashes]:
        say(out, f"weights sha256 {text}")


def _number(value: float | list[float]) -> str:
    return "  ".join(f"{entry:.3f}" for entry in (value if isinstance(value, list) else [value]))
