"""`shoal evolve TARGET --strategy NAME`: a population of policies, bred by returns. `shoal evolve RUN` goes on."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from rich.console import Console
from tyro.conf import UseAppendAction, arg

from shoal.api.building import check_world
from shoal.api.calls import OFF_POLICY, shrink_networks
from shoal.api.progress import summary
from shoal.cli import runs
from shoal.cli.arguments import Flag, comments, scan
from shoal.cli.runs import ResumeOptions, RunView, TeamOptions, TrainOptions
from shoal.cli.start import parse_pairs, prepare
from shoal.cli.targets import parse_target
from shoal.cli.terminal import display_path, pluralise, resolve_path, say
from shoal.core.errors import OptionError
from shoal.populations.evolution.plan import Evolution
from shoal.populations.evolution.program import EvolutionProgram
from shoal.populations.evolution.strategies import STRATEGIES, Evosax, Strategy
from shoal.training.loop import TrainingResult
from shoal.training.run import RunFolder, default_path
from shoal.training.run_kinds import EVOLUTION, check_new
from shoal.training.runner import Local


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
    folder = resolve_path(options.run_dir) if options.run_dir else default_path(plan.experiment, by=by)
    check_new(folder)
    check_world(plan.played)
    on = runs.place_from(options, "shoal evolve")
    return runs.run_and_report(EvolutionView(RunFolder(folder, plan), on, options))


def resume_run(run: RunFolder, options: ResumeOptions) -> int:
    """Continues an evolution from its newest checkpoint."""
    return runs.resume_and_report(EvolutionView(run, runs.place_of(run, options), options, fresh=False))


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
    given = parse_pairs(options.option, "--option", "NAME=VALUE, such as std=0.1")
    return Evosax(name, {key: _value(key, text) for key, text in given.items()})


def _value(key: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise OptionError(f"--option {key}={text}: {text!r} is not a number") from None


class EvolutionView(RunView):
    """What is told of an evolution."""

    done: ClassVar[str] = "generations are bred"

    @property
    def plan(self) -> Evolution:
        assert isinstance(self.run.config, Evolution)
        return self.run.config

    def opening(self) -> tuple[str, str]:
        plan = self.plan
        program = self.on.program if isinstance(self.on, Local) else plan.program(1)
        assert isinstance(program, EvolutionProgram)
        who = f"{', '.join(program.evolving)} by {plan.strategy.name}, {program.genome.size:,} weights"
        size = f"{pluralise(plan.population, 'member')} x {pluralise(plan.episodes, 'episode')}"
        ages = pluralise(plan.generations, "generation")
        title = f"{plan.experiment.env}: {who}; {size}, {ages}; seed {plan.experiment.seed}"
        return title, f"run folder: {display_path(self.run.path)}; {self.next}"

    def report(self, out: Console, result: TrainingResult) -> None:
        last = runs.last_line(self.run)
        runs.say_speed(out, last.get("env_steps", 0), result)
        figures = [f"{name} {text}" for name, text in summary(last).items()]
        figures += [f"{name} {last[name]:.2f}" for name in ("fitness/best", "fitness/policy") if name in last]
        say(out, "last generation: " + " | ".join(figures))

    def summary(self, result: TrainingResult) -> dict[str, Any]:
        last = runs.last_line(self.run)
        return runs.summary_of(self.run, result) | {
            "strategy": self.plan.strategy.name,
            "population": self.plan.population,
            "generations": result.update,
            "env_steps": last.get("env_steps", 0),
            "fitness": {name.removeprefix("fitness/"): last[name] for name in last if name.startswith("fitness/")},
        }
