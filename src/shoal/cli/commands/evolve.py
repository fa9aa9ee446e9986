"""`shoal evolve TARGET --strategy NAME`: a population of policies, bred by returns. `shoal evolve RUN` goes on."""

import dataclasses
import json
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

from rich.console import Console
from tyro.conf import UseAppendAction, arg

from shoal.cli import runs
from shoal.cli.arguments import Flag, comments, scan
from shoal.cli.building import check_world
from shoal.cli.progress import summary
from shoal.cli.runs import ResumeOptions, TrainOptions
from shoal.cli.start import open_known_run, parse_pairs, prepare
from shoal.cli.targets import parse_target
from shoal.cli.terminal import display_path, pluralise, resolve_path, say
from shoal.cli.worker_pool import PoolConnection, PoolOptions, connect_pool, pool_from_options, pool_of_run
from shoal.cluster.tasks import evolution as cluster
from shoal.core.errors import OptionError
from shoal.populations.evolution import run as evolver
from shoal.populations.evolution.program import Evolution, make_evolution_program
from shoal.populations.evolution.strategies import STRATEGIES, Evosax, Strategy
from shoal.training import checkpoint
from shoal.training.experiment import Experiment, Learner
from shoal.training.loop import TrainingResult
from shoal.training.run import RunFolder, default_path
from shoal.training.run_kinds import EVOLUTION, check_new

OFF_POLICY = "ddpg"
"""The learner that ERL has if none is named."""
HIDDEN = (16,)
"""Widths of the layers if none are given: every member has weights of its own, and few are found sooner than many."""


@dataclasses.dataclass(frozen=True)
class EvolveOptions(TrainOptions, PoolOptions):
    """Options of `shoal evolve` itself."""

    # Options of training that mean nothing here.
    unused: ClassVar[tuple[str, ...]] = ("num_envs", "num_steps", "total_env_steps", "num_seeds")

    strategy: Annotated[str, arg(metavar="NAME")] = "open_es"  # open_es, ars, ga, erl, or any strategy of evosax
    population: int = 4096  # members of a generation
    generations: int = 100  # generations that are bred
    episodes: int = 1  # episodes that each member plays in each generation
    evolve: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="POLICY")] = ()
    """a policy that evolves, while the others play at random; by default all evolve"""
    own_starts: Flag = False  # members draw their own start states, instead of all meeting the same
    raw_views: Flag = False  # views are not normalised by running statistics
    max_steps: int = 10_000  # episodes are cut off after so many steps


def run(args: Sequence[str]) -> int:
    """Evolves the policies of a world or a preset in a new run folder, or goes on with a run."""
    prepare()
    if runs.names_run(args, EVOLUTION):
        return runs.resume(args, "shoal evolve")
    plan, options = parse_plan(args)
    runs.check_options(options, "shoal evolve")
    by = plan.strategy.name.replace(":", "-")
    folder = resolve_path(options.run_dir) if options.run_dir else default_path(plan.experiment, by=by)
    check_new(folder)
    check_world(plan.played)
    others = connect_pool(pool_from_options(options, "shoal evolve"), options)
    view = _run_view(RunFolder(folder, plan.played), plan, options.devices, others)
    start = (
        others.by(partial(cluster.evolve_on_cluster, plan, folder)) if others else partial(evolver.evolve, plan, folder)
    )
    return runs.run_and_report(view, start, options)


def resume_run(options: ResumeOptions) -> int:
    """Continues an evolution from its newest checkpoint."""
    open_known_run(options.run)
    run, plan = evolver.open_evolution(resolve_path(options.run))
    others = connect_pool(pool_of_run(run.path, options), options)
    start = (
        others.by(partial(cluster.resume_evolution_on_cluster, run.path))
        if others
        else partial(evolver.resume_evolution, run.path)
    )
    return runs.resume_and_report(_run_view(run, plan, options.devices, others), start, options)


def parse_plan(args: Sequence[str]) -> tuple[Evolution, Any]:
    """The plan of an evolution, and the command's options. Those of the strategy follow from its name."""
    names = scan(args, "--strategy")
    name = names[-1] if names else EvolveOptions.strategy
    for option in (f"--{field.replace('_', '-')}" for field in EvolveOptions.unused):
        if scan(args, option):
            raise OptionError(
                f"shoal evolve has no {option}: the copies of the world are --population times --episodes, and a run "
                "lasts for --generations"
            )
    if name == "erl" and not scan(args, "--algo"):
        args = [*args, "--algo", OFF_POLICY]
    experiment, options = parse_target(_options_class(name), args, "shoal evolve")
    given = name == "erl" or any("network.hidden" in argument for argument in args)
    plan = Evolution(
        experiment if given else _with_small_networks(experiment),
        _strategy(name, options),
        population=options.population,
        generations=options.generations,
        episodes=options.episodes,
        evolve=options.evolve,
        common_starts=not options.own_starts,
        normalise_views=not options.raw_views,
        max_steps=options.max_steps,
    )
    return plan, options


def _with_small_networks(experiment: Experiment) -> Experiment:
    """The experiment with small networks for those who evolve from scratch."""

    def changed(learner: Learner) -> Learner:
        algorithm: Any = learner.algorithm
        if learner.frozen or learner.weights or not hasattr(algorithm, "network"):
            return learner
        network = dataclasses.replace(algorithm.network, hidden=HIDDEN)
        return dataclasses.replace(learner, algorithm=dataclasses.replace(algorithm, network=network))

    learners = {name: changed(learner) for name, learner in experiment.learners.items()}
    return dataclasses.replace(experiment, learners=learners)


def _options_class(name: str) -> type:
    """The options of the command and of the strategy of that name, in one dataclass."""
    if name in STRATEGIES:
        cls = STRATEGIES[name]
        kind = Annotated[cls, arg(help="Options of the strategy.")]
        fields: list[Any] = [("search", kind, cls())]
    else:
        Evosax(name)  # is there one?
        kind = Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="NAME=VALUE")]
        fields = [
            ("option", kind, _field((), "a parameter of the strategy, by evosax's name, or learning_rate or std"))
        ]
    # Declared once more, as what the source says of them is not looked for in the classes below.
    known, said = {field.name: field for field in dataclasses.fields(EvolveOptions)}, comments(EvolveOptions)
    own = [(name, known[name].type, _field(known[name].default, help)) for name, help in said.items()]
    return dataclasses.make_dataclass("EvolveOptions", [*own, *fields], bases=(EvolveOptions,), frozen=True)


def _field(default: Any, help: str) -> Any:
    return dataclasses.field(default=default, metadata={"help": help})


def _strategy(name: str, options: Any) -> Strategy:
    if name in STRATEGIES:
        return options.search
    given = parse_pairs(options.option, "--option", "NAME=VALUE, such as std=0.1")
    return Evosax(name, {key: _value(key, text) for key, text in given.items()})


def _value(key: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise OptionError(f"--option {key}={text}: {text!r} is not a number") from None


def _run_view(run: RunFolder, plan: Evolution, devices: int | None, others: PoolConnection | None) -> runs.RunView:
    def opening() -> tuple[str, str]:
        if others:
            cluster.check(plan)
        program = make_evolution_program(plan, devices, checkpoint.latest(run.checkpoints) is not None)
        who = f"{', '.join(program.evolving)} by {plan.strategy.name}, {program.genome.size:,} weights"
        size = f"{pluralise(plan.population, 'member')} x {pluralise(plan.episodes, 'episode')}"
        ages = pluralise(plan.generations, "generation")
        title = f"{plan.experiment.env}: {who}; {size}, {ages}; seed {plan.experiment.seed}"
        return title, f"run folder: {display_path(run.path)}; {others or 'compiling ...'}"

    def report(out: Console, result: TrainingResult) -> None:
        last = runs.last_line(run)
        runs.say_speed(out, last.get("env_steps", 0), result)
        figures = [f"{name} {text}" for name, text in summary(last).items()]
        figures += [f"{name} {last[name]:.2f}" for name in ("fitness/best", "fitness/policy") if name in last]
        say(out, "last generation: " + " | ".join(figures))

    def told(result: TrainingResult) -> dict[str, Any]:
        last = runs.last_line(run)
        return runs.summary_of(run, result) | {
            "strategy": plan.strategy.name,
            "population": plan.population,
            "generations": result.update,
            "env_steps": last.get("env_steps", 0),
            "fitness": {name.removeprefix("fitness/"): last[name] for name in last if name.startswith("fitness/")},
        }

    return runs.RunView(run, opening, report, told, plan.generations, "generations are bred")
