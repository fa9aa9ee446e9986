"""`shoal evolve TARGET --strategy NAME`: a population of policies, bred by returns. `shoal evolve RUN` goes on."""

import dataclasses
import json
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, ClassVar

from rich.console import Console
from tyro.conf import UseAppendAction, arg

from shoal.api.calls import OFF_POLICY, shrink_networks
from shoal.api.progress import summary
from shoal.api.worlds import check_world
from shoal.cli import runs
from shoal.cli.arguments import Flag, comments, scan
from shoal.cli.runs import ResumeOptions, TrainOptions
from shoal.cli.start import opened, pairs, prepare
from shoal.cli.targets import parse_target
from shoal.cli.team import Hired, TeamOptions, hired, team_from, team_of
from shoal.cli.terminal import counted, placed, say, shown
from shoal.cluster.tasks import evolution as cluster
from shoal.core.errors import OptionError
from shoal.populations.evolution import run as evolver
from shoal.populations.evolution.program import Evolution, build
from shoal.populations.evolution.strategies import STRATEGIES, Evosax, Strategy
from shoal.training import checkpoint
from shoal.training.loop import Result
from shoal.training.run import Run, default_path
from shoal.training.run_kinds import EVOLUTION, check_new


@dataclasses.dataclass(frozen=True)
class EvolveOptions(TrainOptions, TeamOptions):
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
    folder = placed(options.run_dir) if options.run_dir else default_path(plan.experiment, by=by)
    check_new(folder)
    check_world(plan.played)
    others = hired(team_from(options, "shoal evolve"), options)
    account = _account(Run(folder, plan.played), plan, options.devices, others)
    start = others.by(partial(cluster.evolve, plan, folder)) if others else partial(evolver.evolve, plan, folder)
    return runs.carry_out(account, start, options)


def go_on(options: ResumeOptions) -> int:
    """Continues an evolution from its newest checkpoint."""
    opened(options.run)
    run, plan = evolver.open_evolution(placed(options.run))
    others = hired(team_of(run.path, options), options)
    start = others.by(partial(cluster.resume, run.path)) if others else partial(evolver.resume, run.path)
    return runs.go_on(_account(run, plan, options.devices, others), start, options)


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
        experiment if given else shrink_networks(experiment),
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
    given = pairs(options.option, "--option", "NAME=VALUE, such as std=0.1")
    return Evosax(name, {key: _value(key, text) for key, text in given.items()})


def _value(key: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise OptionError(f"--option {key}={text}: {text!r} is not a number") from None


def _account(run: Run, plan: Evolution, devices: int | None, others: Hired | None) -> runs.Account:
    def opening() -> tuple[str, str]:
        if others:
            cluster.check(plan)
        program = build(plan, devices, checkpoint.latest(run.checkpoints) is not None)
        who = f"{', '.join(program.evolving)} by {plan.strategy.name}, {program.genome.size:,} weights"
        size = f"{counted(plan.population, 'member')} x {counted(plan.episodes, 'episode')}"
        ages = counted(plan.generations, "generation")
        title = f"{plan.experiment.env}: {who}; {size}, {ages}; seed {plan.experiment.seed}"
        return title, f"run folder: {shown(run.path)}; {others or 'compiling ...'}"

    def report(out: Console, result: Result) -> None:
        last = runs.last_line(run)
        runs.say_speed(out, last.get("env_steps", 0), result)
        figures = [f"{name} {text}" for name, text in summary(last).items()]
        figures += [f"{name} {last[name]:.2f}" for name in ("fitness/best", "fitness/policy") if name in last]
        say(out, "last generation: " + " | ".join(figures))

    def told(result: Result) -> dict[str, Any]:
        last = runs.last_line(run)
        return runs.summary_of(run, result) | {
            "strategy": plan.strategy.name,
            "population": plan.population,
            "generations": result.update,
            "env_steps": last.get("env_steps", 0),
            "fitness": {name.removeprefix("fitness/"): last[name] for name in last if name.startswith("fitness/")},
        }

    return runs.Account(run, opening, report, told, plan.generations, "generations are bred")
